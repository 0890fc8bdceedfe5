"""The consumer's end of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType

from typing_extensions import Self

from specframe.core.request import Chunk, Completion, Request
from specframe.core.sequence import ActiveRequest


class Generation(Iterator[Chunk]):
    """Iterator over the output of one request; whoever waits for output drives the engine.

    Every chunk is committed before it is handed out, so stopping anywhere loses nothing. Errors of the request are
    raised here, where it is consumed. Use it as a context manager, or call :meth:`close`, to cancel what is not
    wanted any more.
    """

    def __init__(
        self,
        active: ActiveRequest,
        advance: Callable[[ActiveRequest, bool], None],
        cancel: Callable[[ActiveRequest], None],
    ) -> None:
        self._active = active
        self._advance = advance
        self._cancel = cancel

    @property
    def request(self) -> Request:
        """What was asked."""
        return self._active.request

    @property
    def done(self) -> bool:
        """True when the request is over, whether or not all of its output was taken."""
        return self._active.completion is not None

    def __next__(self) -> Chunk:
        active = self._active
        while True:
            over = active.completion is not None  # asked first: a step of another thread may deliver and end it now
            if active.chunks:
                return active.chunks.popleft()
            if over:
                break
            self._advance(active, False)
        if active.error is not None:
            raise active.error
        raise StopIteration

    def result(self) -> Completion:
        """Run to the end; returns everything, chunks taken before included. Raises what ended it abnormally."""
        active = self._active
        while active.completion is None:
            self._advance(active, True)
        if active.error is not None:
            raise active.error
        return active.completion

    def cancel(self) -> None:
        """End the request after the token that is being committed, if any; no effect when it is over."""
        self._cancel(self._active)

    close = cancel

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.cancel()

    def __del__(self) -> None:
        # Runs on any thread, even inside a step: leave a mark only, the engine acts on it.
        active = getattr(self, "_active", None)
        if active is not None and active.completion is None:
            active.cancelled = True
