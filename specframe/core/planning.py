"""The lengths that make a batch emit most tokens per second."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import repeat

import attrs

from specframe.core.acceptance import Survival
from specframe.core.costs import CostModel, Curve


@attrs.define(eq=False)
class Seat:
    """What could be verified of one sequence."""

    survival: Survival
    n: int
    """Most tokens of its draft that could be verified."""
    checkpoint_over: int | None = None
    """See :class:`~specframe.core.scheduler.Candidate`."""


@attrs.define(eq=False)
class Plan:
    """A choice of lengths, and what is expected of it."""

    lengths: Sequence[int]
    tokens: float
    """Emitted by the batch, on average."""
    seconds: float

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


@attrs.define(kw_only=True, eq=False)
class Batch:
    """What a batch is without drafts, and what its parts cost."""

    n_rows: int
    """Of committed tokens, and of drafts that are not open to choice."""
    tokens: float
    """Emitted in any case: one per sequence, and what drafts of a fixed length bring."""
    target: Curve
    processing: Curve
    costs: CostModel

    @property
    def comparable(self) -> bool:
        """It is known what the batch takes without drafts."""
        return self.target.comparable(self.n_rows)

    def plain(self, overhead_s: float = 0.0, *, hopeful: bool = False) -> Plan:
        """Without any of the seats."""
        seconds = self._seconds(self.n_rows, hopeful=hopeful) + self.tokens * self.costs.accept.value + overhead_s
        return Plan((), self.tokens, seconds)

    def best(
        self,
        seats: Sequence[Seat],
        *,
        overhead_s: float = 0.0,
        drafting_s: Sequence[float] = (),
        hopeful: bool = False,
    ) -> Plan:
        """The lengths, not all 0, that are expected to emit most tokens per second.

        Chances never rise along a draft, so the best k tokens of all drafts are a prefix of each, and one search over k
        finds the optimum. Costs have steps, so it ends only where even drafts that are all as right as their next token
        would not make up for what rows cost by then.

        Args:
            seats: What can be verified; not empty.
            overhead_s: Seconds spent in any case.
            drafting_s: ``[i]``: seconds to draft ``i + 1`` tokens for all seats, where that is still open.
            hopeful: Count on the least that a width may cost.
        """
        undoing = [self._undoing(seat) for seat in seats]
        accept_s, longest, undoing_s = self.costs.accept.value, 0, 0.0
        lengths, tokens, n_left = [0] * len(seats), self.tokens, sum(seat.n for seat in seats)
        best, speed = (lengths, tokens, math.inf), 0.0
        for width, (i, chance) in enumerate(_in_order(seats), self.n_rows + 1):
            n = lengths[i] = lengths[i] + 1
            longest, n_left, tokens = max(longest, n), n_left - 1, tokens + chance
            if more := undoing[i]:
                undoing_s += more[n] - more[n - 1]
            seconds = self._seconds(width, hopeful=hopeful) + tokens * accept_s + overhead_s
            if drafting_s:
                seconds += drafting_s[longest - 1]
            if tokens > speed * (seconds + undoing_s):
                best = lengths[:], tokens, seconds + undoing_s
                speed = tokens / best[2]
            if not hopeful and tokens + chance * n_left <= speed * seconds:
                break
        return Plan(*best)

    def regret(self, hope: Plan, known: Plan) -> float:
        """Seconds lost when ``hope``, a hopeful plan, takes what it is expected to take, against ``known``."""
        width = self.n_rows + sum(hope.lengths)
        expected = hope.seconds + self.target.at(width) - self.target.least(width)
        return expected - hope.tokens / known.speed

    def _seconds(self, width: int, *, hopeful: bool) -> float:
        """Target and processing."""
        target_s = self.target.least(width) if hopeful else self.target.at(width)
        return target_s + (self.processing.at(width) if self.processing.known else 0.0)

    def _undoing(self, seat: Seat) -> list[float]:
        """``[n]``: seconds for a checkpoint, and for what a rejection costs when ``n`` tokens are verified.

        Empty where neither costs anything.
        """
        over = seat.checkpoint_over
        if over is None or seat.n <= over:
            return []
        at, all_right, gained = self.target.at, seat.survival.all_right, seat.survival.gained
        seconds = [0.0] * (over + 1)
        for n in range(over + 1, seat.n + 1):
            rejected = max(1 - all_right[n - 1], 1e-9)
            # After a restore the accepted tokens ride along with the next batch.
            riding = max(0.0, (gained[n - 1] - n * all_right[n - 1]) / rejected)
            whole = int(riding)
            again = at(2 + whole) + (riding - whole) * (at(3 + whole) - at(2 + whole)) - at(1)
            seconds.append(self.costs.checkpoint.value + rejected * (self.costs.rollback.value + again))
        return seconds


def _in_order(seats: Sequence[Seat]) -> Iterable[tuple[int, float]]:
    """The tokens of all drafts, the likeliest first: the seat, and the chance that its draft is right up to there."""
    if len(seats) == 1:
        return zip(repeat(0), seats[0].survival.all_right[: seats[0].n], strict=False)
    tokens = [(i, chance) for i, seat in enumerate(seats) for chance in seat.survival.all_right[: seat.n]]
    return sorted(tokens, key=lambda token: -token[1])
