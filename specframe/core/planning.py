"""The lengths that make a batch emit most tokens per second."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from specframe.core.acceptance import Survival
from specframe.core.costs import CostModel, Curve, Floats


@attrs.frozen
class Seat:
    """What could be verified of one sequence."""

    survival: Survival
    n: int
    """Most tokens of its draft that could be verified."""
    checkpoint_over: int | None = None
    """See :class:`~specframe.core.scheduler.Candidate`."""


@attrs.frozen
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


@attrs.frozen(kw_only=True)
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
        seconds = float(self._seconds(0, hopeful=hopeful)[0]) + self.tokens * self.costs.accept.value + overhead_s
        return Plan((), self.tokens, seconds)

    def best(
        self,
        seats: Sequence[Seat],
        *,
        overhead_s: float = 0.0,
        drafting_s: Floats | None = None,
        hopeful: bool = False,
    ) -> Plan:
        """The lengths, not all 0, that are expected to emit most tokens per second.

        Chances never rise along a draft, so the best k tokens of all drafts are a prefix of each, and one search over k
        finds the optimum. Costs have steps, so all k are looked at.

        Args:
            seats: What can be verified; not empty.
            overhead_s: Seconds spent in any case.
            drafting_s: ``[i]``: seconds to draft ``i + 1`` tokens for all seats, where that is still open.
            hopeful: Count on the least that a width may cost.
        """
        undoing = [self._undoing(seat) for seat in seats]
        if len(seats) == 1:
            gained, extra, drafting = seats[0].survival.gained[: seats[0].n], undoing[0], drafting_s
            owners = None
        else:
            chances = np.concatenate([seat.survival.all_right[: seat.n] for seat in seats])
            order = np.argsort(-chances, kind="stable")
            gained = chances[order].cumsum()
            owners = np.repeat(np.arange(len(seats)), [seat.n for seat in seats])[order]
            positions = np.concatenate([np.arange(seat.n) for seat in seats])[order]
            drafting = None if drafting_s is None else drafting_s[np.maximum.accumulate(positions)]
            steps = [
                np.zeros(s.n) if u is None else np.diff(u, prepend=0.0) for s, u in zip(seats, undoing, strict=True)
            ]
            extra = np.concatenate(steps)[order].cumsum() if any(u is not None for u in undoing) else None
        tokens = self.tokens + gained
        seconds = self._seconds(len(gained), hopeful=hopeful)[1:] + tokens * self.costs.accept.value + overhead_s
        for more in (extra, drafting):
            if more is not None:
                seconds += more[: len(seconds)]
        k = int(np.argmax(tokens / seconds))
        lengths = [k + 1] if owners is None else np.bincount(owners[: k + 1], minlength=len(seats)).tolist()
        return Plan(lengths, float(tokens[k]), float(seconds[k]))

    def regret(self, hope: Plan, known: Plan) -> float:
        """Seconds lost when ``hope``, a hopeful plan, takes what it is expected to take, against ``known``."""
        width = self.n_rows + sum(hope.lengths)
        expected = hope.seconds + self.target.at(width) - float(self.target.least(width)[-1])
        return expected - hope.tokens / known.speed

    def _seconds(self, n: int, *, hopeful: bool = False) -> Floats:
        """Target and processing, with 0 to ``n`` rows more."""
        widest = self.n_rows + n
        target = self.target.least(widest) if hopeful else self.target.seconds(widest)
        if self.processing.known:
            target = target + self.processing.seconds(widest)
        return target[self.n_rows - 1 :]

    def _undoing(self, seat: Seat) -> Floats | None:
        """``[i]``: seconds for a checkpoint, and for what a rejection costs when ``i + 1`` tokens are verified."""
        over = seat.checkpoint_over
        if over is None or seat.n <= over:
            return None
        n = np.arange(1, seat.n + 1)
        all_right, gained = seat.survival.all_right[: seat.n], seat.survival.gained[: seat.n]
        rejected = np.maximum(1 - all_right, 1e-9)
        # After a restore the accepted tokens ride along with the next batch.
        riding = np.maximum(0.0, (gained - n * all_right) / rejected)
        target = self.target.seconds(seat.n + 2)
        again = np.interp(riding + 2, np.arange(1, len(target) + 1), target) - target[0]
        seconds = self.costs.checkpoint.value + rejected * (self.costs.rollback.value + again)
        seconds[:over] = 0.0
        return np.asarray(seconds)
