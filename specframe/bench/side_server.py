"""llama.cpp's own server, as it ships inside the ``xllamacpp`` wheel: its scheduler, its samplers, no HTTP."""

from __future__ import annotations

import ctypes
import importlib
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from specframe.backends.llama import openmp
from specframe.bench.settings import PEERS, Job, Measurement


def measure(job: Job) -> Measurement:
    """Load, warm up, generate."""
    xllamacpp = _import()
    started = time.perf_counter()
    server = xllamacpp.Server(_params(xllamacpp, job))
    _complete(server, job.warm_up, job.settings.warm_up_tokens)
    loaded = time.perf_counter()
    answer = _complete(server, job.prompt, job.settings.max_tokens)
    ended = time.perf_counter()
    timings = answer["timings"]
    return Measurement(
        library=str(_library(xllamacpp)),
        text=answer["choices"][0]["text"],
        prompt_tokens=timings["prompt_n"] + timings.get("cache_n", 0),
        tokens=timings["predicted_n"],
        tokens_per_second=timings["predicted_per_second"],
        ttft_s=timings["prompt_ms"] / 1000,
        wall_s=ended - loaded,
        load_s=loaded - started,
        drafted=timings.get("draft_n", 0),
        accepted=timings.get("draft_n_accepted", 0),
    )


def _import() -> ModuleType:
    try:
        return importlib.import_module("xllamacpp")
    except ImportError as error:
        if not openmp.is_missing(str(error)):
            raise
    ctypes.CDLL(str(openmp.supply()), mode=ctypes.RTLD_GLOBAL)
    return importlib.import_module("xllamacpp")


def _library(xllamacpp: ModuleType) -> Path:
    """The extension module is the library."""
    return Path(xllamacpp.xllamacpp.__file__).resolve()


def _params(xllamacpp: ModuleType, job: Job) -> Any:
    settings, variant = job.settings, job.variant
    params = xllamacpp.CommonParams()
    params.model.path = settings.model
    params.n_ctx, params.n_batch, params.n_ubatch = settings.n_ctx, settings.n_batch, settings.n_ubatch
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings.n_threads
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    params.verbosity = 0
    if variant.strategy != "none":
        peer = PEERS[variant.strategy].replace("-", "_")
        types = xllamacpp.common_speculative_type
        params.speculative.types = [getattr(types, f"COMMON_SPECULATIVE_TYPE_{peer.upper()}")]
        ngram = getattr(params.speculative, peer)
        ngram.size_n, ngram.size_m, ngram.min_hits = variant.n, variant.m, variant.min_hits
    return params


def _complete(server: Any, prompt: str, max_tokens: int) -> dict[str, Any]:
    # No prompt cache: each side evaluates the whole prompt, as specframe is told to.
    request = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "seed": 1, "cache_prompt": False}
    answer: dict[str, Any] = server.handle_completions(request)
    if "timings" not in answer:
        raise RuntimeError(f"the server refused the request: {answer}")
    return answer
