"""What the n-gram strategies promise, one example each: choice of the match, feedback, bounds, cost."""

from __future__ import annotations

import gc
import itertools
import random
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, overload

import pytest

from specframe.core.errors import ConfigError
from specframe.core.history import History
from specframe.core.ports import TargetInfo, Vocab
from specframe.core.proposal import Copied, Proposal
from specframe.core.strategy import DraftRequest, Outcome, Strategy, StrategyContext, StrategySpec
from specframe.strategies._ngram import Generations
from specframe.strategies.ngram_k import _FARTHEST, NgramK
from specframe.strategies.ngram_k4v import NgramK4V

both = pytest.mark.parametrize("cls", [NgramK, NgramK4V])
VARIABLE = (101, 102, 103, 104)


class NoVocab(Vocab):
    n_tokens = 1000
    eog: frozenset[int] = frozenset()

    def piece(self, token: int) -> bytes:
        return b"?"


def build(cls: type[Strategy], *, n_batch: int = 512, **options: Any) -> Strategy:
    info = TargetInfo(n_vocab=1000, n_ctx=1 << 16, n_batch=n_batch, n_seq=1)
    return cls(cls.Options(**options), StrategyContext(target=info, vocab=NoVocab()))


class Session:
    """A strategy fed by hand."""

    def __init__(self, strategy: Strategy, prompt: Sequence[int]) -> None:
        self.strategy = strategy
        self.tokens = list(prompt)
        self.history = History.view(self.tokens)
        strategy.begin(self.history)

    def draft(self, budget: int = 100) -> list[int]:
        return list(self.strategy.draft(DraftRequest(0, self.history, budget)))

    def verify(self, draft: Sequence[int], truth: Sequence[int]) -> int:
        """Commit ``truth``, the accepted part of ``draft`` and the token after it."""
        accepted = len(truth) - 1
        assert list(draft[:accepted]) == list(truth[:-1])
        self.tokens += truth
        self.strategy.observe(Outcome(0, draft, accepted, self.history, len(truth)))
        return accepted

    def say(self, *tokens: int) -> None:
        """Plain steps."""
        for token in tokens:
            self.tokens.append(token)
            self.strategy.observe(Outcome(0, (), 0, self.history, 1))


# -- what is known of a copy ------------------------------------------------------------------------------------------


def matched(strategy: Strategy, history: Sequence[int], ahead: Sequence[int] = ()) -> int:
    """Tokens that agree before what the strategy drafts and before its original, as the core reads them."""
    view = History.view(list(history))
    strategy.begin(view)
    raw = strategy.draft(DraftRequest(0, view, 100, ahead=tuple(ahead)))
    (part,) = Proposal.of(raw, budget=2, n_vocab=1000, strategy=strategy.name).parts
    return part.matched


def test_k_tells_how_far_the_texts_before_key_and_match_agree() -> None:
    assert matched(build(NgramK, n=2), [8, 1, 2, 30, 9, 1, 2]) == 2
    assert matched(build(NgramK, n=2), [8, 6, 5, 1, 2, 30, 9, 6, 5, 1, 2]) == 4
    assert matched(build(NgramK, n=2), [6, 5, 1, 2, 30, 6, 5, 1, 2]) == 4  # up to the beginning of the text
    assert matched(build(NgramK, n=2), [8, 6, 1, 2, 30, 9, 6, 1], ahead=[2]) == 3
    passage = list(range(100, 300))
    assert matched(build(NgramK, n=2), [*passage, *passage]) == 2 + _FARTHEST


def test_k4v_tells_that_the_key_agrees() -> None:
    assert matched(build(NgramK4V, n=2, m=2), [6, 1, 2, 30, 31, 6, 1, 2]) == 2


def test_a_copy_is_read_like_any_other_draft() -> None:
    arguments: dict[str, Any] = {"strategy": "s", "budget": 2, "n_vocab": 10}
    assert Proposal.of(Copied(iter([1, 2, 3]), 7), **arguments).ids == (1, 2)
    (part,) = Proposal.of([1, 2, 3], **arguments).parts
    assert (part.n_offered, part.matched) == (3, 0)


