"""A model for a measurement without strategy, opened as the sides open it: with the numerics that were asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specframe.backends.llama.context_options import ContextOptions
from specframe.backends.llama.library import load_library
from specframe.backends.llama.model import Model
from specframe.bench.settings import Settings
from specframe.llm import opening


def context_options(settings: Settings) -> dict[str, Any]:
    """Options of a context besides its length. Raises ConfigError when one is none."""
    options: dict[str, Any] = {
        "n_batch": settings.n_batch,
        "n_ubatch": settings.n_ubatch,
        "n_threads": settings.n_threads,
        "type_k": settings.type_k,
        "type_v": settings.type_v,
        "exact": settings.numerics == "exact",
    }
    ContextOptions(**options, n_ctx=settings.n_ctx)
    return options


def open_model(settings: Settings) -> tuple[Model, dict[str, Any]]:
    """The model, to be closed by the caller, and the options of a context besides its length.

    Raises:
        ConfigError: The file cannot be used, or not with these numerics.
    """
    options = context_options(settings)
    opened, _ = opening.open_model(
        Path(settings.model),
        settings.numerics,
        options,
        drafts=False,
        library=load_library(settings.library),
        n_gpu_layers=settings.n_gpu_layers,
    )
    return opened, options
