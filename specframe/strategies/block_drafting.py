"""Shared by the block drafters: features of the target in, one evaluation for a whole block, all sequences at once."""

from __future__ import annotations

import abc
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import numpy as np
from typing_extensions import override

from specframe.core.history import History
from specframe.core.ports import Decoded, Need
from specframe.core.strategy import BatchStrategy, DraftRequest, Outcome, StrategyContext, Suitability
from specframe.strategies._options import MAX_DRAFT, ModelOptions, in_place, whole_number
from specframe.strategies.drafting import draft_model, llama_services, suits_file
from specframe.strategies.held_features import HeldFeatures

if TYPE_CHECKING:
    from specframe.backends.llama.draft_kinds import BlockFile

#: Positions whose features may wait to be injected together, before the next draft.
MAX_WAITING = 32


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

    backend_sampling: bool = attrs.field(
        default=True,
        validator=attrs.validators.instance_of(bool),
        metadata={"doc": "choose tokens inside the evaluation, without copying logits"},
    )


class BlockDrafter(BatchStrategy):
    """Base of the block drafters: everything but how an evaluated block is read.

    A subclass says how a context is set up for what it wants of a block, :meth:`_reading`, and reads it, :meth:`_read`.

    Features of committed positions wait until the next draft, or until there are many of them; so nothing is evaluated
    while drafting pauses, and what the target rejected never is.
    """

    needs = Need.LAYER_INPUTS
    uses_draft_file = True
    Options = BlockOptions
    kind: ClassVar[str]
    """Of draft files that are for this strategy."""

    @classmethod
    @override
    def rollback_depth(cls, options: Any) -> int:
        return int(options.n_max)

    @classmethod
    @override
    def check_files(cls, target: Path, draft: Path | None) -> None:
        from specframe.backends.llama.draft_files import check_draft  # noqa: PLC0415 -- native
        from specframe.backends.llama.gguf import inspect  # noqa: PLC0415 -- native

        check_draft(inspect(target), None if draft is None else inspect(draft), cls.kind)

    @classmethod
    @override
    def suitability(cls, target: Path, draft: Path | None) -> Suitability:
        return suits_file(cls.kind, target, draft)

    def __init__(self, options: Any, context: StrategyContext) -> None:
        super().__init__(options, context)
        from specframe.backends.llama import block_context  # noqa: PLC0415 -- native
        from specframe.backends.llama.draft_files import check_draft  # noqa: PLC0415 -- native
        from specframe.backends.llama.draft_kinds import BlockFile  # noqa: PLC0415 -- native

        self._native = block_context
        services, path = llama_services(self.name, context), context.draft_path
        check_draft(services.model.gguf, None if path is None else services.inspect(path), self.kind)
        self._model, self._owned = draft_model(
            services, path, devices=options.devices, n_gpu_layers=options.n_gpu_layers
        )
        try:
            self._facts: BlockFile = BlockFile.of(self._model.gguf)
            self._n_max: int = min(options.n_max, self._facts.max_draft)
            self._context = services.open_blocks(
                self._model,
                n_block=self._n_max + (not self._facts.from_anchor),
                n_ctx=None if options.n_ctx is None else min(options.n_ctx, context.target.n_ctx),
                n_batch=options.n_batch,
                type_k=options.type_k,
                type_v=options.type_v,
                n_threads=options.threads,
                **self._reading(),
            )
        except BaseException:
            if self._owned:
                self._model.close()
            raise
        self._patience = max(MAX_WAITING, self._context.n_block)
        self._held = [
            HeldFeatures(self._facts.target_layers, self._context.n_features) for _ in range(context.target.n_seq)
        ]

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

    @property
    @override
    def max_draft(self) -> int:
        return self._n_max

    @override
    def begin(self, seq: int, history: History, n_held: int) -> int:
        return self._held[seq].begin(history[:n_held])

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
        """Let the draft model have the features that wait."""
        context, entries = self._context, []
        for seq in seqs:
            held = self._held[seq]
            n = min(len(held.tokens), context.n_ctx)
            if held.usable and held.injected < n:
                context.truncate(seq, held.injected)
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
            entries = []
            for request in ready:
                pos = len(request.history) - 1
                self._context.truncate(request.seq, pos)
                entries.append(self._native.BlockEntry(request.seq, pos, request.history[-1]))
            self._context.draft(entries)
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
        self._context.truncate(seq, held.injected)
        memory.shift(seq, n_keep, n_drop)
        held.drop(n_keep, n_drop)
        held.keep(min(len(held.tokens), len(history) - 1))
        return True

    @override
    def save(self, seq: int) -> bytes | None:
        held, context = self._held[seq], self._context
        if not held.usable or not held.tokens:
            return None
        context.truncate(seq, min(held.injected, context.n_ctx))
        buffer = io.BytesIO()
        arrays: dict[str, Any] = held.save()
        np.savez(buffer, memory=context.save_state(seq), **arrays)
        return buffer.getvalue()

    @override
    def load(self, seq: int, data: bytes) -> None:
        held, context = self._held[seq], self._context
        with np.load(io.BytesIO(data), allow_pickle=False) as saved:
            held.load(saved)
            try:
                context.load_state(seq, saved["memory"], min(held.injected, context.n_ctx))
            except BaseException:
                held.keep(0)
                raise

    @override
    def close(self) -> None:
        self._context.close()
        if self._owned:
            self._model.close()


def _piece(decoded: Decoded, start: int, end: int) -> Decoded:
    if start == 0 and end >= len(decoded.tokens):
        return decoded
    inputs = {layer: rows[start:end] for layer, rows in decoded.layer_inputs.items()}
    return attrs.evolve(decoded, pos=decoded.pos + start, tokens=decoded.tokens[start:end], layer_inputs=inputs)
