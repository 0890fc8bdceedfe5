"""llama.cpp's own server, as it ships inside the ``xllamacpp`` wheel: its scheduler, its samplers, no HTTP."""

from __future__ import annotations

import ctypes
import importlib
import re
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs

from specframe.backends.llama import openmp
from specframe.bench.memory import peak_ram
from specframe.bench.settings import Job, Measurement

#: Names of options -> names of the server's n-gram settings.
_NGRAM = {"n": "size_n", "m": "size_m", "min_hits": "min_hits"}


def measure(job: Job) -> dict[str, Any]:
    """Load, warm up, generate."""
    xllamacpp = _import()
    started = time.perf_counter()
    server = xllamacpp.Server(_params(xllamacpp, job))
    _complete(server, job, job.warm_up, job.settings.warm_up_tokens)
    loaded = time.perf_counter()
    held = {} if job.text is None else {"grammar": grammar(job.text)}
    answer = _complete(server, job, job.prompt, job.settings.max_tokens, **held)
    ended = time.perf_counter()
    timings = answer["timings"]
    return attrs.asdict(
        Measurement(
            library=str(_library(xllamacpp)),
            text=answer["choices"][0]["text"],
            prompt_tokens=timings["prompt_n"] + timings.get("cache_n", 0),
            n_tokens=timings["predicted_n"],
            # The first token comes with the prompt.
            tokens_per_second=timings["predicted_per_second"] if timings["predicted_n"] > 1 else 0.0,
            ttft_s=timings["prompt_ms"] / 1000,
            wall_s=ended - loaded,
            load_s=loaded - started,
            drafted=timings.get("draft_n", 0),
            accepted=timings.get("draft_n_accepted", 0),
            peak_ram_bytes=peak_ram(),
        )
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
    settings = job.settings
    params = xllamacpp.CommonParams()
    params.model.path = settings.model
    params.n_ctx, params.n_batch, params.n_ubatch = settings.n_ctx, settings.n_batch, settings.n_ubatch
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings.n_threads
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    params.cache_type_k, params.cache_type_v = (
        getattr(xllamacpp.ggml_type, f"GGML_TYPE_{name.upper()}") for name in (settings.type_k, settings.type_v)
    )
    params.fit_params = False  # it would change what was asked for
    params.verbosity = 0
    if settings.n_gpu_layers is not None:
        params.n_gpu_layers = settings.n_gpu_layers
    if job.side.strategy != "none":
        _speculate(xllamacpp, params, job)
    return params


def _speculate(xllamacpp: ModuleType, params: Any, job: Job) -> None:
    side, name = job.side, job.side.strategy.replace("-", "_")
    kind = getattr(xllamacpp.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{name.upper()}")
    params.speculative.types = [kind]
    if not side.strategy.startswith("draft-"):
        ngram = getattr(params.speculative, name)
        for key, value in side.options.items():
            setattr(ngram, _NGRAM[key], value)
        return
    drafts = params.speculative.draft
    drafts.cpuparams.n_threads = drafts.cpuparams_batch.n_threads = job.settings.n_threads
    for key, value in side.options.items():
        setattr(drafts, key, value)
    if side.draft is not None:
        drafts.mparams.path = side.draft
    else:
        params.load_mtp = True  # the heads in the target's own file


def grammar(text: str) -> str:
    """A grammar of ``text`` and whatever may follow it, up to where it has bytes that are no character."""
    escaped = re.sub(r'[\x00-\x1f"\\\x7f]', lambda found: f"\\x{ord(found[0]):02x}", text.partition("\ufffd")[0])
    return f'root ::= "{escaped}" .*'


def _complete(server: Any, job: Job, prompt: str, max_tokens: int, **options: str) -> dict[str, Any]:
    # No prompt cache: each side evaluates the whole prompt, as specframe is told to.
    answer: dict[str, Any] = server.handle_completions(
        {
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": job.settings.temperature,
            "seed": job.settings.seed,
            "cache_prompt": False,
            **options,
        }
    )
    if "timings" not in answer:
        raise RuntimeError(f"the server refused the request: {answer}")
    return answer
