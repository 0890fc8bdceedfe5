"""What owners of native objects have in common."""

from __future__ import annotations

import abc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from typing_extensions import Self


class Closable(abc.ABC):
    """Owner of a native object: its ``with`` block closes it. ``closed`` answers even when ``__init__`` failed."""

    @property
    @abc.abstractmethod
    def closed(self) -> bool:
        """Whether it was closed, or never opened."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release the native object; closing twice is allowed."""

    @contextmanager
    def _opening(self) -> Iterator[None]:
        """For the rest of a constructor: what is raised inside closes what is open already."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # A backstop only. Not at interpreter exit: the operating system frees better than a half dismantled Python, in
        # which a context may outlive the module it would need.
        if not sys.is_finalizing() and not self.closed:
            self.close()
