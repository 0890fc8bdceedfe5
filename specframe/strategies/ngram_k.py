"""Drafting from the latest earlier place where the last n tokens occurred (compare llama.cpp's ``ngram-map-k``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs
from typing_extensions import override

from specframe.core.history import History
from specframe.core.proposal import Copied
from specframe.core.strategy import DraftRequest, Outcome, StrategyContext, Suitability
from specframe.core.validators import whole_number
from specframe.strategies._ngram import MAX_ENTRIES, MAX_M, MAX_N, Generations, NgramStrategy, n_common

#: Agreement before a match is not followed farther back than this.
_FARTHEST = 64
#: So far it is followed at first.
_NEAR = 8


@attrs.frozen(kw_only=True)
class NgramKOptions:
    """Options of ``ngram-k``."""

    n: int = attrs.field(default=12, validator=whole_number(1, MAX_N), metadata={"doc": "tokens that must match"})
    m: int = attrs.field(default=48, validator=whole_number(1, MAX_M), metadata={"doc": "most tokens to draft"})
    min_hits: int = attrs.field(
        default=1, validator=whole_number(1, MAX_ENTRIES), metadata={"doc": "earlier occurrences needed to draft"}
    )
    max_entries_per_key: int = attrs.field(
        default=8, validator=whole_number(2, MAX_ENTRIES), metadata={"doc": "latest occurrences remembered per key"}
    )

    def __attrs_post_init__(self) -> None:
        if self.min_hits > self.max_entries_per_key:
            msg = (
                f"min_hits={self.min_hits} can never be reached with max_entries_per_key={self.max_entries_per_key}: "
                "lower the first or raise the second"
            )
            raise ValueError(msg)


class NgramK(NgramStrategy):
    """What followed the last n tokens where they occurred before.

    **Key and match.** The key is the last ``n`` committed tokens. A match is an earlier occurrence, prompt included,
    followed by at least one token; it may overlap the key. The one with most tokens before it that agree with those
    before the key is used, of equal ones the latest, if the key has ``min_hits`` of them (counting at most the
    ``max_entries_per_key`` latest, all that is remembered).

    **Draft.** The ``min(m, budget)`` tokens that followed the match. Where they run past the end of the history the
    draft goes on with its own beginning, so a loop shorter than ``m`` is drafted in full. Behind the draft of another
    strategy the key ends with that draft; matches are committed tokens all the same.

    **Feedback.** Once a draft of a key was rejected somewhere, drafts of that key are as long as its two latest matches
    agree on what followed. It is measured on the text, not on drafts, so it grows as soon as the text repeats again,
    also from 0; when the agreement reaches ``m`` the rejection is forgotten.

    **Evidence.** Beside the draft it tells how many tokens before the key agree with those before the match: the
    scheduler trusts a passage that is being repeated more than a phrase that happens to occur twice.

    **Cost.** One hash of ``n`` tokens and one dict operation per new token, whatever the length of the context. Memory
    is bounded by :attr:`max_keys`; beyond it the keys not met for longest are forgotten, half of the table at a time.
    """

    name = "ngram-k"
    Options = NgramKOptions
    auto_options = MappingProxyType({"n": 4})  # the scheduler knows how much a short key is worth

    @classmethod
    @override
    def suitability(cls, target: Path, draft: Path | None) -> Suitability:
        return Suitability.ANY_MODEL

    def __init__(self, options: Any, context: StrategyContext) -> None:
        super().__init__(options, context)
        self._keep: int = options.max_entries_per_key - 1
        # Hash of the key -> starts of its occurrences, latest first. Equal hashes are checked against the history.
        self._starts: Generations[tuple[int, ...]] = Generations(self.max_keys)
        self._rejected: Generations[bool] = Generations(self.max_keys)
        self._drafted: int | None = None  # hash of the key whose draft is being verified

    @override
    def begin(self, history: History) -> None:
        if len(history) > self._n:
            self._index(history)

    @override
    def draft(self, request: DraftRequest) -> Sequence[int]:
        history, n = request.history, self._n
        if len(history) <= n:
            return ()
        key = self._index(history)
        if request.ahead:
            key = tuple(request.tokens[-n:])
        digest = hash(key)
        starts = self._starts.get(digest)
        if starts is None or len(starts) < self._min_hits or tuple(history[starts[0] : starts[0] + n]) != key:
            return ()
        length, tokens = min(self._m, request.budget), request.tokens
        if len(starts) > 1 and self._rejected.get(digest):
            agreed = self._agreement(tokens, starts[0] + n, starts[1] + n)
            if agreed == self._m and not request.ahead:
                self._rejected.discard(digest)
            length = min(length, agreed)
        self._drafted = digest
        start, agreed = self._best(tokens, starts)
        return Copied(_continuation(tokens, start + n, length), n + agreed)

    @override
    def observe(self, outcome: Outcome) -> None:
        digest, self._drafted = self._drafted, None
        if digest is not None and outcome.n_accepted < len(outcome.drafted):
            self._rejected.put(digest, True)

    def _index(self, history: History) -> tuple[int, ...]:
        """Enter every key that a token follows by now; returns the current key."""
        n, first = self._n, self._next
        end = len(history) - n
        tokens = tuple(history[first : end + n])
        table = self._starts
        for start in range(first, end):
            key = tokens[start - first : start - first + n]
            digest = hash(key)
            known = table.get(digest)
            if known is not None and tuple(history[known[0] : known[0] + n]) == key:
                table.put(digest, (start, *known[: self._keep]))
            else:
                table.put(digest, (start,))
        self._next = end
        return tokens[-n:]

    def _best(self, tokens: History, starts: Sequence[int]) -> tuple[int, int]:
        """The match that most tokens before it speak for, of equal ones the latest, and how many they are."""
        best, most = starts[0], -1
        end = len(tokens) - self._n
        before = tokens[max(0, end - _FARTHEST) : end][::-1]
        for start in starts:
            agreed = _agreed(tokens, start, before)
            if agreed > most:
                best, most = start, agreed
            if most == _FARTHEST:
                break
        return best, most

    def _agreement(self, history: History, one: int, other: int) -> int:
        """Leading tokens in common of what the matches ending at ``one`` and ``other`` predict, at most ``m``."""
        return n_common(_continuation(history, one, self._m), _continuation(history, other, self._m))


def _agreed(tokens: History, start: int, before: Sequence[int]) -> int:
    """Tokens before the match at ``start`` that agree with ``before``, those before the key, the last one first."""
    agreed = 0
    for far in (_NEAR, _FARTHEST):  # few agree for long, and what is not looked at costs nothing
        agreed = n_common(tokens[max(0, start - far) : start][::-1], before)
        if agreed < far:
            break
    return agreed


def _continuation(history: History, start: int, length: int) -> list[int]:
    tokens = history[start : start + length]
    missing = length - len(tokens)
    return (tokens * (missing // len(tokens) + 2))[:length] if missing > 0 else tokens
