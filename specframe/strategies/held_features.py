"""Which positions of a sequence a draft model has the target's features of, and the features that wait for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from specframe.core.history import common_prefix
from specframe.core.ports import Decoded, Rows
from specframe.strategies._rows import RowBuffer


class HeldFeatures:
    """What is known of one sequence: tokens, and the features of those that the draft model has not seen yet.

    ``tokens[:injected]`` are in the memory of the draft model, and there is a row of features for each of the others.
    The memory may hold more for a moment, what was drafted or rejected; it is cut before it is used again.

    Whenever that sum is not right, an interrupt came in between, and nothing is drafted until the next request.

    Args:
        layers: of the target, whose inputs side by side are the features.
        width: of one row of them.
    """

    def __init__(self, layers: Sequence[int], width: int) -> None:
        self._layers, self._width = tuple(layers), width
        self.tokens: list[int] = []
        self.injected = 0
        self._waiting = RowBuffer(width)

    @property
    def waiting(self) -> Rows:
        """Features ``(waiting, width)`` of ``tokens[injected:]``; a view, good until something changes."""
        return self._waiting.rows

    @property
    def usable(self) -> bool:
        """Whether all is in order."""
        return self.injected + len(self._waiting) == len(self.tokens)

    def begin(self, prompt: Sequence[int]) -> int:
        """A request starts with ``prompt``, all of which the target holds; returns how much of it is known here."""
        n = common_prefix(self.tokens, prompt) if self.usable else 0
        self.keep(n)
        return n

    def keep(self, n: int) -> None:
        """Forget all but the first ``n`` tokens."""
        del self.tokens[n:]
        self._waiting.keep(max(0, n - self.injected))
        self.injected = min(self.injected, n)

    def seen(self, decoded: Decoded) -> None:
        """The target decoded more; what is known already is passed over.

        Behind a gap, which an interrupt can leave, it is passed over too: there will be nothing to draft from.
        """
        pos, new = decoded.pos, list(decoded.tokens)
        if not self.usable or pos > len(self.tokens):
            return
        n_known = common_prefix(self.tokens[pos : pos + len(new)], new)
        if n_known < len(new):
            self.keep(pos + n_known)
            rows = decoded.concatenated(self._layers)
            self.tokens += new[n_known:]
            self._waiting.add(rows[n_known:])

    def took_over(self, n: int) -> None:
        """The draft model's memory holds the features of the first ``n`` tokens now."""
        self._waiting.drop(n - self.injected)
        self.injected = n

    def drop(self, n_keep: int, n_drop: int) -> None:
        """``n_drop`` tokens behind the first ``n_keep``, all of them injected, are gone."""
        del self.tokens[n_keep : n_keep + n_drop]
        self.injected -= n_drop

    def save(self) -> dict[str, npt.NDArray[Any]]:
        """Everything known."""
        return {
            "tokens": np.array(self.tokens, np.int32),
            "injected": np.array(self.injected, np.int64),
            "waiting": self.waiting,
        }

    def load(self, saved: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over what :meth:`save` returned. Raises ValueError when it is of another model."""
        self.keep(0)
        waiting = saved["waiting"]
        if waiting.shape[1:] != (self._width,):
            msg = f"saved features are {waiting.shape[1:]} values wide, those of this model {self._width}"
            raise ValueError(msg)
        self.tokens, self.injected = saved["tokens"].tolist(), int(saved["injected"])
        self._waiting.add(waiting)
