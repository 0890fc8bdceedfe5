"""The logits of a scripted target: a pure function of the context, and of a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from specframe.core.ports import Logits, Rollback
from specframe.testing.errors import ContractError
from specframe.testing.memory import Memory, extend_hash

#: ``context -> row``: all tokens up to and including the one whose row is wanted; the answer has ``n_vocab`` numbers.
LogitsFunction: TypeAlias = Callable[[Sequence[int]], "Sequence[float] | npt.NDArray[np.float32]"]

_U64: TypeAlias = npt.NDArray[np.uint64]

#: What a forced token of a script is given on top of its logit.
_FORCED = 1000.0


@attrs.frozen(kw_only=True, eq=False)
class Rows:
    """Makes rows; the fields are arguments of ``ScriptedTarget``."""

    n_vocab: int
    seed: int
    spread: float
    order: int | None
    logits_fn: LogitsFunction | None
    scripts: Iterable[Sequence[int]]
    _forced: dict[int, int] = attrs.field(init=False, factory=dict)
    """The favourite by the hash of the context."""
    _ids: _U64 = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        for script in self.scripts:
            state = Memory(0, Rollback.TRUNCATE, 0, self.seed).states[0]
            for token in script:
                self._forced.setdefault(state, token)
                state = extend_hash(state, token)

    @_ids.default
    def _make_ids(self) -> _U64:
        return np.arange(1, self.n_vocab + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)

    def of(self, context: Sequence[int], state: int) -> Logits:
        """The row behind ``context``, whose hash is ``state``."""
        if self.logits_fn is not None:
            row = np.asarray(self.logits_fn(tuple(context)), dtype=np.float32).copy()
            if row.shape != (self.n_vocab,):
                msg = f"logits_fn gave {row.shape} for a vocabulary of {self.n_vocab}"
                raise ContractError(msg)
        else:
            row = self._noise(state)
            if self.order is not None:
                local = self.seed
                for token in context[len(context) - min(self.order, len(context)) :]:
                    local = extend_hash(local, token)
                row = self._noise(local) + np.float32(0.01) * row
        if state in self._forced:
            row[self._forced[state]] += np.float32(_FORCED)
        return row

    def _noise(self, state: int) -> npt.NDArray[np.float32]:
        bits = _mix(self._ids ^ np.uint64(state))
        return ((bits >> np.uint64(40)).astype(np.float32) * np.float32(self.spread / 2**24)).astype(np.float32)


def _mix(x: _U64) -> _U64:
    """Splitmix64's finalizer: turns neighbouring integers into unrelated ones."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)), dtype=np.uint64)