# -- which match ------------------------------------------------------------------------------------------------------


def test_k_takes_the_match_that_more_of_the_text_speaks_for() -> None:
    session = Session(build(NgramK, n=2, m=2), [8, 9, 1, 2, 30, 31, 9, 1, 2, 40, 41, 8, 9, 1, 2])
    assert session.draft() == [30, 31]


def test_k_takes_the_latest_of_equal_matches() -> None:
    session = Session(build(NgramK, n=2, m=2), [1, 2, 30, 31, 1, 2, 40, 41, 1, 2])
    assert session.draft() == [40, 41]


def test_k_drafts_a_loop_shorter_than_m_in_full() -> None:
    session = Session(build(NgramK, n=2, m=7), [1, 2, 3, 1, 2])
    assert session.draft() == [3, 1, 2, 3, 1, 2, 3]


def test_k_needs_a_token_after_the_match() -> None:
    assert Session(build(NgramK, n=2, m=4), [1, 2]).draft() == []
    assert Session(build(NgramK, n=2, m=2), [1, 1, 1]).draft() == [1, 1]


def test_k4v_counts_distinct_continuations_not_the_last_four_places() -> None:
    # Of the last four places two say 30 and two say 40; of all six, four say 30.
    text = [t for value in (30, 30, 30, 30, 40, 40) for t in (1, 2, value, 9)]
    assert Session(build(NgramK4V, n=2, m=2), [*text, 1, 2]).draft() == [30, 9]


@pytest.mark.parametrize(("values", "draft"), [((30, 30, 40), [30]), ((30, 40), []), ((30, 30, 40, 50), [])])
def test_k4v_drafts_only_what_is_twice_as_frequent_as_all_others(values: tuple[int, ...], draft: list[int]) -> None:
    text = [t for value in values for t in (1, 2, value)]
    assert Session(build(NgramK4V, n=2, m=1), [*text, 1, 2]).draft() == draft


def test_k4v_drafts_a_template_up_to_its_first_blank() -> None:
    text = [t for value in VARIABLE for t in record(value)]
    assert Session(build(NgramK4V, n=2, m=8), [*text, 1, 2]).draft() == [10, 11, 12]
    # Another beginning, once: three are still twice as frequent as one, but with two they are not.
    other = [1, 2, 10, 77, *range(60, 67)]
    assert Session(build(NgramK4V, n=2, m=8), [*text[11:], *other, 1, 2]).draft() == [10, 11, 12]
    assert Session(build(NgramK4V, n=2, m=8), [*text[22:], *other, *other, 1, 2]).draft() == [10]


def test_k4v_drafts_the_most_frequent_continuation_not_the_latest() -> None:
    text = [t for value in (30, 30, 30, 40) for t in (1, 2, value)]
    assert Session(build(NgramK4V, n=2, m=1), [*text, 1, 2]).draft() == [30]


def test_k4v_replaces_the_continuation_counted_least_and_seen_longest_ago() -> None:
    # 30 four times, then six different ones: with four places, three of them are still counted, and 4 < 2 * 3.
    once = [t for value in (30, 30, 30, 30, 41, 42, 43, 44, 45, 46) for t in (1, 2, value)]
    assert Session(build(NgramK4V, n=2, m=1), [*once, 1, 2]).draft() == []
    # With two places a single one is.
    assert Session(build(NgramK4V, n=2, m=1, max_entries_per_key=2), [*once, 1, 2]).draft() == [30]


def test_k4v_a_continuation_seen_again_outlives_one_that_was_not() -> None:
    def draft_after(*values: int) -> list[int]:
        text = [t for value in values for t in (1, 2, value)]
        return Session(build(NgramK4V, n=2, m=1, max_entries_per_key=2), [*text, 1, 2]).draft()

    # Twice each: 50 takes the place of the one seen longest ago, each newcomer after it that of the one before it.
    assert draft_after(30, 40, 40, 30, 50, 51, 30) == [30]
    assert draft_after(40, 30, 30, 40, 50, 51, 30) == [40]


