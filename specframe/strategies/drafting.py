"""Shared by the strategies that draft with a model: what its memory holds of each sequence, and where models come from.

A draft model that reads hidden states pairs the token at position p with the target's hidden state of position p - 1.
What is kept here makes that right across batches, after a partial acceptance, after a rollback and for prompts that
share a beginning with an earlier one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from specframe.core.errors import ConfigError, InternalError
from specframe.core.ports import Decoded, Rows
from specframe.core.strategy import StrategyContext

if TYPE_CHECKING:
    from specframe.backends.llama.draft_context import DraftEntry
    from specframe.backends.llama.model import Model
    from specframe.backends.llama.services import LlamaServices

#: Hidden states kept per sequence of places in a prompt that a later one may go on from (where checkpoints are taken).
MAX_BOUNDARIES = 64


def llama_services(strategy: str, context: StrategyContext) -> LlamaServices:
    """What the backend offers to draft models. Raises ConfigError when it is another backend."""
    # Here, so that listing strategies loads nothing native.
    from specframe.backends.llama.services import LlamaServices  # noqa: PLC0415

    services = context.services
    if not isinstance(services, LlamaServices):
        msg = f"strategy {strategy!r} drafts with a llama.cpp model and needs a llama.cpp target, not {services!r:.80}"
        raise ConfigError(msg)
    return services


def draft_model(services: LlamaServices, path: Path | None, **options: Any) -> tuple[Model, bool]:
    """The model to draft with, and whether it was opened here and has to be closed: the target's own without a path."""
    return (services.model, False) if path is None else (services.open_model(path, **options), True)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens ``a`` and ``b`` begin with in common."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # slices compare at C speed; bisecting finds the first difference
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


@attrs.define(eq=False)
class HeldSequence:
    """What draft memory holds of one sequence: ``tokens``, each paired with the hidden state before it.

    The memory itself may hold more for a moment, what was only drafted; it is cut to this before it is used again.
    """

    width: int
    n_rows: int
    """Hidden states at the end of the last batch that may be asked for: one more than the longest draft."""
    tokens: list[int] = attrs.field(factory=list)
    in_prompt: bool = False
    _tail_pos: int = 0
    _tail: Rows | None = None
    _boundaries: dict[int, Rows] = attrs.field(factory=dict)

    def begin(self, prompt: Sequence[int]) -> int:
        """A request starts with ``prompt``, all of which the target holds; returns how much of it need not be repeated.

        The hidden state before the first new token is needed. Where it is not kept, the target evaluates one token
        again.
        """
        self.in_prompt = True
        n = common_prefix(self.tokens, prompt)
        self.keep(n)
        return n if n == 0 or self.row(n - 1) is not None else n - 1

    def keep(self, n: int) -> None:
        """Forget all but the first ``n`` tokens."""
        del self.tokens[n:]
        for pos in [pos for pos in self._boundaries if pos >= n]:
            del self._boundaries[pos]

    def row(self, pos: int) -> Rows | None:
        """The target's hidden state at ``pos`` ``(1, width)``; zeros before the first token, None when not kept."""
        if pos < 0:
            return np.zeros((1, self.width), np.float32)
        tail, index = self._tail, pos - self._tail_pos
        if tail is not None and 0 <= index < len(tail):
            return tail[index : index + 1]
        return self._boundaries.get(pos)

    def unseen(self, decoded: Decoded) -> tuple[int, Rows] | None:
        """The first index into ``decoded.tokens`` that is not held yet, and the states that pair with those from it.

        None: there is nothing to do, or what comes before it is missing. ``tokens`` is cut to what agrees.
        """
        hidden = decoded.hidden
        if hidden is None:
            msg = "the target decoded tokens without their hidden states"
            raise InternalError(msg)
        pos, new = decoded.pos, list(decoded.tokens)
        if pos > len(self.tokens):
            return None
        k = common_prefix(self.tokens[pos : pos + len(new)], new)
        before = hidden[k - 1 : k] if k else self.row(pos - 1)
        if k == len(new) or before is None:
            return None
        self.keep(pos + k)
        return k, np.concatenate([before, hidden[k:-1]])

    def seen(self, decoded: Decoded, n_held: int) -> None:
        """``decoded`` was processed: ``n_held`` tokens are held now, and its hidden states are known."""
        assert decoded.hidden is not None  # noqa: S101 -- for the type checker
        end = decoded.pos + len(decoded.tokens)
        self.tokens.extend(decoded.tokens[len(self.tokens) - decoded.pos : n_held - decoded.pos])
        tail = decoded.hidden[-self.n_rows :].copy()
        self._tail, self._tail_pos = tail, end - len(tail)
        if self.in_prompt and n_held == end:
            self._boundaries[end - 1] = tail[-1:]
            if len(self._boundaries) > MAX_BOUNDARIES:
                del self._boundaries[min(self._boundaries)]

    def committed(self, n: int) -> None:
        """The sequence has ``n`` committed tokens now; the last one was not evaluated yet."""
        self.in_prompt = False
        if len(self.tokens) >= n:
            self.keep(n - 1)


def batches(entries: Sequence[DraftEntry], n_batch: int) -> Iterator[list[DraftEntry]]:
    """Divide ``entries`` into batches of at most ``n_batch`` tokens, each sequence at most once in each."""
    batch: list[DraftEntry] = []
    room = n_batch
    for entry in entries:
        start, n = 0, len(entry.tokens)
        while start < n:
            end = min(n, start + room)
            part = entry.tokens[start:end]
            batch.append(attrs.evolve(entry, pos=entry.pos + start, tokens=part, states=entry.states[start:end]))
            room -= end - start
            start = end
            if not room:
                yield batch
                batch, room = [], n_batch
    if batch:
        yield batch
