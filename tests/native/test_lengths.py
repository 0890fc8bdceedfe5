"""Lengths chosen on models of known acceptance, held against every fixed one: real drafts on machines that are told.

What batches and drafts take is told to the scheduler instead of being measured, so it decides the same each time.
"""

from __future__ import annotations

import statistics
from typing import Any

import attrs
import pytest

from specframe.core.cost_aware import CostAware
from specframe.core.request import Request
from specframe.core.scheduler import StepReport
from tests.support.drafting import BLOCKS, EAGLES, HEADS, PLAIN, PROMPTS, Case, request
from tests.support.llama import Zoo
from tests.support.simulator import CURVES, Machine

N_MAX = 7
N = 300


class Told(CostAware):
    """Its steps take what they would on a machine."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine
        self.steps: list[tuple[int, int]] = []
        """Rows, and tokens of the draft (0: not asked)."""

    def record(self, report: StepReport) -> None:
        drafts = [attrs.evolve(call, seconds=self.machine.draft(call.longest)) for call in report.drafts]
        told = StepReport(
            n_rows=report.n_rows,
            n_context=report.n_context,
            target_s=self.machine.target(report.n_rows),
            drafts=drafts,
            verified=report.verified,
        )
        super().record(told)
        if report.verified:
            self.steps.append((report.n_rows, sum(call.longest for call in drafts)))

    def take(self) -> list[tuple[int, int]]:
        """Steps since the last time."""
        steps, self.steps = self.steps, []
        return steps


def seconds(machine: Machine, steps: list[tuple[int, int]]) -> float:
    """What ``steps`` take on ``machine``."""
    return sum(machine.target(rows) + (machine.draft(longest) if longest else 0.0) for rows, longest in steps)


def machine(curve: str) -> Machine:
    """With drafts that take a twentieth of a step, and as much for each of their tokens."""
    target = CURVES[curve]
    return Machine(target=target, draft=lambda n: 0.05 * (1 + n) * target(1))


@pytest.mark.parametrize("case", [HEADS[1], EAGLES[0], PLAIN[0], BLOCKS[0], BLOCKS[4]], ids=str)
def test_the_usual_length_is_as_good_as_the_best(zoo: Zoo, case: Case) -> None:
    """It is one of those that cost at most 5 % more than the best fixed one, or next to it; and so does the request."""
    wanted = case.spec(zoo, n_max=N_MAX)
    asked = request(PROMPTS[0], wanted, n=N)
    machines = [machine(curve) for curve in ("cpu q4_1", "cpu q4_0", "npu 8")]

    def steps(told: Machine, *requests: Request) -> list[list[tuple[int, int]]]:
        """Of each of ``requests``, one after the other on the same engine."""
        with case.engine(zoo, scheduler=lambda: Told(told)) as (running, _):
            scheduler: Any = running._scheduler
            taken = []
            for each in requests:
                running.submit(each).result()
                taken.append(scheduler.take())
            return taken

    by_length = [
        [(1, 0)] * (N - 1),
        *steps(machines[0], *[attrs.evolve(asked, draft_length=n + 1) for n in range(N_MAX)]),
    ]
    for told in machines:
        _, chosen = steps(told, asked, asked)
        best_s = min(seconds(told, each) for each in by_length)
        assert seconds(told, chosen) <= best_s / 0.95
        usual = statistics.mode(rows - 1 for rows, _ in chosen)
        near = by_length[max(0, usual - 1) : usual + 2]
        assert min(seconds(told, each) for each in near) <= best_s / 0.95, (case, usual)
