"""What contexts of draft models have in common: beside a target's context, with a memory that follows its text."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import numpy.typing as npt

from specframe.backends.llama.closable import Closable
from specframe.backends.llama.context_options import IN_BLOCKS, ContextOptions
from specframe.backends.llama.draft_batch import DraftBatch
from specframe.backends.llama.library import Library
from specframe.backends.llama.memory import Memory
from specframe.backends.llama.model import Model
from specframe.backends.llama.native_context import NativeContext, native_rows
from specframe.backends.llama.row_chooser import RowChooser
from specframe.backends.llama.status import check, failure
from specframe.core.errors import ClosedError, ConfigError
from specframe.core.ports import Rollback, Rows

if TYPE_CHECKING:
    from specframe.backends.llama.context import Context


#: Cells of a sequence's memory up to which drafts are computed without flash attention on processors: room for a score
#: of each, for every row of the widest batch and every head, is reserved then.
MAX_SCORED_CELLS = 2**16


@attrs.frozen(kw_only=True)
class DraftSettings:
    """What can be asked of the context of any draft model."""

    n_ctx: int | None = None
    """Tokens a sequence can hold; the target's unless given."""
    n_batch: int | None = None
    """Most tokens in one evaluation, or a few more where the model needs them; the target's unless given."""
    type_k: str = "f16"
    """Memory format of keys."""
    type_v: str = "f16"
    """Memory format of values."""
    n_threads: int | None = None
    """Processor threads; the target's unless given."""
    backend_sampling: bool | None = None
    """Choose inside the evaluation where possible, so that no rows of logits are copied. None: where the library can
    use a GPU; processors have nothing to copy from, and each choice is an operation more.
    """
    probabilities: bool = False
    """Choices come with their probabilities."""


def draft_options(
    target: Context,
    settings: DraftSettings,
    *,
    n_batch: int,
    n_ubatch: int,
    n_outputs_max: int,
    swa_full: bool = True,
    flash_attn: bool | None = None,
) -> ContextOptions:
    """Options of a draft context: the target's, where nothing else is said."""
    tells = target.options
    return ContextOptions(
        n_ctx=settings.n_ctx or target.n_ctx,
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        n_seq=target.n_seq,
        n_threads=settings.n_threads or tells.n_threads,
        n_threads_batch=settings.n_threads or tells.n_threads_batch,
        flash_attn=tells.flash_attn if flash_attn is None else flash_attn,
        type_k=settings.type_k,
        type_v=settings.type_v,
        offload_kqv=tells.offload_kqv,
        swa_full=swa_full,
        kv_unified=tells.kv_unified,
        n_outputs_max=n_outputs_max,
    )


def needs_flash_attn(target: Context, settings: DraftSettings) -> bool:
    """Whether a draft context with a memory of its own does better with flash attention; on processors it does not.

    There ggml computes it row by row in batches as narrow as drafts (``GGML_FA_TILE_Q``), which takes several times as
    long as products of all rows at once. Results may depend on the width of a batch then; those of drafts may.
    """
    if not target.options.flash_attn:
        return False
    many = (settings.n_ctx or target.n_ctx) > MAX_SCORED_CELLS
    return many or settings.type_v in IN_BLOCKS or bool(target.library.lib.llama_supports_gpu_offload())


