from __future__ import annotations

import pytest

from specframe.bench.statistics import Summary, geometric_mean, paired, percentile


def test_summary_is_median_and_range() -> None:
    summary = Summary.of([5.0, 1.0, 3.0])
    assert (summary.median, summary.low, summary.high, summary.n) == (3.0, 1.0, 5.0, 3)
    assert summary.spread == pytest.approx(4 / 3)
    assert summary.to_dict()["spread"] == summary.spread


def test_summary_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to summarise"):
        Summary.of([])


def test_spread_of_zeros_is_zero() -> None:
    assert Summary.of([0.0, 0.0]).spread == 0.0


def test_pairs_cancel_what_slows_both_sides() -> None:
    # The machine was ten times slower in the second pair; each pair says 2.
    assert paired([20.0, 2.0, 22.0], [10.0, 1.0, 11.0]).median == pytest.approx(2.0)


def test_pairs_must_be_complete() -> None:
    with pytest.raises(ValueError, match="shorter"):
        paired([1.0, 2.0], [1.0])


@pytest.mark.parametrize(("share", "value"), [(0.5, 2.0), (0.51, 3.0), (0.99, 4.0), (1.0, 4.0), (0.01, 1.0)])
def test_percentile_is_the_nearest_rank(share: float, value: float) -> None:
    assert percentile([4.0, 2.0, 1.0, 3.0], share) == value


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1.0], 0.0), ([1.0], 1.5)])
def test_percentile_refuses_what_it_cannot_answer(values: list[float], share: float) -> None:
    with pytest.raises(ValueError, match="no percentile"):
        percentile(values, share)


def test_the_mean_of_ratios_is_geometric() -> None:
    assert geometric_mean([2.0, 0.5]) == pytest.approx(1.0)
    assert geometric_mean([1.3]) == pytest.approx(1.3)


@pytest.mark.parametrize("values", [[], [1.0, 0.0], [-1.0]])
def test_there_is_no_mean_of_what_is_no_ratio(values: list[float]) -> None:
    with pytest.raises(ValueError, match="no geometric mean"):
        geometric_mean(values)
