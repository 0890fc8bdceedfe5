"""The strategy check accepts honest strategies, good and bad at guessing, and names what a dishonest one broke."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import attrs
import pytest
from typing_extensions import override

from specframe.core.combination import Combination, Join
from specframe.core.errors import ConfigError
from specframe.core.history import History
from specframe.core.ports import Decoded, Need
from specframe.core.strategy import (
    AnyStrategyClass,
    BatchStrategy,
    DraftRequest,
    Outcome,
    Strategy,
    StrategySpec,
    draft_strategy,
)
from specframe.strategies.ngram_k import NgramK
from specframe.strategies.ngram_k4v import NgramK4V
from specframe.testing import AsBatch, Noisy, Poison, StrategyContractError, check_strategy
from specframe.testing.drafters import USABLE_JUNK, Junk, JunkKind


@draft_strategy("repeat-last")
def repeat_last(request: DraftRequest) -> Sequence[int]:
    return [request.history[-1]] * request.budget


@pytest.mark.parametrize("strategy", [repeat_last, NgramK, NgramK4V, Poison, Noisy, AsBatch])
def test_honest_strategies_pass(strategy: AnyStrategyClass) -> None:
    report = check_strategy(strategy)
    assert report.strategy == strategy.name
    assert report.requests > 40
    assert report.draft_calls > 0
    assert report.accepted <= report.verified <= report.drafted


@pytest.mark.parametrize("kind", Join)
def test_a_combination_is_checked_like_a_strategy(kind: Join) -> None:
    inner = Combination(kind, (StrategySpec.of(NgramK, {"n": 4}), StrategySpec.of(AsBatch)))
    report = check_strategy(Combination(kind, (inner, StrategySpec.of(NgramK4V, {"n": 2, "m": 3}))))
    assert report.strategy == f"{kind.value}({kind.value}(ngram-k(n=4),as-batch),ngram-k4v(n=2,m=3))"
    assert report.accepted > 0


class _OverrunsBehindAnother(Strategy):
    name = "overruns-behind-another"
    continues = True

    @override
    def draft(self, request: DraftRequest) -> Sequence[int]:
        return [1] * (request.budget + len(request.ahead))


def test_a_broken_member_is_found_in_a_combination() -> None:
    with pytest.raises(StrategyContractError, match=r"'first-of.*at most request.budget"):
        check_strategy(Combination(Join.FIRST_OF, (StrategySpec.of(NgramK), StrategySpec.of(_TooLong))))


def test_the_report_says_how_well_it_guessed() -> None:
    report = check_strategy(NgramK, {"n": 2, "m": 6})
    assert report.acceptance_rate is not None
    assert 0.2 < report.acceptance_rate < 1
    assert report.reads_per_draft_short > 0


class _ReadsEverything(Strategy):
    name = "reads-everything"

    @override
    def draft(self, request: DraftRequest) -> Sequence[int]:
        return list(request.history)[-1:]


class _ReadsEverythingInObserve(Strategy):
    name = "reads-everything-later"

    @override
    def draft(self, request: DraftRequest) -> Sequence[int]:
        return request.history[-1:]

    @override
    def observe(self, outcome: Outcome) -> None:
        sum(outcome.history)


class _Remembers(Strategy):
    name = "remembers"
    seen: ClassVar[dict[int, int]] = {}

    @override
    def draft(self, request: DraftRequest) -> Sequence[int]:
        last = request.history[-1]
        return [self.seen[last]] if last in self.seen else []

    @override
    def observe(self, outcome: Outcome) -> None:
        self.seen[outcome.history[-2]] = outcome.history[-1]


class _RemembersInBatch(BatchStrategy):
    name = "remembers-in-batch"

    def __init__(self, options: object, context: object) -> None:
        super().__init__(options, context)  # type: ignore[arg-type]
        self.calls = 0

    @override
    def draft(self, requests: Sequence[DraftRequest]) -> Sequence[Sequence[int]]:
        self.calls += 1
        return [[self.calls % 12] for _ in requests]


class _TooLong(Strategy):
    name = "too-long"

    @override
    def draft(self, request: DraftRequest) -> Sequence[int]:
        return [1] * (request.budget + 1)


class _Outside(Strategy):
    name = "outside"

    @override
    def draft(self, request: DraftRequest) -> Sequence[int]:
        return [self.context.target.n_vocab]


class _NotTokens(Strategy):
    name = "not-tokens"

    @override
    def draft(self, request: DraftRequest) -> Sequence[int]:
        return ["a"]  # type: ignore[list-item]


class _RaisesOnShortHistory(Strategy):
    name = "raises-on-short-history"

    @override
    def draft(self, request: DraftRequest) -> Sequence[int]:
        return [request.history[len(request.history) - 4 + 0]] if len(request.history) != 2 else [request.history[5]]


class _RaisesInClose(Strategy):
    name = "raises-in-close"

    @override
    def draft(self, request: DraftRequest) -> Sequence[int]:
        return ()

    @override
    def close(self) -> None:
        raise OSError("the file is gone")


class _OneDraftForAll(BatchStrategy):
    name = "one-draft-for-all"

    @override
    def draft(self, requests: Sequence[DraftRequest]) -> Sequence[Sequence[int]]:
        return [[1]]


class _RaisesInBatchBegin(BatchStrategy):
    name = "raises-in-batch-begin"

    @override
    def begin(self, seq: int, history: History, n_held: int) -> int:
        raise KeyError(seq)

    @override
    def draft(self, requests: Sequence[DraftRequest]) -> Sequence[Sequence[int]]:
        return [[] for _ in requests]


class _RaisesInProcess(_OneDraftForAll):
    name = "raises-in-process"

    @override
    def process(self, batch: Sequence[Decoded]) -> None:
        raise KeyError(batch[0].pos)


class _RaisesInEnd(_OneDraftForAll):
    name = "raises-in-end"

    @override
    def draft(self, requests: Sequence[DraftRequest]) -> Sequence[Sequence[int]]:
        return [[] for _ in requests]

    @override
    def end(self, seq: int) -> None:
        raise KeyError(seq)


class _BadName(Strategy):
    name = "Bad Name"

    @override
    def draft(self, request: DraftRequest) -> Sequence[int]:
        return ()


@attrs.frozen
class _PositionalOptions:
    n: int


class _BadOptions(_TooLong):
    name = "bad-options"
    Options = _PositionalOptions


@attrs.define(kw_only=True)
class _UnhashableOptions:
    n: int = 1


class _Unhashable(_TooLong):
    name = "unhashable"
    Options = _UnhashableOptions


class _PlainOptions(_TooLong):
    name = "plain-options"
    Options = dict


def test_options_that_cannot_be_told_apart_are_refused() -> None:
    """By the spec that is made from a class, and by the check of a spec that was made by hand."""
    with pytest.raises(ConfigError, match="unhashable type"):
        check_strategy(_Unhashable)
    with pytest.raises(StrategyContractError, match="Options are not hashable"):
        check_strategy(StrategySpec(_Unhashable, _UnhashableOptions()))


@pytest.mark.parametrize(
    ("strategy", "rule"),
    [
        (_ReadsEverything, "must not grow with the context"),
        (_ReadsEverythingInObserve, "must not grow with the context"),
        (_Remembers, "an earlier request must not change"),
        (_RemembersInBatch, "an earlier request must not change"),
        (_TooLong, "at most request.budget"),
        (_OverrunsBehindAnother, "at most request.budget"),
        (_Outside, "outside the vocabulary"),
        (_NotTokens, "must return token ids"),
        (_RaisesOnShortHistory, r"draft\(\) raised IndexError"),
        (_RaisesInClose, r"close\(\) raised OSError: the file is gone"),
        (_OneDraftForAll, "1 drafts for 2 requests"),
        (_RaisesInBatchBegin, r"begin\(\) raised KeyError"),
        (_RaisesInProcess, r"process\(\) raised KeyError"),
        (_RaisesInEnd, r"end\(\) raised KeyError"),
        (_BadName, "lower case"),
        (_BadOptions, "must be keyword-only .* and have a default"),
        (_PlainOptions, "decorate an options class"),
    ],
)
def test_broken_strategies_are_found(strategy: AnyStrategyClass, rule: str) -> None:
    with pytest.raises(StrategyContractError, match=rule):
        check_strategy(_spec(strategy) if strategy in (_BadOptions, _PlainOptions, _Unhashable) else strategy)


def _spec(strategy: AnyStrategyClass) -> StrategySpec:
    """Made by hand: ``StrategySpec.of`` would refuse it."""
    return StrategySpec(strategy, _UnhashableOptions() if strategy is _Unhashable else None)


def test_a_strategy_that_learns_on_purpose_may() -> None:
    _Remembers.seen.clear()
    assert check_strategy(_Remembers, shares_state=True).draft_calls > 0


def test_what_scripted_targets_lack_is_said() -> None:
    class Hungry(_TooLong):
        name = "hungry"
        needs = Need.HIDDEN

    with pytest.raises(ConfigError, match="'hungry' needs hidden"):
        check_strategy(Hungry)


@pytest.mark.parametrize("kind", sorted(USABLE_JUNK - {"long", "endless"}))
def test_unusual_but_usable_drafts_are_no_fault(kind: JunkKind) -> None:
    assert check_strategy(Junk, {"kinds": (kind,)}).draft_calls > 0
