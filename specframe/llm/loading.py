"""From a path or a catalogue name to a running :class:`~specframe.llm.llm.LLM`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from specframe.chat import ChatTemplate, templates_of
from specframe.core.combination import AnySpec
from specframe.core.cost_aware import CostAware
from specframe.core.errors import ConfigError
from specframe.core.observer import Observer
from specframe.core.sampling import SamplingParams
from specframe.core.slot import PromptCheckpoints
from specframe.core.strategy import unused_draft
from specframe.core.validators import check_whole_number, elements
from specframe.llm.choosing import Choice, StrategyChoice, StrategyChooser
from specframe.llm.costs import KeptCosts
from specframe.llm.info import LLMInfo
from specframe.llm.llm import LLM

if TYPE_CHECKING:
    from specframe.backends.llama.model import Model
    from specframe.backends.llama.target import LlamaTarget

log = logging.getLogger(__name__)

#: Context of one sequence unless asked otherwise; less when the model was trained with less.
DEFAULT_CTX = 4096


def load(  # noqa: PLR0913 -- the knobs of a model, the strategy and the run; keyword-only, each with a default
    model: str | os.PathLike[str],
    *,
    strategy: StrategyChoice = "auto",
    draft: str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
    n_ctx: int | None = None,
    n_batch: int = 2048,
    n_ubatch: int = 512,
    parallel: int = 1,
    threads: int | None = None,
    flash_attn: bool = True,
    numerics: Literal["auto", "exact", "fast"] = "auto",
    devices: str | Sequence[str] | None = None,
    n_gpu_layers: int | None = None,
    ctx_checkpoints: int = 8,
    checkpoint_interval: int = 2048,
    checkpoint_mib: int = 1024,
    checkpoint_on_device: bool = False,
    library: str | os.PathLike[str] | None = None,
    fetch: bool = False,
    template: str | os.PathLike[str] | ChatTemplate | None = None,
    sampling: SamplingParams | None = None,
    observers: Sequence[Observer] = (),
    progress: Callable[[float], None] | None = None,
) -> LLM:
    """Load a model.

    Args:
        model: A GGUF file, or a name of the catalogue (``specframe pull`` lists them).
        strategy: Draft strategy of all requests that do not choose another: ``"auto"`` for what suits the files, a
            name, a class, a combination (:func:`first_of`, :func:`extend`), ``"none"`` for plain decoding.
        draft: GGUF file with the draft model, for strategies that have one.
        options: Of the strategy.
        n_ctx: Tokens one sequence can hold. Unset: 4096, or what the model was trained with if that is less. More than
            that is brought down to it with a warning.
        n_batch: Most tokens in one decode, over all sequences.
        n_ubatch: Tokens the backend computes at once.
        parallel: Requests that run at once.
        threads: Processor threads; unset: as many as the machine has cores to use.
        flash_attn: Needed for logits that do not depend on the width of a batch; see docs/losslessness.md.
        numerics: ``"auto"`` keeps to kernels that are known to give a token the same logits alone and in a draft, where
            there are such (docs/losslessness.md says for which weights). ``"exact"`` verifies by measurement that
            drafting cannot change the text with this model, library, machine and settings, and refuses to load
            otherwise. The measurement (``specframe audit``) is kept, so only the first load takes longer. ``"fast"``
            repacks K-quants for faster kernels, with which drafting may choose another of two nearly equal tokens.
        devices: Names of devices to offload to (``specframe doctor`` lists them), ``"none"`` for the processor only;
            unset: all there are. Draft files go there as well, unless the strategy has an option that says otherwise.
        n_gpu_layers: Layers to keep on a GPU; unset: all that a GPU build can take.
        ctx_checkpoints: Most checkpoints to keep of the prompt of each sequence, for memory that cannot be cut at will
            (recurrent, hybrid): a later prompt that shares a part of it starts from there. 0: from its beginning.
        checkpoint_interval: Tokens between two of them in a long prompt.
        checkpoint_mib: Most memory they may take, per sequence, in MiB.
        checkpoint_on_device: Keep the checkpoints that guard verifications in device memory, where they cost no
            transfer; those of prompts are kept on the host.
        library: A llama.cpp library to use and no other.
        fetch: Download a catalogue model that is not cached yet.
        template: Chat template to use instead of the model's: a template or a file.
        sampling: Starting point for the sampling of every request.
        observers: Told about starts, steps and ends, after those that plugins registered.
        progress: Called with 0..1 while weights load; what it raises stops the load.

    Raises:
        ConfigError: Something asked for cannot work; nothing stays loaded.
        StrategyError: The strategy could not be set up.
        BackendError: The native library failed.
    """
    # Here, so that importing specframe loads neither cffi nor anything native.
    from specframe import catalogue, plugins  # noqa: PLC0415
    from specframe.backends.llama.audit import open_exact, settings_key  # noqa: PLC0415
    from specframe.backends.llama.gguf import inspect, inspecting  # noqa: PLC0415
    from specframe.backends.llama.library import load_library  # noqa: PLC0415
    from specframe.backends.llama.model import Model  # noqa: PLC0415
    from specframe.backends.llama.target import LlamaTarget  # noqa: PLC0415
    from specframe.backends.llama.validation import validate_target  # noqa: PLC0415

    check_whole_number("n_batch", n_batch, 1)
    check_whole_number("n_ubatch", n_ubatch, 1)
    path = catalogue.resolve(os.fspath(model), fetch=fetch)
    draft_path = _draft_path(draft)
    watching = [*(cls() for cls in plugins.registry().observers()), *elements("observers", observers)]
    native = load_library(library)
    with inspecting(native):
        validate_target(inspect(path))
        chooser = StrategyChooser(strategy, options, draft_path, path, lambda: inspecting(native))
        wanted = chooser.default
        needed: Mapping[str, Any] = {}
        if wanted is not None:
            if draft_path is not None and not wanted.uses_draft_file:
                raise unused_draft(wanted.name, draft_path)
            wanted.check_files(path)
            needed = wanted.model_options
    log.info("strategy %s, %s", chooser.default_choice.label, chooser.default_choice.reason)
    checkpoints = _checkpoints(ctx_checkpoints, checkpoint_interval, checkpoint_mib)
    context_options: dict[str, Any] = {
        "n_batch": n_batch,
        "n_ubatch": n_ubatch,
        "n_seq": parallel,
        "n_threads": threads,
        "flash_attn": flash_attn,
        "checkpoint_on_device": checkpoint_on_device,
        "n_rs_seq": _rollback_depth(wanted, n_batch=min(n_batch, n_ubatch)),
    }

    def open_model(**more: Any) -> Model:
        return Model(
            path, library=native, devices=devices, n_gpu_layers=n_gpu_layers, progress=progress, **needed, **more
        )

    if numerics == "exact":
        opened, exact_width = open_exact(open_model, context_options)
    elif numerics in ("auto", "fast"):
        opened, exact_width = open_model(use_extra_bufts=True if numerics == "fast" else None), None
    else:
        msg = f"numerics must be 'auto', 'exact' or 'fast', not {numerics!r}"
        raise ConfigError(msg)
    try:
        target = LlamaTarget(
            opened,
            n_ctx=context_length(n_ctx, opened.facts.n_ctx_train),
            exact_width=exact_width,
            **context_options,
        )
        kept = KeptCosts.of(settings_key(opened, context_options))

        def close() -> None:
            kept.save()
            opened.close()

        return LLM(
            target=target,
            tokenizer=opened.vocab,
            info=_info(opened, target, chooser.default_choice),
            chooser=chooser,
            template=_template(opened, template),
            sampling=sampling,
            observers=watching,
            checkpoints=checkpoints,
            scheduler=lambda: CostAware(kept.model),
            close_model=close,
        )
    except BaseException:
        opened.close()
        raise


def context_length(asked: int | None, trained: int) -> int:
    """Tokens one sequence shall hold, given what the model was trained with (0: unknown)."""
    if asked is None:
        return min(DEFAULT_CTX, trained) if trained > 0 else DEFAULT_CTX
    check_whole_number("n_ctx", asked, 1)
    if 0 < trained < asked:
        log.warning("n_ctx %d is more than the %d tokens the model was trained with; using %d", asked, trained, trained)
        return trained
    return asked


def _checkpoints(count: int, interval: int, mib: int) -> PromptCheckpoints:
    whole = isinstance(mib, int) and not isinstance(mib, bool)
    return PromptCheckpoints(count=count, interval=interval, max_bytes=mib << 20 if whole else mib)


def _rollback_depth(spec: AnySpec | None, *, n_batch: int) -> int:
    """Recurrent states to keep: the longest draft of the strategy, as far as batches of this size allow for it."""
    wished = 0 if spec is None else spec.rollback_depth
    return max(0, min(wished, n_batch - 2))  # llama.cpp wants two tokens more in a batch


def _draft_path(draft: str | os.PathLike[str] | None) -> Path | None:
    if draft is None:
        return None
    path = Path(draft)
    if not path.is_file():
        given = os.fspath(draft)
        msg = f"there is no draft file {given!r}"
        if given and path.is_dir():
            msg = f"the draft {given!r} is a directory; name a file in it"
        raise ConfigError(msg)
    return path


def _template(model: Model, given: str | os.PathLike[str] | ChatTemplate | None) -> Callable[[], ChatTemplate]:
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


def _info(model: Model, target: LlamaTarget, choice: Choice) -> LLMInfo:
    facts, info = model.facts, target.info
    return LLMInfo(
        path=model.path,
        architecture=facts.arch,
        description=facts.description,
        n_params=facts.n_params,
        size_bytes=facts.size_bytes,
        n_vocab=info.n_vocab,
        n_ctx=info.n_ctx,
        n_ctx_train=facts.n_ctx_train,
        n_batch=info.n_batch,
        n_seq=info.n_seq,
        rollback=info.rollback.value,
        rollback_depth=info.rollback_depth,
        checkpoints=info.checkpoint_place,
        library=f"{model.library.source} ({model.library.path})",
        chat_templates=tuple(sorted(templates_of(model.metadata))),
        strategy=choice.label,
        strategy_reason=choice.reason,
    )
