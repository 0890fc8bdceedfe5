"""specframe's side of the comparison, through the API that applications use."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import attrs

import specframe
from specframe.bench.memory import free_vram, peak_ram
from specframe.bench.settings import Job, Measurement


def load(job: Job) -> specframe.LLM:
    """The model with the strategy of ``job``."""
    settings = job.settings
    side = job.side.checked(Path(settings.model))  # in this process too, as it may make a strategy known
    return specframe.load(
        settings.model,
        library=settings.library,
        strategy=side.strategy,
        options=side.options,
        draft=side.draft,
        n_ctx=settings.n_ctx,
        n_batch=settings.n_batch,
        n_ubatch=settings.n_ubatch,
        threads=settings.n_threads,
        n_gpu_layers=settings.n_gpu_layers,
        type_k=settings.type_k,
        type_v=settings.type_v,
        numerics=settings.numerics,
    )


def request(job: Job, **options: Any) -> dict[str, Any]:
    """Options of a request of ``job``."""
    settings = job.settings
    return {
        "max_tokens": settings.max_tokens,
        "temperature": settings.temperature,
        "seed": settings.seed,
        "parse_special": True,
        "reuse_prefix": False,
        **({} if job.side.draft_length is None else {"draft_length": job.side.draft_length}),
        **options,
    }


def measure(job: Job) -> dict[str, Any]:
    """Load, warm up, generate."""
    free = free_vram(job.settings.library)
    started = time.perf_counter()
    with load(job) as llm:
        llm.generate(job.warm_up, **request(job, max_tokens=job.settings.warm_up_tokens))
        loaded = time.perf_counter()
        run = llm.generate(job.prompt, **request(job))
        ended = time.perf_counter()
        left = free_vram(job.settings.library)
        info = llm.info
    stats = run.stats
    return attrs.asdict(
        Measurement(
            library=info.library.rpartition(" (")[2].rstrip(")"),
            text=run.text,
            tokens=run.tokens,
            prompt_tokens=run.prompt_tokens,
            n_tokens=stats.emitted,
            tokens_per_second=stats.tokens_per_second or 0.0,
            ttft_s=stats.ttft_s or 0.0,
            wall_s=ended - loaded,
            load_s=loaded - started,
            drafted=stats.verified,
            accepted=stats.accepted,
            rollback=info.rollback,
            peak_ram_bytes=peak_ram(),
            vram_bytes=None if free is None or left is None else free - left,
            stats=stats.to_dict(),
        )
    )
