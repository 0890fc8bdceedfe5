"""Drafting the continuation that clearly dominates after the last n tokens (compare llama.cpp's ``ngram-map-k4v``)."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import attrs
from typing_extensions import override

from specframe.core.history import History
from specframe.core.proposal import Copied
from specframe.core.strategy import DraftRequest, Outcome, StrategyContext
from specframe.core.validators import whole_number
from specframe.strategies._ngram import MAX_ENTRIES, MAX_M, MAX_N, Generations, NgramStrategy, n_common


@attrs.frozen(kw_only=True)
class NgramK4VOptions:
    """Options of ``ngram-k4v``."""

    n: int = attrs.field(default=12, validator=whole_number(1, MAX_N), metadata={"doc": "tokens that must match"})
    m: int = attrs.field(default=48, validator=whole_number(1, MAX_M), metadata={"doc": "tokens in a continuation"})
    min_hits: int = attrs.field(
        default=1, validator=whole_number(1, 1 << 31), metadata={"doc": "earlier occurrences needed to draft"}
    )
    max_entries_per_key: int = attrs.field(
        default=4, validator=whole_number(1, MAX_ENTRIES), metadata={"doc": "different continuations counted per key"}
    )


@attrs.define(eq=False)
class _Continuation:
    """One distinct text of ``m`` tokens after a key."""

    start: int
    """Where it was first seen."""
    limit: int
    """Most tokens of it to draft."""
    count: int = 1


_COUNT = attrgetter("count")
_LIMIT = attrgetter("limit")


class NgramK4V(NgramStrategy):
    """The continuation seen most after the last n tokens, when it is clearly the usual one.

    **Key and continuations.** The key is the last ``n`` committed tokens. Of every earlier occurrence, prompt included,
    that is followed by ``m`` tokens, these ``m`` tokens are its continuation. Equal continuations are counted together;
    up to ``max_entries_per_key`` different ones are kept per key. One more replaces the one counted least, and of those
    the one not seen for longest.

    **Draft.** Nothing unless the kept continuations of the key were counted ``min_hits`` times together, and the most
    frequent one at least twice as often as all others together. Then its first ``min(m, budget)`` tokens. Where no
    whole continuation is that frequent, the same rule applies to their beginnings: the longest beginning that was
    counted twice as often as everything that begins otherwise. So a template whose blanks are always filled differently
    is drafted up to the first blank.

    **Feedback.** Continuations whose draft was rejected after ``a`` tokens are drafted with ``a`` tokens only (none, if
    they were wrong from the start), until one of them is seen in full after the key again.

    **Cost.** One hash of ``n`` tokens, one dict operation and comparisons with the few kept continuations per new
    token, whatever the length of the context. Memory is bounded by :attr:`max_keys`; beyond it the keys not met for
    longest are forgotten, half of the table at a time.
    """

    name = "ngram-k4v"
    Options = NgramK4VOptions

    def __init__(self, options: Any, context: StrategyContext) -> None:
        super().__init__(options, context)
        self._keep: int = options.max_entries_per_key
        # Hash of the key -> its continuations, latest seen last. Equal hashes are checked against the history.
        self._table: Generations[list[_Continuation]] = Generations(self.max_keys)
        self._drafted: Sequence[_Continuation] = ()  # what is being verified

    @override
    def begin(self, history: History) -> None:
        if len(history) >= self._n:
            self._count(history)

    @override
    def draft(self, request: DraftRequest) -> Sequence[int]:
        history, n = request.history, self._n
        if len(history) < n:
            return ()  # also with tokens ahead: there is nothing to find yet
        key = self._count(history)
        if request.ahead:
            key = tuple(request.tokens[-n:])
        kept = self._table.get(hash(key))
        if kept is None or not _is_key(history, kept[0].start, key):
            return ()
        if sum(map(_COUNT, kept)) < self._min_hits:
            return ()
        group, length = self._usual(history, kept)
        best = max(group, key=_LIMIT)
        self._drafted = group
        return Copied(history[best.start : best.start + min(length, best.limit, request.budget)], n)

    @override
    def observe(self, outcome: Outcome) -> None:
        drafted, self._drafted = self._drafted, ()
        if outcome.n_accepted < len(outcome.drafted):
            for continuation in drafted:
                continuation.limit = outcome.n_accepted

    def _usual(self, history: History, kept: Sequence[_Continuation]) -> tuple[Sequence[_Continuation], int]:
        """The continuations that begin in the usual way, and for how many tokens they do."""
        if len(kept) == 1:
            return kept, self._m
        total = sum(map(_COUNT, kept))
        group = [(history[c.start : c.start + self._m], c) for c in kept]
        while True:
            # What the first and the last in order have in common, all have.
            texts = [text for text, _ in group]
            length = n_common(min(texts), max(texts))
            if length == self._m:
                break
            counts: dict[int, int] = {}
            for text, continuation in group:
                counts[text[length]] = counts.get(text[length], 0) + continuation.count
            token = max(counts, key=counts.__getitem__)
            if counts[token] < 2 * (total - counts[token]):
                break
            group = [(text, c) for text, c in group if text[length] == token]
        return [c for _, c in group], length

    def _count(self, history: History) -> tuple[int, ...]:
        """Count every continuation that is complete by now; returns the current key."""
        n, m, first = self._n, self._m, self._next
        tokens = tuple(history[first:])
        self._next = max(first, first + len(tokens) - n - m + 1)
        table = self._table
        for start in range(first + n, self._next + n):
            offset = start - first
            key = tokens[offset - n : offset]
            digest = hash(key)
            kept = table.get(digest)
            if kept is None or not _is_key(history, kept[0].start, key):
                table.put(digest, [_Continuation(start, m)])
            else:
                self._add(kept, history, start, tokens[offset : offset + m])
        return tokens[-n:]

    def _add(self, kept: list[_Continuation], history: History, start: int, value: tuple[int, ...]) -> None:
        for i, known in enumerate(kept):
            if tuple(history[known.start : known.start + self._m]) == value:
                known.count += 1
                known.limit = self._m
                kept.append(kept.pop(i))
                return
        if len(kept) >= self._keep:
            kept.remove(min(kept, key=_COUNT))
        kept.append(_Continuation(start, self._m))


def _is_key(history: History, end: int, key: tuple[int, ...]) -> bool:
    return tuple(history[end - len(key) : end]) == key
