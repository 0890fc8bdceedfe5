"""Helpers shared by the tests that compare drafted with plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from specframe.core.engine import Engine
from specframe.core.generation import Generation
from specframe.core.request import Completion, Request
from specframe.core.scheduler import Adaptive, DraftScheduler, Unlimited
from specframe.core.stats import RequestStats
from specframe.core.strategy import StrategySpec
from specframe.testing import ScriptedTarget
from specframe.testing.reference import Output

#: Both ways of deciding how long a draft may be.
SCHEDULERS: tuple[Callable[[], DraftScheduler], ...] = (Unlimited, Adaptive)


def drafted(request: Request, spec: StrategySpec | None) -> Request:
    """The same request with a strategy."""
    return attrs.evolve(request, strategy=spec)


def run(target: ScriptedTarget, request: Request, *, scheduler: Callable[[], DraftScheduler] = Unlimited) -> Completion:
    """One request on an engine of its own."""
    with Engine(target, scheduler=scheduler) as engine:
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


def check_memory(target: ScriptedTarget, committed: Sequence[Sequence[int]]) -> None:
    """Every sequence holds a prefix of one of the committed token sequences, and nothing else."""
    for seq in range(target.info.n_seq):
        held = target.memory(seq)
        assert any(held == tuple(tokens[: len(held)]) for tokens in committed), (seq, held)
