"""What a checkpoint costs: taking and restoring it, in host memory and on the device, by what the sequence holds."""

from __future__ import annotations

import time
from typing import Any

from specframe.backends.llama.target import LlamaTarget
from specframe.bench.opened import open_model
from specframe.bench.settings import Job
from specframe.core.ports import BatchEntry, Rollback

#: Tokens in memory; longer ones than the context are left out.
LENGTHS = (128, 512, 2048)
_REPEAT = 9


def measure(job: Job) -> list[dict[str, Any]]:
    """For each place and length: bytes, and seconds of each capture and each restore.

    Empty for a model whose memory can be cut: it needs no checkpoints.
    """
    found: list[dict[str, Any]] = []
    model, options = open_model(job.settings)
    with model:
        for on_device in (False, True):
            asked = {**options, "n_ctx": job.settings.n_ctx, "checkpoint_on_device": on_device}
            with LlamaTarget(model, **asked) as target:
                if target.info.rollback is not Rollback.TRUNCATE:
                    found += [_cost(target, length) for length in LENGTHS if length < target.info.n_ctx]
    return found


def _cost(target: LlamaTarget, length: int) -> dict[str, Any]:
    target.clear(0)
    chunk = target.info.n_batch
    tokens = [i % 200 + 1 for i in range(length)]
    for start in range(0, length, chunk):
        target.decode([BatchEntry(0, start, tokens[start : start + chunk], 1)])
    checkpoint = target.checkpoint(0)  # the first one allocates
    clock, capture, restore = time.perf_counter, [], []
    for _ in range(_REPEAT):
        started = clock()
        checkpoint = target.checkpoint(0)
        capture.append(clock() - started)
        target.decode([BatchEntry(0, length, tokens[:1], 1)])
        started = clock()
        target.restore(checkpoint)
        restore.append(clock() - started)
    return {
        "on_device": checkpoint.on_device,
        "length": length,
        "n_bytes": checkpoint.n_bytes,
        "capture_s": capture,
        "restore_s": restore,
    }
