"""A context for NextN layers, which predict tokens from the hidden states of a target."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np

from specframe.backends.llama.draft_batch import DraftBatch
from specframe.backends.llama.draft_context import DraftContext, draft_options
from specframe.backends.llama.draft_kinds import ASSISTANT
from specframe.backends.llama.model import Model
from specframe.backends.llama.mtp_files import CHAINED
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


class NextnContext(DraftContext):
    """Runs the NextN layers of a model: the target's own, or those of another one."""

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
        _check_model(model, target.model)
        assists = model.gguf.arch == ASSISTANT
        options = draft_options(
            target,
            n_ctx=n_ctx,
            n_batch=max(n_batch or target.n_batch, 2 * target.n_seq),
            n_ubatch=max(target.n_ubatch, 2),
            n_outputs_max=target.n_seq,
            type_k=type_k,
            type_v=type_v,
            n_threads=n_threads,
            swa_full=not assists or target.options.swa_full,
        )
        with _kept_memory(target) if assists else contextlib.nullcontext():
            super().__init__(model, target, options, ctx_type=model.library.lib.LLAMA_CONTEXT_TYPE_MTP)
        try:
            self._set_up(backend_sampling=backend_sampling, probabilities=probabilities)
        except BaseException:
            self.close()
            raise

    def _set_up(self, *, backend_sampling: bool, probabilities: bool) -> None:
        lib, handle = self.library.lib, self.handle
        self.shares_memory = lib._Z19llama_get_ctx_otherP13llama_context(handle) == self.target.handle  # noqa: SLF001
        chained = self.model.gguf.arch in CHAINED and not self.shares_memory
        self.n_heads = self.model.facts.n_layer_nextn if chained else 1
        """Heads trained for one position ahead each; with a single one, it drafts any number of positions."""
        self._set_head = lib._Z28llama_set_nextn_layer_offsetP13llama_contexti  # noqa: SLF001
        self._set_states(handle, True, True)
        self._every_row = False
        self._head = 0
        self._outputs: list[int] = []
        self._batch = DraftBatch(self.library, capacity=self.n_batch, n_seq=self.n_seq, width=self.width)
        self._chooser = self._make_chooser(backend_sampling=backend_sampling, probabilities=probabilities)
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
            place = self._place(batch, seq, entry.pos, n)
            if entry.states.shape != (n, self.width):
                raise ConfigError(f"sequence {seq}: {n} states of {self.width} values, not {entry.states.shape}")
            batch.tokens[place] = entry.tokens
            batch.rows[place] = entry.states
            if entry.output:
                batch.outputs[place.stop - 1] = 1
                outputs.append(place.stop - 1)
        tokens = batch.tokens[: batch.n]
        if not batch.n or int(tokens.min()) < 0 or int(tokens.max()) >= self.n_vocab:
            raise ConfigError(f"a draft batch of {batch.n} tokens, with ids from 0 to {self.n_vocab - 1}, is needed")
        return outputs

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
            if not self._every_row:
                return self._state_rows(len(self._outputs))
            rows = self._state_rows(self._batch.n)
            return rows if len(rows) == len(self._outputs) else rows[self._outputs]


def _check_model(model: Model, target: Model) -> None:
    name, width = model.path.name, target.facts.n_embd_out
    if model.facts.n_layer_nextn < 1:
        raise ConfigError(f"{name} has no NextN layers to draft with")
    if not model.load_mtp:
        raise ConfigError(f"the NextN layers of {name} were not loaded; open the model with load_mtp=True")
    if model.facts.n_embd_out != width:
        raise ConfigError(
            f"{name} reads hidden states of {model.facts.n_embd_out} values, but {target.path.name} has "
            f"{width}; take the draft that was made for this target"
        )


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
