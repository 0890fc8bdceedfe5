"""The native half of loading: files checked before weights are read, the model opened, facts about it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from specframe.backends.llama.context_options import MAX_SEQ, ContextOptions
from specframe.backends.llama.exact_numerics import open_exact
from specframe.backends.llama.gguf import inspect, inspecting
from specframe.backends.llama.library import Library, load_library
from specframe.backends.llama.model import Model
from specframe.backends.llama.settings_key import settings_key
from specframe.backends.llama.target import LlamaTarget
from specframe.backends.llama.threads import MAX_THREADS
from specframe.backends.llama.validation import validate_target
from specframe.chat import ChatTemplate, templates_of
from specframe.core.combination import AnySpec
from specframe.core.errors import ConfigError
from specframe.core.strategy import unused_draft
from specframe.core.validators import check_whole_number
from specframe.llm.choosing import Choice, StrategyChoice, StrategyChooser
from specframe.llm.info import LLMInfo

__all__ = [
    "LlamaTarget",
    "choose",
    "context_options",
    "info",
    "load_library",
    "open_model",
    "rollback_depth",
    "settings_key",
    "template",
]

log = logging.getLogger(__name__)


def context_options(
    *, n_batch: int, n_ubatch: int, parallel: int, threads: int | None, threads_batch: int | None, **more: Any
) -> dict[str, Any]:
    """Options of a context from those of ``load``. Raises ConfigError, in the words of ``load``."""
    check_whole_number("n_batch", n_batch, 1, way_out="2048 is the default")
    check_whole_number("n_ubatch", n_ubatch, 1, way_out="512 is the default")
    check_whole_number("parallel", parallel, 1, MAX_SEQ, way_out="further requests wait for their turn")
    if threads is not None:
        check_whole_number("threads", threads, 1, MAX_THREADS, way_out="leave it out for one per physical core")
    if threads_batch is not None:
        check_whole_number("threads_batch", threads_batch, 1, MAX_THREADS, way_out="leave it out for those of threads")
    if n_batch < parallel:
        msg = f"n_batch ({n_batch}) must be at least parallel ({parallel}), a token for each request; raise n_batch"
        raise ConfigError(msg)
    options = {
        "n_batch": n_batch,
        "n_ubatch": n_ubatch,
        "n_seq": parallel,
        "n_threads": threads,
        "n_threads_batch": threads_batch,
        **more,
    }
    ContextOptions(**options)
    return options


def choose(
    library: Library,
    path: Path,
    strategy: StrategyChoice,
    options: Mapping[str, Any] | None,
    draft: Path | None,
) -> StrategyChooser:
    """The strategy of all requests that choose no other, checked against the files. Raises ConfigError."""
    with inspecting(library):
        validate_target(inspect(path))
        chooser = StrategyChooser(strategy, options, draft, path, partial(inspecting, library))
        if (chosen := chooser.default) is not None:
            if draft is not None and not chosen.uses_draft_file:
                raise unused_draft(chosen.name, draft)
            chosen.check_files(path)
    log.info("strategy %s, %s", chooser.default_choice.label, chooser.default_choice.reason)
    return chooser


def rollback_depth(spec: AnySpec | None, *, n_batch: int) -> int:
    """Recurrent states to keep: the longest draft of the strategy, as far as batches of this size allow for it."""
    wished = 0 if spec is None else spec.rollback_depth
    return max(0, min(wished, n_batch - 2))  # llama.cpp wants two tokens more in a batch


def open_model(
    path: Path, numerics: str, options: dict[str, Any], *, drafts: bool, **more: Any
) -> tuple[Model, int | None]:
    """The model, and the width up to which verifications are known to equal plain decoding; None: not measured.

    Args:
        path: The file.
        numerics: As for ``load``.
        options: Of the context.
        drafts: Whether there is a strategy, for which there has to be room.
        **more: Of the model.
    """
    opener = partial(Model, path, **more)
    if numerics == "exact":
        return open_exact(opener, options, drafts=drafts)
    return opener(use_extra_bufts=True if numerics == "fast" else None), None


def template(model: Model, given: str | os.PathLike[str] | ChatTemplate | None) -> Callable[[], ChatTemplate]:
    """One that was given is compiled at once, so that a mistake in it shows; the model's own by the first chat."""
    vocab = model.vocab
    texts = {
        "bos_token": "" if vocab.bos is None else vocab.text(vocab.bos),
        "eos_token": "" if vocab.eos is None else vocab.text(vocab.eos),
    }
    if given is None:
        return lambda: ChatTemplate.from_metadata(model.metadata, **texts)
    chosen = given if isinstance(given, ChatTemplate) else ChatTemplate.from_file(os.fspath(given), **texts)
    return lambda: chosen


def info(model: Model, target: LlamaTarget, choice: Choice) -> LLMInfo:
    """What was loaded."""
    facts, of_target = model.facts, target.info
    return LLMInfo(
        path=model.path,
        architecture=facts.arch,
        description=facts.description,
        n_params=facts.n_params,
        size_bytes=facts.size_bytes,
        n_vocab=of_target.n_vocab,
        n_ctx=of_target.n_ctx,
        n_ctx_train=facts.n_ctx_train,
        n_batch=of_target.n_batch,
        n_seq=of_target.n_seq,
        type_k=target.context.options.type_k,
        type_v=target.context.options.type_v,
        rollback=of_target.rollback.value,
        rollback_depth=of_target.rollback_depth,
        checkpoints=of_target.checkpoint_place,
        library=f"{model.library.source} ({model.library.path})",
        chat_templates=tuple(sorted(templates_of(model.metadata))),
        strategy=choice.label,
        strategy_reason=choice.reason,
    )
