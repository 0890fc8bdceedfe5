"""Whatever a strategy does costs speed only, and is reported."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from specframe.core.engine import Engine
from specframe.core.ports import Decoded, Need, Rollback
from specframe.core.scheduler import Unlimited
from specframe.core.strategy import (
    BatchStrategy,
    DraftRequest,
    Outcome,
    Strategy,
    StrategyContext,
    StrategySpec,
    draft_strategy,
)
from specframe.strategies.ngram_k import NgramK
from specframe.testing import (
    ALL_JUNK,
    Arbitrary,
    Crash,
    Junk,
    ScriptedTarget,
    tape,
)
from specframe.testing.drafters import USABLE_JUNK, JunkKind
from tests.support.lossless import (
    OnSteadyMachine,
    ask,
    assert_plain,
    drafted,
    every_memory,
    oracle,
    poison,
    run,
)


def test_empty_drafts_cost_nothing_and_drafting_resumes_after_them() -> None:
    request = ask(120, prompt=(1, 2))
    right = tape(ScriptedTarget(), request)
    calls = itertools.count()

    def choose(r: DraftRequest) -> Sequence[int]:
        return () if next(calls) < 100 else right[len(r.history) : len(r.history) + r.budget]

    target = ScriptedTarget()
    completion = run(target, drafted(request, StrategySpec.of(Arbitrary, {"choose": choose})))
    assert_plain(ScriptedTarget(), request, completion)
    assert completion.stats.accepted > 10
    assert target.n_redecoded == 0


def test_alternating_good_and_empty_drafts_decode_no_token_twice() -> None:
    request = ask(60)
    right = tape(ScriptedTarget(), request)
    calls = itertools.count()

    def choose(r: DraftRequest) -> Sequence[int]:
        return right[len(r.history) : len(r.history) + 3] if next(calls) % 2 else ()

    target = ScriptedTarget()
    completion = run(target, drafted(request, StrategySpec.of(Arbitrary, {"choose": choose})))
    assert_plain(ScriptedTarget(), request, completion)
    assert (target.n_redecoded, target.n_decoded) == (0, 5 + 60 - 1)


@every_memory
@pytest.mark.parametrize("kind", ALL_JUNK)
def test_garbage_costs_speed_only_and_names_the_strategy(
    memory: dict[str, Any], kind: JunkKind, caplog: pytest.LogCaptureFixture
) -> None:
    request = ask(strategy=StrategySpec.of(Junk, {"kinds": (kind,)}))
    completion = run(ScriptedTarget(**memory), request)
    assert_plain(ScriptedTarget(**memory), request, completion)
    reason = completion.stats.inactive_reason
    if kind in USABLE_JUNK:
        assert reason is None or reason == "nothing-proposed"
    else:
        assert reason is not None
        assert "'junk'" in reason
        assert sum("'junk'" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("where", ["init", "begin", "max_draft", "draft", "observe"])
@pytest.mark.parametrize("at", [1, 2])
def test_strategy_that_raises_costs_speed_only(where: str, at: int, caplog: pytest.LogCaptureFixture) -> None:
    right = tape(ScriptedTarget(), ask())
    spec = StrategySpec.of(Crash, {"tape": right, "where": where, "at": at, "length": 3})
    with Engine(ScriptedTarget(), scheduler=Unlimited) as engine:
        completion = engine.submit(ask(strategy=spec)).result()
        following = engine.submit(ask()).result()
    assert_plain(ScriptedTarget(), ask(), completion)
    assert_plain(ScriptedTarget(), ask(), following)
    if at == 1 or where not in ("init", "begin"):
        assert "'crash'" in str(completion.stats.inactive_reason)
        assert any("'crash'" in record.message for record in caplog.records)


def test_strategy_that_raises_in_close_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    completion = run(ScriptedTarget(), ask(strategy=StrategySpec.of(Crash, {"where": "close"})))
    assert_plain(ScriptedTarget(), ask(), completion)
    assert any("close() raised" in record.message for record in caplog.records)


def test_interrupt_inside_a_strategy_can_be_resumed_from() -> None:
    right = tape(ScriptedTarget(), ask())
    for where in ("draft", "observe"):
        spec = StrategySpec.of(Crash, {"tape": right, "where": where, "at": 2, "error": KeyboardInterrupt})
        with Engine(ScriptedTarget(n_batch=6), scheduler=Unlimited) as engine:
            generation = engine.submit(ask(strategy=spec))
            with pytest.raises(KeyboardInterrupt):
                generation.result()
            assert_plain(ScriptedTarget(), ask(), generation.result())


def test_nothing_of_an_earlier_request_is_drafted_later() -> None:
    proposals: list[tuple[int, ...]] = []

    class Recorded(NgramK):
        def observe(self, outcome: Outcome) -> None:
            proposals.append(tuple(outcome.drafted))
            super().observe(outcome)

    spec = StrategySpec.of(Recorded, {"n": 2, "m": 4})
    long = ask(40, prompt=(6, 7, 8, 9, 6, 7, 8, 9, 6, 7))
    short = ask(6, prompt=(6, 7))
    alone: list[tuple[int, ...]] = []
    with Engine(ScriptedTarget(order=2), scheduler=Unlimited) as engine:
        engine.submit(drafted(short, spec)).result()
        alone, proposals[:] = list(proposals), []
    with Engine(ScriptedTarget(order=2), scheduler=Unlimited) as engine:
        engine.submit(drafted(long, spec)).result()
        assert any(proposals), "the long request was to draft something"
        proposals.clear()
        engine.submit(drafted(short, spec)).result()
    assert proposals == alone


def test_equal_requests_draft_every_time() -> None:
    request = ask(60, strategy=StrategySpec.of(NgramK, {"n": 2, "m": 4}), reuse_prefix=False)
    with Engine(ScriptedTarget(n_vocab=8, order=2), scheduler=Unlimited) as engine:
        drafts = [engine.submit(request).result().stats.drafted for _ in range(3)]
    assert drafts[0] > 0
    assert len(set(drafts)) == 1


def test_sequences_with_different_strategies_equal_their_lonely_runs() -> None:
    first, second = ask(), ask(prompt=(9, 8, 7))
    rights = [tape(ScriptedTarget(), r) for r in (first, second)]
    specs = [oracle(rights[0], 1), poison(rights[1], 0, 1)]
    lonely = [run(ScriptedTarget(), drafted(r, s)) for r, s in zip((first, second), specs, strict=True)]
    with Engine(ScriptedTarget(n_seq=2), scheduler=Unlimited) as engine:
        generations = [engine.submit(drafted(r, s)) for r, s in zip((first, second), specs, strict=True)]
        together = [g.result() for g in generations]
    for alone, shared, request in zip(lonely, together, (first, second), strict=True):
        assert_plain(ScriptedTarget(), request, shared)
        assert alone.stats.acceptance_rate == shared.stats.acceptance_rate
    assert together[0].stats.acceptance_rate == 1
    assert together[1].stats.acceptance_rate == 0


def test_hopeless_drafting_costs_next_to_nothing() -> None:
    request = ask(1000, prompt=(1,))
    arguments: dict[str, Any] = {"n_ctx": 1100, "seed": 2}
    right = tape(ScriptedTarget(**arguments), request)
    target = ScriptedTarget(**arguments)
    completion = run(target, drafted(request, poison(right, 0)), scheduler=OnSteadyMachine)
    assert completion.stats.drafted > 1000
    assert completion.stats.accepted == 0
    assert completion.stats.verified < 30  # within 3 % of the rows plain decoding evaluates
    assert target.n_decoded < 1.03 * (1 + 1000)


def test_work_per_step_does_not_grow_with_the_context() -> None:
    """The view handed to strategies is the same object every step, whatever its length."""
    views: set[int] = set()

    @draft_strategy("looks")
    def looks(request: DraftRequest) -> Sequence[int]:
        views.add(id(request.history))
        return request.history[-1:]

    run(ScriptedTarget(n_ctx=1100), ask(20, prompt=tuple(i % 32 for i in range(1000)), strategy=StrategySpec.of(looks)))
    assert len(views) == 1


def test_reason_for_inactive_drafting_is_given_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    completion = run(ScriptedTarget(), ask(strategy=StrategySpec.of(Junk, {"kinds": ("empty",)})))
    assert completion.stats.inactive_reason == "nothing-proposed"
    assert sum("nothing-proposed" in record.message for record in caplog.records) == 1


def test_no_room_for_checkpoints_is_a_plain_run(caplog: pytest.LogCaptureFixture) -> None:
    arguments: dict[str, Any] = {"rollback": Rollback.SNAPSHOT, "checkpoint_room": 0}
    right = tape(ScriptedTarget(), ask())
    completion = run(ScriptedTarget(**arguments), ask(strategy=oracle(right)))
    assert str(completion.stats.inactive_reason).startswith("checkpoint-failed")
    assert_plain(ScriptedTarget(), ask(), completion)
    assert sum("checkpoint-failed" in record.message for record in caplog.records) == 1


def test_strategy_that_needs_what_the_target_lacks_is_never_built() -> None:
    class Hungry(Strategy):
        name = "hungry"
        needs = Need.HIDDEN

        def __init__(self, options: object, context: StrategyContext) -> None:
            raise AssertionError("must not be built")

        def draft(self, request: DraftRequest) -> Sequence[int]:
            raise AssertionError("must not be asked")

    completion = run(ScriptedTarget(), ask(strategy=StrategySpec.of(Hungry)))
    assert "target-lacks-needs" in str(completion.stats.inactive_reason)
    assert_plain(ScriptedTarget(), ask(), completion)


def test_counters_of_a_known_run() -> None:
    """Drafts of four whose third token is wrong: two accepted and one corrected, the last one cut by the budget."""
    right = tape(ScriptedTarget(), ask(22))
    stats = run(ScriptedTarget(), ask(22, strategy=poison(right, 2, 4))).stats
    assert (stats.emitted, stats.steps, stats.accepted_emitted) == (22, 8, 14)
    assert (stats.drafted, stats.verified, stats.accepted) == (26, 26, 14)
    assert stats.verified_per_position == [7, 7, 6, 6]
    assert stats.accepted_per_position == [7, 7, 0, 0]
    assert stats.mean_accepted_length == 3
    assert stats.rollbacks == {"truncate": 6}


@pytest.mark.parametrize("where", ["process", "draft", "observe", "max_draft"])
def test_a_strategy_for_all_sequences_that_meddles_costs_speed_only(where: str) -> None:
    """It empties what it is given, or has no answer to how long its drafts are."""

    class Meddler(BatchStrategy):
        name = "meddler"

        @property
        def max_draft(self) -> int | None:
            if where == "max_draft":
                raise LookupError("no idea")
            return None

        def process(self, batch: Sequence[Decoded]) -> None:
            if where == "process":
                batch.clear()  # type: ignore[attr-defined]

        def draft(self, requests: Sequence[DraftRequest]) -> Sequence[Sequence[int]]:
            drafts = [(1, 2)] * len(requests)
            if where == "draft":
                requests.clear()  # type: ignore[attr-defined]
            return drafts

        def observe(self, outcomes: Sequence[Outcome]) -> None:
            if where == "observe":
                outcomes.clear()  # type: ignore[attr-defined]

    requests = [ask(prompt=(i, i + 1), strategy=StrategySpec.of(Meddler)) for i in range(2)]
    with Engine(ScriptedTarget(n_seq=2), scheduler=Unlimited) as engine:
        for request, generation in [(request, engine.submit(request)) for request in requests]:
            completion = generation.result()
            assert_plain(ScriptedTarget(), request, completion)
            assert "'meddler'" in (completion.stats.inactive_reason or "")
