"""One sequence of the target's memory, and what it holds.

The state is three facts: ``tokens`` (committed, append-only while a request runs), ``n_past`` (memory equals
``tokens[:n_past]``) and ``pending = tokens[n_past:]``, which is never empty while a request runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import attrs

from specframe.core.errors import BackendError, SessionPoisonedError
from specframe.core.history import common_prefix
from specframe.core.ports import Checkpoint, Rollback, Target
from specframe.core.strategy import StrategySpec
from specframe.core.validators import whole_number

log = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class PromptCheckpoints:
    """How many checkpoints of its prompt a sequence keeps, for memory that cannot be cut (recurrent layers).

    They let a later prompt that shares only a part of an earlier one start from there. With a count of 0 everything
    still works; such a prompt is then evaluated from its beginning.
    """

    count: int = attrs.field(default=8, validator=whole_number(0, way_out="0 keeps none"))
    interval: int = attrs.field(default=2048, validator=whole_number(1, way_out="2048 is the default"))
    """Tokens between two checkpoints of a long prompt."""
    tail: int = attrs.field(default=4, validator=whole_number(1, way_out="4 is the default"))
    """The last checkpoint is this many tokens before the end of the prompt, where a next turn often departs."""
    max_bytes: int = attrs.field(default=1 << 30, validator=whole_number(0, way_out="2**30 is the default"))
    """Most memory the checkpoints of one sequence may take."""


class Slot:
    """Owner of the memory of one sequence id; the only place that changes its length."""

    def __init__(self, target: Target, seq: int) -> None:
        self._target = target
        self._kind = target.info.rollback
        self.seq = seq
        self.tokens: list[int] = []
        self.checkpoints: list[Checkpoint] = []
        """Lasting checkpoints of prefixes of ``tokens``, shortest first; only for memory that cannot be cut freely."""
        self.strategy_states: dict[str, bytes] = {}
        """What strategies kept of a session that was loaded and not continued yet."""
        self.strategies: Sequence[StrategySpec] = ()
        """Those that followed the latest request here: what others keep of this sequence is of another text."""
        self.n_past = 0
        self.n_pure: int | None = None
        """Tokens of memory that took nothing from tokens that are gone; None: all."""
        self.poisoned = False
        """Memory could not even be cleared: the sequence is given up."""
        self.in_flight = True
        """Memory is unknown: a decode was submitted and not reconciled yet, or nobody looked at it so far."""
        self.last_used = 0
        self.n_restores = 0
        """Checkpoints restored since the latest request started here."""
        self.restore_s = 0.0

    @property
    def n_pending(self) -> int:
        """Committed tokens that memory does not hold yet."""
        return len(self.tokens) - self.n_past

    def common_prefix(self, prompt: Sequence[int]) -> int:
        """Tokens at the head of ``prompt`` that memory holds; its last one is left out, as its logits are needed."""
        pure = self.n_past if self.n_pure is None else min(self.n_past, self.n_pure)
        held = self.tokens[: min(pure, len(prompt) - 1)]
        return common_prefix(held, list(prompt[: len(held)]))

    def start(self, prompt: Sequence[int], *, reuse: bool) -> int:
        """Take ``prompt`` as the committed tokens; returns how many of them memory still holds."""
        self.n_restores, self.restore_s = 0, 0.0
        self.ensure_settled()
        self.shrink(self.common_prefix(prompt) if reuse else 0)
        self.n_pure = None
        self.tokens = list(prompt)
        return self.n_past

    def shrink(self, n_past: int) -> None:
        """Keep at most the first ``n_past`` tokens of memory, as many of them as this kind of memory can keep."""
        if self.n_past <= n_past:
            return
        if n_past and self._kind is Rollback.TRUNCATE:
            self.cut(n_past)
        else:
            self.fall_back(n_past)

    def fall_back(self, n_past: int) -> str:
        """Back to the longest lasting checkpoint of at most ``n_past`` tokens, or to nothing. Returns the means used.

        Committed tokens behind it are ``pending`` again.
        """
        while self.checkpoints and self.checkpoints[-1].n_past > n_past:
            self.checkpoints.pop()
        if self.checkpoints:
            return self.restore(self.checkpoints[-1])
        self.reset()
        return "replay"

    def shift(self, n_keep: int) -> int:
        """The context is full: drop half of the tokens behind the first ``n_keep``; returns how many.

        When memory does not hold all of them, or the shift fails, the rest is evaluated again.
        """
        n_drop = (len(self.tokens) - 1 - n_keep) // 2
        whole = self.n_past == len(self.tokens) - 1
        if not whole:
            self.shrink(n_keep)
        self.in_flight = True
        del self.tokens[n_keep : n_keep + n_drop]
        if whole:
            try:
                self._target.shift(self.seq, n_keep, n_drop)
            except (BackendError, MemoryError) as error:
                log.warning("sequence %d could not be shifted, starting over: %s", self.seq, error)
                self.reset()
                return n_drop
            self.n_past -= n_drop
            self.n_pure = n_keep if self.n_pure is None else min(self.n_pure, n_keep)
        self.in_flight = False
        return n_drop

    def save(self, limits: PromptCheckpoints) -> Checkpoint | None:
        """Keep a lasting checkpoint of memory as it is, the oldest ones making room; None when it was not worth it."""
        held = self.checkpoints
        if not limits.count or (held and held[-1].n_past >= self.n_past):
            return None
        try:
            checkpoint = self._target.checkpoint(self.seq, lasting=True)
        except (BackendError, MemoryError) as error:
            log.warning("no room for a prompt checkpoint of sequence %d, going on without: %s", self.seq, error)
            return None
        if checkpoint.n_bytes > limits.max_bytes:
            return None
        held.append(checkpoint)
        while len(held) > limits.count or sum(c.n_bytes for c in held) > limits.max_bytes:
            held.pop(0)
        return checkpoint

    def load(self, tokens: Sequence[int], state: bytes) -> None:
        """Hold ``tokens`` from a saved state. Raises RollbackError, with nothing held, when it is refused."""
        self.reset()
        self.in_flight = True
        self._target.load_state(self.seq, state, len(tokens))
        self.tokens, self.n_past = list(tokens), len(tokens)
        self.in_flight = False

    def ensure_settled(self) -> None:
        """A reconciliation that was itself interrupted leaves memory unknown: start over."""
        if self.in_flight:
            self.reset()

    def cut(self, n_past: int) -> str:
        """Cut memory to ``n_past`` tokens; when it refuses, forget everything and let ``pending`` bring it back.

        Returns the means used.
        """
        was_in_flight, self.in_flight = self.in_flight, True  # an interrupt in here leaves memory unknown
        try:
            self._target.truncate(self.seq, n_past)
        except (BackendError, MemoryError) as error:
            log.warning("sequence %d could not be cut to %d tokens, starting over: %s", self.seq, n_past, error)
            self.reset()
            return "replay"
        self.n_past = n_past
        self.in_flight = was_in_flight
        return "bounded" if self._kind is Rollback.BOUNDED else "truncate"

    def restore(self, checkpoint: Checkpoint) -> str:
        """Bring memory back to ``checkpoint``; falls back to starting over. Returns the means used."""
        was_in_flight, self.in_flight = self.in_flight, True
        started = time.perf_counter()
        try:
            self._target.restore(checkpoint)
        except (BackendError, MemoryError) as error:
            log.warning("sequence %d could not be restored, starting over: %s", self.seq, error)
            self.reset()
            return "replay"
        self.n_past = checkpoint.n_past
        self.in_flight = was_in_flight
        self.n_restores += 1
        self.restore_s += time.perf_counter() - started
        return "snapshot"

    def reset(self) -> None:
        """Forget all memory. Raises SessionPoisonedError when even that fails."""
        self.checkpoints.clear()
        self.strategy_states.clear()
        self.in_flight = True
        try:
            self._target.clear(self.seq)
        except (BackendError, MemoryError) as error:
            self.poisoned = True
            msg = f"sequence {self.seq} cannot be cleared and is given up: {error}"
            raise SessionPoisonedError(msg) from error
        self.n_past = 0
        self.n_pure = None
        self.in_flight = False
