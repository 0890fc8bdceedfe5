"""Made-up measurements, for tests of what is done with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from specframe.bench.runner import Case
from specframe.bench.settings import Job, Measurement, Settings
from specframe.bench.sides import Side
from specframe.core.stats import PHASES

SETTINGS = Settings(model="/models/tiny.gguf", library="lib.so", max_tokens=7)

STATS: Mapping[str, Any] = {
    "steps": 3,
    "drafted": 5,
    "verified": 4,
    "seconds": {**dict.fromkeys(PHASES, 0.002), "prompt": 0.5},
    "verified_per_position": [2, 2],
    "accepted_per_position": [2, 1],
    "acceptance_per_position": [1.0, 0.5],
    "mean_accepted_length": 2.5,
    "rollbacks": {"truncate": 1},
    "checkpoints": 2,
    "checkpoint_bytes": 1_000_000,
    "inactive_reason": None,
}


def measured(speed: float = 100.0, *, tokens: tuple[int, ...] = (1, 2, 3), **changes: Any) -> Measurement:
    """Three tokens at some speed, four of them drafted."""
    made = Measurement(
        library="lib.so", text="".join(map(str, tokens)), tokens=tokens, prompt_tokens=5, n_tokens=7,
        tokens_per_second=speed, ttft_s=0.1, wall_s=1.0, load_s=0.5, drafted=4, accepted=3, rollback="truncate",
        peak_ram_bytes=50_000_000, stats=STATS,
    )  # fmt: skip
    return attrs.evolve(made, **changes)


def case(label: str, speed: float = 100.0, repetition: int = 0, *, workload: str = "prose", **changes: Any) -> Case:
    """One of a run; ``grid=True`` for a side out of one."""
    side = attrs.evolve(Side.parse(label), from_grid=changes.pop("grid", False))
    return Case(side=side, workload=workload, repetition=repetition, measurement=measured(speed, **changes))


def failed(label: str, repetition: int = 0, *, error: str = "it broke\nhere") -> Case:
    """One that gave nothing."""
    return Case(side=Side.parse(label), workload="prose", repetition=repetition, error=error)


def answer(job: Job) -> Any:
    """What a worker would answer, at 100 tokens per second."""
    return attrs.asdict(measured()) if job.task == "generate" else [[[9, 0.25]]] * 7
