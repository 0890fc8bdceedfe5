"""The walk through a lattice of candidates, against one written the slow way."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from specframe.core.ports import Rows
from specframe.strategies.dflash2 import walk


def slow_walk(rows: Rows, top_k: int, p_min: float) -> list[int]:
    """One lattice, one row, one score at a time."""
    path: list[int] = []
    before = 0
    for row in rows.tolist():
        candidates = row[:top_k]
        behind = [row[top_k + before * top_k + j] for j in range(top_k)]
        best = 0
        for j in range(1, top_k):
            if behind[j] > behind[best]:
                best = j
        share = 1 / sum(math.exp(score - behind[best]) for score in behind)
        if share < p_min:
            break
        path.append(int(candidates[best]))
        before = best
    return path


@st.composite
def lattices(draw: st.DrawFn) -> tuple[Rows, int]:
    """Several lattices with scores that are often equal, and more values behind them than are used."""
    top_k = draw(st.integers(1, 4))
    n_lattices, n_positions, spare = draw(st.integers(0, 3)), draw(st.integers(0, 5)), draw(st.integers(0, 2))
    shape = (n_lattices, n_positions, top_k * (top_k + 1) + spare)
    scores = draw(arrays(np.float32, shape, elements=st.sampled_from([-1.5, -0.25, 0.0, 0.5, 1.0, 2.0])))
    ids = draw(arrays(np.float32, (*shape[:2], top_k), elements=st.integers(0, 2**24 - 1).map(float)))
    scores[:, :, :top_k] = ids
    return scores, top_k


# No threshold that a share of these scores could hit exactly.
@given(lattices(), st.sampled_from([0.0, 0.137, 0.311, 0.457, 0.613, 0.871, 1.0]))
def test_the_walk_is_the_slow_one(given_lattices: tuple[Rows, int], p_min: float) -> None:
    rows, top_k = given_lattices
    if p_min == 1.0 and top_k == 1:
        return  # a share of exactly one
    assert walk(rows, top_k, p_min) == [slow_walk(lattice, top_k, p_min) for lattice in rows]


def test_a_single_candidate_is_certain() -> None:
    rows = np.array([[[7, 0.5], [9, -3.0]]], np.float32)
    assert walk(rows, 1, 1.0) == [[7, 9]]


def test_each_choice_depends_on_the_one_before() -> None:
    first = [10, 11, *[0, 1], *[0, 1]]  # both rows alike: one token comes before
    second = [20, 21, *[5, 0], *[0, 5]]
    other = [10, 11, *[1, 0], *[1, 0]]
    rows = np.array([[first, second, second], [other, second, second]], np.float32)
    assert walk(rows, 2) == [[11, 21, 21], [10, 20, 20]]
