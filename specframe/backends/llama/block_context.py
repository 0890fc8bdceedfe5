"""A context for block drafters: features of the target go in, and one evaluation drafts a whole block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from specframe.backends.llama.draft_batch import DraftBatch
from specframe.backends.llama.draft_context import DraftContext, DraftSettings, draft_options, needs_flash_attn
from specframe.backends.llama.draft_kinds import BlockFile
from specframe.backends.llama.model import Model
from specframe.core.errors import ConfigError
from specframe.core.ports import Rows

if TYPE_CHECKING:
    from specframe.backends.llama.context import Context


#: Most tokens computed at a time unless asked otherwise. llama.cpp reserves memory for as many tokens that are drafted.
MAX_UBATCH = 128


@attrs.frozen
class FeatureEntry:
    """Features of consecutive positions of one sequence."""

    seq: int
    pos: int
    """Position of ``rows[0]``."""
    rows: Rows
    """``(positions, n_features)`` float32: inputs of the target layers side by side."""


@attrs.frozen
class BlockEntry:
    """Where a block is drafted, behind the features of ``pos`` positions."""

    seq: int
    pos: int
    token: int
    """The last committed one, which stands at ``pos``."""


class BlockContext(DraftContext):
    """Runs a model that drafts blocks, whose memory holds what it made of the target's features.

    Attributes:
        n_block: tokens of a block, the last committed one included.
        n_features: width of a row of features.
    """

    def __init__(
        self,
        model: Model,
        target: Context,
        *,
        n_block: int,
        chooses: bool = True,
        hands_out_rows: bool = False,
        **settings: Any,
    ) -> None:
        """Create the native context.

        Args:
            model: the drafter; stays the caller's.
            target: the context it drafts for; outlives this one. Lends its embeddings and head to a draft without.
            n_block: tokens of a block.
            chooses: :meth:`choices` will be asked for; otherwise nothing is computed for it.
            hands_out_rows: :meth:`rows` will be asked for: what a model puts where hidden states would be.
            **settings: see :class:`~specframe.backends.llama.draft_context.DraftSettings`; ``n_batch`` is the
                target's ``n_ubatch`` up to :data:`MAX_UBATCH` unless given, and at least a block of each sequence.

        Raises:
            ConfigError: an option cannot work.
            BackendError: llama.cpp could not create the context; the message quotes its reason.
        """
        asked = DraftSettings(**settings)
        # Without causal attention llama.cpp has to compute a batch at once, or ends the process.
        n_blocks = n_block * target.n_seq
        n_batch = max(asked.n_batch or min(target.n_ubatch, MAX_UBATCH), n_blocks)
        options = draft_options(
            target,
            asked,
            n_batch=n_batch,
            n_ubatch=n_batch,
            n_outputs_max=n_blocks,
            flash_attn=needs_flash_attn(target, asked),
        )
        super().__init__(model, target, options, n_outputs_max_per_seq=n_block)
        with self._opening():
            self._set_up(n_block, chooses=chooses, hands_out_rows=hands_out_rows)
            self._chooser = self._make_chooser(
                backend_sampling=asked.backend_sampling if chooses else False, probabilities=asked.probabilities
            )

    def _set_up(self, n_block: int, *, chooses: bool, hands_out_rows: bool) -> None:
        lib, handle, facts = self.library.lib, self.handle, BlockFile.of(self.model.gguf)
        self.n_block, self._chooses, self._mask = n_block, chooses, facts.mask_token
        self.n_features = len(facts.target_layers) * self.model.facts.n_embd
        self.n_batch = min(self.n_batch, int(lib.llama_n_ubatch(handle)))
        # Rows of every token where there are no outputs, of the outputs where all tokens are.
        self._set_states(handle, hands_out_rows, chooses)
        lib.llama_set_causal_attn(handle, facts.causal)
        n_axes = 4 if self.model.facts.rope in {"mrope", "imrope"} else 1
        self._features = DraftBatch(
            self.library,
            capacity=self.n_batch,
            n_seq=self.n_seq,
            width=self.n_features,
            has_tokens=False,
            n_axes=n_axes,
        )
        self._blocks = DraftBatch(self.library, capacity=self.n_batch, n_seq=self.n_seq)

    def inject(self, entries: Sequence[FeatureEntry]) -> None:
        """Let the memory hold features of the target, in as few evaluations as they fit in; each sequence once.

        Raises:
            ConfigError: an entry is impossible.
            BackendError: llama.cpp failed. The memory of the sequences may hold a part of their positions, in either
                case.
            ClosedError: the context is closed.
        """
        with self._lock:
            batch = self._features
            batch.clear()
            for entry in entries:
                n = len(entry.rows)
                if entry.rows.shape != (n, self.n_features):
                    raise ConfigError(
                        f"sequence {entry.seq}: features are {self.n_features} values wide, not {entry.rows.shape}"
                    )
                start = 0
                while start < n:
                    end = min(n, start + batch.capacity - batch.n)
                    place = self._place(batch, entry.seq, entry.pos + start, end - start)
                    batch.rows[place] = entry.rows[start:end]
                    start = end
                    if batch.n == batch.capacity:
                        self._inject_batch()
            if batch.n:
                self._inject_batch()

    def _inject_batch(self) -> None:
        self._evaluate(self._features, op="injecting features")
        self._features.clear()

    def draft(self, entries: Sequence[BlockEntry]) -> None:
        """Evaluate one block for each of ``entries``; the memory holds them until it is cut.

        Raises:
            ConfigError: the batch is impossible; nothing changed.
            BackendError: llama.cpp failed; the memory of the sequences in it may hold a part of their blocks.
            ClosedError: the context is closed.
        """
        with self._lock:
            batch, n = self._blocks, self.n_block
            batch.clear()
            for entry in entries:
                if not 0 <= entry.token < self.n_vocab:
                    raise ConfigError(f"sequence {entry.seq}: token {entry.token} is not below {self.n_vocab}")
                place = self._place(batch, entry.seq, entry.pos, n)
                batch.tokens[place] = self._mask
                batch.tokens[place.start] = entry.token
                # The graph scores every token of a block, and llama.cpp takes the first rows for those asked for.
                batch.outputs[place] = self._chooses
            if not batch.n:
                raise ConfigError("a batch of blocks has at least one")
            self._evaluate(batch, op="drafting blocks")

    def choices(self) -> list[list[tuple[int, float]]]:
        """For each block the most probable token of each of its rows, and its probability.

        The probability is among the ten best tokens, as llama.cpp's own drafts count it; 1.0 unless they were asked
        for.
        """
        with self._lock:
            flat = self._chooser.choose(self.handle, range(self._blocks.n))
            return [flat[i : i + self.n_block] for i in range(0, len(flat), self.n_block)]

    def rows(self) -> Rows:
        """What the model left for each token ``(blocks, n_block, width)``; a view, valid until the next evaluation."""
        with self._lock:
            return self._state_rows(self._blocks.n).reshape(-1, self.n_block, self.width)
