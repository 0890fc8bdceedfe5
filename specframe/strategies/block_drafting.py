"""Shared by the block drafters: features of the target in, one evaluation for a whole block, all sequences at once."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy.typing as npt
from typing_extensions import override

from specframe.core.history import History
from specframe.core.ports import Decoded, Need
from specframe.core.strategy import DraftRequest, Outcome, StrategyContext
from specframe.core.validators import whole_number
from specframe.strategies._options import MAX_DRAFT, ModelOptions, choosing_field, in_place
from specframe.strategies._rows import most_waiting
from specframe.strategies.held_features import HeldFeatures
from specframe.strategies.model_backed import ModelBacked

if TYPE_CHECKING:
    from specframe.backends.llama.block_context import BlockContext
    from specframe.backends.llama.draft_kinds import BlockFile
    from specframe.backends.llama.gguf import GgufFile
    from specframe.backends.llama.services import LlamaServices


@attrs.frozen(kw_only=True, field_transformer=in_place)
class BlockOptions(ModelOptions):
    """Options of a block drafter."""

    n_max: int = attrs.field(
        default=7,
        validator=whole_number(1, MAX_DRAFT),
        metadata={"doc": "most tokens to draft; never more than the draft was trained for"},
    )


@attrs.frozen(kw_only=True, field_transformer=in_place)
class ChoosingOptions(BlockOptions):
    """Options of a block drafter whose tokens are chosen from logits."""

    backend_sampling: bool | None = choosing_field()


class BlockDrafter(ModelBacked):
    """Base of the block drafters: everything but how an evaluated block is read.

    A subclass says how a context is set up for what it wants of a block, :meth:`_reading`, and reads it, :meth:`_read`.

    Features of committed positions wait until the next draft, or until there are very many of them; so nothing is
    evaluated while drafting pauses, and what the target rejected never is.
    """

    needs = Need.LAYER_INPUTS
    uses_draft_file = True
    Options = BlockOptions

    _context: BlockContext
    _held: list[HeldFeatures]

    def __init__(self, options: Any, context: StrategyContext) -> None:
        super().__init__(options, context)
        from specframe.backends.llama import block_context  # noqa: PLC0415 -- native

        self._native = block_context
        self._patience = most_waiting(self._context.n_features, context.target.n_seq)
        self._held = [
            HeldFeatures(self._facts.target_layers, self._context.n_features) for _ in range(context.target.n_seq)
        ]

    @classmethod
    @override
    def _check(cls, target: GgufFile, draft: GgufFile | None) -> None:
        from specframe.backends.llama.draft_files import check_draft  # noqa: PLC0415 -- native

        check_draft(target, draft, cls.kind)

    @override
    def _open(self, services: LlamaServices, **settings: Any) -> BlockContext:
        from specframe.backends.llama.draft_kinds import BlockFile  # noqa: PLC0415 -- native

        self._facts: BlockFile = BlockFile.of(self._model.gguf)
        self._n_max = min(self.options.n_max, self._facts.max_draft)
        n_block = self._n_max + (not self._facts.from_anchor)
        return services.open_blocks(self._model, n_block=n_block, **settings, **self._reading())

    def _reading(self) -> Mapping[str, Any]:
        """Arguments of ``BlockContext`` for what :meth:`_read` needs: choices from logits."""
        return {"backend_sampling": self.options.backend_sampling, "probabilities": self.options.p_min > 0}

    @abc.abstractmethod
    def _read(self) -> Sequence[Sequence[int]]:
        """What the blocks that were just evaluated draft, up to ``n_max`` tokens each."""

    @property
    @override
    def layers(self) -> Sequence[int]:
        return self._facts.target_layers

    @override
    def process(self, batch: Sequence[Decoded]) -> None:
        # A long prompt piece by piece: its features are large.
        n_piece = self._context.n_batch
        for start in range(0, max(len(decoded.tokens) for decoded in batch), n_piece):
            late = []
            for decoded in batch:
                if start < len(decoded.tokens):
                    held = self._held[decoded.seq]
                    held.seen(_piece(decoded, start, start + n_piece))
                    if len(held.waiting) > self._patience:
                        late.append(decoded.seq)
            self._take_over(late)

    def _take_over(self, seqs: Sequence[int]) -> None:
        """Let the draft model have the features that wait, and nothing behind them."""
        context, entries = self._context, []
        for seq in seqs:
            held = self._held[seq]
            if not held.usable:
                continue
            n = min(len(held.tokens), context.n_ctx)
            context.truncate(seq, min(held.injected, n))
            if held.injected < n:
                rows = held.waiting[: n - held.injected]
                entries.append(self._native.FeatureEntry(seq, held.injected, rows))
        if entries:
            context.inject(entries)
        for seq in seqs:
            if (held := self._held[seq]).usable:
                # Beyond what fits nothing is drafted, and nothing has to wait.
                held.took_over(len(held.tokens))

    @override
    def draft(self, requests: Sequence[DraftRequest]) -> Sequence[Sequence[int]]:
        # In the order of sequences, in which llama.cpp divides batches.
        ready = sorted((request for request in requests if self._is_ready(request)), key=lambda request: request.seq)
        found: dict[int, Sequence[int]] = {}
        if ready:
            self._take_over([request.seq for request in ready])
            entry = self._native.BlockEntry
            self._context.draft([entry(each.seq, len(each.history) - 1, each.history[-1]) for each in ready])
            found = {request.seq: tokens for request, tokens in zip(ready, self._read(), strict=True)}
        return [self._cut(found.get(request.seq, ()), request.budget) for request in requests]

    def _is_ready(self, request: DraftRequest) -> bool:
        """Whether everything before the last committed token is known, and a block fits behind it."""
        held, pos = self._held[request.seq], len(request.history) - 1
        if not held.usable or len(held.tokens) < pos or pos > self._context.n_ctx:
            return False
        held.keep(pos)
        return pos + self._context.n_block <= self._context.n_cells

    def _cut(self, tokens: Sequence[int], budget: int) -> Sequence[int]:
        tokens = tokens[:budget]
        n_min: int = self.options.n_min
        return tokens if len(tokens) >= min(n_min, budget, self._n_max) else ()

    @override
    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            held, n = self._held[outcome.seq], len(outcome.history)
            if len(held.tokens) >= n:
                held.keep(n - 1)

    @override
    def shift(self, seq: int, history: History, n_keep: int, n_drop: int) -> bool:
        held, memory = self._held[seq], self._context.memory
        if not held.usable or not memory.can_shift or len(held.tokens) > self._context.n_ctx:
            return False
        self._take_over([seq])
        if held.injected < n_keep + n_drop:
            return False
        memory.shift(seq, n_keep, n_drop)
        held.drop(n_keep, n_drop)
        held.keep(min(len(held.tokens), len(history) - 1))
        return True

    @override
    def _saved(self, seq: int) -> dict[str, npt.NDArray[Any]] | None:
        held = self._held[seq]
        if not held.usable or not held.tokens:
            return None
        self._context.truncate(seq, min(held.injected, self._context.n_ctx))
        return held.save()

    @override
    def _restore(self, seq: int, saved: Mapping[str, npt.NDArray[Any]]) -> int:
        held = self._held[seq]
        held.load(saved)
        return min(held.injected, self._context.n_ctx)


def _piece(decoded: Decoded, start: int, end: int) -> Decoded:
    if start == 0 and end >= len(decoded.tokens):
        return decoded
    inputs = {layer: rows[start:end] for layer, rows in decoded.layer_inputs.items()}
    return attrs.evolve(decoded, pos=decoded.pos + start, tokens=decoded.tokens[start:end], layer_inputs=inputs)
