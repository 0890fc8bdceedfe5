"""Runs every side on every text, in turns, each request in a fresh process, and keeps what was measured."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from specframe.bench.settings import Job, Margins, Measurement, Settings
from specframe.bench.sides import PLAIN, SERVER, Side
from specframe.bench.store import Store
from specframe.bench.worker import WorkerError, run_process
from specframe.bench.workloads import warm_up

log = logging.getLogger(__name__)

#: Does a job; raises WorkerError.
Run = Callable[[Job], Any]

#: ``(done, total, what comes next)``.
Progress = Callable[[int, int, str], None]


@attrs.frozen(kw_only=True)
class Plan:
    """What is measured."""

    settings: Settings
    sides: tuple[Side, ...]
    prompts: dict[str, str]
    """Text by workload."""
    repeat: int = 3
    screen: int | None = None
    """Settings of a grid that are repeated for each text: the fastest so many of the first repetition. None: all."""


@attrs.frozen(kw_only=True)
class Case:
    """One generation, or why there is none."""

    side: Side
    workload: str
    repetition: int
    measurement: Measurement | None = None
    error: str = ""


class Runner:
    """Measures what the store does not have yet."""

    def __init__(
        self, plan: Plan, store: Store, *, run: Run = run_process, progress: Progress = lambda *_: None
    ) -> None:
        self._plan = plan
        self._store = store
        self._run = run
        self._progress = progress
        self._warm_up = warm_up()
        self._done = 0
        self._total = 0
        self.failures: list[str] = []
        """Of other tasks than the comparison."""

    def compare(self) -> list[Case]:
        """Every side on every text.

        Repetitions are the outermost loop: a slow minute of the machine touches one repetition of everything, not every
        repetition of one side. Within a repetition all sides of a text follow each other, every other time in reverse.
        """
        plan, cases = self._plan, list[Case]()
        sides = dict.fromkeys(plan.prompts, plan.sides)
        self._total = sum(map(len, sides.values())) * plan.repeat
        for repetition in range(plan.repeat):
            for workload in plan.prompts:
                chosen = sides[workload]
                for side in chosen if repetition % 2 == 0 else chosen[::-1]:
                    cases.append(self._case(side, workload, repetition))
            if repetition == 0 and plan.screen is not None:
                sides = {w: screened([c for c in cases if c.workload == w], plan.screen) for w in plan.prompts}
                self._total = self._done + sum(map(len, sides.values())) * (plan.repeat - 1)
        self._progress(self._done, self._done, "")
        return cases

    def _case(self, side: Side, workload: str, repetition: int) -> Case:
        case = Case(side=side, workload=workload, repetition=repetition)
        plan, key = self._plan, f"generate|{workload}|{side.label}|{repetition}"
        job = Job(settings=plan.settings, side=side, prompt=plan.prompts[workload], warm_up=self._warm_up)
        try:
            if plan.settings.same_text and side.engine == SERVER:
                job = attrs.evolve(job, text=self._plain_text(workload))
            data = self.answer(key, job)
        except WorkerError as error:
            log.warning("%s on %s: %s", side.label, workload, str(error).splitlines()[0])
            return attrs.evolve(case, error=str(error))
        return attrs.evolve(case, measurement=Measurement(**data))

    def _plain_text(self, workload: str) -> str:
        """What plain decoding of ours wrote in the first repetition, where it comes first. Raises WorkerError."""
        key = f"generate|{workload}|{PLAIN.label}|0"
        if key not in self._store:
            raise WorkerError("there is no text of plain decoding that it could be held to")
        return str(self._store[key]["text"])

    def margins(self, workload: str) -> Margins:
        """How clear each token of the plain run on this text was; see ``margins``."""
        job = Job(
            settings=self._plan.settings,
            side=PLAIN,
            prompt=self._plan.prompts[workload],
            warm_up=self._warm_up,
            task="margins",
        )
        try:
            found: Margins = self.answer(f"margins-by-token|{workload}", job)
        except WorkerError as error:
            log.warning("how clear the plain run on %s was is unknown: %s", workload, error)
            return ()
        return found

    def verified(self, sides: Sequence[Side]) -> Iterator[tuple[Side, str, Any]]:
        """What ``verify`` says of each side on each text: side, text, answer. What fails is left out."""
        prompts, settings = self._plan.prompts, self._plan.settings
        self._done, self._total = 0, len(sides) * len(prompts)
        for workload, prompt in prompts.items():
            for side in sides:
                job = Job(settings=settings, side=side, prompt=prompt, warm_up=self._warm_up, task="verify")
                if (answer := self._attempt(f"verify|{workload}|{side.label}", job)) is not None:
                    yield side, workload, answer

    def repeated(self, task: str, sides: Sequence[Side]) -> Iterator[tuple[Side, int, Any]]:
        """Answers of a task without a text, in turns: side, repetition, answer. What fails is left out."""
        self._done, self._total = 0, len(sides) * self._plan.repeat
        for repetition in range(self._plan.repeat):
            for side in sides if repetition % 2 == 0 else sides[::-1]:
                answer = self._attempt(f"{task}|{side.label}|{repetition}", self._job(task, side))
                if answer is not None:
                    yield side, repetition, answer

    def once(self, task: str) -> Any:
        """The answer of a task that needs no side; None when it fails."""
        self._done, self._total = 0, 1
        return self._attempt(task, self._job(task, PLAIN))

    def _attempt(self, key: str, job: Job) -> Any:
        try:
            return self.answer(key, job)
        except WorkerError as error:
            self.failures.append(str(error).splitlines()[0])
            log.warning("%s: %s", key.replace("|", ", "), self.failures[-1])
            return None

    def _job(self, task: str, side: Side) -> Job:
        return Job(settings=self._plan.settings, side=side, prompt="", warm_up=self._warm_up, task=task)

    def answer(self, key: str, job: Job) -> Any:
        """From the store, or measured now. Raises WorkerError."""
        self._progress(self._done, self._total, key.replace("|", ", "))
        try:
            if key not in self._store:
                self._store[key] = self._run(job)
        finally:
            self._done += 1
        return self._store[key]


def screened(cases: Sequence[Case], keep: int) -> tuple[Side, ...]:
    """Sides to go on with: all but those of a grid that are not among its ``keep`` fastest, or failed."""
    speed = {case.side.label: case.measurement.tokens_per_second for case in cases if case.measurement is not None}
    best = set[str]()
    for family in {case.side.family for case in cases if case.side.from_grid}:
        own = [c.side.label for c in cases if c.side.from_grid and c.side.family == family and c.side.label in speed]
        best.update(sorted(own, key=speed.__getitem__, reverse=True)[:keep])
    return tuple(case.side for case in cases if not case.side.from_grid or case.side.label in best)
