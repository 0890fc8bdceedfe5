"""Drafts that were recorded with the text they continue, and schedulers that make strategies wait."""

from __future__ import annotations

from collections.abc import Sequence

from specframe.core.engine import Engine
from specframe.core.scheduler import Candidate, SchedulerStats, Unlimited
from specframe.core.strategy import StrategySpec
from tests.support.mtp import request, strategy_of


def compare_with_fresh_starts(running: Engine, wanted: StrategySpec, every: int) -> int:
    """Check every so many of the drafts made so far against those of fresh requests; returns the tokens compared."""
    strategy = strategy_of(running, wanted)
    made, strategy.drafts = [pair for pair in strategy.drafts if pair[1]], []
    n_compared = 0
    for history, ids in made[::every]:
        running.submit(request(history[:-1], wanted, n=len(ids) + 2)).result()
        fresh = dict(strategy.drafts).get(history, ())
        strategy.drafts = []
        n = min(len(fresh), len(ids))
        assert fresh[:n] == ids[:n]
        n_compared += n
    return n_compared


class Pausing(Unlimited):
    """A draft after 5, 10, 15, ... plain steps."""

    def begin(self, seq: int, strategy: str, stats: SchedulerStats) -> None:
        super().begin(seq, strategy, stats)
        self.pause, self.left = 0, 0

    def limits(self, batch: Sequence[Candidate]) -> list[int]:
        if self.left:
            self.left -= 1
            return [0] * len(batch)
        self.pause += 5
        self.left = self.pause
        return super().limits(batch)
