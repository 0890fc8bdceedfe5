"""Strategies made of strategies: who is asked, who is credited, who hears of what, and what a failure costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from specframe.core.combination import AnySpec, Combination, Join
from specframe.core.engine import Engine
from specframe.core.errors import BackendError, ConfigError, StrategyError
from specframe.core.history import History, Overlay
from specframe.core.ports import Need
from specframe.core.scheduler import Unlimited
from specframe.core.strategy import DraftRequest, Outcome, Strategy, StrategyContext, StrategySpec
from specframe.strategies.ngram_k import NgramK
from specframe.strategies.ngram_k4v import NgramK4V
from specframe.testing import Arbitrary, AsBatch, Crash, Fault, Junk, Oracle, ScriptedTarget, tape
from specframe.testing.generators import as_batch
from tests.support.lossless import ask, assert_plain, check_strategies, drafted, oracle, poison, run


def first_of(*parts: AnySpec) -> Combination:
    return Combination(Join.FIRST_OF, parts)


def extend(*parts: AnySpec) -> Combination:
    return Combination(Join.EXTEND, parts)


RIGHT = tape(ScriptedTarget(), ask())


@attrs.frozen(kw_only=True)
class HeardOptions:
    """A run to replay, the lengths of the drafts in turn, and where to write down what is heard."""

    tape: tuple[int, ...] = attrs.field(default=(), repr=False)
    lengths: tuple[int, ...] = ()
    heard: Any = attrs.field(default=None, eq=id, repr=False)


class Hears(Strategy):
    """Replays, and writes down every outcome."""

    name = "hears"
    continues = True
    Options = HeardOptions

    def __init__(self, options: Any, context: StrategyContext) -> None:
        super().__init__(options, context)
        self._n = 0

    def draft(self, request: DraftRequest) -> Sequence[int]:
        at, n = len(request.tokens), self.options.lengths[self._n % len(self.options.lengths)]
        self._n += 1
        draft: Sequence[int] = self.options.tape[at : at + min(n, request.budget)]
        return draft

    def observe(self, outcome: Outcome) -> None:
        self.options.heard.append((tuple(outcome.drafted), outcome.n_accepted, outcome.n_committed))


def hears(heard: list[Any], *lengths: int, right: Sequence[int] = RIGHT) -> StrategySpec:
    return StrategySpec.of(Hears, {"tape": tuple(right), "lengths": lengths, "heard": heard})


# -- first-of ---------------------------------------------------------------------------------------------------------


def test_first_guess_that_is_not_empty_is_taken_and_only_its_author_is_credited() -> None:
    one: list[Any] = []
    two: list[Any] = []
    completion = run(ScriptedTarget(), ask(13, strategy=first_of(hears(one, 0, 2), hears(two, 3))))
    assert_plain(ScriptedTarget(), ask(13), completion)
    # The prompt's token, then drafts of 3 and of 2 in turn.
    assert one == [((), 0, 1), ((), 0, 4), (RIGHT[10:12], 2, 3), ((), 0, 4), ((), 0, 1)]
    assert two == [((), 0, 1), (RIGHT[6:9], 3, 4), ((), 0, 3), (RIGHT[13:16], 3, 4), ((), 0, 1)]
    credited = {label: (own.draft_steps, own.accepted) for label, own in completion.stats.strategies.items()}
    assert credited == {"hears(lengths=(0, 2))": (1, 2), "hears(lengths=(3,))": (2, 6)}


def test_members_are_named_by_what_tells_them_apart() -> None:
    spec = first_of(
        StrategySpec.of(NgramK, {"n": 2, "m": 4}), extend(StrategySpec.of(NgramK), StrategySpec.of(NgramK4V))
    )
    assert spec.name == spec.label == "first-of(ngram-k(n=2,m=4),extend(ngram-k,ngram-k4v))"
    completion = run(ScriptedTarget(n_vocab=8, order=2), ask(60, strategy=spec))
    assert completion.strategy == spec.name
    assert "ngram-k(n=2,m=4)" in completion.stats.strategies


def test_a_member_that_stands_in_two_places_is_driven_once() -> None:
    again = oracle(RIGHT, 2)
    spec = first_of(StrategySpec.of(Junk, {"kinds": ("empty",)}), extend(again, again), again)
    assert len(spec.members) == 2
    completion = run(ScriptedTarget(), ask(21, strategy=spec))
    assert_plain(ScriptedTarget(), ask(21), completion)
    assert completion.stats.strategies["oracle(length=2)"].accepted == completion.stats.accepted == 16


def test_requests_of_several_combinations_share_the_drafter_of_a_member() -> None:
    shared = as_batch(oracle(RIGHT, 3))
    with Engine(ScriptedTarget(n_seq=2), scheduler=Unlimited) as engine:
        specs = (first_of(poison(RIGHT, 0, 1), shared), shared)
        generations = [engine.submit(ask(strategy=spec)) for spec in specs]
        for generation in generations:
            assert_plain(ScriptedTarget(), ask(), generation.result())
        assert len(engine._drafters.members) == 2
        check_strategies(engine)


# -- extend -----------------------------------------------------------------------------------------------------------


def test_second_continues_what_the_first_guessed() -> None:
    one: list[Any] = []
    two: list[Any] = []
    completion = run(ScriptedTarget(), ask(11, strategy=extend(hears(one, 2), hears(two, 2))))
    assert_plain(ScriptedTarget(), ask(11), completion)
    assert one == [((), 0, 1), (RIGHT[6:8], 2, 5), (RIGHT[11:13], 2, 5)]
    assert two == [((), 0, 1), (RIGHT[8:10], 2, 5), (RIGHT[13:15], 2, 5)]


def test_nobody_is_blamed_for_tokens_behind_the_rejection_of_another() -> None:
    heard: list[Any] = []
    completion = run(ScriptedTarget(), ask(8, strategy=extend(poison(RIGHT, 1, 2), hears(heard, 2))))
    assert_plain(ScriptedTarget(), ask(8), completion)
    assert completion.stats.strategies["hears(lengths=(2,))"].accepted == 0
    assert {(drafted, n_accepted) for drafted, n_accepted, _ in heard} == {((), 0)}


def test_second_drafts_alone_where_the_first_has_no_guess() -> None:
    heard: list[Any] = []
    run(ScriptedTarget(), ask(7, strategy=extend(StrategySpec.of(Junk, {"kinds": ("empty",)}), hears(heard, 5))))
    assert heard == [((), 0, 1), (RIGHT[6:11], 5, 6)]


def test_extension_ends_where_the_budget_does() -> None:
    asked: list[int] = []

    def choose(request: DraftRequest) -> Sequence[int]:
        asked.append(request.budget)
        return [0] * request.budget

    spec = extend(oracle(RIGHT, 3), StrategySpec.of(Arbitrary, {"choose": choose}))
    run(ScriptedTarget(), ask(6, strategy=spec))
    assert asked == [1]


def test_ngram_finds_its_key_across_the_end_of_what_is_committed() -> None:
    """After "6 7 8 9 6", of which the last token was guessed by another one: "7 8 9" follows."""
    history = History([6, 7, 8, 9, 1, 2, 6, 7, 8, 9])
    for cls, m in ((NgramK, 4), (NgramK4V, 4)):
        strategy = cls(cls.Options(n=2, m=m), _context())
        strategy.begin(history)
        assert list(strategy.draft(DraftRequest(0, history, 4, ahead=(1, 2)))) == [6, 7, 8, 9]
        assert list(strategy.draft(DraftRequest(0, history, 2, ahead=(3,)))) == []
        # What it saw ahead was not remembered: the text went on otherwise.
        grown = History([*history, 1, 2])
        assert list(strategy.draft(DraftRequest(0, grown, 2))) == [6, 7]


def _context() -> StrategyContext:
    target = ScriptedTarget()
    return StrategyContext(target=target.info, vocab=target.vocab)


def test_strategy_that_cannot_continue_is_refused_by_name() -> None:
    class Alone(Oracle):
        name = "alone"
        continues = False

    assert extend(StrategySpec.of(Alone), oracle(RIGHT)).continues is False
    with pytest.raises(ConfigError, match="'alone' cannot continue"):
        extend(oracle(RIGHT), first_of(oracle(RIGHT, 2), StrategySpec.of(Alone)))
    with pytest.raises(ConfigError, match="two strategies or more"):
        first_of(oracle(RIGHT))


def test_overlay_reads_like_a_list() -> None:
    tokens = [5, 6, 7, 8, 9]
    for n in range(6):
        overlay = Overlay(History(tokens[:n]), tokens[n:])
        assert list(overlay) == tokens
        assert len(overlay) == 5
        for start in range(-6, 7):
            for stop in range(-6, 7):
                for step in (1, 2, -1):
                    assert overlay[start:stop:step] == tokens[start:stop:step]
        with pytest.raises(IndexError):
            overlay[5]


# -- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["init", "begin", "max_draft", "draft", "observe"])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("kind", Join)
def test_failure_of_a_member_costs_that_member_only(
    where: Any, batched: bool, kind: Join, caplog: pytest.LogCaptureFixture
) -> None:
    crash = StrategySpec.of(Crash, {"tape": RIGHT, "where": where, "length": 1})
    if batched and where in ("init", "max_draft"):
        return  # refused when it is submitted; AsBatch has no limit of its own
    crash = as_batch(crash) if batched else crash
    spec = Combination(kind, (crash, as_batch(oracle(RIGHT, 2)) if batched else oracle(RIGHT, 2)))
    with Engine(ScriptedTarget(), scheduler=Unlimited) as engine:
        completion = engine.submit(ask(strategy=spec)).result()
        assert_plain(ScriptedTarget(), ask(), completion)
        assert_plain(ScriptedTarget(), ask(), engine.submit(ask(strategy=spec)).result())
        check_strategies(engine)
    left = completion.stats.strategies[crash.label]
    assert f"'{crash.name}'" in str(left.ended)
    assert "crash" in str(left.ended)
    assert completion.stats.inactive_reason is None
    assert completion.stats.accepted > 10
    assert sum("drafts without" in record.message for record in caplog.records) == 2


def test_request_goes_on_plainly_when_every_member_failed() -> None:
    spec = first_of(*(StrategySpec.of(Crash, {"where": where}) for where in ("begin", "draft")))
    completion = run(ScriptedTarget(), ask(strategy=spec))
    assert_plain(ScriptedTarget(), ask(), completion)
    assert "draft() raised" in str(completion.stats.inactive_reason)
    assert len([own for own in completion.stats.strategies.values() if own.ended]) == 2


def test_member_that_needs_what_the_target_lacks_is_left_out() -> None:
    class Hungry(Oracle):
        name = "hungry"
        needs = Need.HIDDEN

    completion = run(ScriptedTarget(), ask(strategy=first_of(StrategySpec.of(Hungry), oracle(RIGHT, 2))))
    assert_plain(ScriptedTarget(), ask(), completion)
    assert completion.stats.accepted > 10
    assert "target-lacks-needs" in str(completion.stats.strategies["hungry"].ended)
    alone = run(
        ScriptedTarget(), ask(strategy=first_of(StrategySpec.of(Hungry), StrategySpec.of(Hungry, {"length": 1})))
    )
    assert "hungry needs hidden" in str(alone.stats.inactive_reason)


def test_member_that_cannot_be_set_up_is_left_out_only_where_nobody_asked_for_it() -> None:
    class Unlucky(AsBatch):
        name = "unlucky"
        built = 0

        def __init__(self, options: Any, context: StrategyContext) -> None:
            Unlucky.built += 1
            raise MemoryError("no room for its memory")

    unlucky = StrategySpec.of(Unlucky)
    both = first_of(unlucky, oracle(RIGHT, 2))
    why = "strategy-error: draft strategy 'unlucky': set-up() raised MemoryError: no room for its memory"
    with Engine(ScriptedTarget(), scheduler=Unlimited) as engine:
        for _ in range(2):
            completion = engine.submit(ask(strategy=both, strategy_required=False)).result()
            assert_plain(ScriptedTarget(), ask(), completion)
            assert completion.stats.accepted > 10
            assert completion.stats.strategies["unlucky"].ended == why
        alone = engine.submit(ask(strategy=unlucky, strategy_required=False)).result()
        assert alone.stats.inactive_reason == why
        assert Unlucky.built == 1
        for wanted in (both, unlucky):
            with pytest.raises(StrategyError, match="no room for its memory"):
                engine.submit(ask(strategy=wanted))


def test_member_whose_memory_cannot_follow_a_shift_leaves_and_the_others_follow() -> None:
    class Stays(AsBatch):
        name = "stays"

        def shift(self, seq: int, history: History, n_keep: int, n_drop: int) -> bool:
            return False

    arguments: dict[str, Any] = {"n_ctx": 24, "can_shift": True}
    request = ask(60, context_full="shift")
    stays = StrategySpec.of(Stays, {"cls": Oracle, "options": Oracle.Options(tape=RIGHT, length=1)})
    spec = first_of(stays, StrategySpec.of(NgramK, {"n": 1, "m": 3}))
    completion = run(ScriptedTarget(**arguments), drafted(request, spec))
    assert_plain(ScriptedTarget(**arguments), request, completion)
    assert completion.stats.shifts > 0
    assert [own.ended for own in completion.stats.strategies.values() if own.ended] == ["context-shifted"]
    assert completion.stats.inactive_reason is None


def test_interrupt_inside_a_member_ends_the_drafting_of_all_and_can_be_resumed_from() -> None:
    for where in ("begin", "draft", "observe"):
        crash = StrategySpec.of(Crash, {"tape": RIGHT, "where": where, "error": KeyboardInterrupt})
        with Engine(ScriptedTarget(n_batch=6), scheduler=Unlimited) as engine:
            generation = engine.submit(ask(strategy=first_of(as_batch(oracle((), 1)), crash)))
            with pytest.raises(KeyboardInterrupt):
                generation.result()
            assert_plain(ScriptedTarget(), ask(), generation.result())
            check_strategies(engine)


def test_failed_step_leaves_no_credit_behind() -> None:
    target = ScriptedTarget()
    heard: list[Any] = []
    target.inject(Fault(call="decode", at=3))
    with Engine(target, scheduler=Unlimited) as engine:
        generation = engine.submit(ask(12, strategy=first_of(hears(heard, 2), poison(RIGHT, 0))))
        with pytest.raises(BackendError):
            generation.result()
        completion = engine.submit(ask(12, strategy=first_of(hears(heard, 2), poison(RIGHT, 0)))).result()
    assert_plain(ScriptedTarget(), ask(12), completion)


# -- files and sessions -----------------------------------------------------------------------------------------------


def test_wishes_of_members_are_put_together() -> None:
    class Deep(Oracle):
        name = "deep"
        uses_draft_file = True

        @classmethod
        def rollback_depth(cls, options: Any) -> int:
            return 5

        @classmethod
        def model_options(cls, options: Any, draft_path: Any) -> dict[str, Any]:
            return {"load_heads": options.length is None}

    spec = first_of(StrategySpec.of(NgramK), StrategySpec.of(Deep))
    assert (spec.rollback_depth, spec.model_options, spec.uses_draft_file) == (5, {"load_heads": True}, True)
    with pytest.raises(ConfigError, match="'deep' wants load_heads=False"):
        _ = first_of(StrategySpec.of(Deep), StrategySpec.of(Deep, {"length": 1})).model_options
