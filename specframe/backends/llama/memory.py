"""The memory of a context: what each sequence holds, and how a sequence is brought back to an earlier length."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Protocol

import attrs
import numpy as np
import numpy.typing as npt

from specframe.backends.llama.context_options import ContextOptions
from specframe.backends.llama.library import Library
from specframe.backends.llama.model import ModelFacts
from specframe.backends.llama.status import failure
from specframe.core.errors import BackendError, ConfigError, RollbackError
from specframe.core.ports import BatchEntry, Rollback

#: Memory formats of keys that llama.cpp can move to another position (``build_rope_shift``). With others it ends the
#: process in the next decode: processors cannot turn bf16, and what is stored in blocks is turned back by a matrix
#: that is there for some models only.
MOVABLE_KEYS = frozenset({"f32", "f16"})


class Owner(Protocol):
    """The context a memory belongs to."""

    @property
    def library(self) -> Library:
        """The native library."""
        ...

    @property
    def handle(self) -> Any:
        """``struct llama_context *``; raises ClosedError when it is gone."""
        ...

    @property
    def options(self) -> ContextOptions:
        """It was made with."""
        ...


@attrs.define(eq=False)
class LlamaCheckpoint:
    """Saved memory of one sequence: what cannot be cut; the rest stays in the context."""

    seq: int
    n_past: int
    state: npt.NDArray[np.uint8] | None = attrs.field(default=None, repr=False)
    """None: the sequence was empty, or can be cut at will."""
    n_bytes: int = 0
    """Memory it takes, on the host or on the device."""
    on_device: bool = False
    """``state`` is only the description; the values are in device memory, until the next such checkpoint."""
    stale: bool = False
    """The sequence was cut below ``n_past`` since, or the device memory was reused: it cannot be restored any more."""


def rollback_kind(facts: ModelFacts, *, n_rs_seq: int, swa_full: bool) -> Rollback:
    """How sequences of such a context can be shortened.

    Args:
        facts: of the model.
        n_rs_seq: recurrent states that the context really keeps per sequence.
        swa_full: whether sliding-window layers keep everything.
    """
    if facts.is_recurrent or facts.is_hybrid:
        return Rollback.BOUNDED if n_rs_seq else Rollback.SNAPSHOT
    return Rollback.SNAPSHOT if facts.n_swa and not swa_full else Rollback.TRUNCATE


class Memory:
    """Memory operations, each checked, and verified by asking the memory itself.

    Not for use from two threads at once.
    """

    def __init__(
        self,
        owner: Owner,
        *,
        n_seq: int,
        kind: Rollback,
        depth: int,
        window: int = 0,
        checkpoint_on_device: bool = False,
    ) -> None:
        """Watch over the memory of a context.

        Args:
            owner: the context.
            n_seq: sequences it holds.
            kind: how they can be shortened.
            depth: tokens that can be taken back when ``kind`` is BOUNDED.
            window: tokens that sliding-window layers look back, their own included; 0: there are no such layers.
            checkpoint_on_device: keep checkpoints that need not last where the memory itself is.
        """
        self._owner = owner
        self._ffi, self._lib = owner.library.ffi, owner.library.lib
        self._memory = self._lib.llama_get_memory(owner.handle)
        self._n_seq, self._kind, self._depth = n_seq, kind, depth
        self._window, self._on_device = window, checkpoint_on_device
        self._undoable = [0] * n_seq
        self._checkpoints: weakref.WeakSet[LlamaCheckpoint] = weakref.WeakSet()
        self._pos_max, self._pos_min = self._lib.llama_memory_seq_pos_max, self._lib.llama_memory_seq_pos_min

    def n_past(self, seq: int) -> int:
        """Tokens the memory of ``seq`` holds."""
        if not 0 <= seq < self._n_seq:
            msg = f"sequence {seq} does not exist; there are {self._n_seq} (n_seq), numbered from 0"
            raise ConfigError(msg)
        self._owner.handle  # noqa: B018 -- refuses when closed
        return int(self._pos_max(self._memory, seq)) + 1

    def written(self, entries: Iterable[BatchEntry]) -> None:
        """A decode of ``entries`` succeeded; it decides what can be taken back of each sequence."""
        # Recurrent states are kept for the tokens of the last decode only: beyond them llama_memory_seq_rm answers yes
        # and leaves a wrong state.
        if self._depth:
            for entry in entries:
                self._undoable[entry.seq] = min(self._depth, len(entry.tokens) - 1)

    def doubtful(self, entries: Iterable[BatchEntry]) -> None:
        """A decode of ``entries`` is under way or failed: nothing of these sequences can be taken back."""
        if self._depth:
            for entry in entries:
                self._undoable[entry.seq] = 0

    def truncate(self, seq: int, n_past: int) -> None:
        """Cut ``seq`` to its first ``n_past`` tokens.

        Raises:
            RollbackError: it holds fewer, or this kind of memory cannot be cut there; nothing changed.
        """
        held = self.n_past(seq)
        if n_past == held:
            return
        if not 0 <= n_past < held:
            msg = f"sequence {seq} holds {held} tokens and cannot be cut to {n_past}"
            raise RollbackError(msg)
        if n_past == 0:
            self.clear(seq)
            return
        if self._kind is Rollback.SNAPSHOT:
            msg = f"sequence {seq} cannot be cut from {held} to {n_past} tokens: this memory only restores checkpoints"
            raise RollbackError(msg)
        if self._kind is Rollback.BOUNDED and held - n_past > self._undoable[seq]:
            msg = (
                f"sequence {seq} cannot be cut from {held} to {n_past} tokens: the last decode left "
                f"{self._undoable[seq]} that can be taken back"
            )
            raise RollbackError(msg)
        # Sliding-window layers give cells that slid out of the window to new tokens when the search for free ones has
        # come to the end of the memory, as it does once a full context was shifted.
        if self._window and self._pos_min(self._memory, seq) > max(0, n_past - self._window + 1):
            msg = f"sequence {seq} cannot be cut from {held} to {n_past} tokens: the window before them was overwritten"
            raise RollbackError(msg)
        self._undoable[seq] = 0
        self._cut(seq, n_past)
        self._outdate(seq, n_past)

    @property
    def can_shift(self) -> bool:
        """Whether :meth:`shift` works: attention only, one number for a position, keys that can be turned in place."""
        if self._kind is not Rollback.TRUNCATE or self._owner.options.type_k not in MOVABLE_KEYS:
            return False
        return bool(self._lib.llama_memory_can_shift(self._memory))

    def shift(self, seq: int, n_keep: int, n_drop: int) -> None:
        """Forget ``n_drop`` tokens behind the first ``n_keep`` of ``seq`` and move the rest down.

        Raises:
            BackendError: it holds fewer, or this kind of memory cannot do it, and nothing changed; or llama.cpp
                refused, and the sequence must be cleared.
        """
        held = self.n_past(seq)
        # llama.cpp ends the process when told to move what cannot be moved.
        if not self.can_shift or n_keep < 0 or n_drop < 1 or n_keep + n_drop > held:
            msg = f"sequence {seq} holds {held} tokens; {n_drop} behind the first {n_keep} of them cannot be dropped"
            raise BackendError(msg)
        self._outdate(seq, 0)
        removed = self._lib.llama_memory_seq_rm(self._memory, seq, n_keep, n_keep + n_drop)
        if removed and n_keep + n_drop < held:
            self._lib.llama_memory_seq_add(self._memory, seq, n_keep + n_drop, -1, -n_drop)
        if not removed or self.n_past(seq) != held - n_drop:
            raise failure("shifting a sequence", meaning="it did not move", seq=seq, n_past=self.n_past(seq))

    def clear(self, seq: int) -> None:
        """Forget everything of ``seq``. Raises BackendError when llama.cpp refuses, which it never should."""
        self.n_past(seq)
        removed = self._lib.llama_memory_seq_rm(self._memory, seq, -1, -1)
        self._undoable[seq] = 0
        self._outdate(seq, 0)
        if not removed or self.n_past(seq) != 0:
            raise failure("clearing a sequence", meaning="its memory is not empty", seq=seq, n_past=self.n_past(seq))

    def checkpoint(self, seq: int, *, lasting: bool = False) -> LlamaCheckpoint:
        """Save what :meth:`truncate` cannot bring back. Raises BackendError when there is no room."""
        held = self.n_past(seq)
        checkpoint = LlamaCheckpoint(seq, held)
        if held and self._kind is not Rollback.TRUNCATE:
            checkpoint.on_device = self._on_device and not lasting
            if checkpoint.on_device:
                # llama.cpp keeps one such state per sequence, and ends the process when asked for an overwritten one.
                for other in self._checkpoints:
                    other.stale |= other.on_device and other.seq == seq
            self._save(checkpoint)
        self._checkpoints.add(checkpoint)
        return checkpoint

    def _flags(self, checkpoint: LlamaCheckpoint) -> int:
        partial: int = self._lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        return partial | (self._lib.LLAMA_STATE_SEQ_FLAGS_ON_DEVICE if checkpoint.on_device else 0)

    def _save(self, checkpoint: LlamaCheckpoint) -> None:
        context, seq, flags = self._owner.handle, checkpoint.seq, self._flags(checkpoint)
        size = int(self._lib.llama_state_seq_get_size_ext(context, seq, flags))
        try:
            state = np.empty(size, np.uint8)
        except MemoryError:
            raise failure("taking a checkpoint", meaning="there is not enough memory", seq=seq, n_bytes=size) from None
        target = self._ffi.from_buffer("uint8_t[]", state, require_writable=True)
        wrote = int(self._lib.llama_state_seq_get_data_ext(context, target, size, seq, flags))
        if wrote != size or size == 0:
            raise failure("taking a checkpoint", meaning="the state was not written", seq=seq, size=size, wrote=wrote)
        checkpoint.state, checkpoint.n_bytes = state, size
        if checkpoint.on_device:
            everything = self._lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
            checkpoint.n_bytes = int(self._lib.llama_state_seq_get_size_ext(context, seq, everything))

    def restore(self, checkpoint: LlamaCheckpoint) -> None:
        """Bring a sequence back to a checkpoint; may be done more than once.

        Raises:
            RollbackError: it is not of this memory, outdated, or llama.cpp refused; then the sequence must be cleared.
        """
        seq, n_past = checkpoint.seq, checkpoint.n_past
        held = self.n_past(seq)
        if checkpoint not in self._checkpoints or checkpoint.stale or held < n_past:
            msg = (
                f"sequence {seq} cannot be restored to {n_past} tokens: it holds {held}, and the checkpoint is "
                f"{'outdated' if checkpoint.stale else 'of another memory or longer'}"
            )
            raise RollbackError(msg)
        if n_past == 0:
            self.clear(seq)
            return
        self._undoable[seq] = 0
        if checkpoint.state is not None:
            context, size = self._owner.handle, checkpoint.state.nbytes
            source = self._ffi.from_buffer("uint8_t[]", checkpoint.state)
            flags = self._flags(checkpoint)
            read = int(self._lib.llama_state_seq_set_data_ext(context, source, size, seq, flags))
            if read != size:
                msg = f"sequence {seq} cannot be restored: llama.cpp took {read} of {size} bytes"
                raise RollbackError(msg)
        self._cut(seq, n_past)
        self._outdate(seq, n_past)

    def vacate(self, seq: int) -> None:
        """Give back the cells of ``seq``, which :meth:`unpack` brings back; checkpoints stay valid.

        Raises BackendError when llama.cpp refuses, which it never should.
        """
        self.n_past(seq)
        if not self._lib.llama_memory_seq_rm(self._memory, seq, -1, -1):
            raise failure("taking a sequence out", meaning="its memory is not empty", seq=seq, n_past=self.n_past(seq))

    def pack(self, seq: int) -> npt.NDArray[np.uint8]:
        """Everything ``seq`` holds. Raises BackendError when llama.cpp does not write it."""
        self.n_past(seq)
        context, flags = self._owner.handle, self._lib.LLAMA_STATE_SEQ_FLAGS_NONE
        size = int(self._lib.llama_state_seq_get_size_ext(context, seq, flags))
        packed = np.empty(size, np.uint8)
        target = self._ffi.from_buffer("uint8_t[]", packed, require_writable=True)
        wrote = int(self._lib.llama_state_seq_get_data_ext(context, target, size, seq, flags))
        if wrote != size or size == 0:
            raise failure("saving a sequence", meaning="the state was not written", seq=seq, size=size, wrote=wrote)
        return packed

    def unpack(self, seq: int, packed: bytes | npt.NDArray[np.uint8], n_past: int) -> None:
        """Make ``seq``, which is empty, hold what :meth:`pack` returned, ``n_past`` tokens; checkpoints stay valid.

        Raises:
            RollbackError: llama.cpp refused it; the sequence is empty then.
        """
        self.n_past(seq)
        source = self._ffi.from_buffer("uint8_t[]", packed)
        context, flags, size = self._owner.handle, self._lib.LLAMA_STATE_SEQ_FLAGS_NONE, len(source)
        read = int(self._lib.llama_state_seq_set_data_ext(context, source, size, seq, flags))
        held = self.n_past(seq)
        if read != size or held != n_past:
            self.clear(seq)
            msg = f"sequence {seq} was to hold {n_past} tokens and holds {held}: llama.cpp took {read} of {size} bytes"
            raise RollbackError(msg)
        self._undoable[seq] = 0

    def _cut(self, seq: int, n_past: int) -> None:
        removed = self._lib.llama_memory_seq_rm(self._memory, seq, n_past, -1)
        now = self.n_past(seq)
        if not removed or now != n_past:
            msg = (
                f"sequence {seq} was to hold {n_past} tokens, but llama.cpp answered {bool(removed)} and it holds {now}"
            )
            raise RollbackError(msg)

    def _outdate(self, seq: int, n_past: int) -> None:
        if self._checkpoints:
            for checkpoint in self._checkpoints:
                if checkpoint.seq == seq and checkpoint.n_past > n_past:
                    checkpoint.stale = True
