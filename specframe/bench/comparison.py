"""Runs both sides alternately, each request in a fresh process, and pairs what they measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from specframe.bench.settings import Job, Measurement, Settings, Variant, text_of
from specframe.bench.statistics import Summary, divergence, paired

SIDES = ("specframe", "server")

#: ``(side, job) -> measurement``.
Run = Callable[[str, Job], Measurement]

#: ``(done, total, what comes next)``.
Progress = Callable[[int, int, str], None]

_TIMEOUT_S = 900


def run_process(side: str, job: Job) -> Measurement:
    """Do ``job`` in a new process. Raises RuntimeError with what it printed when it fails."""
    done = subprocess.run(  # noqa: S603 -- this interpreter, a module of this package
        [sys.executable, "-m", "specframe.bench.worker", side],
        input=json.dumps(job.to_dict()),
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
        env={**os.environ, **job.settings.environment},
    )
    if done.returncode != 0:
        raise RuntimeError(f"the {side} worker failed with exit code {done.returncode}:\n{done.stderr[-2000:]}")
    return Measurement(**json.loads(done.stdout))


@attrs.frozen(kw_only=True)
class Cell:
    """One strategy on one text."""

    variant: Variant
    workload: str
    ours: tuple[Measurement, ...]
    theirs: tuple[Measurement, ...]

    @property
    def speed(self) -> tuple[Summary, Summary]:
        """Tokens per second: ours, theirs."""
        return _both(self, lambda m: m.tokens_per_second)

    @property
    def wall(self) -> tuple[Summary, Summary]:
        """Seconds of the whole request: ours, theirs."""
        return _both(self, lambda m: m.wall_s)

    @property
    def speed_ratio(self) -> Summary:
        """Our tokens per second over theirs, in pairs."""
        return paired([m.tokens_per_second for m in self.ours], [m.tokens_per_second for m in self.theirs])

    @property
    def wall_ratio(self) -> Summary:
        """Their seconds for the whole request over ours, in pairs: above 1 we are faster."""
        return paired([m.wall_s for m in self.theirs], [m.wall_s for m in self.ours])

    @property
    def differs_at(self) -> int | None:
        """First character in which the texts of the two sides differ."""
        return divergence(self.ours[0].text, self.theirs[0].text)

    @property
    def notes(self) -> tuple[str, ...]:
        """What makes the two sides not comparable, if anything."""
        ours, theirs = self.ours[0], self.theirs[0]
        notes = []
        if ours.prompt_tokens != theirs.prompt_tokens:
            notes.append(f"prompts of {ours.prompt_tokens} and {theirs.prompt_tokens} tokens")
        if ours.tokens != theirs.tokens:
            notes.append(f"{ours.tokens} and {theirs.tokens} tokens generated")
        if Path(ours.library).resolve() != Path(theirs.library).resolve():
            notes.append(f"different libraries: {ours.library} and {theirs.library}")
        for name, side in zip(SIDES, (self.ours, self.theirs), strict=True):
            if len({m.text for m in side}) > 1:
                notes.append(f"{name} gave different texts in different repetitions")
        return tuple(notes)

    def to_dict(self) -> dict[str, Any]:
        """Everything, JSON-ready."""
        return {
            "strategy": self.variant.label,
            "workload": self.workload,
            "tokens_per_second": dict(zip(SIDES, (s.to_dict() for s in self.speed), strict=True)),
            "wall_s": dict(zip(SIDES, (s.to_dict() for s in self.wall), strict=True)),
            "speed_ratio": self.speed_ratio.to_dict(),
            "wall_ratio": self.wall_ratio.to_dict(),
            "text_differs_at": self.differs_at,
            "notes": list(self.notes),
            "runs": {
                name: [attrs.asdict(m) for m in side]
                for name, side in zip(SIDES, (self.ours, self.theirs), strict=True)
            },
        }


def _both(cell: Cell, figure: Callable[[Measurement], float]) -> tuple[Summary, Summary]:
    return Summary.of([figure(m) for m in cell.ours]), Summary.of([figure(m) for m in cell.theirs])


def order(repetition: int) -> tuple[str, ...]:
    """Which side goes first: each in turn, so that none always has the warmer machine."""
    return SIDES if repetition % 2 == 0 else SIDES[::-1]


def compare(
    settings: Settings,
    variants: Sequence[Variant],
    workloads: Sequence[str],
    *,
    repeat: int,
    run: Run = run_process,
    progress: Progress = lambda *_: None,
) -> list[Cell]:
    """Measure every strategy on every text.

    Repetitions are the outermost loop: a slow minute of the machine touches one repetition of every cell, not every
    repetition of one.
    """
    found: dict[tuple[Variant, str, str], list[Measurement]] = {}
    jobs = list(_jobs(settings, variants, workloads, repeat))
    for done, (side, job, workload) in enumerate(jobs):
        progress(done, len(jobs), f"{job.variant.label} on {workload}: {side}")
        found.setdefault((job.variant, workload, side), []).append(run(side, job))
    progress(len(jobs), len(jobs), "")
    return [
        Cell(
            variant=variant,
            workload=workload,
            ours=tuple(found[variant, workload, SIDES[0]]),
            theirs=tuple(found[variant, workload, SIDES[1]]),
        )
        for variant in variants
        for workload in workloads
    ]


def _jobs(
    settings: Settings, variants: Sequence[Variant], workloads: Sequence[str], repeat: int
) -> Iterator[tuple[str, Job, str]]:
    warm_up = text_of("warm-up")
    prompts = {workload: text_of(workload) for workload in workloads}
    for repetition in range(repeat):
        for workload in workloads:
            for variant in variants:
                job = Job(settings=settings, variant=variant, prompt=prompts[workload], warm_up=warm_up)
                for side in order(repetition):
                    yield side, job, workload


def lossless(cells: Sequence[Cell]) -> dict[str, int | None]:
    """Per drafted cell, where our text differs from our own plain text; None where it does not."""
    plain = {cell.workload: cell.ours[0].text for cell in cells if cell.variant.strategy == "none"}
    return {
        f"{cell.variant.label} on {cell.workload}": divergence(cell.ours[0].text, plain[cell.workload])
        for cell in cells
        if cell.variant.strategy != "none" and cell.workload in plain
    }
