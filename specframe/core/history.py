"""Committed tokens of one sequence, as strategies and criteria see them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import overload


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens ``a`` and ``b`` begin with in common."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # slices compare at C speed; bisecting finds the first difference
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class History(Sequence[int]):
    """Read-only, live view of a sequence's committed tokens (prompt and generated text).

    It always shows the current tokens and never copies them: taking the view is O(1) whatever the length of the
    context. Slicing returns a new list of exactly the tokens asked for.
    """

    __slots__ = ("_tokens",)

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._tokens: list[int] = list(tokens)

    @classmethod
    def view(cls, tokens: list[int]) -> History:
        """Wrap a list without copying it. The owner of the list goes on appending to it."""
        history = cls.__new__(cls)
        history._tokens = tokens  # noqa: SLF001 -- a second constructor
        return history

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        return self._tokens[index]

    def __len__(self) -> int:
        return len(self._tokens)

    def __repr__(self) -> str:
        return f"History({len(self._tokens)} tokens)"


class Overlay(History):
    """A history and tokens behind it that nobody committed. Good for one look: the next step may prove them wrong."""

    __slots__ = ("_ahead", "_history")

    def __init__(self, history: History, ahead: Sequence[int]) -> None:
        self._history = history
        self._ahead = ahead

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        n = len(self._history)
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return [self[i] for i in range(start, stop, step)]
            return [*self._history[start : min(stop, n)], *self._ahead[max(0, start - n) : max(0, stop - n)]]
        at = range(len(self))[index]
        return self._history[at] if at < n else self._ahead[at - n]

    def __len__(self) -> int:
        return len(self._history) + len(self._ahead)

    def __repr__(self) -> str:
        return f"Overlay({len(self._history)} tokens and {len(self._ahead)} ahead)"
