"""How far drafts are likely to be right, learnt from what the target says whether or not it verified them.

A guess that was not verified is compared with what is committed afterwards: the target would have agreed with exactly
those tokens, as its choice does not depend on drafts. So nothing has to be verified in order to learn, and a draft
that was verified only in part goes on teaching.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from specframe.core.costs import Floats
from specframe.core.scheduler import SchedulerStats

#: The strategies that made a draft, in the order of their parts.
Kind: TypeAlias = tuple[str, ...]

#: First positions (from 1) of the ranges whose tokens are taken to be accepted with one probability.
_STARTS = np.array([1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769])
_N_RANGES = len(_STARTS)
_RANGE_OF: npt.NDArray[np.intp] = np.searchsorted(_STARTS, np.arange(1, 2049), side="right") - 1
_RANGES: list[int] = _RANGE_OF.tolist()
#: Longest draft that is reckoned with.
LONGEST = len(_RANGES)

#: Positions that are proposed more rarely than this are not reckoned with.
_HARDLY = 0.02

#: Tokens in a row the strategy must have been right about for the second and the third state.
_RUNS = (1, 16)
_N_STATES = len(_RUNS) + 1
#: Where in a draft the first state is like the beginning of the others.
_LIKE = (0, 1, 8)

#: Chance of a first token before anything is known.
_FIRST = 0.7
#: What is assumed without evidence counts like this many tokens.
_ASSUMED = 2.0
#: How much older drafts of a request, and of all requests of a strategy, count with each new one.
_KEEP_OWN, _KEEP_SHARED = 0.95, 0.99
#: What is known of the strategy counts like this many tokens for a new request.
_SHARED = 8.0


class Counts:
    """How often tokens at a place were tried and right, where older tries count less.

    Places are ranges of positions, in three states: how long the strategy has been right in a row before. What follows
    a copied passage is likely to be copied too, and what a strategy was just wrong about it may be wrong about again.
    """

    def __init__(self, keep: float) -> None:
        """Each draft makes what is known from earlier ones count ``keep`` times as much."""
        self._grow = 1 / keep
        self._unit = 1.0
        self.tried = [[0.0] * _N_RANGES for _ in range(_N_STATES)]
        self.right = [[0.0] * _N_RANGES for _ in range(_N_STATES)]

    def age(self) -> None:
        """Another draft begins."""
        self._unit *= self._grow  # instead of shrinking everything else
        if self._unit > 1e9:  # noqa: PLR2004 -- long before floats end
            for table in (self.tried, self.right):
                table[:] = [[x / self._unit for x in row] for row in table]
            self._unit = 1.0

    def add(self, state: int, position: int, *, right: bool) -> None:
        """A draft that began in ``state`` was right at ``position`` (from 0), or was not."""
        place = _RANGES[min(position, LONGEST - 1)]
        self.tried[state][place] += self._unit
        if right:
            self.right[state][place] += self._unit

    def chances(self, state: int, n: int, prior: Sequence[float] | None = None) -> list[float]:
        """``[i]``: that a token in range i is right when all before it are, for the first ``n`` ranges.

        Without ``prior`` each range leans on the one before it, and the states lean on the first one.
        """
        weight = _SHARED * self._unit
        tried, right = self.tried[state], self.right[state]
        if prior is not None:
            return [(right[i] + weight * prior[i]) / (tried[i] + weight) for i in range(n)]
        weight = _ASSUMED * self._unit
        chance = self.chances(0, _LIKE[state] + 1)[-1] if state else _FIRST
        chances = []
        for i in range(n):
            chance = (right[i] + weight * chance) / (tried[i] + weight)
            chances.append(chance)
        return chances


@attrs.define
class Survival:
    """Chances of the draft positions of one request, in the state it is in."""

    all_right: Floats
    """``[i]``: that the first ``i + 1`` tokens are all right."""
    gained: Floats
    """``[i]``: how many of the first ``i + 1`` tokens are accepted, on average."""

    @classmethod
    def of(cls, chances: Sequence[float], n: int) -> Survival:
        """Of ``n`` tokens, from the chances of their ranges."""
        all_right = np.array(chances)[_RANGE_OF[:n]].cumprod()
        return cls(all_right, all_right.cumsum())


@attrs.define(eq=False)
class Experience:
    """What is known of one strategy, over all requests."""

    counts: dict[Kind, Counts] = attrs.field(factory=lambda: defaultdict(lambda: Counts(_KEEP_SHARED)))
    """By who guessed: members of a combination are not equally right."""
    offers: Counts = attrs.field(factory=lambda: Counts(_KEEP_SHARED))
    """How often it proposes so many tokens when it is asked for them."""

    def offered(self, n_asked: int, n_offered: int) -> None:
        """It was asked for ``n_asked`` tokens."""
        self.offers.age()
        for i in range(min(n_offered, n_asked)):
            self.offers.add(0, i, right=True)
        if n_offered < n_asked:
            self.offers.add(0, n_offered, right=False)

    def offering(self, n: int) -> Survival:
        """Chances that it proposes so many tokens when asked for ``n``; shorter where there is hardly a chance left."""
        n = min(n, LONGEST)
        offering = Survival.of(self.offers.chances(0, _RANGES[n - 1] + 1), n)
        n = max(1, int(np.searchsorted(-offering.all_right, -_HARDLY)))
        return Survival(offering.all_right[:n], offering.gained[:n])


@attrs.define(eq=False)
class Track:
    """One request, and the guess that is being compared with what is committed."""

    key: str
    """Of its strategy."""
    strategy: Experience
    stats: SchedulerStats
    asked: bool = False
    """Its strategy was asked for the latest batch."""
    n_behind: int | None = None
    """Tokens that were committed since it was asked last, which it may have to go through; None: not counted yet."""
    drafting: bool = False
    """The latest decision was to verify something."""
    run: int = 0
    """Tokens in a row that the guesses were right about, up to now."""
    _counts: dict[Kind, Counts] = attrs.field(factory=lambda: defaultdict(lambda: Counts(_KEEP_OWN)))
    _guess: Sequence[int] = ()
    _at: int = 0
    _state: int = 0
    _kind: Kind = ()
    """Who made the guess, or the latest one."""
    _survival: dict[Kind, Survival] = attrs.field(factory=dict)

    @property
    def comparing(self) -> bool:
        """A guess is being compared."""
        return self._at < len(self._guess)

    @property
    def state(self) -> int:
        """Index of the state the request is in."""
        return sum(self.run >= least for least in _RUNS)

    def guess(self, proposal: Sequence[int], kind: Kind) -> None:
        """Compare ``proposal`` with what is committed from here on, instead of an earlier one."""
        self._guess, self._at, self._state, self._kind = proposal, 0, self.state, kind
        self._counts[kind].age()
        self.strategy.counts[kind].age()
        self._survival.clear()

    def committed(self, tokens: Sequence[int]) -> None:
        """These tokens were emitted."""
        if not self.comparing:
            return
        own, shared = self._counts[self._kind], self.strategy.counts[self._kind]
        self._survival.clear()
        for token in tokens:
            right = token == self._guess[self._at]
            own.add(self._state, self._at, right=right)
            shared.add(self._state, self._at, right=right)
            if not right:
                self.lost()
                return
            self._at += 1
            self.run += 1
            if not self.comparing:
                return

    def lost(self) -> None:
        """The guess was wrong, or there is none: whatever comes next begins anew."""
        self._guess, self._at = (), 0
        if self.run:
            self.run = 0
            self._survival.clear()

    def survival(self, n: int, kind: Kind | None = None) -> Survival:
        """Chances of a draft of at least ``n`` tokens that begins now; arrays may be longer.

        Without ``kind`` it is not made yet, and probably by whoever made the latest one.
        """
        kind = self._kind if kind is None else kind
        known = self._survival.get(kind)
        if known is None or len(known.gained) < n:
            n = max(16, min(LONGEST, 1 << (n - 1).bit_length()))
            n_ranges = _RANGES[n - 1] + 1
            shared = self.strategy.counts[kind].chances(self.state, n_ranges)
            known = self._survival[kind] = Survival.of(self._counts[kind].chances(self.state, n_ranges, shared), n)
        return known

    def survival_if(self, offering: Survival) -> Survival:
        """Chances that a draft position is proposed and right."""
        n = len(offering.all_right)
        both = self.survival(n).all_right[:n] * offering.all_right
        return Survival(both, both.cumsum())
