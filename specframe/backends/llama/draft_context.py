"""A context that predicts tokens ahead of a target, from its hidden states."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from specframe.backends.llama.context_options import ContextOptions
from specframe.backends.llama.library import Library
from specframe.backends.llama.memory import Memory
from specframe.backends.llama.model import Model
from specframe.backends.llama.mtp_files import ASSISTANT, CHAINED
from specframe.backends.llama.native_context import NativeContext, native_rows
from specframe.backends.llama.row_chooser import RowChooser
from specframe.backends.llama.status import check, failure
from specframe.core.errors import ClosedError, ConfigError
from specframe.core.ports import Rollback, Rows

if TYPE_CHECKING:
    from specframe.backends.llama.context import Context


@attrs.frozen
class DraftEntry:
    """Consecutive tokens of one sequence, each with the hidden state it is paired with."""

    seq: int
    pos: int
    """Position of ``tokens[0]``."""
    tokens: Sequence[int]
    states: Rows
    """``(len(tokens), width)`` float32."""
    output: bool = False
    """Predict what follows the last token."""


class DraftContext:
    """Runs the NextN layers of a model. Close it, or use it as a context manager; closing the target closes it too.

    Not for use from two threads at once, except for ``close``.
    """

    def __init__(
        self,
        model: Model,
        target: Context,
        *,
        n_ctx: int | None = None,
        n_batch: int | None = None,
        type_k: str = "f16",
        type_v: str = "f16",
        n_threads: int | None = None,
        backend_sampling: bool = True,
        probabilities: bool = False,
    ) -> None:
        """Create the native context.

        Args:
            model: with NextN layers that were loaded; the target's own, or another one that stays the caller's.
            target: the context it drafts for; outlives this one.
            n_ctx: tokens a sequence can hold; the target's unless given.
            n_batch: most tokens in one decode; the target's unless given.
            type_k: memory format of keys.
            type_v: memory format of values.
            n_threads: processor threads; the target's unless given.
            backend_sampling: choose inside the evaluation where possible, so that no rows of logits are copied.
            probabilities: :meth:`choices` tells them.

        Raises:
            ConfigError: the model has no layers to run, or an option cannot work.
            BackendError: llama.cpp could not create the context; the message quotes its reason.
        """
        self._native: NativeContext | None = None
        self._lock = threading.RLock()
        self.model, self.target = model, target
        self.library: Library = model.library
        self._check_model()
        tells = target.options
        self.options = options = ContextOptions(
            n_ctx=n_ctx or target.n_ctx,
            n_batch=max(n_batch or target.n_batch, 2 * target.n_seq),
            n_ubatch=max(target.n_ubatch, 2),
            n_seq=target.n_seq,
            n_threads=n_threads or tells.n_threads,
            n_threads_batch=n_threads or tells.n_threads_batch,
            flash_attn=tells.flash_attn,
            type_k=type_k,
            type_v=type_v,
            offload=tells.offload,
            swa_full=tells.swa_full if model.gguf.arch == ASSISTANT else True,
            kv_unified=tells.kv_unified,
            n_outputs_max=target.n_seq,
        )
        options.check_model(model)
        params = options.native(model)
        params.ctx_type = self.library.lib.LLAMA_CONTEXT_TYPE_MTP
        params.ctx_other = target.handle
        with _kept_memory(target) if model.gguf.arch == ASSISTANT else contextlib.nullcontext():
            self._native = NativeContext(model, options, params)
        try:
            self._set_up(backend_sampling=backend_sampling, probabilities=probabilities)
        except BaseException:
            self.close()
            raise

    def _check_model(self) -> None:
        facts, target = self.model.facts, self.target.model.facts
        name = self.model.path.name
        if facts.n_layer_nextn < 1:
            raise ConfigError(f"{name} has no NextN layers to draft with")
        if not self.model.load_mtp:
            raise ConfigError(f"the NextN layers of {name} were not loaded; open the model with load_mtp=True")
        if facts.n_embd_out != target.n_embd_out:
            raise ConfigError(
                f"{name} reads hidden states of {facts.n_embd_out} values, but {self.target.model.path.name} has "
                f"{target.n_embd_out}; take the draft that was made for this target"
            )

    def _set_up(self, *, backend_sampling: bool, probabilities: bool) -> None:
        lib, ffi, handle = self.library.lib, self.library.ffi, self.handle
        self.width = self.model.facts.n_embd_out
        """Of hidden states."""
        self.n_vocab = self.model.facts.n_vocab
        self.n_ctx, self.n_seq = self.options.n_ctx, self.options.n_seq
        self.n_batch = int(lib.llama_n_batch(handle))
        self.shares_memory: bool = lib._Z19llama_get_ctx_otherP13llama_context(handle) == self.target.handle  # noqa: SLF001
        """It attends to the memory of the target and has none of its own."""
        chained = self.model.gguf.arch in CHAINED and not self.shares_memory
        self.n_heads = self.model.facts.n_layer_nextn if chained else 1
        """Heads trained for one position ahead each; with a single one, it drafts any number of positions."""
        self.memory = Memory(self, n_seq=self.n_seq, kind=Rollback.TRUNCATE, depth=0)
        self._decode = lib.llama_decode
        self._get_states = lib._Z26llama_get_embeddings_nextnP13llama_context  # noqa: SLF001
        self._set_head = lib._Z28llama_set_nextn_layer_offsetP13llama_contexti  # noqa: SLF001
        self._set_states = lib._Z26llama_set_embeddings_nextnP13llama_contextbb  # noqa: SLF001
        self._set_states(handle, True, True)
        self._every_row = False
        self._head = 0
        self._outputs: list[int] = []
        self._make_arrays(ffi)
        native = self._native
        assert native is not None  # noqa: S101 -- for the type checker
        self._chooser = RowChooser(self.library, self.n_vocab, probabilities=probabilities)
        if backend_sampling:
            self._chooser.attach(handle, self.n_seq)
            native.before.append(self._chooser.detach)
        # Weakly: both close what depends on them, they do not keep it alive.
        self.model.adopt(self)
        self.target.adopt(self)
        if not self.shares_memory:
            self._probe()

    def _probe(self) -> None:
        """Find out which rows of hidden states a batch leaves when not all of its tokens are outputs.

        llama.cpp hands out as many rows as there are outputs, but some graphs (``t_h_nextn`` in ``src/models``) compute
        those of every token, and then the first ones are taken. There, every row has to be asked for.
        """
        states = np.random.default_rng(0).standard_normal((2, self.width), np.float32)
        self.decode([DraftEntry(0, 0, [0, 1], states, output=True)])
        found = self.states()[0].copy()
        self.clear(0)
        alone = []
        for pos in range(2):
            self.decode([DraftEntry(0, pos, [pos], states[pos : pos + 1], output=True)])
            alone.append(self.states()[0].copy())
        self.clear(0)
        first, last = (float(np.abs(found - row).max()) for row in alone)
        if first < last:
            self._every_row = True
            self._set_states(self.handle, True, False)

    def _make_arrays(self, ffi: Any) -> None:
        """The arrays of a ``llama_batch``, filled in bulk: a call per token would cost more than the evaluation."""
        n = self.n_batch
        self._tokens: npt.NDArray[np.int32] = np.zeros(n, np.int32)
        self._positions: npt.NDArray[np.int32] = np.zeros(n, np.int32)
        self._states: npt.NDArray[np.float32] = np.empty((n, self.width), np.float32)
        self._wanted: npt.NDArray[np.int8] = np.zeros(n, np.int8)
        self._ones: npt.NDArray[np.int32] = np.ones(n, np.int32)
        self._seq_ids: npt.NDArray[np.int32] = np.arange(self.n_seq, dtype=np.int32)
        self._seq_pointers: npt.NDArray[np.uintp] = np.zeros(n, np.uintp)
        batch = self._batch = ffi.new("llama_batch *")
        batch.token = ffi.from_buffer("llama_token[]", self._tokens)
        batch.embd = ffi.from_buffer("float[]", self._states)
        batch.pos = ffi.from_buffer("llama_pos[]", self._positions)
        batch.n_seq_id = ffi.from_buffer("int32_t[]", self._ones)
        batch.seq_id = ffi.cast("llama_seq_id **", ffi.from_buffer(self._seq_pointers))
        batch.logits = ffi.from_buffer("int8_t[]", self._wanted)

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

    def use_head(self, head: int) -> None:
        """Run another of the chained heads from now on; each has memory of its own at every position."""
        if not 0 <= head < self.n_heads:
            raise ConfigError(f"there is no head {head}; there are {self.n_heads}")
        if head != self._head:
            self._set_head(self.handle, head)
            self._head = head

    def decode(self, entries: Sequence[DraftEntry]) -> None:
        """Evaluate one batch; each sequence at most once.

        Raises:
            ConfigError: the batch is impossible; nothing changed.
            BackendError: llama.cpp failed; the memory of the sequences in it may hold a part of their tokens.
            ClosedError: the context is closed.
        """
        with self._lock:
            handle = self.handle
            n = self._fill(entries)
            code = self._decode(handle, self._batch[0])
            if code:
                self._outputs = []
                check(code, op="decoding a draft batch", tokens=n, n_ctx=self.n_ctx)

    def _fill(self, entries: Sequence[DraftEntry]) -> int:
        start, outputs, seen = 0, [], set()
        base = self._seq_ids.ctypes.data
        for entry in entries:
            seq, n = entry.seq, len(entry.tokens)
            end = start + n
            if seq in seen or n == 0 or end > self.n_batch:
                raise ConfigError(
                    f"sequence {seq}: a draft batch takes each sequence once, with tokens, and {self.n_batch} in all"
                )
            held = self.memory.n_past(seq)
            if entry.pos != held or entry.pos + n > self.n_ctx or (self.shares_memory and n > 1):
                raise ConfigError(
                    f"sequence {seq}: {n} draft token(s) at position {entry.pos}, but the memory holds {held} of "
                    f"{self.n_ctx} tokens"
                )
            if entry.states.shape != (n, self.width):
                raise ConfigError(f"sequence {seq}: {n} states of {self.width} values, not {entry.states.shape}")
            self._tokens[start:end] = entry.tokens
            self._states[start:end] = entry.states
            self._positions[start:end] = range(entry.pos, entry.pos + n)
            self._seq_pointers[start:end] = base + seq * self._seq_ids.itemsize
            self._wanted[start:end] = 0
            if entry.output:
                self._wanted[end - 1] = 1
                outputs.append(end - 1)
            seen.add(seq)
            start = end
        tokens = self._tokens[:start]
        if start == 0 or int(tokens.min()) < 0 or int(tokens.max()) >= self.n_vocab:
            raise ConfigError(f"a draft batch of {start} tokens, with ids from 0 to {self.n_vocab - 1}, is needed")
        self._batch.n_tokens = start
        self._outputs = outputs
        return start

    def choices(self) -> list[tuple[int, float]]:
        """The most probable token of each entry with an output, in order, and its probability.

        The probability is among the ten best tokens, as llama.cpp's own drafts count it; 1.0 unless they were asked
        for.
        """
        with self._lock:
            return self._chooser.choose(self.handle, self._outputs)

    def states(self) -> Rows:
        """Hidden states of the outputs ``(outputs, width)``; a view that is valid until the next decode."""
        with self._lock:
            pointer = self._get_states(self.handle)
            if not pointer:
                raise failure("reading hidden states", meaning="the draft context has none")
            if not self._every_row:
                return native_rows(self.library, pointer, len(self._outputs), self.width)
            rows = native_rows(self.library, pointer, int(self._batch.n_tokens), self.width)
            return rows if len(rows) == len(self._outputs) else rows[self._outputs]

    # -- life ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Free the context; closing twice is allowed."""
        with self._lock:
            native, self._native = self._native, None
            if native is not None:
                native.free()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # A backstop only, as in Context.
        if not sys.is_finalizing() and getattr(self, "_native", None) is not None:
            self.close()


@contextlib.contextmanager
def _kept_memory(target: Context) -> Iterator[None]:
    """Keep what ``target`` holds: llama.cpp empties a memory when another context that will share it is made."""
    memory = target.memory
    held = [(seq, n_past) for seq in range(target.n_seq) if (n_past := memory.n_past(seq))]
    packed = [memory.pack(seq) for seq, _ in held]
    try:
        yield
    finally:
        for (seq, n_past), state in zip(held, packed, strict=True):
            memory.unpack(seq, state, n_past)
