"""How far drafts are likely to be right, learnt from what the target says whether or not it verified them.

A guess that was not verified is compared with what is committed afterwards: the target would have agreed with exactly
those tokens, as its choice does not depend on drafts. So nothing has to be verified in order to learn, and a draft
that was verified only in part goes on teaching.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate
from operator import mul, neg
from typing import TypeAlias

import attrs

from specframe.core.costs import Curve, Level
from specframe.core.scheduler import SchedulerStats

#: The strategies that made a draft, in the order of their parts.
Kind: TypeAlias = tuple[str, ...]

#: First places (from 1) of the ranges whose tokens are taken to be accepted with one probability.
_STARTS = (1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769)
_N_RANGES = len(_STARTS)
#: Longest draft that is reckoned with.
LONGEST = 1024
#: A longer agreement before a copied draft says no more.
_MOST_MATCHED = 64
#: By place (from 0): its range.
_RANGES = [bisect.bisect_right(_STARTS, n) - 1 for n in range(1, _MOST_MATCHED + LONGEST + 1)]
#: By range: how much longer, as a logarithm, a passage gets with a token. Lengths of repeated passages follow a power
#: law: what has agreed for l tokens goes on with a chance of (l / (l + 1)) ** exponent, for short and for long ones.
_LONGER = [math.log1p(1 / start) for start in _STARTS]
#: The exponent before anything is known. Text that a model writes has 0.9, what people write 1.7 (measured).
_EXPONENT = 1.3

#: Positions that are proposed more rarely than this are not reckoned with.
_HARDLY = 0.02

#: Chance of a first token of other drafts before anything is known.
_FIRST = 0.7
#: The same for being offered one: who is asked mostly has something to say.
_OFFERED = 0.95
#: What is assumed without evidence counts like this many tokens.
_ASSUMED = 2.0
#: An exponent from elsewhere counts like this many passages that came to their end.
_ENDS = 4.0
#: Steps for which it is not considered to ask a strategy that is not worth it: more with each guess that is all wrong.
SHORTEST_REST, _LONGEST_REST = 8, 512
#: How much older drafts of a request, and of all requests of a strategy, count with each new one.
_KEEP_OWN, _KEEP_SHARED = 0.95, 0.99
#: What is known from elsewhere counts like this many tokens of a range.
_SHARED = 8.0


def place(matched: int, position: int) -> int:
    """Where a token stands: behind how many tokens that agree.

    In a draft that was copied these are the tokens before the copy that agree with those before the original, and
    those of the draft; in others the tokens of the draft alone.
    """
    return min(matched, _MOST_MATCHED) + position


class Counts:
    """How often tokens at a place were tried and right, where older tries count less."""

    def __init__(self, keep: float) -> None:
        """Each draft makes what is known from earlier ones count ``keep`` times as much."""
        self._grow = 1 / keep
        self._unit = 1.0
        self.tried = [0.0] * _N_RANGES
        self.right = [0.0] * _N_RANGES

    def age(self) -> None:
        """Another draft begins."""
        self._unit *= self._grow  # instead of shrinking everything else
        if self._unit > 1e9:  # noqa: PLR2004 -- long before floats end
            for table in (self.tried, self.right):
                table[:] = [x / self._unit for x in table]
            self._unit = 1.0

    def add(self, at: int, *, right: bool) -> None:
        """A token at place ``at`` (from 0) was right, or was not, after all before it were."""
        i = _RANGES[min(at, len(_RANGES) - 1)]
        self.tried[i] += self._unit
        if right:
            self.right[i] += self._unit

    def exponent(self, prior: float) -> float:
        """Of the lengths of copied passages."""
        weight = _ENDS * self._unit
        ends = sum(self.tried) - sum(self.right)
        growth = sum(n * longer for n, longer in zip(self.tried, _LONGER, strict=True))
        return (ends + weight) / (growth + weight / prior)

    def chances(self, n: int, chance: float = _FIRST) -> list[float]:
        """``[i]``: that a token in range i is right when all before it are, for the first ``n`` ranges.

        Of drafts that were not copied: each range leans on the one before it, the first one on ``chance``.
        """
        weight = _ASSUMED * self._unit
        chances = []
        for tried, right in zip(self.tried[:n], self.right[:n], strict=True):
            chance = (right + weight * chance) / (tried + weight)
            chances.append(chance)
        return chances

    def updated(self, prior: Sequence[float], *, hopeful: bool = False) -> list[float]:
        """``prior`` with what was counted here; if ``hopeful`` a standard deviation better."""
        weight = _SHARED * self._unit
        chances = [(r + weight * p) / (t + weight) for t, r, p in zip(self.tried, self.right, prior, strict=False)]
        if hopeful:
            n = [t / self._unit + _SHARED for t in self.tried[: len(chances)]]
            chances = [min(1.0, p + math.sqrt(p * (1 - p) / n)) for p, n in zip(chances, n, strict=True)]
        return chances


@attrs.define(eq=False)
class Survival:
    """Chances of the positions of one draft."""

    all_right: Sequence[float]
    """``[i]``: that the first ``i + 1`` tokens are all right."""

    @classmethod
    def of(cls, chances: Sequence[float], first: int, n: int) -> Survival:
        """Of ``n`` tokens, the first of which stands at place ``first``, from the chances of the ranges of places."""
        return cls(list(accumulate([chances[i] for i in _RANGES[first : first + n]], mul)))

    @property
    def gained(self) -> list[float]:
        """``[i]``: how many of the first ``i + 1`` tokens are accepted, on average."""
        return list(accumulate(self.all_right))


@attrs.define(eq=False)
class Experience:
    """What is known of one strategy, over all requests."""

    counts: dict[Kind, Counts] = attrs.field(factory=lambda: defaultdict(lambda: Counts(_KEEP_SHARED)))
    """By who guessed: members of a combination are not equally right."""
    offers: Counts = attrs.field(factory=lambda: Counts(_KEEP_SHARED))
    """How often it proposes so many tokens when it is asked for them."""
    latest: tuple[Kind, int] = ((), 0)
    """Who made its latest guess, and how many tokens before that agreed."""
    rest: int = SHORTEST_REST
    """Steps for which it is not considered to ask it when it is not worth it."""

    def offered(self, n_asked: int, n_offered: int) -> None:
        """It was asked for ``n_asked`` tokens."""
        self.offers.age()
        for i in range(min(n_offered, n_asked)):
            self.offers.add(i, right=True)
        if n_offered < n_asked:
            self.offers.add(n_offered, right=False)

    def offering(self, n: int) -> Survival:
        """Chances that it proposes so many tokens when asked for ``n``; shorter where there is hardly a chance left."""
        n = min(n, LONGEST)
        offering = Survival.of(self.offers.chances(_RANGES[n - 1] + 1, _OFFERED), 0, n)
        n = max(1, bisect.bisect_left(offering.all_right, -_HARDLY, key=neg))
        return Survival(offering.all_right[:n])


@attrs.define(eq=False)
class Track:
    """One request, and the guess that is being compared with what is committed."""

    key: str
    """Of its strategy."""
    strategy: Experience
    stats: SchedulerStats
    call: Level = attrs.field(factory=Level)
    """Seconds of one call of its strategy, whatever it proposes."""
    drafts: Curve = attrs.field(factory=Curve)
    """The same by the tokens of its longest proposal and one."""
    n_behind: int | None = None
    """Tokens that were committed since it was asked last, which it may have to go through; None: not counted yet."""
    pause: int = 0
    """Steps for which it is not considered to ask its strategy."""
    drafting: bool = False
    """The latest decision was to verify something."""
    _counts: dict[Kind, Counts] = attrs.field(factory=lambda: defaultdict(lambda: Counts(_KEEP_OWN)))
    _guess: Sequence[int] = ()
    _at: int = 0
    _matched: int = 0
    _kind: Kind = ()
    """Who made the guess, or the latest one."""

    def __attrs_post_init__(self) -> None:
        self._kind, self._matched = self.strategy.latest

    @property
    def comparing(self) -> bool:
        """A guess is being compared."""
        return self._at < len(self._guess)

    def considered(self, *, pays: bool) -> None:
        """It was considered to ask the strategy."""
        if pays:
            self.strategy.rest = SHORTEST_REST
        self.pause = 0 if pays else self.strategy.rest - 1

    def guess(self, proposal: Sequence[int], kind: Kind, matched: int) -> None:
        """Compare ``proposal`` with what is committed from here on, instead of an earlier one."""
        self._guess, self._at, self._matched, self._kind = proposal, 0, matched, kind
        self.strategy.latest = kind, matched
        self._counts[kind].age()
        self.strategy.counts[kind].age()

    def committed(self, tokens: Sequence[int]) -> None:
        """These tokens were emitted."""
        if not self.comparing:
            return
        own, shared = self._counts[self._kind], self.strategy.counts[self._kind]
        for token in tokens:
            right = token == self._guess[self._at]
            at = place(self._matched, self._at)
            own.add(at, right=right)
            shared.add(at, right=right)
            if not right:
                if not self._at:
                    self.strategy.rest = min(2 * self.strategy.rest, _LONGEST_REST)
                self._guess, self._at = (), 0
                return
            self._at += 1
            if not self.comparing:
                self.strategy.rest, self.pause = SHORTEST_REST, 0
                return

    def survival(self, n: int, kind: Kind | None = None, matched: int = 0, *, hopeful: bool = False) -> Survival:
        """Chances of a draft of ``n`` tokens that begins now; the best that can be hoped for if ``hopeful``.

        Without ``kind`` it is not made yet, and probably like the latest one.
        """
        if kind is None:
            kind, matched = self._kind, self._matched
        first = place(matched, 0)
        n_ranges = _RANGES[first + n - 1] + 1
        own, shared = self._counts[kind], self.strategy.counts[kind]
        if matched:
            exponent = own.exponent(shared.exponent(_EXPONENT))
            chances = shared.updated([math.exp(-exponent * longer) for longer in _LONGER[:n_ranges]])
        else:
            chances = shared.chances(n_ranges)
        return Survival.of(own.updated(chances, hopeful=hopeful), first, n)

    def survival_if(self, offering: Survival, *, hopeful: bool = False) -> Survival:
        """Chances that a draft position is proposed and right."""
        right = self.survival(len(offering.all_right), hopeful=hopeful).all_right
        return Survival(list(map(mul, right, offering.all_right)))
