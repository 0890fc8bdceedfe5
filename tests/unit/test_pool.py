"""Strategies that are no longer used are closed, those that are stay open; what is remembered of them is bounded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import pytest

from specframe.core.combination import Combination, Join
from specframe.core.cost_aware import CostAware
from specframe.core.costs import MOST_STRATEGIES
from specframe.core.engine import Engine
from specframe.core.pool import MAX_FAILED, MAX_IDLE
from specframe.core.scheduler import SchedulerStats
from specframe.core.strategy import BatchStrategy, DraftRequest, StrategyContext, StrategySpec
from specframe.testing import ScriptedTarget
from tests.support.lossless import ask

#: Seeds of what is open, in the order in which it was opened.
OPEN: list[int] = []


@attrs.frozen(kw_only=True)
class KeyOptions:
    """Tells one from another."""

    key: int = 0


class Opened(BatchStrategy):
    """Has something to close, and drafts nothing."""

    name = "opened"
    continues = True
    Options = KeyOptions

    def __init__(self, options: Any, context: StrategyContext) -> None:
        super().__init__(options, context)
        OPEN.append(options.key)

    def draft(self, requests: Sequence[DraftRequest]) -> Sequence[Sequence[int]]:
        return [()] * len(requests)

    def close(self) -> None:
        OPEN.remove(self.options.key)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(ScriptedTarget(n_seq=3)) as running:
        yield running
    assert not OPEN


def opened(key: int) -> StrategySpec:
    return StrategySpec.of(Opened, {"key": key})


def use(engine: Engine, key: int) -> None:
    engine.submit(ask(2, strategy=opened(key))).result()


def test_a_few_stay_open_and_the_one_unused_for_longest_goes(engine: Engine) -> None:
    for key in range(20):
        use(engine, key)
        assert len(OPEN) <= MAX_IDLE + 1
    assert list(range(19 - MAX_IDLE, 20)) == OPEN
    use(engine, 19 - MAX_IDLE)  # the oldest, which becomes the latest
    use(engine, 20)
    assert 19 - MAX_IDLE in OPEN
    use(engine, 21)
    assert 19 - MAX_IDLE in OPEN
    assert 20 - MAX_IDLE not in OPEN


def test_what_is_used_stays_open(engine: Engine) -> None:
    engine.prepare(opened(-1))
    both = Combination(Join.FIRST_OF, (opened(-2), opened(-3)))
    running = engine.submit(ask(60, strategy=both))
    next(running)
    other = engine.submit(ask(60, strategy=both))
    for key in range(10):
        use(engine, key)
    assert OPEN[:3] == [-1, -2, -3]
    assert len(engine._drafters._combined) == 1
    assert running.result().tokens == other.result().tokens
    for key in range(10, 20):
        use(engine, key)
    assert OPEN[0] == -1
    assert len(OPEN) == 1 + MAX_IDLE + 1
    assert not engine._drafters._combined


class Failing(Opened):
    """Cannot be set up."""

    name = "failing"

    def __init__(self, options: Any, context: StrategyContext) -> None:
        BatchStrategy.__init__(self, options, context)
        TRIED.append(options.key)
        raise MemoryError


#: Keys of what was tried to be set up.
TRIED: list[int] = []


def test_what_failed_is_remembered_for_the_latest_ones(engine: Engine) -> None:
    def use(key: int) -> None:
        done = engine.submit(ask(2, strategy=StrategySpec.of(Failing, {"key": key}), strategy_required=False)).result()
        assert (done.stats.inactive_reason or "").startswith("strategy-error")

    TRIED.clear()
    for key in range(MAX_FAILED + 1):
        use(key)
        use(key)
    assert list(range(MAX_FAILED + 1)) == TRIED
    use(MAX_FAILED)
    assert TRIED[-1] == MAX_FAILED
    assert len(TRIED) == MAX_FAILED + 1
    use(0)
    assert TRIED[MAX_FAILED + 1 :] == [0]


def test_what_is_remembered_of_strategies_is_bounded() -> None:
    scheduler = CostAware()
    for key in range(3 * MOST_STRATEGIES):
        name = f"opened(key={key})"
        scheduler.begin(0, "often", SchedulerStats())
        scheduler.begin(0, name, SchedulerStats())
        for known in (scheduler.costs.call, scheduler.costs.draft, scheduler.costs.processing):
            known("often")
            known(name)
        scheduler.end(0)
    costs = scheduler.costs
    for table in (scheduler._known, costs._calls, costs._drafts, costs._processing):
        assert len(table) == MOST_STRATEGIES
        assert "often" in table