def test_k4v_needs_a_complete_continuation() -> None:
    assert Session(build(NgramK4V, n=2, m=3), [1, 2, 30, 1, 2]).draft() == [30, 1, 2]
    assert Session(build(NgramK4V, n=2, m=4), [1, 2, 30, 1, 2]).draft() == []


@both
def test_min_hits_is_the_number_of_earlier_occurrences(cls: type[Strategy]) -> None:
    once, twice = [1, 2, 30, 9, 1, 2], [1, 2, 30, 9, 1, 2, 30, 9, 1, 2]
    assert Session(build(cls, n=2, m=2, min_hits=2), once).draft() == []
    assert Session(build(cls, n=2, m=2, min_hits=2), twice).draft() == [30, 9]


@both
def test_draft_is_never_longer_than_the_budget_or_the_batch(cls: type[Strategy]) -> None:
    text = [1, 2, *range(10, 60), 1, 2]
    assert Session(build(cls, n=2, m=48), text).draft(budget=5) == [10, 11, 12, 13, 14]
    small = build(cls, n=2, m=48, n_batch=8)
    assert small.max_draft == 7
    assert Session(small, text).draft() == [10, 11, 12, 13, 14, 15, 16]


@both
def test_keys_with_equal_hashes_are_told_apart(cls: type[Strategy]) -> None:
    twin = 2**61 - 1  # hashes like 0
    assert hash((0, 5)) == hash((twin, 5))
    session = Session(build(cls, n=2, m=1, min_hits=2), [twin, 5, 30, twin, 5, 30, 0, 5])
    assert session.draft() == []
    session.say(40, 0, 5)
    assert session.draft() == []
    session.say(40, 0, 5)
    assert session.draft() == [40]


@both
def test_nothing_of_one_request_is_drafted_in_another(cls: type[Strategy]) -> None:
    long = [1, 2, 30, 31, 32, 33] * 5
    first = Session(build(cls, n=2, m=2), long)
    assert first.draft() == [1, 2]
    assert Session(build(cls, n=2, m=2), [1, 2]).draft() == []


# -- feedback ---------------------------------------------------------------------------------------------------------


def record(value: int) -> list[int]:
    """Eleven tokens of a template with a variable in the middle; ``1, 2`` is where drafting begins."""
    return [1, 2, 10, 11, 12, value, 13, 14, 15, 16, 17]


def test_k_shortens_to_what_was_accepted_and_recovers_with_the_text() -> None:
    session = Session(build(NgramK, n=2, m=8), [*record(101), 1, 2])
    assert session.draft() == [10, 11, 12, 101, 13, 14, 15, 16]
    session.verify(session.draft(), [10, 11, 12, 102])
    session.say(13, 14, 15, 16, 17, 1, 2)
    assert session.draft() == [10, 11, 12]
    session.verify([10, 11, 12], [10, 11, 12, 102])
    session.say(13, 14, 15, 16, 17, 1, 2)
    assert session.draft() == [10, 11, 12, 102, 13, 14, 15, 16]


def test_k_forgets_a_rejection_when_the_text_agrees_all_the_way_again() -> None:
    session = Session(build(NgramK, n=2, m=2), [1, 2, 30, 31, 1, 2])
    session.verify(session.draft(), [40])
    session.say(41, 1, 2, 40, 41, 1, 2)
    assert session.draft() == [40, 41]
    session.say(50, 51, 1, 2)  # the two latest disagree, but nothing was rejected since
    assert session.draft() == [50, 51]


