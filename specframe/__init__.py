"""Plugin-based speculative decoding for llama.cpp.

::

    import specframe

    with specframe.load("smollm2-135m", strategy="ngram-k", fetch=True) as llm:
        print(llm.generate("The capital of France is", max_tokens=16, temperature=0).text)

Importing this package is cheap and loads nothing native; every public name is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specframe.chat import ChatTemplate
    from specframe.core.engine import Engine
    from specframe.core.errors import (
        BackendError,
        ClosedError,
        ConfigError,
        InternalError,
        RequestTooLongError,
        RollbackError,
        SessionPoisonedError,
        SpecframeError,
        StrategyError,
    )
    from specframe.core.generation import Generation
    from specframe.core.history import History
    from specframe.core.observer import Observer
    from specframe.core.ports import Need
    from specframe.core.proposal import Copied
    from specframe.core.request import Chunk, Completion, FinishReason, Request, TokenLogprob
    from specframe.core.sampling import SamplingParams
    from specframe.core.stats import RequestStats
    from specframe.core.strategy import (
        BatchStrategy,
        DraftRequest,
        NoOptions,
        Outcome,
        Strategy,
        StrategyContext,
        StrategySpec,
        Suitability,
        draft_strategy,
    )
    from specframe.hookspecs import hookimpl
    from specframe.llm import LLM, AsyncStream, LLMInfo, Stream, extend, first_of, load
    from specframe.plugins import register

    __version__: str

__all__ = [
    "LLM",
    "AsyncStream",
    "BackendError",
    "BatchStrategy",
    "ChatTemplate",
    "Chunk",
    "ClosedError",
    "Completion",
    "ConfigError",
    "Copied",
    "DraftRequest",
    "Engine",
    "FinishReason",
    "Generation",
    "History",
    "InternalError",
    "LLMInfo",
    "Need",
    "NoOptions",
    "Observer",
    "Outcome",
    "Request",
    "RequestStats",
    "RequestTooLongError",
    "RollbackError",
    "SamplingParams",
    "SessionPoisonedError",
    "SpecframeError",
    "Strategy",
    "StrategyContext",
    "StrategyError",
    "StrategySpec",
    "Stream",
    "Suitability",
    "TokenLogprob",
    "__version__",
    "draft_strategy",
    "extend",
    "first_of",
    "hookimpl",
    "load",
    "register",
]

_MODULES = {
    "specframe.chat": ("ChatTemplate",),
    "specframe.core.engine": ("Engine",),
    "specframe.core.errors": (
        "BackendError",
        "ClosedError",
        "ConfigError",
        "InternalError",
        "RequestTooLongError",
        "RollbackError",
        "SessionPoisonedError",
        "SpecframeError",
        "StrategyError",
    ),
    "specframe.core.generation": ("Generation",),
    "specframe.core.history": ("History",),
    "specframe.core.observer": ("Observer",),
    "specframe.core.ports": ("Need",),
    "specframe.core.proposal": ("Copied",),
    "specframe.core.request": ("Chunk", "Completion", "FinishReason", "Request", "TokenLogprob"),
    "specframe.core.sampling": ("SamplingParams",),
    "specframe.core.stats": ("RequestStats",),
    "specframe.core.strategy": (
        "BatchStrategy",
        "DraftRequest",
        "NoOptions",
        "Outcome",
        "Strategy",
        "StrategyContext",
        "StrategySpec",
        "Suitability",
        "draft_strategy",
    ),
    "specframe.hookspecs": ("hookimpl",),
    "specframe.llm": ("LLM", "AsyncStream", "LLMInfo", "Stream", "extend", "first_of", "load"),
    "specframe.plugins": ("register",),
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 -- costs more than the rest of this import

        value: Any = version("specframe")
    elif name in _WHERE:
        value = getattr(importlib.import_module(_WHERE[name]), name)
    else:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
