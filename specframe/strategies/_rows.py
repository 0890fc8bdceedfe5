"""Rows of numbers that wait: added at the end, dropped at both ends, and not copied whenever one is added."""

from __future__ import annotations

import numpy as np

from specframe.core.ports import Rows

#: Bytes that may wait for one draft model, of all sequences together, until it evaluates what they belong to although
#: nothing is drafted.
MAX_WAITING_BYTES = 64 * 2**20
#: Rows there is room for at least.
_LEAST = 32


def most_waiting(width: int, n_seq: int) -> int:
    """Rows of ``width`` values that may wait in each of ``n_seq`` sequences."""
    return MAX_WAITING_BYTES // (max(1, width) * np.dtype(np.float32).itemsize * n_seq)


class RowBuffer:
    """Consecutive rows ``(rows, width)`` float32.

    Args:
        width: of a row.
    """

    def __init__(self, width: int) -> None:
        self._space: Rows = np.empty((_LEAST, width), np.float32)
        self._start = self._end = 0

    def __len__(self) -> int:
        return self._end - self._start

    @property
    def rows(self) -> Rows:
        """All of them; a view that is good until rows are added or dropped."""
        return self._space[self._start : self._end]

    def add(self, rows: Rows) -> None:
        """Append a copy of ``rows``."""
        n = len(self) + len(rows)
        if self._start + n > len(self._space):
            self._move(max(len(self._space), 2 * n))
        self._space[self._end : self._start + n] = rows
        self._end = self._start + n

    def keep(self, n: int) -> None:
        """Drop all but the first ``n``."""
        self._end = min(self._end, self._start + n)

    def drop(self, n: int) -> None:
        """Drop the first ``n``."""
        self._start = min(self._end, self._start + n)
        if _LEAST < len(self._space) > 8 * len(self):  # what a long wait took is given back
            self._move(max(_LEAST, 2 * len(self)))

    def _move(self, size: int) -> None:
        rows = self.rows
        if size != len(self._space):
            self._space = np.empty((size, rows.shape[1]), np.float32)
        self._space[: len(rows)] = rows
        self._start, self._end = 0, len(rows)
