"""Schedulers without a model: batches that take what a cost curve says, drafts that are as right as a process says."""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Protocol

import attrs

from specframe.core.proposal import Part
from specframe.core.scheduler import Candidate, DraftCall, DraftScheduler, SchedulerStats, StepReport, Verified

Cost = Callable[[int], float]
"""Rows (or tokens of a draft) -> seconds."""

RIGHT, WRONG = 1, 0


class Drafts(Protocol):
    """Where drafts come from."""

    def draft(self, n_emitted: int, limit: int, dice: random.Random) -> tuple[int, int]:
        """Tokens proposed behind ``n_emitted`` tokens of the text, and how many of them are right."""
        ...

    def matched(self, n_emitted: int) -> int:
        """Tokens before the draft that agree with those before its original; 0: it was not copied."""
        ...


class _NotCopied:
    def matched(self, n_emitted: int) -> int:
        return 0


@attrs.define
class Constant(_NotCopied):
    """Each token is right with the same chance, independently, as those of a draft model are."""

    chance: float
    longest: int = 16

    def draft(self, n_emitted: int, limit: int, dice: random.Random) -> tuple[int, int]:
        n = min(limit, self.longest)
        return n, next((i for i in range(n) if dice.random() >= self.chance), n)


@attrs.define
class Drifting(_NotCopied):
    """Like ``before`` up to a place in the text, then like ``after``."""

    before: Drafts
    after: Drafts
    at: int

    def draft(self, n_emitted: int, limit: int, dice: random.Random) -> tuple[int, int]:
        return (self.before if n_emitted < self.at else self.after).draft(n_emitted, limit, dice)


@attrs.define
class Copying:
    """A text of passages that were seen before and new ones in turn, as n-gram drafts meet them."""

    copied: float
    """Mean length of a copied passage."""
    new: float
    """Mean length of a new one."""
    misled: float = 0.0
    """Chance of a draft, wholly wrong, inside a new passage."""
    longest: int = 48
    key: int = 4
    seed: int = 0
    _ends: list[int] = attrs.field(init=False, factory=list, repr=False)

    def __attrs_post_init__(self) -> None:
        dice = random.Random(self.seed)
        end = 0
        while end < 100_000:
            for mean in (self.new, self.copied):
                end += 1 + int(dice.expovariate(1 / mean))
                self._ends.append(end)

    def draft(self, n_emitted: int, limit: int, dice: random.Random) -> tuple[int, int]:
        passage = bisect.bisect_right(self._ends, n_emitted)
        n = min(limit, self.longest)
        if passage % 2:
            return n, min(n, self._ends[passage] - n_emitted)
        return (n if dice.random() < self.misled else 0), 0

    def matched(self, n_emitted: int) -> int:
        """The key alone in a new passage, and what was copied since in the other."""
        passage = bisect.bisect_right(self._ends, n_emitted)
        return self.key + (n_emitted - self._ends[passage - 1] if passage % 2 else 0)


@attrs.define(kw_only=True)
class Machine:
    """What things take."""

    target: Cost
    draft: Cost = lambda n: 1e-6
    process: Cost = lambda n: 0.0
    behind: float = 0.0
    """Seconds for each token that was committed since the strategy was asked last: it goes through them first."""
    opening: float = 0.0
    """Seconds that the first draft takes more than others."""
    prompt: float = 0.8
    """What the rows of a prompt take, in units of rows that are verified."""
    noise: float = 0.0
    """Standard deviation of the logarithm of a timing."""
    outliers: float = 0.0
    """Share of timings that come out five times too long."""

    def timed(self, seconds: float, dice: random.Random) -> float:
        if self.noise:
            seconds *= dice.lognormvariate(0, self.noise)
        return seconds * (5 if self.outliers and dice.random() < self.outliers else 1)


@attrs.define
class Run:
    """What came of it; seconds are those of the curves, without noise."""

    n_emitted: int = 0
    seconds: float = 0.0
    plain_seconds: float = 0.0
    """What plain decoding would have taken."""
    lengths: list[int] = attrs.field(factory=list)
    """Verified in each step, of all sequences."""
    marks: list[tuple[int, float]] = attrs.field(factory=list)
    """Tokens and seconds after each step."""

    @property
    def gain(self) -> float:
        """Times the speed of plain decoding."""
        return self.plain_seconds / self.seconds

    def seconds_between(self, first: int, last: int) -> float:
        """Time it took to get from one number of tokens to another."""
        return next(s for n, s in self.marks if n >= last) - next(s for n, s in self.marks if n >= first)