def test_k_key_rejected_at_once_drafts_again_later() -> None:
    session = Session(build(NgramK, n=2, m=4), [1, 2, 30, 31, 32, 33, 1, 2])
    session.verify(session.draft(), [40])
    session.say(41, 42, 43, 1, 2)
    assert session.draft() == []
    session.say(40, 41, 42, 43, 1, 2)
    assert session.draft() == [40, 41, 42, 43]


def test_k4v_shortens_to_what_was_accepted_until_seen_in_full_again() -> None:
    text = record(101) * 4
    session = Session(build(NgramK4V, n=2, m=8), [*text, 1, 2])
    session.verify(session.draft(), [10, 11, 12, 102])
    session.say(13, 14, 15, 16, 17, 1, 2)
    assert session.draft() == [10, 11, 12]
    session.verify([10, 11, 12], [10, 11, 12, 101])
    session.say(13, 14, 15, 16, 17, 1, 2)
    assert session.draft() == [10, 11, 12, 101, 13, 14, 15, 16]


def test_k4v_a_beginning_is_trusted_again_when_one_continuation_with_it_was_seen() -> None:
    session = Session(build(NgramK4V, n=2, m=8), [*record(101), *record(102), 1, 2])
    session.verify(session.draft(), [10, 77])
    session.say(*range(60, 67), 1, 2)
    assert session.draft() == [10]
    session.verify([10], [10, 11])
    session.say(*record(101)[4:], 1, 2)
    assert session.draft() == [10, 11, 12]


def test_k4v_key_rejected_at_once_drafts_again_later() -> None:
    session = Session(build(NgramK4V, n=2, m=2), [1, 2, 30, 31, 1, 2, 30, 31, 1, 2])
    session.verify(session.draft(), [40])
    session.say(41, 1, 2)
    assert session.draft() == []
    session.say(30, 31, 1, 2)
    assert session.draft() == [30, 31]


@both
def test_a_draft_cut_short_by_the_budget_and_accepted_is_no_rejection(cls: type[Strategy]) -> None:
    session = Session(build(cls, n=2, m=4), [1, 2, 30, 31, 32, 33, 1, 2, 30, 31, 32, 33, 1, 2])
    session.verify(session.draft(budget=2), [30, 31, 32])
    session.say(33, 1, 2)
    assert session.draft() == [30, 31, 32, 33]


def test_k4v_an_accepted_beginning_is_no_rejection_whatever_follows() -> None:
    session = Session(build(NgramK4V, n=2, m=4), [1, 2, 30, 31, 32, 33] * 4 + [1, 2])
    session.verify(session.draft(budget=2), [30, 31, 99])
    session.say(33, 1, 2)
    assert session.draft() == [30, 31, 32, 33]


@both
def test_a_draft_that_was_not_verified_leaves_no_feedback(cls: type[Strategy]) -> None:
    session = Session(build(cls, n=2, m=2), [1, 2, 30, 31, 1, 2])
    assert session.draft() == [30, 31]
    session.say(40)  # the draft was dropped before the target saw it
    session.strategy.observe(Outcome(0, [7, 8], 0, session.history, 1))  # of another strategy
    assert session.draft() == []
    session.say(41, 1, 2, 30, 31, 50, 1, 2)
    assert session.draft() == [30, 31]


# -- cost and memory --------------------------------------------------------------------------------------------------


class CountingHistory(History):
    """Counts the tokens it hands out."""

    handed_out = 0

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        got = super().__getitem__(index)
        self.handed_out += len(got) if isinstance(got, list) else 1
        return got


