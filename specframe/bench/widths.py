"""What a batch of the target costs by its width: the figure that decides which drafts pay."""

from __future__ import annotations

import time
from typing import Any

from specframe.backends.llama.library import load_library
from specframe.backends.llama.model import Model
from specframe.backends.llama.target import LlamaTarget
from specframe.bench.settings import Job
from specframe.core.ports import BatchEntry

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
#: Tokens in memory before each batch.
CONTEXT = 256
_REPEAT = 15


def measure(job: Job) -> list[dict[str, Any]]:
    """Seconds of each batch of every width, all of its rows put out. Widths take turns."""
    settings = job.settings
    model = Model(settings.model, library=load_library(settings.library), n_gpu_layers=settings.n_gpu_layers)
    try:
        with LlamaTarget(
            model,
            n_ctx=settings.n_ctx,
            n_batch=settings.n_batch,
            n_ubatch=settings.n_ubatch,
            n_threads=settings.n_threads,
            n_outputs_max=max(WIDTHS),
        ) as target:
            return _widths(target)
    finally:
        model.close()


def _widths(target: LlamaTarget) -> list[dict[str, Any]]:
    context = min(CONTEXT, target.info.n_ctx - max(WIDTHS) - 1)
    widths = [width for width in WIDTHS if width <= target.info.n_batch]
    tokens = [i % 200 + 1 for i in range(context + max(WIDTHS))]
    for start in range(0, context, target.info.n_batch):
        end = min(context, start + target.info.n_batch)
        target.decode([BatchEntry(0, start, tokens[start:end], 1)])
    seconds: dict[int, list[float]] = {width: [] for width in widths}
    held = target.checkpoint(0, lasting=True)
    for repetition in range(_REPEAT + 1):
        for width in widths:
            entry = BatchEntry(0, context, tokens[context : context + width], width)
            started = time.perf_counter()
            target.decode([entry])
            target.logits()  # waits for the result
            if repetition:  # the first one allocates
                seconds[width].append(time.perf_counter() - started)
            target.restore(held)
    return [{"width": width, "seconds": seconds[width]} for width in widths]
