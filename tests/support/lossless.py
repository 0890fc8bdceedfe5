"""Helpers shared by the tests that compare drafted with plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest

from specframe.core.combination import AnySpec
from specframe.core.cost_aware import CostAware
from specframe.core.engine import Engine
from specframe.core.generation import Generation
from specframe.core.ports import Rollback
from specframe.core.request import Completion, Request
from specframe.core.sampling import SamplingParams
from specframe.core.scheduler import DraftScheduler, StepReport, Unlimited
from specframe.core.slot import PromptCheckpoints
from specframe.core.stats import RequestStats
from specframe.core.strategy import StrategySpec
from specframe.testing import AsBatch, Oracle, Output, Poison, ScriptedTarget, reference


class OnSteadyMachine(CostAware):
    """Decides by what a machine of its own takes, so that a test does the same each time."""

    def record(self, report: StepReport) -> None:
        drafts = [attrs.evolve(call, seconds=1e-5) for call in report.drafts]
        super().record(attrs.evolve(report, target_s=1 + 0.1 * report.n_rows, process_s=0.0, drafts=drafts))


#: Both ways of deciding how long a draft may be.
SCHEDULERS: tuple[Callable[[], DraftScheduler], ...] = (Unlimited, OnSteadyMachine)


def drafted(request: Request, spec: AnySpec | None) -> Request:
    """The same request with a strategy."""
    return attrs.evolve(request, strategy=spec)


def run(
    target: ScriptedTarget,
    request: Request,
    *,
    scheduler: Callable[[], DraftScheduler] = Unlimited,
    checkpoints: PromptCheckpoints | None = None,
) -> Completion:
    """One request on an engine of its own."""
    with Engine(target, scheduler=scheduler, checkpoints=checkpoints) as engine:
        return engine.submit(request).result()


def stream(generation: Generation) -> Output:
    """What a consumer puts together from the chunks, checked against the completion."""
    chunks = list(generation)
    completion = generation.result()
    assert tuple(t for c in chunks for t in c.tokens) == completion.tokens
    assert "".join(c.text for c in chunks) == completion.text
    assert tuple(p for c in chunks for p in c.logprobs) == completion.logprobs
    return Output.of(completion)


def check_stats(stats: RequestStats, completion: Completion) -> None:
    """The relations between counters that hold for every request."""
    assert stats.accepted <= stats.verified <= stats.drafted
    assert stats.emitted == stats.steps + stats.accepted_emitted
    ended_by_eog = completion.stop_detail == "eog"
    assert stats.emitted == completion.completion_tokens + ended_by_eog
    assert sum(stats.verified_per_position) == stats.verified
    assert sum(stats.accepted_per_position) == stats.accepted
    for counter in ("drafted", "verified", "accepted"):
        assert sum(getattr(own, counter) for own in stats.strategies.values()) == getattr(stats, counter)
    for own in stats.strategies.values():
        assert own.accepted <= own.verified <= own.drafted
        assert own.draft_steps <= own.verified


def check_memory(target: ScriptedTarget, committed: Sequence[Sequence[int]]) -> None:
    """Every sequence holds a prefix of one of the committed token sequences, and nothing else."""
    for seq in range(target.info.n_seq):
        held = target.memory(seq)
        assert any(held == tuple(tokens[: len(held)]) for tokens in committed), (seq, held)


def check_strategies(engine: Engine) -> None:
    """No batched strategy saw the engine break a rule."""
    for drafter in engine._drafters.members.values():
        strategy = getattr(drafter, "_strategy", None)
        assert not isinstance(strategy, AsBatch) or not strategy.broken, strategy.broken


GREEDY = SamplingParams(temperature=0.0)
PROMPT = (1, 2, 3, 4, 5)

MEMORIES: list[dict[str, Any]] = [
    {"rollback": Rollback.TRUNCATE},
    {"rollback": Rollback.BOUNDED, "rollback_depth": 4},
    {"rollback": Rollback.BOUNDED, "rollback_depth": 1, "silent_cuts": True, "newest_checkpoint_only": True},
    {"rollback": Rollback.BOUNDED, "rollback_depth": 2, "silent_cuts": True, "checkpoints": False},
    {"rollback": Rollback.SNAPSHOT, "newest_checkpoint_only": True},
]
every_memory = pytest.mark.parametrize(
    "memory", MEMORIES, ids=["truncate", "bounded", "bounded-1", "bounded-alone", "snapshot"]
)


def ask(max_tokens: int | None = 24, sampling: SamplingParams = GREEDY, **more: Any) -> Request:
    return Request(**{"prompt": PROMPT, "max_tokens": max_tokens, "sampling": sampling, **more})


def oracle(right: Sequence[int], length: int | None = None) -> StrategySpec:
    return StrategySpec.of(Oracle, {"tape": tuple(right), "length": length})


def poison(right: Sequence[int], k: int, length: int | None = None) -> StrategySpec:
    return StrategySpec.of(Poison, {"tape": tuple(right), "k": k, "length": length})


def assert_plain(target: ScriptedTarget, request: Request, completion: Completion) -> None:
    reference(target, attrs.evolve(request, strategy=None)).check_equals(Output.of(completion))
    check_stats(completion.stats, completion)
