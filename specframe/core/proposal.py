"""What strategies propose: the edge where their answers are parsed, and who is credited with what of a draft."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Sized

import attrs

from specframe.core.errors import StrategyError


class Copied(list[int]):
    """A guess that was copied from the text, and how long the texts before the copy and before the original agree.

    The longer they do, the longer the guess is likely to be right. ``draft`` may return any sequence; one of this kind
    lets the scheduler tell a passage that is being repeated from a phrase that happens to occur twice.

    Args:
        ids: the tokens of the guess.
        matched: how many tokens before the copy agree with those before its original, those of the key included.
    """

    def __init__(self, ids: Iterable[int], matched: int) -> None:
        super().__init__(ids)
        self.matched = matched


@attrs.frozen
class Part:
    """Consecutive tokens of a draft that come from one strategy."""

    strategy: str
    """Its label."""
    n: int
    n_offered: int
    """Tokens it returned, before trimming; an iterator is not followed further than one past the budget."""
    matched: int = 0
    """See :class:`Copied`."""


@attrs.frozen
class Proposal:
    """A draft that is safe to verify: within the budget, every id inside the vocabulary."""

    ids: tuple[int, ...]
    parts: tuple[Part, ...]
    """Who drafted what, in order; together they are ``ids``."""

    @classmethod
    def of(cls, raw: Iterable[int], *, budget: int, n_vocab: int, strategy: str, label: str | None = None) -> Proposal:
        """Trim and check what a strategy returned. Raises StrategyError naming the strategy and the bad token."""
        if isinstance(raw, (list, tuple)) and not raw:
            return _NOTHING
        try:
            offered = list(itertools.islice(raw, budget + 1))
            ids = tuple(map(operator.index, offered[:budget]))
            n_offered = len(raw) if isinstance(raw, (list, tuple, Sized)) else len(offered)
        except TypeError as error:
            msg = f"proposed something that is not a sequence of token ids: {raw!r:.80}"
            raise StrategyError(strategy, msg) from error
        if ids and (min(ids) < 0 or max(ids) >= n_vocab):
            bad = next(i for i in ids if not 0 <= i < n_vocab)
            msg = f"proposed token {bad}, outside the vocabulary of {n_vocab} tokens"
            raise StrategyError(strategy, msg)
        matched = raw.matched if isinstance(raw, Copied) else 0
        return cls(ids, (Part(label or strategy, len(ids), n_offered, matched),) if offered else ())


_NOTHING = Proposal((), ())


def credit(parts: Iterable[Part], n_verified: int, n_accepted: int) -> Iterator[tuple[Part, int, int]]:
    """What each part has of the first ``n_verified`` tokens of a draft, and of its ``n_accepted`` accepted ones."""
    for part in parts:
        verified = min(part.n, n_verified)
        accepted = min(verified, n_accepted)
        yield part, verified, accepted
        n_verified -= verified
        n_accepted -= accepted
