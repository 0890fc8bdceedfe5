"""From a path or a catalogue name to a running :class:`~specframe.llm.llm.LLM`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from specframe.chat import ChatTemplate
from specframe.core.cost_aware import CostAware
from specframe.core.errors import ConfigError
from specframe.core.observer import Observer
from specframe.core.sampling import SamplingParams
from specframe.core.slot import PromptCheckpoints
from specframe.core.validators import check_whole_number, elements
from specframe.llm.choosing import StrategyChoice
from specframe.llm.costs import KeptCosts
from specframe.llm.llm import LLM

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
    threads_batch: int | None = None,
    flash_attn: bool = True,
    type_k: str = "f16",
    type_v: str = "f16",
    offload_kqv: bool = True,
    numerics: Literal["auto", "exact", "fast"] = "auto",
    devices: str | Sequence[str] | None = None,
    n_gpu_layers: int | None = None,
    use_mmap: bool = True,
    use_mlock: bool = False,
    check_tensors: bool = False,
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
        model: A GGUF file, a name of the catalogue (``specframe pull`` lists them), or ``zoo:NAME``, a tiny analytic
            model of :mod:`specframe.testing.zoo`.
        strategy: Draft strategy of all requests that do not choose another: ``"auto"`` for what suits the files, a
            name, a class, a combination (:func:`first_of`, :func:`extend`), ``"none"`` for plain decoding.
        draft: Draft model, for strategies that have one: a file or a name, as for ``model``.
        options: Of the strategy.
        n_ctx: Tokens one sequence can hold. Unset: 4096, or what the model was trained with if that is less. More than
            that is brought down to it with a warning.
        n_batch: Most tokens in one decode, over all sequences.
        n_ubatch: Tokens the backend computes at once.
        parallel: Requests that run at once.
        threads: Processor threads; unset: as many as the machine has cores to use.
        threads_batch: Those of batches of more than one token: prompts and drafts; unset: as ``threads``.
        flash_attn: Needed for logits that do not depend on the width of a batch; see docs/losslessness.md.
        type_k: Format of the keys in memory: ``"f16"``, ``"f32"``, ``"bf16"``, or a smaller one in blocks, such as
            ``"q8_0"`` and ``"q4_0"``, which rounds more.
        type_v: Of the values; those in blocks need ``flash_attn``.
        offload_kqv: Keep this memory on a GPU, where there is one.
        numerics: ``"auto"`` keeps to kernels that are known to give a token the same logits alone and in a draft, where
            there are such (docs/losslessness.md says for which weights). ``"exact"`` verifies by measurement that
            drafting cannot change the text with this model, library, machine and settings, and refuses to load
            where it could, or, when ``strategy`` is ``"none"``, drafts nothing. The measurement
            (``specframe audit``) is kept, so only the first load takes longer. ``"fast"`` repacks K-quants for faster
            kernels, with which drafting may choose another of two nearly equal tokens.
        devices: Names of devices to offload to (``specframe doctor`` lists them), ``"none"`` for the processor only;
            unset: all there are. Draft files go there as well, unless the strategy has an option that says otherwise.
        n_gpu_layers: Layers to keep on a GPU; unset: all that a GPU build can take.
        use_mmap: Map the file instead of reading it.
        use_mlock: Keep the weights from being swapped out, as far as the system allows.
        check_tensors: Look for invalid values in every tensor, which takes time, and refuse the file if there are.
        ctx_checkpoints: Most checkpoints to keep of the prompt of each sequence, for memory that cannot be cut at will
            (recurrent, hybrid): a later prompt that shares a part of it starts from there. 0: from its beginning.
        checkpoint_interval: Tokens between two of them in a long prompt.
        checkpoint_mib: Most memory they may take, per sequence, in MiB.
        checkpoint_on_device: Keep the checkpoints that guard verifications in device memory, where they cost no
            transfer; those of prompts are kept on the host.
        library: A llama.cpp library to use and no other.
        fetch: Download catalogue models that are not cached yet.
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
    from specframe.llm import opening  # noqa: PLC0415

    if numerics not in ("auto", "exact", "fast"):
        msg = f"numerics must be 'auto', 'exact' or 'fast', not {numerics!r}"
        raise ConfigError(msg)
    checkpoints = _checkpoints(ctx_checkpoints, checkpoint_interval, checkpoint_mib)
    context_options = opening.context_options(
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        parallel=parallel,
        threads=threads,
        threads_batch=threads_batch,
        flash_attn=flash_attn,
        type_k=type_k,
        type_v=type_v,
        offload_kqv=offload_kqv,
        checkpoint_on_device=checkpoint_on_device,
        exact=numerics == "exact",
    )
    path = catalogue.resolve(model, fetch=fetch)
    draft_path = catalogue.resolve_draft(draft, fetch=fetch)
    watching = [*(cls() for cls in plugins.registry().observers()), *elements("observers", observers)]
    native = opening.load_library(library)
    chooser = opening.choose(native, path, strategy, options, draft_path)
    context_options["n_rs_seq"] = opening.rollback_depth(chooser.default, n_batch=min(n_batch, n_ubatch))
    of_model = {
        "library": native,
        "devices": devices,
        "n_gpu_layers": n_gpu_layers,
        "use_mmap": use_mmap,
        "use_mlock": use_mlock,
        "check_tensors": check_tensors,
        "progress": progress,
    }
    opened, exact_width = opening.open_model(
        path, numerics, context_options, drafts=chooser.default is not None, **of_model, **chooser.model_options
    )
    try:
        n_tokens = context_length(n_ctx, opened.facts.n_ctx_train)
        target = opening.LlamaTarget(opened, n_ctx=n_tokens, exact_width=exact_width, **context_options)
        kept = KeptCosts.of(opening.settings_key(opened, context_options))

        def close() -> None:
            kept.save()
            opened.close()

        return LLM(
            target=target,
            tokenizer=opened.vocab,
            info=opening.info(opened, target, chooser.default_choice),
            chooser=chooser,
            template=opening.template(opened, template),
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
    check_whole_number("ctx_checkpoints", count, 0, way_out="0 keeps none")
    check_whole_number("checkpoint_interval", interval, 1, way_out="2048 is the default")
    check_whole_number("checkpoint_mib", mib, 0, way_out="1024 is the default")
    return PromptCheckpoints(count=count, interval=interval, max_bytes=mib << 20)
