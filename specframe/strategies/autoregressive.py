"""Shared by the strategies that draft one token after another with a model that follows the target's text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import numpy as np
import numpy.typing as npt
from typing_extensions import override

from specframe.core.history import History
from specframe.core.ports import Decoded, Rows
from specframe.core.strategy import DraftRequest, Outcome, StrategyContext
from specframe.strategies._options import ModelOptions, choosing_field
from specframe.strategies._rows import most_waiting
from specframe.strategies.drafting import HeldSequence, batches
from specframe.strategies.model_backed import ModelBacked

if TYPE_CHECKING:
    from specframe.backends.llama.autoregressive_context import AutoregressiveContext

#: Most tokens that are evaluated together with the first one of a draft; more go before it, in batches of their own.
MAX_JOINED = 32


@attrs.frozen(kw_only=True)
class AutoregressiveOptions(ModelOptions):
    """Options that these strategies have in common."""

    backend_sampling: bool | None = choosing_field()


@attrs.define(eq=False)
class _Draft:
    """One sequence while it is drafted for; positions are those of tokens."""

    seq: int
    pos: int
    """Of the last committed token."""
    limit: int
    start: int
    """Position of the first of ``inputs``."""
    inputs: list[int]
    """What the draft model has not evaluated yet: waiting tokens, and the last committed one."""
    states: Rows
    """What pairs with ``inputs`` and the tokens drafted behind them."""
    tokens: list[int] = attrs.field(factory=list)
    n_steps: int = 0
    done: bool = False


class Autoregressive(ModelBacked):
    """Pairs each token with a state of the target one position before it, and drafts on with its own states.

    What the target evaluates waits until the next draft is asked for, so that nothing is evaluated while drafting
    pauses, unless very much waits. All sequences are drafted for in one evaluation per token.
    """

    Options = AutoregressiveOptions

    #: Positions in the memory of the draft model are this much lower than those of the tokens; so many of the first
    #: tokens have no state to be paired with, and are left out.
    lag: ClassVar[int] = 0

    _context: AutoregressiveContext
    _held: list[HeldSequence]

    def __init__(self, options: Any, context: StrategyContext) -> None:
        super().__init__(options, context)
        from specframe.backends.llama.autoregressive_context import DraftEntry  # noqa: PLC0415 -- native

        self._entry = DraftEntry
        n_seq = context.target.n_seq
        self._n_ctx = self._context.n_ctx + self.lag
        self._n_max = options.n_max
        self._chained = self._context.n_heads > 1
        if self._chained:
            self._n_max = min(self._n_max, self._context.n_heads)
        self._shared = self._context.shares_memory
        # Beside the waiting tokens, each sequence has the last committed token in a draft batch, or the whole draft.
        room = self._context.n_batch // n_seq - self._n_max
        self._n_joined = min(MAX_JOINED, room, self._context.n_joined - 1)
        self._patience = most_waiting(self._n_held, n_seq)
        self._held = [HeldSequence(self._n_held, self._n_max + 1) for _ in range(n_seq)]

    @override
    def _settings(self, context: StrategyContext) -> dict[str, Any]:
        options, target = self.options, context.target
        return {
            **super()._settings(context),
            "n_batch": max(options.n_batch or target.n_batch, (options.n_max + 1) * target.n_seq),
            "backend_sampling": options.backend_sampling,
            "probabilities": options.p_min > 0,
        }

    def _featured(self, batch: Sequence[Decoded]) -> Sequence[Decoded]:
        """``batch`` with what is to be held of each position as its hidden states."""
        return batch

    def _states(self, held: Sequence[Rows]) -> Sequence[Rows]:
        """What the draft model pairs with the tokens behind them, made of what was held of their positions."""
        return held

    @property
    def _n_held(self) -> int:
        """Values to hold of a position."""
        return self._context.width

    @override
    def process(self, batch: Sequence[Decoded]) -> None:
        late = []
        for decoded in self._featured(batch):
            held = self._held[decoded.seq]
            held.seen(decoded)
            if self._shared:
                held.evaluated = len(held.tokens)
            elif held.n_waiting > self._patience:
                late.append(decoded.seq)
        if late:
            self._take_over(late)

    def _take_over(self, seqs: Sequence[int]) -> None:
        """Let the draft model see the tokens that wait; nothing is predicted."""
        context, found = self._context, []
        for seq in seqs:
            held = self._held[seq]
            n = min(len(held.tokens), self._n_ctx)
            if held.evaluated < n and (waiting := self._waiting(held, n)) is not None:
                found.append((seq, *waiting))
        states = self._states([rows[:-1] for *_, rows in found])
        entries = [
            self._entry(seq, start - self.lag, tokens, each)
            for (seq, start, tokens, _), each in zip(found, states, strict=True)
        ]
        for part in batches(entries, context.n_batch):
            try:
                for head in range(context.n_heads):
                    for entry in part:
                        context.truncate(entry.seq, entry.pos)
                    context.use_head(head)
                    context.decode(part)
            finally:
                context.use_head(0)
            for entry in part:
                self._held[entry.seq].evaluated = entry.pos + self.lag + len(entry.tokens)
        for seq in seqs:
            held = self._held[seq]
            if held.evaluated >= self._n_ctx:
                held.evaluated = len(held.tokens)  # beyond what fits nothing is drafted, and nothing has to wait

    def _waiting(self, held: HeldSequence, n: int) -> tuple[int, list[int], Rows] | None:
        """Tokens of the first ``n`` that wait, from which position on, and what is held for them and the one behind."""
        if (found := held.waiting(n)) is None:
            return None
        tokens, rows = found
        n_left_out = max(0, self.lag - held.evaluated)
        return held.evaluated + n_left_out, tokens[n_left_out:], rows[n_left_out:]

    @override
    def draft(self, requests: Sequence[DraftRequest]) -> Sequence[Sequence[int]]:
        behind = [r.seq for r in requests if self._held[r.seq].n_waiting > self._n_joined]
        if behind:
            self._take_over(behind)
        drafts = [self._start(request) for request in requests]
        live = [draft for draft in drafts if draft is not None]
        for draft, states in zip(live, self._states([draft.states for draft in live]), strict=True):
            draft.states = states
        try:
            step = 0
            while live:
                self._predict(live, step)
                live = [draft for draft in live if not draft.done]
                step += 1
        finally:
            if self._chained:
                self._context.use_head(0)
        n_min: int = self.options.n_min
        return [draft.tokens if draft and len(draft.tokens) >= min(n_min, draft.limit) else () for draft in drafts]

    def _start(self, request: DraftRequest) -> _Draft | None:
        """Ready to draft behind the last committed token; None when that is not possible now."""
        history, seq = request.history, request.seq
        held, pos = self._held[seq], len(history) - 1
        limit = min(self._n_max, request.budget, self._n_ctx - pos)
        if limit < 1 or (self._shared and self._context.n_past(seq) != pos):
            return None  # or the target has tokens to evaluate again, and its memory is behind
        if pos < self.lag or (found := self._waiting(held, pos)) is None:
            return None
        start, tokens, rows = found
        return _Draft(seq, pos, limit, start, [*tokens, history[-1]], rows)

    def _predict(self, drafts: Sequence[_Draft], step: int) -> None:
        """One more token for each of ``drafts``, in one evaluation."""
        context, entries = self._context, []
        if self._chained:
            context.use_head(step)
        for draft in drafts:
            tokens, start = draft.inputs, draft.start
            if self._chained:
                # Another head is another layer, with memory of its own: it has to see all that came before.
                tokens = [*tokens, *draft.tokens]
            elif step:
                tokens, start = draft.tokens[-1:], draft.pos if self._shared else draft.pos + step
            if self._chained or not step:
                context.truncate(draft.seq, start - self.lag)
            entries.append(self._entry(draft.seq, start - self.lag, tokens, draft.states, output=True))
        context.decode(entries)
        states: Rows | None = None
        for i, (draft, (token, probability)) in enumerate(zip(drafts, context.choices(), strict=True)):
            draft.n_steps += 1
            if draft.n_steps == context.n_heads and not self._shared:
                self._held[draft.seq].evaluated = draft.pos + 1
            if probability < self.options.p_min:
                draft.done = True
                continue
            draft.tokens.append(token)
            draft.done = len(draft.tokens) >= draft.limit
            if not draft.done:
                states = context.states() if states is None else states
                state = states[i : i + 1]  # a view, good until the next batch is filled
                draft.states = np.concatenate([draft.states, state]) if self._chained else state

    @override
    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            self._held[outcome.seq].committed(len(outcome.history))

    @override
    def shift(self, seq: int, history: History, n_keep: int, n_drop: int) -> bool:
        held, context = self._held[seq], self._context
        if not held.usable or not (self._shared or context.memory.can_shift) or len(held.tokens) > self._n_ctx:
            return False
        if not self._shared:
            self._take_over([seq])
        if held.evaluated <= n_keep + n_drop:
            return False
        if not self._shared:
            context.truncate(seq, self._n_in_memory(held.evaluated))
            context.memory.shift(seq, self._n_in_memory(n_keep), n_drop)
        held.drop(n_keep, n_drop)
        held.keep(min(len(held.tokens), len(history) - 1))
        return True

    def _n_in_memory(self, n_evaluated: int) -> int:
        """What the memory holds when so many of the first tokens were evaluated."""
        return max(0, min(n_evaluated, self._n_ctx) - self.lag)

    @override
    def _saved(self, seq: int) -> dict[str, npt.NDArray[Any]] | None:
        held = self._held[seq]
        if not held.usable:
            return None
        n = min(held.evaluated, len(held.tokens))
        self._context.truncate(seq, self._n_in_memory(n))
        return held.save(n)

    @override
    def _restore(self, seq: int, saved: Mapping[str, npt.NDArray[Any]]) -> int:
        held = self._held[seq]
        held.load(saved)
        return self._n_in_memory(held.evaluated)
