"""The array of candidates that llama.cpp's samplers work on, filled by numpy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specframe.backends.llama.library import Library

#: ``llama_token_data``.
_DTYPE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class Candidates:
    """Room for ``n_max`` candidates, reused for every token."""

    def __init__(self, library: Library, n_max: int) -> None:
        self._rows = np.zeros(n_max, _DTYPE)
        self._id, self._logit = self._rows["id"], self._rows["logit"]
        self._pointer = library.ffi.from_buffer("llama_token_data[]", self._rows, require_writable=True)
        self.array = library.ffi.new("llama_token_data_array *")
        """``llama_token_data_array``; a sampler may shorten it, reorder it and move its start."""
        self._n = 0

    def fill(self, ids: npt.NDArray[np.int32], logits: npt.NDArray[np.float32] | float) -> None:
        """Make ``ids`` with ``logits`` the candidates."""
        n = len(ids)
        self._id[:n] = ids
        self._logit[:n] = logits
        self._reset(n)

    @property
    def ids(self) -> npt.NDArray[np.int32]:
        """Ids as filled; only meaningful before a sampler reordered them."""
        return self._id[: self._n]

    @property
    def logits(self) -> npt.NDArray[np.float32]:
        """Their logits."""
        return self._logit[: self._n]

    def drop_forbidden(self) -> None:
        """Remove candidates with a logit of -inf: some samplers compute NaN from them."""
        kept = self._rows[: self._n][self.logits > -np.inf]
        self._rows[: len(kept)] = kept
        self._reset(len(kept))

    def _reset(self, n: int) -> None:
        self._n = n
        array = self.array
        array.data, array.size, array.selected, array.sorted = self._pointer, n, -1, False
