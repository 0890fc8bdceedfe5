"""What the figures are held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import attrs

from specframe.backends.llama.audit import Audit
from specframe.bench.answers import TurnCost, Verdict
from specframe.bench.comparison import Comparison, Row
from specframe.bench.drafting import DraftCost, growth
from specframe.bench.orchestration import Cost
from specframe.bench.sides import OURS, SERVER
from specframe.bench.statistics import Summary, geometric_mean
from specframe.bench.workloads import REUSE
from specframe.bench.wrong import AlwaysWrong

#: Strategies of ours, and what the server calls the same.
PEERS: Mapping[str, str] = MappingProxyType(
    {
        "none": "none",
        "ngram-k": "ngram-map-k",
        "ngram-k4v": "ngram-map-k4v",
        "draft-model": "draft-simple",
        "mtp": "draft-mtp",
        "dflash": "draft-dflash",
        "dflash2": "draft-dflash",
        "dspark": "draft-dspark",
        "eagle3": "draft-eagle3",
    }
)

PLAIN_RATIO = 0.98
PEER_RATIO = 1.00
AUTO_OVER_PLAIN = 0.98
WRONG_OVER_PLAIN = 0.97
CHOSEN_OVER_FIXED = 0.95
AUTO_OVER_PLAIN_WITH_REUSE = 1.15
AUTO_OVER_DEFAULT_WITH_REUSE = 1.25
AUTO_OVER_BEST = 0.97
#: Other rounding may decide between tokens whose log probabilities differ by less.
NEAR_TIE = 0.5
#: Costs at 64 times the context may differ by what caches and noise make of it, not by what the context adds.
DRAFT_GROWTH = 2.0
TURN_RATIO = 1.2


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


def of_comparison(comparison: Comparison, audit: Audit | None = None) -> list[Goal]:
    """Speed against the server at equal settings, ``auto`` against everything, and the same text as plain decoding.

    Args:
        comparison: what was measured.
        audit: tells which margins rounding explains; without one those below :data:`NEAR_TIE`.
    """
    goals = [goal for row in comparison.rows for goal in _against_peer(comparison, row)]
    goals += _of_auto(comparison)
    goals += [
        goal for row in comparison.rows if row.side.draft_length == "auto" for goal in _of_lengths(comparison, row)
    ]
    for row in comparison.rows:
        if row.side.strategy == AlwaysWrong.name and row.speed_up is not None:
            what = f"{row.side.label} on {row.workload}, x plain"
            goals.append(Goal(what, row.speed_up.median, WRONG_OVER_PLAIN, at_least=True))
    ours = [row for row in comparison.rows if row.side.engine == OURS and not row.side.is_plain and row.plain]
    if ours:
        faults = sum(_is_fault(row, audit) for row in ours)
        goals.append(Goal("drafted outputs that part from plain decoding at no near tie", faults, 0, at_least=False))
    return goals


def _is_fault(row: Row, audit: Audit | None) -> bool:
    at = row.divergence
    if at is None or at.margin is None:
        return at is not None
    return not is_near_tie(at.margin, audit)


def is_near_tie(margin: float, audit: Audit | None) -> bool:
    """Whether rounding explains that another token was chosen where plain decoding has this margin."""
    return margin <= NEAR_TIE if audit is None else audit.explains(margin)


def of_verified(judged: Sequence[Verdict], audit: Audit | None = None) -> list[Goal]:
    """No side may emit what plain decoding would not choose, near ties aside."""
    faults = sum(not is_near_tie(margin, audit) for each in judged for _, margin in each.margins)
    what = f"of {sum(each.n_tokens for each in judged)} tokens judged, those that plain decoding would not choose"
    return [Goal(what, faults, 0, at_least=False)] if judged else []


def _against_peer(comparison: Comparison, row: Row) -> list[Goal]:
    if row.side.engine != OURS or row.side.strategy not in PEERS:
        return []
    peer = attrs.evolve(row.side, engine=SERVER, strategy=PEERS[row.side.strategy])
    other = comparison.row(row.workload, peer.label)
    ratio = None if other is None else row.over(other.runs)
    if ratio is None:
        return []
    bound = PLAIN_RATIO if row.side.is_plain else PEER_RATIO
    return [Goal(f"{row.side.label} on {row.workload}, x {peer.label}", ratio.median, bound, at_least=True)]


def _of_auto(comparison: Comparison) -> list[Goal]:
    goals = list[Goal]()
    over_plain, over_default = dict[str, float](), dict[str, float]()
    for workload in comparison.workloads:
        auto = comparison.row(workload, "auto")
        if auto is None:
            continue
        default, best = comparison.row(workload, "server:ngram-map-k"), comparison.best_of_server(workload)
        if auto.speed_up is not None:
            over_plain[workload] = auto.speed_up.median
            goals.append(Goal(f"auto on {workload}, x plain", auto.speed_up.median, AUTO_OVER_PLAIN, at_least=True))
        if default is not None and (ratio := auto.over(default.runs)) is not None:
            over_default[workload] = ratio.median
        if best is not None and (ratio := auto.over(best.runs)) is not None:
            what = f"auto on {workload}, x the server's best, {best.side.label}"
            goals.append(Goal(what, ratio.median, AUTO_OVER_BEST, at_least=True))
    for what, ratios, bound in (
        ("plain", over_plain, AUTO_OVER_PLAIN_WITH_REUSE),
        ("server:ngram-map-k", over_default, AUTO_OVER_DEFAULT_WITH_REUSE),
    ):
        if reuse := [ratio for workload, ratio in ratios.items() if workload in REUSE]:
            name = f"auto where the answer repeats the prompt, x {what}, geometric mean of {len(reuse)}"
            goals.append(Goal(name, geometric_mean(reuse), bound, at_least=True))
    return goals


def _of_lengths(comparison: Comparison, chosen: Row) -> list[Goal]:
    """Lengths that were chosen against the best fixed one of the same strategy."""
    fixed = {
        row.side.draft_length: row
        for row in comparison.rows
        if row.workload == chosen.workload
        and isinstance(row.side.draft_length, int)
        and (row.side.family, row.side.options) == (chosen.side.family, chosen.side.options)
    }
    if not fixed:
        return []
    best = max(fixed, key=lambda length: fixed[length].speed.median)
    ratio = chosen.over(fixed[best].runs)
    what = f"{chosen.side.label} on {chosen.workload}"
    goals = []
    if ratio is not None:
        goals.append(Goal(f"{what}, x the best fixed length, {best}", ratio.median, CHOSEN_OVER_FIXED, at_least=True))
    if steps := chosen.first.stats.get("scheduler", {}).get("lengths"):
        usual = int(max(steps, key=steps.__getitem__))
        goals.append(Goal(f"{what}, usual length {usual}, tokens from the best fixed one", abs(usual - best), 1, False))
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
    ratios: list[tuple[str, Summary]] = [(c.side, c.ratio) for c in costs if c.ratio is not None and c.side != "plain"]
    return [
        Goal(f"second turn's first token, {side} over plain", ratio.median, TURN_RATIO, at_least=False)
        for side, ratio in ratios
    ]
