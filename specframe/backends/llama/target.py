"""A llama.cpp model as the target of the core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specframe.backends.llama import state
from specframe.backends.llama.closable import Closable
from specframe.backends.llama.context import Context
from specframe.backends.llama.kernels import TILED_ROWS
from specframe.backends.llama.memory import LlamaCheckpoint
from specframe.backends.llama.model import Model
from specframe.backends.llama.sampler import LlamaSampler
from specframe.backends.llama.services import LlamaServices
from specframe.backends.llama.validation import validate_target
from specframe.backends.llama.vocab import LlamaVocab
from specframe.core.errors import ConfigError
from specframe.core.ports import BatchEntry, Checkpoint, Decoded, Logits, Need, Rollback, Target, TargetInfo
from specframe.core.sampling import SamplingParams


class LlamaTarget(Closable, Target):
    """Implements ``specframe.core.ports.Target`` over a model that stays the caller's to close.

    Close it, or use it as a context manager.
    """

    def __init__(self, model: Model, *, exact_width: int | None = None, **options: Any) -> None:
        """Open a context on the model.

        Args:
            model: an open model.
            exact_width: see ``TargetInfo.exact_width``; None: what the kernels are known for.
            **options: see :class:`~specframe.backends.llama.context_options.ContextOptions`.

        Raises:
            ConfigError: the model cannot be a target, or an option cannot work.
            BackendError: llama.cpp could not create the context.
        """
        validate_target(model.gguf)
        self._model = model
        self._context = context = Context(model, **options)
        self._memory = context.memory
        self._identity: Mapping[str, Any] | None = None
        self._services = LlamaServices(context)
        self._info = TargetInfo(
            n_vocab=context.n_vocab,
            n_ctx=context.n_ctx,
            n_batch=context.n_batch,
            n_seq=context.n_seq,
            rollback=context.rollback,
            rollback_depth=context.n_rs_seq if context.rollback is Rollback.BOUNDED else 0,
            checkpoint_on_device=context.checkpoint_on_device,
            n_outputs=context.n_outputs_max,
            exact_width=exact_width or (TILED_ROWS - 1 if context.options.flash_attn else None),
            provides=model.facts.provides,
            can_shift=context.memory.can_shift,
        )

    @property
    def info(self) -> TargetInfo:
        """Facts about it."""
        return self._info

    @property
    def vocab(self) -> LlamaVocab:
        """Its tokens."""
        return self._model.vocab

    @property
    def model(self) -> Model:
        """The model it runs."""
        return self._model

    @property
    def context(self) -> Context:
        """The context it runs in."""
        return self._context

    def decode(self, batch: Sequence[BatchEntry]) -> None:
        """See ``Target.decode``."""
        self._context.decode(batch)

    def logits(self) -> Logits:
        """See ``Target.logits``; readable until the next ``decode``, also when the target is closed before."""
        return self._context.logits()

    def enable(self, needs: Need, layers: Sequence[int] = ()) -> None:
        """See ``Target.enable``."""
        self._context.enable(needs, layers)

    def decoded(self) -> Sequence[Decoded]:
        """See ``Target.decoded``."""
        return self._context.decoded()

    @property
    def services(self) -> LlamaServices:
        """See ``Target.services``."""
        return self._services

    def n_past(self, seq: int) -> int:
        """See ``Target.n_past``."""
        return self._memory.n_past(seq)

    def truncate(self, seq: int, n_past: int) -> None:
        """See ``Target.truncate``."""
        self._memory.truncate(seq, n_past)

    def shift(self, seq: int, n_keep: int, n_drop: int) -> None:
        """See ``Target.shift``."""
        self._memory.shift(seq, n_keep, n_drop)

    def clear(self, seq: int) -> None:
        """See ``Target.clear``."""
        self._memory.clear(seq)

    def checkpoint(self, seq: int, *, lasting: bool = False) -> LlamaCheckpoint:
        """See ``Target.checkpoint``; the state is copied to host memory, unless device memory was asked for."""
        return self._memory.checkpoint(seq, lasting=lasting)

    def restore(self, checkpoint: Checkpoint) -> None:
        """See ``Target.restore``."""
        if not isinstance(checkpoint, LlamaCheckpoint):
            msg = f"{type(checkpoint).__name__} is no checkpoint of a llama.cpp target"
            raise ConfigError(msg)
        self._memory.restore(checkpoint)

    @property
    def identity(self) -> Mapping[str, Any]:
        """See ``Target.identity``; the model is told by its contents, not by its name."""
        if self._identity is None:
            self._identity = state.identity(self._context)
        return self._identity

    def save_state(self, seq: int) -> bytes:
        """See ``Target.save_state``."""
        return self._memory.pack(seq).tobytes()

    def load_state(self, seq: int, data: bytes, n_past: int) -> None:
        """See ``Target.load_state``."""
        self._memory.clear(seq)
        self._memory.unpack(seq, data, n_past)

    def make_sampler(self, params: SamplingParams, prompt: Sequence[int]) -> LlamaSampler:
        """See ``Target.make_sampler``."""
        return LlamaSampler(self._model, params, prompt, n_ctx=self._info.n_ctx)

    @property
    def closed(self) -> bool:
        """True after :meth:`close`."""
        return "_context" not in vars(self) or self._context.closed

    def close(self) -> None:
        """Free the context; closing twice is allowed. The model stays open."""
        self._context.close()