class DraftContext(Closable):
    """Base of the contexts of draft models. Close it, or use it as a context manager; closing the target closes it too.

    Not for use from two threads at once, except for ``close``.

    Attributes:
        model: it runs; its owner closes it.
        target: the context it drafts for; outlives this one.
        options: it was made with.
        n_ctx: tokens a sequence can hold, as asked for.
        n_cells: tokens that fit for a moment: what was asked for, rounded up.
        n_batch: most tokens in one evaluation.
        n_seq: sequences it holds, as many as the target.
        width: of a hidden state.
        shares_memory: it attends to the memory of the target and has none of its own.
        memory: what each sequence holds.
    """

    _native: NativeContext | None = None

    def __init__(self, model: Model, target: Context, options: ContextOptions, **params: Any) -> None:
        """Create the native context.

        Args:
            model: with its draft layers loaded.
            target: the context it drafts for.
            options: of the native context.
            **params: fields of ``llama_context_params`` that have no option.

        Raises:
            ConfigError: an option cannot work with this model.
            BackendError: llama.cpp could not create the context; the message quotes its reason.
        """
        self._lock = threading.RLock()
        self.model, self.target, self.options = model, target, options
        self.library: Library = model.library
        options.check_model(model)
        native = options.native(model)
        native.ctx_other = target.handle
        for name, value in params.items():
            setattr(native, name, value)
        self._native = NativeContext(model, options, native)
        with self._opening():
            self._read_facts()
            # Weakly: both close what depends on them, they do not keep it alive.
            model.adopt(self)
            target.adopt(self)

    def _read_facts(self) -> None:
        lib, handle = self.library.lib, self.handle
        self.width = self.model.facts.n_embd_out
        self.n_vocab = self.model.facts.n_vocab
        self.n_ctx, self.n_cells, self.n_seq = self.options.n_ctx, self.options.n_ctx_alloc, self.options.n_seq
        self.n_batch = int(lib.llama_n_batch(handle))
        self.shares_memory: bool = False
        self.memory = Memory(self, n_seq=self.n_seq, kind=Rollback.TRUNCATE, depth=0)
        self._decode, self._encode = lib.llama_decode, lib.llama_encode
        self._get_states = lib._Z26llama_get_embeddings_nextnP13llama_context  # noqa: SLF001
        self._set_states = lib._Z26llama_set_embeddings_nextnP13llama_contextbb  # noqa: SLF001

    def _make_chooser(self, *, backend_sampling: bool | None, probabilities: bool) -> RowChooser:
        """What chooses tokens of output rows; inside the evaluation, if wished and possible."""
        if backend_sampling is None:
            backend_sampling = bool(self.library.lib.llama_supports_gpu_offload())
        chooser = RowChooser(self.library, self.n_vocab, probabilities=probabilities)
        native = self._native
        if backend_sampling and native is not None:
            chooser.attach(native.context, self.n_seq)
            native.before.append(chooser.detach)
        return chooser

    @property
    def handle(self) -> Any:
        """``struct llama_context *``, valid until ``close``."""
        native = self._native
        if native is None:
            raise ClosedError("the draft context is closed")
        return native.context

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._native is None

    # -- memory -------------------------------------------------------------------------------------------------------

    def n_past(self, seq: int) -> int:
        """Tokens that the memory it attends to holds: its own, or the target's."""
        return self.memory.n_past(seq)

    def truncate(self, seq: int, n_past: int) -> None:
        """Cut its own memory of ``seq``. Raises RollbackError."""
        if not self.shares_memory:
            self.memory.truncate(seq, n_past)

    def clear(self, seq: int) -> None:
        """Forget its own memory of ``seq``."""
        if not self.shares_memory:
            self.memory.clear(seq)

    def save_state(self, seq: int) -> npt.NDArray[np.uint8]:
        """Everything its own memory of ``seq`` holds; nothing where it shares the target's."""
        return np.empty(0, np.uint8) if self.shares_memory else self.memory.pack(seq)

    def load_state(self, seq: int, packed: npt.NDArray[np.uint8], n_past: int) -> None:
        """Make ``seq`` hold what :meth:`save_state` returned. Raises RollbackError, with the sequence empty."""
        if not self.shares_memory:
            self.memory.clear(seq)
            self.memory.unpack(seq, packed, n_past)

    # -- evaluation ---------------------------------------------------------------------------------------------------

    def _place(self, batch: DraftBatch, seq: int, pos: int, n: int) -> slice:
        """Room in ``batch`` for ``n`` tokens of ``seq`` behind what its memory holds. Raises ConfigError."""
        if not batch.takes(seq, n):
            raise ConfigError(
                f"sequence {seq}: a draft batch takes each sequence once, with tokens, and {batch.capacity} in all"
            )
        held = self.n_past(seq)
        if pos != held or pos + n > self.n_cells:
            raise ConfigError(
                f"sequence {seq}: {n} draft token(s) at position {pos}, but the memory holds {held} of "
                f"{self.n_ctx} tokens"
            )
        return batch.add(seq, pos, n)

    def _evaluate(self, batch: DraftBatch, *, op: str, encode: bool = False) -> None:
        """Run ``batch``; with ``encode`` through the encoder, which leaves the memory alone. Raises BackendError."""
        code = (self._encode if encode else self._decode)(self.handle, batch.complete())
        if code:
            check(code, op=op, tokens=batch.n, n_ctx=self.n_ctx)

    def _state_rows(self, n: int) -> Rows:
        """The first ``n`` rows of hidden states of the last evaluation; a view that is valid until the next one."""
        pointer = self._get_states(self.handle)
        if not pointer:
            raise failure("reading hidden states", meaning="the draft context has none")
        return native_rows(self.library, pointer, n, self.width)

    # -- life ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Free the context; closing twice is allowed."""
        with self._lock:
            native, self._native = self._native, None
            if native is not None:
                native.free()