def lines_run(call: Callable[[], object]) -> int:
    """Lines of specframe that ``call`` executes: work that depends neither on the clock nor on garbage collection."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if "specframe" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    gc.disable()  # finalizers of what other tests left are lines of specframe too
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def cost_of_steps(cls: type[Strategy], n_context: int) -> tuple[int, int]:
    """The most expensive of 60 drafting steps after ``n_context`` tokens of records: tokens read, lines run."""
    variables = itertools.cycle(VARIABLE)
    text = [t for _ in range(n_context // 11 + 40) for t in record(next(variables))]
    tokens, rest = text[:n_context], text[n_context:]
    history = CountingHistory()
    history._tokens = tokens
    strategy = build(cls, n=3, m=8)
    strategy.begin(history)
    read = lines = 0
    for token in rest[:60]:
        history.handed_out = 0
        tokens.append(token)
        lines = max(lines, lines_run(lambda: strategy.draft(DraftRequest(0, history, 8))))
        read = max(read, history.handed_out)
    return read, lines


@both
def test_cost_of_a_step_does_not_grow_with_the_context(cls: type[Strategy]) -> None:
    short = cost_of_steps(cls, 44 * 5)
    assert short[0] > 0
    assert cost_of_steps(cls, 44 * 500) == short


@both
def test_every_token_is_indexed_once(cls: type[Strategy]) -> None:
    strategy = build(cls, n=4, m=4)
    history = CountingHistory(random.Random(1).choices(range(10**6), k=5000))
    strategy.begin(history)
    first = history.handed_out
    assert first <= 5000
    strategy.begin(history)
    assert history.handed_out - first <= 8


@both
def test_memory_is_bounded(cls: type[Strategy], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cls, "max_keys", 64)
    rng = random.Random(2)
    session = Session(build(cls, n=2, m=2, max_entries_per_key=3), [])
    table = session.strategy._starts if isinstance(session.strategy, NgramK) else session.strategy._table  # type: ignore[attr-defined]
    sizes = set()
    for _ in range(1500):
        session.tokens.append(rng.randrange(40))
        draft = session.draft()
        session.strategy.observe(Outcome(0, draft, 0, session.history, 1))
        sizes.add(len(table))
        assert all(len(entries) <= 3 for entries in [*table._young.values(), *table._old.values()])
    assert max(sizes) <= 64
    assert max(sizes) > 32
    if isinstance(session.strategy, NgramK):
        assert len(session.strategy._rejected) <= 64


@both
def test_entries_per_key_are_bounded(cls: type[Strategy]) -> None:
    session = Session(build(cls, n=1, m=1, max_entries_per_key=3), [t for i in range(50) for t in (1, 2 + i)])
    session.draft()
    table = session.strategy._starts if isinstance(session.strategy, NgramK) else session.strategy._table  # type: ignore[attr-defined]
    entries = table.get(hash((1,)))
    assert entries is not None
    assert len(entries) == 3


def test_a_key_met_lately_is_kept_and_an_old_one_goes() -> None:
    table: Generations[int] = Generations(8)
    for key in range(100):
        if table.get(-1) is None:
            table.put(-1, 7)
        table.put(key, key)
        assert table.get(-1) == 7
        assert len(table) == len({*table._young, *table._old}) <= 8
    assert table.get(99) == 99
    assert table.get(50) is None
    table.discard(99)
    assert table.get(99) is None


# -- options ----------------------------------------------------------------------------------------------------------


@both
def test_defaults(cls: type[Strategy]) -> None:
    options = cls.Options()
    assert (options.n, options.m, options.min_hits) == (12, 48, 1)
    assert options.max_entries_per_key == (4 if cls is NgramK4V else 8)


@both
@pytest.mark.parametrize("bad", [{"n": 0}, {"m": 0}, {"n": "8"}, {"m": 2.5}, {"min_hits": True}, {"n": 10**9}])
def test_bad_option_is_named_with_its_value(cls: type[Strategy], bad: dict[str, object]) -> None:
    [(name, value)] = bad.items()
    with pytest.raises(ConfigError) as caught:
        StrategySpec.of(cls, bad)
    assert f"{name} must be a whole number" in str(caught.value)
    assert repr(value) in str(caught.value)


def test_hits_that_can_never_be_counted_are_refused() -> None:
    with pytest.raises(ConfigError, match="min_hits=9 can never be reached with max_entries_per_key=8"):
        StrategySpec.of(NgramK, {"min_hits": 9})
