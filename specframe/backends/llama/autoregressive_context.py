"""Contexts of draft models that predict one token after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from specframe.backends.llama.context_options import ContextOptions
from specframe.backends.llama.draft_batch import DraftBatch
from specframe.backends.llama.draft_context import DraftContext, DraftSettings, draft_options
from specframe.core.errors import ConfigError
from specframe.core.ports import Rows

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


def autoregressive_options(
    target: Context,
    asked: DraftSettings,
    *,
    n_joined: int = 1,
    max_ubatch: int | None = None,
    swa_full: bool = True,
    flash_attn: bool | None = None,
) -> ContextOptions:
    """Options of such a context, with room for an entry of every sequence: of two tokens, or ``n_joined`` if more."""
    n_ubatch = target.n_ubatch if max_ubatch is None else min(target.n_ubatch, max_ubatch)
    return draft_options(
        target,
        asked,
        n_batch=max(asked.n_batch or target.n_batch, max(n_joined, 2) * target.n_seq),
        n_ubatch=max(n_ubatch, 2),
        n_outputs_max=n_joined * target.n_seq,
        swa_full=swa_full,
        flash_attn=flash_attn,
    )


class AutoregressiveContext(DraftContext):
    """Base of contexts that evaluate tokens, each with a state it is paired with, and predict what follows the last.

    Attributes:
        n_heads: layers trained for one position ahead each; with a single one, it drafts any number of positions.
        n_joined: most tokens of an entry with an output.
    """

    n_heads: int = 1
    #: The graph computes outputs of every token, and llama.cpp takes the first ones for those that were asked for.
    _computes_all = False

    def _prepare(self, asked: DraftSettings, *, n_joined: int | None = None) -> None:
        """Ready to evaluate; called once, by the constructor."""
        self.n_joined = n_joined or self.n_batch
        if self.width:
            self._set_states(self.handle, True, True)
        self._every_row = False
        self._outputs: list[int] = []
        self._batch = DraftBatch(self.library, capacity=self.n_batch, n_seq=self.n_seq, width=self.width)
        self._chooser = self._make_chooser(backend_sampling=asked.backend_sampling, probabilities=asked.probabilities)

    def use_head(self, head: int) -> None:
        """Run another of the chained heads from now on; each has memory of its own at every position."""
        if not 0 <= head < self.n_heads:
            raise ConfigError(f"there is no head {head}; there are {self.n_heads}")

    def decode(self, entries: Sequence[DraftEntry]) -> None:
        """Evaluate one batch; each sequence at most once.

        Raises:
            ConfigError: the batch is impossible; nothing changed.
            BackendError: llama.cpp failed; the memory of the sequences in it may hold a part of their tokens.
            ClosedError: the context is closed.
        """
        with self._lock:
            self.handle  # noqa: B018 -- refuses when closed
            outputs = self._fill(entries)
            self._outputs = []
            self._evaluate(self._batch, op="decoding a draft batch")
            self._outputs = outputs

    def _fill(self, entries: Sequence[DraftEntry]) -> list[int]:
        batch, outputs = self._batch, []
        batch.clear()
        for entry in entries:
            seq, n = entry.seq, len(entry.tokens)
            if self.shares_memory and n > 1:
                raise ConfigError(
                    f"sequence {seq}: {n} draft tokens, but the target's memory takes no others than its own"
                )
            if entry.output and n > self.n_joined:
                raise ConfigError(f"sequence {seq}: {n} draft tokens with an output; at most {self.n_joined} have one")
            place = self._place(batch, seq, entry.pos, n)
            if entry.states.shape != (n, self.width):
                raise ConfigError(f"sequence {seq}: {n} states of {self.width} values, not {entry.states.shape}")
            batch.tokens[place] = entry.tokens
            batch.rows[place] = entry.states
            if entry.output:
                batch.outputs[place.stop - 1] = 1
                outputs.append(place.stop - 1)
        tokens = [token for entry in entries for token in entry.tokens]
        if not tokens or min(tokens) < 0 or max(tokens) >= self.n_vocab:
            raise ConfigError(f"a draft batch of {batch.n} tokens, with ids from 0 to {self.n_vocab - 1}, is needed")
        if outputs and self._computes_all:
            batch.outputs[: batch.n] = 1
        return outputs

    def choices(self) -> list[tuple[int, float]]:
        """The most probable token of each entry with an output, in order, and its probability.

        The probability is among the ten best tokens, as llama.cpp's own drafts count it; 1.0 unless they were asked
        for.
        """
        with self._lock:
            return self._chooser.choose(self.handle, self._outputs, self._outputs if self._computes_all else None)

    def states(self) -> Rows:
        """Hidden states of the outputs ``(outputs, width)``; a view that is valid until the next decode."""
        with self._lock:
            if not self._every_row and not self._computes_all:
                return self._state_rows(len(self._outputs))
            rows = self._state_rows(self._batch.n)
            return rows if len(rows) == len(self._outputs) else rows[self._outputs]
