"""Rows that wait, against an array that is copied each time; and the room for them is given back."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specframe.strategies._rows import RowBuffer


@given(st.lists(st.tuples(st.sampled_from(["add", "keep", "drop"]), st.integers(0, 90)), max_size=30))
def test_rows_come_out_as_they_went_in(steps: list[tuple[str, int]]) -> None:
    buffer, right, made = RowBuffer(2), np.empty((0, 2), np.float32), 0
    for what, n in steps:
        if what == "add":
            rows = np.arange(made, made + 2 * n, dtype=np.float32).reshape(n, 2)
            made += 2 * n
            buffer.add(rows)
            right = np.concatenate([right, rows])
        elif what == "keep":
            buffer.keep(n)
            right = right[:n]
        else:
            buffer.drop(n)
            right = right[n:]
        assert len(buffer) == len(right)
        np.testing.assert_array_equal(buffer.rows, right)


def test_long_waits_leave_no_room_behind_and_short_ones_make_none() -> None:
    buffer = RowBuffer(8)
    least = buffer.rows.base
    for _ in range(100):  # a few rows come and go
        buffer.add(np.ones((5, 8), np.float32))
        buffer.drop(5)
        assert buffer.rows.base is least
    buffer.add(np.ones((10_000, 8), np.float32))
    held = buffer.rows.base
    assert isinstance(held, np.ndarray)
    assert held.nbytes < 3 * 10_000 * 8 * 4
    buffer.drop(9_999)
    kept = buffer.rows.base
    assert isinstance(kept, np.ndarray)
    assert kept.nbytes <= 64 * 8 * 4
