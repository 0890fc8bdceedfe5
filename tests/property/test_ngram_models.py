"""The n-gram strategies against models that recompute everything from the whole history at every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import attrs
from hypothesis import event, given
from hypothesis import strategies as st

from specframe.core.history import History
from specframe.core.ports import TargetInfo, Vocab
from specframe.core.strategy import DraftRequest, Outcome, Strategy, StrategyContext
from specframe.strategies.ngram_k import NgramK
from specframe.strategies.ngram_k4v import NgramK4V

Tokens = list[int]


class NoVocab(Vocab):
    n_tokens = 1 << 16
    eog: frozenset[int] = frozenset()

    def piece(self, token: int) -> bytes:
        return b"?"


INFO = TargetInfo(n_vocab=1 << 16, n_ctx=1 << 16, n_batch=512, n_seq=1)
CONTEXT = StrategyContext(target=INFO, vocab=NoVocab())


@attrs.frozen
class Asked:
    """One call of draft() and what became of it."""

    length: int
    drafted: int
    accepted: int

    @property
    def rejected(self) -> bool:
        return self.accepted < self.drafted


class Model(Protocol):
    def draft(self, text: Tokens, budget: int, past: Sequence[Asked]) -> Tokens: ...


@attrs.frozen
class ModelK:
    n: int
    m: int
    min_hits: int
    keep: int

    def matches(self, text: Tokens) -> list[int]:
        """Ends of the earlier occurrences of the last n tokens, oldest first; at most ``keep``."""
        key = text[len(text) - self.n :]
        return [end for end in range(self.n, len(text)) if text[end - self.n : end] == key][-self.keep :]

    def foretell(self, text: Tokens, end: int) -> Tokens:
        told = list(text)
        for i in range(self.m):
            told.append(told[end + i])
        return told[len(text) :]

    def agree_before(self, text: Tokens, end: int) -> int:
        """Tokens before the match that ends at ``end`` that agree with those before the key."""
        pairs = zip(reversed(text[: end - self.n]), reversed(text[: -self.n]), strict=False)
        return next((i for i, (one, other) in enumerate(pairs) if one != other), end - self.n)

    def agreed(self, text: Tokens, ends: list[int]) -> int:
        latest, before = self.foretell(text, ends[-1]), self.foretell(text, ends[-2])
        return next((i for i in range(self.m) if latest[i] != before[i]), self.m)

    def distrusted(self, text: Tokens, past: Sequence[Asked]) -> bool:
        """Whether a draft of this key was rejected, and not all of ``m`` agreed when it was asked for since."""
        verdict = False
        for asked in past:
            then = text[: asked.length]
            if len(then) >= self.n and then[-self.n :] == text[-self.n :]:
                ends = self.matches(then)
                if len(ends) > 1 and len(ends) >= self.min_hits and self.agreed(then, ends) == self.m:
                    verdict = False
                verdict = verdict or asked.rejected
        return verdict

    def draft(self, text: Tokens, budget: int, past: Sequence[Asked]) -> Tokens:
        if len(text) <= self.n:
            return []
        ends = self.matches(text)
        if len(ends) < max(1, self.min_hits):
            return []
        limit = self.agreed(text, ends) if len(ends) > 1 and self.distrusted(text, past) else self.m
        event("shortened" if limit < self.m else "full")
        best = max(ends, key=lambda end: (self.agree_before(text, end), end))
        return self.foretell(text, best)[: min(limit, budget)]


@attrs.frozen
class ModelK4V:
    n: int
    m: int
    min_hits: int
    keep: int

    def sightings(self, text: Tokens) -> list[tuple[int, tuple[int, ...]]]:
        """(length of the text when it was complete, continuation) for every earlier occurrence of the last n tokens."""
        n, m = self.n, self.m
        key = text[len(text) - n :]
        ends = [end for end in range(n, len(text) - m + 1) if text[end - n : end] == key]
        return [(end + m, tuple(text[end : end + m])) for end in ends]

    def draft(self, text: Tokens, budget: int, past: Sequence[Asked]) -> Tokens:
        if len(text) < self.n:
            return []
        usual, members = self.usual(text)
        limit = max((self.limit(text, member, past) for member in members), default=0)
        event("shortened" if limit < len(usual) else "whole" if len(usual) == self.m else "beginning")
        return list(usual[: min(limit, budget)])

    def limit(self, text: Tokens, value: tuple[int, ...], past: Sequence[Asked]) -> int:
        limit = self.m
        for asked in past:
            then = text[: asked.length]
            if len(then) >= self.n and then[-self.n :] == text[-self.n :] and asked.rejected:
                seen_since = any(v == value for at, v in self.sightings(text) if at > asked.length)
                if value in self.usual(then)[1] and not seen_since:
                    limit = asked.accepted
        return limit

    def usual(self, text: Tokens) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
        """The longest beginning counted twice as often as all that begins otherwise, and what begins with it."""
        counts: dict[tuple[int, ...], int] = {}
        last: dict[tuple[int, ...], int] = {}
        for at, value in self.sightings(text):
            if value not in counts and len(counts) == self.keep:
                del counts[min(counts, key=lambda v: (counts[v], last[v]))]
            counts[value] = counts.get(value, 0) + 1
            last[value] = at
        total = sum(counts.values())
        if total < self.min_hits:
            return (), []
        for length in range(self.m, 0, -1):
            for start in {value[:length] for value in counts}:
                members = [value for value in counts if value[:length] == start]
                count = sum(counts[value] for value in members)
                if count >= 2 * (total - count):
                    return start, members
        return (), list(counts)


def texts() -> st.SearchStrategy[Tokens]:
    """Few different tokens, and stretches that come again: what n-gram drafting lives on."""
    block = st.lists(st.integers(0, 3), min_size=1, max_size=6)
    blocks = st.lists(block, min_size=1, max_size=4)

    def arrange(parts: list[Tokens]) -> st.SearchStrategy[Tokens]:
        noise = st.lists(st.integers(0, 3), max_size=2)
        piece = st.one_of(st.sampled_from(parts), st.sampled_from(parts), noise)
        return st.lists(piece, min_size=2, max_size=24).map(lambda pieces: [t for p in pieces for t in p])

    return blocks.flatmap(arrange)


def run_side_by_side(strategy: Strategy, model: Model, text: Tokens, n_prompt: int, data: st.DataObject) -> None:
    """Let ``text`` be what the target says, with arbitrary budgets, trimming and steps without drafting."""
    tokens = text[:n_prompt]
    history = History.view(tokens)
    past: list[Asked] = []
    strategy.begin(history)
    while len(tokens) < len(text):
        draft: Tokens = []
        asked = data.draw(st.integers(0, 4)) > 0
        at = len(tokens)
        if asked:
            budget = data.draw(st.integers(1, 12))
            draft = list(strategy.draft(DraftRequest(0, history, budget)))
            assert draft == model.draft(list(tokens), budget, past)
            draft = draft[: data.draw(st.sampled_from([len(draft), len(draft), 2, 0]))]
        truth = text[at : at + len(draft)]
        accepted = next((i for i, (a, b) in enumerate(zip(draft, truth, strict=False)) if a != b), len(truth))
        tokens.extend(text[at : at + accepted + 1])
        if asked:
            past.append(Asked(at, len(draft), accepted))
        strategy.observe(Outcome(0, draft, accepted, history, len(tokens) - at))


def options() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "n": st.integers(1, 3),
            "m": st.integers(1, 6),
            "min_hits": st.integers(1, 3),
            "max_entries_per_key": st.integers(2, 5),
        }
    ).filter(lambda o: o["min_hits"] <= o["max_entries_per_key"])


@given(texts(), options(), st.data())
def test_k_drafts_what_the_model_drafts(text: Tokens, given_options: dict[str, Any], data: st.DataObject) -> None:
    o = NgramK.Options(**given_options)
    model = ModelK(o.n, o.m, o.min_hits, o.max_entries_per_key)
    run_side_by_side(NgramK(o, CONTEXT), model, text, data.draw(st.integers(0, len(text))), data)


@given(texts(), options(), st.data())
def test_k4v_drafts_what_the_model_drafts(text: Tokens, given_options: dict[str, Any], data: st.DataObject) -> None:
    o = NgramK4V.Options(**given_options)
    model = ModelK4V(o.n, o.m, o.min_hits, o.max_entries_per_key)
    run_side_by_side(NgramK4V(o, CONTEXT), model, text, data.draw(st.integers(0, len(text))), data)


@given(texts(), st.integers(1, 4), st.sampled_from([NgramK, NgramK4V]))
def test_indexing_in_one_go_equals_indexing_step_by_step(text: Tokens, n: int, cls: type[Strategy]) -> None:
    options = cls.Options(n=n, m=4)
    at_once, stepwise = cls(options, CONTEXT), cls(options, CONTEXT)
    tokens: Tokens = []
    for token in text:
        tokens.append(token)
        stepwise.begin(History.view(tokens))
    at_once.begin(History(text))
    request = DraftRequest(0, History(text), 8)
    assert list(at_once.draft(request)) == list(stepwise.draft(request))
