"""In flight: from before the target decode until memory equals the committed prefix again.

However the block is left (normally, by an error, by KeyboardInterrupt, by a closed generator) every sequence in it is
reconciled by the cheapest means that works: cut, restore of a checkpoint (of this step, or of the prompt, from where
committed tokens are replayed), or clearing and replaying all committed tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import TracebackType

import attrs
from typing_extensions import Self

from specframe.core.errors import BackendError, SessionPoisonedError
from specframe.core.ports import BatchEntry, Checkpoint, Rollback, Target
from specframe.core.proposal import Part
from specframe.core.slot import Slot

log = logging.getLogger(__name__)


@attrs.define(eq=False)
class InFlight:
    """One sequence inside a transaction."""

    slot: Slot
    tokens: Sequence[int]
    """Committed tokens that are evaluated: the pending ones, or a chunk of them."""
    draft: Sequence[int] = ()
    parts: Sequence[Part] = ()
    """Who drafted what of ``draft``, which may be shorter."""
    n_outputs: int = 1
    """Logits rows wanted; ``len(draft) + 1`` when something is emitted, 0 for a chunk in the middle of a prompt."""
    n_matched: int = 0
    """Leading draft tokens that were committed."""
    n_committed: int = 0
    """Tokens this step appended to the slot's committed tokens."""
    checkpoint: Checkpoint | None = None
    rollback: str | None = None
    """The means used to drop the rest; None: nothing was dropped."""
    error: SessionPoisonedError | None = None

    def entry(self) -> BatchEntry:
        """This sequence's part of the target batch."""
        tokens = (*self.tokens, *self.draft)  # strategies see it: nothing they could change
        return BatchEntry(self.slot.seq, self.slot.n_past, tokens, self.n_outputs)


class Transaction:
    """``with Transaction(...) as t: t.submit(); t.decoded = True; ...commit...`` and memory is right afterwards."""

    def __init__(self, target: Target, entries: Sequence[InFlight]) -> None:
        self._target = target
        self._entries = entries
        self.decoded = False
        """The logits are there: memory holds every token of the batch; if not, the sequences are where they were."""
        self._submitted = False

    def __enter__(self) -> Self:
        return self

    def submit(self) -> None:
        """Hand the batch to the target; from here on memory has to be reconciled."""
        batch = [item.entry() for item in self._entries]
        self._submitted = True
        for item in self._entries:
            item.slot.in_flight = True
        self._target.decode(batch)

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if not self._submitted:
            return
        interrupt: BaseException | None = None
        for item in self._entries:
            try:
                if self.decoded:
                    self._settle(item)
                else:
                    self._undo(item)
                item.slot.in_flight = False
            except SessionPoisonedError as error:
                item.error = error
            except BaseException as error:  # noqa: BLE001 -- this sequence stays marked as unknown; the others count
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def _settle(self, item: InFlight) -> None:
        """The decode worked: keep the committed prefix, minus the last token when its logits are still needed."""
        slot = item.slot
        start = slot.n_past
        have = start + len(item.tokens) + len(item.draft)
        keep = min(start + len(item.tokens) + item.n_matched, len(slot.tokens) - 1)
        if item.n_outputs == 0:  # a chunk in the middle of a prompt: all of it stays
            keep = have
        slot.n_past = have
        if keep < have:
            self._drop(item, keep, have)

    def _drop(self, item: InFlight, keep: int, have: int) -> None:
        slot, info = item.slot, self._target.info
        kind = info.rollback
        # The native answer to a cut that is too deep is "done", with a wrong state: the bound is kept here.
        in_bounds = have - keep <= min(info.rollback_depth, len(item.tokens) + len(item.draft) - 1)
        if kind is Rollback.TRUNCATE or (kind is Rollback.BOUNDED and in_bounds):
            item.rollback = slot.cut(keep)
        elif item.checkpoint is not None:
            item.rollback = slot.restore(item.checkpoint)
        else:
            item.rollback = slot.fall_back(keep)

    def _undo(self, item: InFlight) -> None:
        """The decode failed or its outcome is unknown: back to where this sequence was before it."""
        slot = item.slot
        try:
            held = self._target.n_past(slot.seq)
        except (BackendError, MemoryError) as error:
            log.warning("sequence %d does not say what it holds, starting over: %s", slot.seq, error)
            held = -1
        if held == slot.n_past and self._target.info.rollback is Rollback.TRUNCATE:
            return
        if item.checkpoint is not None:
            item.rollback = slot.restore(item.checkpoint)
        elif held > slot.n_past and self._target.info.rollback is Rollback.TRUNCATE:
            item.rollback = slot.cut(slot.n_past)
        else:
            item.rollback = slot.fall_back(slot.n_past)
