"""What the n-gram strategies share: sizes, a bounded table that forgets the keys not met for longest, comparing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from operator import eq
from typing import Any, Generic, TypeVar

from typing_extensions import override

from specframe.core.strategy import Strategy, StrategyContext

V = TypeVar("V")

#: Longest key and continuation an option may ask for.
MAX_N = 1024
MAX_M = 1024
MAX_ENTRIES = 1024


def n_common(one: Sequence[int], other: Sequence[int]) -> int:
    """Leading tokens that two texts have in common."""
    return sum(takewhile(bool, map(eq, one, other)))


class NgramStrategy(Strategy):
    """Keys of ``n`` tokens, drafts of at most ``m``; options with these names and ``min_hits``."""

    continues = True
    max_keys = 1 << 17
    """Keys remembered per request."""

    def __init__(self, options: Any, context: StrategyContext) -> None:
        super().__init__(options, context)
        self._n: int = options.n
        # A row of the batch is taken by the committed token before the draft.
        self._m: int = max(1, min(options.m, context.target.n_batch - 1))
        self._min_hits: int = options.min_hits
        self._next = 0
        """Start of the first key that is not in the table yet."""

    @property
    @override
    def max_draft(self) -> int:
        return self._m


class Generations(Generic[V]):
    """A dict of at most ``limit`` keys.

    New and met keys live in a young generation. When it holds half of ``limit`` it becomes the old one, and what is
    left of the previous old one, keys not met since, is dropped as a whole: eviction costs nothing per key, and any key
    met within the last ``limit // 2`` different ones is still there.
    """

    __slots__ = ("_half", "_old", "_young")

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._young: dict[int, V] = {}
        self._old: dict[int, V] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, key: int) -> V | None:
        """The value of ``key``, which counts as met; None when it is not there."""
        value = self._young.get(key)
        if value is None and self._old and (value := self._old.pop(key, None)) is not None:
            self.put(key, value)
        return value

    def put(self, key: int, value: V) -> None:
        """Set the value of a key that :meth:`get` was just asked for."""
        self._young[key] = value
        if len(self._young) >= self._half:
            self._old, self._young = self._young, {}

    def discard(self, key: int) -> None:
        """Forget ``key`` if it is there."""
        self._young.pop(key, None)
        self._old.pop(key, None)
