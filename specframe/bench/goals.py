"""What the figures are held against."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from specframe.bench.comparison import Cell, lossless
from specframe.bench.drafting import DraftCost, growth
from specframe.bench.orchestration import Cost
from specframe.bench.turns import TurnCost

PLAIN_RATIO = 0.98
DRAFTED_RATIO = 1.00
#: Costs at 64 times the context may differ by what caches and noise make of it, not by what the context adds.
DRAFT_GROWTH = 2.0
TURN_RATIO = 1.10


@attrs.frozen
class Goal:
    """One figure and the bound it should keep."""

    what: str
    value: float
    bound: float
    at_least: bool
    """Whether ``bound`` is the smallest good value, or the largest."""

    @property
    def met(self) -> bool:
        """Whether the figure keeps its bound."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        return f"{self.what}: {self.value:.4g} ({'' if self.met else 'not '}met, goal {sign} {self.bound:g})"


def of_comparison(cells: Sequence[Cell]) -> list[Goal]:
    """Speed against the server, and the same text as plain decoding."""
    goals = []
    for cell in cells:
        bound = PLAIN_RATIO if cell.variant.strategy == "none" else DRAFTED_RATIO
        goals.append(Goal(f"{cell.variant.label} on {cell.workload}, x server", cell.speed_ratio.median, bound, True))
    texts = lossless(cells)
    if texts:
        different = sum(at is not None for at in texts.values())
        goals.append(Goal("drafted texts that differ from specframe's plain text", different, 0, False))
    return goals


def of_orchestration(model: str, costs: Sequence[Cost]) -> list[Goal]:
    """Microseconds outside native calls."""
    return [
        Goal(f"{cost.case.name} ({model}), us outside native calls", cost.per_step_us.median, cost.case.goal_us, False)
        for cost in costs
        if cost.case.goal_us is not None
    ]


def of_drafting(costs: Sequence[DraftCost]) -> list[Goal]:
    """Drafting must not cost more in a longer context."""
    names = dict.fromkeys(cost.strategy for cost in costs)
    return [
        Goal(f"{name} draft, longest over shortest context", growth(own), DRAFT_GROWTH, False)
        for name in names
        if len(own := [cost for cost in costs if cost.strategy == name]) > 1
    ]


def of_turns(costs: Sequence[TurnCost]) -> list[Goal]:
    """A strategy must not make a second turn evaluate what is shared."""
    return [
        Goal(f"second turn's first token, {cost.strategy} over plain", cost.ratio.median, TURN_RATIO, False)
        for cost in costs
        if cost.strategy != "plain"
    ]
