"""The memory of one sequence of a scripted target, with the rules of the real ones."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from specframe.core.errors import RollbackError
from specframe.core.ports import Rollback

# A polynomial hash modulo a Mersenne prime: any change of any token at any position changes every hash after it.
_PRIME = (1 << 61) - 1
_WIDE = 1 << 40
_CORRUPT = 1 << 41
_SHIFTED = 1 << 42
_BASE = 0x1F3D_5B79_C0FF_EE11 % _PRIME


def extend_hash(state: int, token: int) -> int:
    """Hash of a sequence one token longer."""
    return (state * _BASE + token + 1) % _PRIME


@attrs.frozen(eq=False, weakref_slot=True)
class MemoryCheckpoint:
    """Saved state of one sequence."""

    seq: int
    n_past: int
    n_bytes: int
    state: int = attrs.field(repr=False)


@attrs.define(eq=False)
class Memory:
    """Tokens a sequence holds and the hash of every prefix.

    * TRUNCATE cuts any tail.
    * BOUNDED cuts at most ``min(depth, tokens of the last decode - 1)`` tokens, once per decode, as llama.cpp's
      recurrent snapshots do (``n_rs_seq``).
    * SNAPSHOT cuts nothing: it can only be restored from a checkpoint.

    A checkpoint holds what cannot be cut; the rest must still be there: it is stale once the memory went below it.
    """

    seq: int
    kind: Rollback
    depth: int
    seed: int
    exact_width: int | None = None
    """Tokens evaluated in a wider decode leave another state than single ones do, as kernels that round differently."""
    silent: bool = False
    """Cuts that are too deep are not refused but leave a wrong state of the right length, as llama.cpp does it."""
    tokens: list[int] = attrs.field(factory=list)
    states: list[int] = attrs.field(init=False)
    """``states[i]`` is the hash of ``tokens[:i]``."""
    cuttable: int = 0
    """Tokens BOUNDED memory can cut now."""
    decoded: set[int] = attrs.field(factory=set)
    """Hashes of every prefix evaluated since the last clear."""
    n_redecoded: int = 0
    """Tokens evaluated although the same token with the same prefix had been before."""

    def __attrs_post_init__(self) -> None:
        self.states = [self.seed % _PRIME]

    @property
    def n_past(self) -> int:
        """Tokens it holds."""
        return len(self.tokens)

    def push(self, tokens: Sequence[int], width: int) -> None:
        """Evaluate ``tokens`` as (part of) one decode of ``width`` tokens."""
        wide = self.exact_width is not None and width > self.exact_width
        for token in tokens:
            state = extend_hash(self.states[-1], token)
            if wide:
                state = extend_hash(state, _WIDE)
            self.n_redecoded += state in self.decoded
            self.decoded.add(state)
            self.tokens.append(token)
            self.states.append(state)
        self.cuttable = max(0, min(self.depth, len(tokens) - 1))

    def truncate(self, n_past: int) -> None:
        """Cut to ``n_past`` tokens, or raise RollbackError and change nothing."""
        n_cut = self.n_past - n_past
        if n_past < 0 or n_cut < 0:
            msg = f"cannot truncate sequence {self.seq} to {n_past} tokens: it holds {self.n_past}"
            raise RollbackError(msg)
        if n_cut == 0:
            return
        most = {Rollback.TRUNCATE: self.n_past, Rollback.BOUNDED: self.cuttable, Rollback.SNAPSHOT: 0}[self.kind]
        if n_cut > most and not self.silent:
            msg = f"cannot cut {n_cut} tokens of sequence {self.seq}: only the last {most} can be cut now"
            raise RollbackError(msg)
        self.cuttable = 0
        self._cut(n_past)
        if n_cut > most:
            self.states[-1] = extend_hash(self.states[-1], _CORRUPT)

    def shift(self, n_keep: int, n_drop: int) -> None:
        """Drop tokens from the middle; the states behind them stay as they are, and so reveal what was there."""
        del self.tokens[n_keep : n_keep + n_drop]
        del self.states[n_keep + 1 : n_keep + 1 + n_drop]
        self.states[-1] = extend_hash(self.states[-1], _SHIFTED + n_drop)
        self.decoded.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._cut(0)
        self.states[0] = self.seed % _PRIME
        self.cuttable = 0
        self.decoded.clear()

    def save(self) -> MemoryCheckpoint:
        """Save what truncate cannot bring back."""
        return MemoryCheckpoint(self.seq, self.n_past, 64, self.states[-1])

    def restore(self, checkpoint: MemoryCheckpoint) -> None:
        """Back to ``checkpoint``, or raise RollbackError and change nothing."""
        n_past = checkpoint.n_past
        if n_past > self.n_past or self.states[n_past] != checkpoint.state:
            msg = f"the checkpoint of sequence {self.seq} at {n_past} tokens is stale: the memory went below it since"
            raise RollbackError(msg)
        self.cuttable = 0
        self._cut(n_past)

    def load(self, tokens: list[int], states: list[int]) -> None:
        """Hold what another memory held."""
        self.clear()
        self.tokens, self.states = tokens, states

    def _cut(self, n_past: int) -> None:
        del self.tokens[n_past:]
        del self.states[n_past + 1 :]
