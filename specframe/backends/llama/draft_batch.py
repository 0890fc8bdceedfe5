"""A ``llama_batch`` of arrays that are filled in bulk: a call per token would cost more than a small evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from specframe.backends.llama.library import Library


class DraftBatch:
    """Tokens, rows of numbers that stand in for tokens, or both, of one evaluation of a draft model.

    Args:
        library: the native library.
        capacity: most tokens.
        n_seq: sequence ids are below this.
        width: of the rows; 0: tokens only.
        has_tokens: False: rows only.
        n_axes: positions of a row; 4 for models with multi-axis rope (M-RoPE), of which text uses three alike.

    Attributes:
        native: ``struct llama_batch *``.
        n: tokens added since ``clear``.
        tokens: ``(capacity,)`` int32.
        rows: ``(capacity, width)`` float32.
        outputs: ``(capacity,)`` int8, whether an output is wanted.
    """

    def __init__(
        self, library: Library, *, capacity: int, n_seq: int, width: int = 0, has_tokens: bool = True, n_axes: int = 1
    ) -> None:
        ffi = library.ffi
        self.capacity, self.n = capacity, 0
        self.tokens: npt.NDArray[np.int32] = np.zeros(capacity, np.int32)
        self.rows: npt.NDArray[np.float32] = np.empty((capacity, width), np.float32)
        self.outputs: npt.NDArray[np.int8] = np.zeros(capacity, np.int8)
        self._n_axes = 1 if has_tokens else n_axes  # with tokens, llama.cpp spreads their positions itself
        self._positions: npt.NDArray[np.int32] = np.zeros(capacity * self._n_axes, np.int32)
        self._ones: npt.NDArray[np.int32] = np.ones(capacity, np.int32)
        self._seq_ids: npt.NDArray[np.int32] = np.arange(n_seq, dtype=np.int32)
        first = self._seq_ids.ctypes.data
        self._pointers = [first + seq * self._seq_ids.itemsize for seq in range(n_seq)]
        self._seq_pointers: npt.NDArray[np.uintp] = np.zeros(capacity, np.uintp)
        self._seqs: set[int] = set()
        batch = self.native = ffi.new("llama_batch *")
        if has_tokens:
            batch.token = ffi.from_buffer("llama_token[]", self.tokens)
        if width:
            batch.embd = ffi.from_buffer("float[]", self.rows)
        batch.pos = ffi.from_buffer("llama_pos[]", self._positions)
        batch.n_seq_id = ffi.from_buffer("int32_t[]", self._ones)
        batch.seq_id = ffi.cast("llama_seq_id **", ffi.from_buffer(self._seq_pointers))
        batch.logits = ffi.from_buffer("int8_t[]", self.outputs)

    def clear(self) -> None:
        """Start anew."""
        self.n = 0
        self._seqs.clear()

    def takes(self, seq: int, n: int) -> bool:
        """Whether ``n`` tokens of ``seq`` can be added: each sequence comes once, and there has to be room."""
        return seq not in self._seqs and 0 < n <= self.capacity - self.n

    def add(self, seq: int, pos: int, n: int) -> slice:
        """Take in ``n`` tokens of ``seq`` from position ``pos`` on, without outputs; returns their place."""
        place = slice(self.n, self.n + n)
        self._positions[place] = np.arange(pos, pos + n)
        self._seq_pointers[place] = self._pointers[seq]
        self.outputs[place] = 0
        self._seqs.add(seq)
        self.n += n
        return place

    def complete(self) -> Any:
        """``struct llama_batch`` with everything added."""
        n = self.n
        if self._n_axes > 1:  # section by section: time, height, width, and one that is not used
            for axis in range(1, self._n_axes):
                self._positions[axis * n : (axis + 1) * n] = 0 if axis == self._n_axes - 1 else self._positions[:n]
        self.native.n_tokens = n
        return self.native[0]
