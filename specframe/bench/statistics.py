"""The few figures that summarise repeated measurements."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import attrs


@attrs.frozen
class Summary:
    """Repetitions of one measurement."""

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        """Summarise ``values``. Raises ValueError when there are none."""
        if not values:
            raise ValueError("there is nothing to summarise")
        return cls(statistics.median(values), min(values), max(values), len(values))

    @property
    def spread(self) -> float:
        """Range over median; 0 for values that are all the same."""
        return (self.high - self.low) / self.median if self.median else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything, JSON-ready."""
        return attrs.asdict(self) | {"spread": self.spread}


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Summary:
    """Ratios of measurements taken one after the other.

    A machine that gets slower or faster during a run changes both of a pair alike, so their ratio stays meaningful
    where the ratio of two medians is not.
    """
    return Summary.of([a / b for a, b in zip(ours, theirs, strict=True)])


def geometric_mean(values: Sequence[float]) -> float:
    """The mean of ratios. Raises ValueError when there are none, or one is not above 0."""
    if not values or min(values) <= 0:
        raise ValueError(f"no geometric mean of {list(values)}")
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of ``values`` that at least ``share`` of them do not exceed (nearest rank)."""
    if not values or not 0 < share <= 1:
        raise ValueError(f"no percentile {share} of {len(values)} values")
    ordered = sorted(values)
    return ordered[math.ceil(share * len(ordered)) - 1]