def simulate(
    scheduler: DraftScheduler,
    machine: Machine,
    drafts: Sequence[Drafts],
    *,
    n_tokens: int = 2000,
    seed: int = 0,
    prompt: int = 200,
    requests: int = 1,
    n_past: int = 300,
) -> Run:
    """Generate ``n_tokens`` with each of ``drafts``, one sequence each, in common batches."""
    dice, noise = random.Random(seed), random.Random(seed + 1)
    run = Run()
    n_seq = len(drafts)
    seconds = machine.timed(machine.prompt * machine.target(prompt), noise)
    scheduler.record(StepReport(n_rows=prompt, n_context=0, target_s=seconds))
    emitted = [0] * n_seq
    since = 0
    behind = [prompt] * n_seq
    opening = machine.opening
    for seq in range(n_seq):
        scheduler.begin(seq, f"strategy {seq}", SchedulerStats())
    while min(emitted) < n_tokens:
        if requests > 1 and min(emitted) - since >= n_tokens // requests:
            since = min(emitted)
            behind = [prompt] * n_seq
            for seq in range(n_seq):
                scheduler.end(seq)
                scheduler.begin(seq, f"strategy {seq}", SchedulerStats())
        batch = [Candidate(seq=i, n_past=n_past, n_rows=1, budget=64) for i in range(n_seq)]
        calls = []
        right = [0] * n_seq
        for c, limit in zip(batch, scheduler.limits(batch), strict=True):
            if limit:
                n, right[c.seq] = drafts[c.seq].draft(emitted[c.seq], limit, dice)
                c.parts = (Part("drafts", n, n, drafts[c.seq].matched(emitted[c.seq])),)
                c.proposal = [RIGHT] * right[c.seq] + [WRONG] * (n - right[c.seq])
                seconds = machine.draft(n) + machine.behind * behind[c.seq] + opening
                behind[c.seq], opening = 0, 0.0
                run.seconds += seconds
                calls.append(DraftCall(seqs=[c.seq], longest=n, seconds=machine.timed(seconds, noise)))
        lengths = scheduler.cut(batch)
        rows = n_seq + sum(lengths)
        target, process = machine.target(rows), machine.process(rows)
        accepted = [min(n, right[i]) for i, n in enumerate(lengths)]
        run.seconds += target + process
        run.plain_seconds += machine.target(n_seq) * sum(1 + n for n in accepted) / n_seq
        run.n_emitted += sum(1 + n for n in accepted)
        run.lengths.append(sum(lengths))
        run.marks.append((run.n_emitted, run.seconds))
        for i, n in enumerate(accepted):
            emitted[i] += 1 + n
            behind[i] += 1 + n
        scheduler.record(
            StepReport(
                n_rows=rows,
                n_context=n_past * n_seq,
                target_s=machine.timed(target, noise),
                process_s=machine.timed(process, noise),
                drafts=calls,
                verified=[Verified(seq=i, committed=[RIGHT] * (1 + n)) for i, n in enumerate(accepted)],
            )
        )
    return run


class Fixed:
    """Always the same length: what a scheduler is compared with."""

    def __init__(self, length: int) -> None:
        self._length = length

    def begin(self, seq: int, strategy: str, stats: SchedulerStats) -> None:
        """All are alike."""

    def limits(self, batch: Sequence[Candidate]) -> list[int]:
        return [min(c.budget, self._length) for c in batch]

    def cut(self, batch: Sequence[Candidate]) -> list[int]:
        return [len(c.proposal) for c in batch]

    def record(self, report: StepReport) -> None:
        """Nothing to learn."""

    def end(self, seq: int) -> None:
        """Nothing to forget."""


def table(milliseconds: dict[int, float]) -> Cost:
    """A curve through measured points, straight between them and as steep as at its end beyond it."""
    points = sorted(milliseconds.items())

    def cost(rows: int) -> float:
        (w0, t0), (w1, t1) = points[-2:]
        for (a, ta), (b, tb) in itertools.pairwise(points):
            if a <= rows <= b:
                w0, t0, w1, t1 = a, ta, b, tb
                break
        return (t0 + (t1 - t0) * (rows - w0) / (w1 - w0)) / 1000

    return cost


#: Measured: a small model on two cores of a processor, with three kinds of kernels.
CPU = {
    "q4_1": table({1: 6.2, 2: 12.6, 4: 16.6, 8: 25.0, 16: 45.4, 32: 85.7}),
    "q4_0": table({1: 4.5, 2: 7.5, 4: 9.7, 8: 12.9, 16: 17.6, 32: 31.4}),
    "bf16": table({1: 6.8, 2: 13.1, 4: 13.3, 8: 17.4, 16: 24.1, 32: 40.9}),
    "gemma": table({1: 9.9, 2: 22.4, 4: 32.2, 8: 39.0, 16: 54.5, 32: 93.3}),
}
#: Nearly flat, as long as the weights are what has to be read.
GPU = {"flat": lambda rows: 0.010 * (1 + 0.002 * rows), "small": lambda rows: 0.003 + 0.00005 * rows}
#: Work is done in tiles of so many rows.
NPU = {
    "8": lambda rows: 0.012 * (1 + (rows - 1) // 8),
    "16": lambda rows: 0.012 * (1 + 0.5 * ((rows - 1) // 16)),
}
CURVES: dict[str, Cost] = {
    f"{kind} {name}": cost for kind, costs in (("cpu", CPU), ("gpu", GPU), ("npu", NPU)) for name, cost in costs.items()
}
