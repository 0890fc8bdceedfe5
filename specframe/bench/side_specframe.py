"""specframe's side of the comparison, through the API that applications use."""

from __future__ import annotations

import time

import specframe
from specframe.bench.settings import Job, Measurement


def measure(job: Job) -> Measurement:
    """Load, warm up, generate."""
    settings, variant = job.settings, job.variant
    started = time.perf_counter()
    with specframe.load(
        settings.model,
        library=settings.library,
        strategy=variant.strategy,
        options=variant.options,
        n_ctx=settings.n_ctx,
        n_batch=settings.n_batch,
        n_ubatch=settings.n_ubatch,
        threads=settings.n_threads,
        flash_attn=True,
    ) as llm:
        llm.generate(job.warm_up, max_tokens=settings.warm_up_tokens, temperature=0.0, reuse_prefix=False)
        loaded = time.perf_counter()
        run = llm.generate(job.prompt, max_tokens=settings.max_tokens, temperature=0.0, reuse_prefix=False)
        ended = time.perf_counter()
        library = llm.info.library
    stats = run.stats
    return Measurement(
        library=library.rpartition(" (")[2].rstrip(")"),
        text=run.text,
        prompt_tokens=run.prompt_tokens,
        tokens=stats.emitted,
        tokens_per_second=stats.tokens_per_second or 0.0,
        ttft_s=stats.ttft_s or 0.0,
        wall_s=ended - loaded,
        load_s=loaded - started,
        drafted=stats.verified,
        accepted=stats.accepted,
    )
