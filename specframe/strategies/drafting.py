"""Shared by the strategies that draft with a model: what its memory holds of each sequence, and where models come from.

A draft model that reads hidden states pairs the token at position p with the target's hidden state of position p - 1.
What is kept here makes that right across batches, after a partial acceptance, after a rollback and for prompts that
share a beginning with an earlier one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import numpy.typing as npt

from specframe.core.errors import ConfigError, InternalError
from specframe.core.history import common_prefix
from specframe.core.ports import Decoded, Rows
from specframe.core.strategy import StrategyContext, Suitability
from specframe.strategies._rows import RowBuffer

if TYPE_CHECKING:
    from specframe.backends.llama.autoregressive_context import DraftEntry
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
    """The model to draft with, and whether it was opened here and has to be closed: the target's own without a path.

    Raises:
        ConfigError: the file cannot be opened like this, or there is none and an option says where it should go.
    """
    if path is not None:
        return services.open_model(path, **options), True
    for name in ("devices", "n_gpu_layers"):
        if options.get(name) is not None:
            raise ConfigError(
                f"option {name!r} ({options[name]!r}) is for a draft file, and none was given: the layers to draft "
                "with are in the target's file and stay where the target is; leave it out"
            )
    return services.model, False


def suits_file(strategy: str, target: Path, draft: Path | None) -> Suitability:
    """Whether the draft file, or without one the target's own, was made for ``strategy``."""
    from specframe.backends.llama.draft_kinds import draft_kind  # noqa: PLC0415 -- native
    from specframe.backends.llama.gguf import inspect  # noqa: PLC0415 -- native

    if draft_kind(inspect(draft or target)) != strategy:
        return Suitability.UNASKED
    return Suitability.BUILT_IN if draft is None else Suitability.DRAFT_FILE


class HeldSequence:
    """What is known of one sequence: committed tokens, and the hidden states that are needed to go on.

    ``tokens[:evaluated]`` are in the memory of the heads, each paired with the target's hidden state before it. The
    others wait for the next draft. The memory itself may hold more for a moment, what was only drafted; it is cut
    before it is used again.

    Args:
        width: of a hidden state.
        n_rows: hidden states at the end of a batch that may be asked for: one more than the longest draft.
    """

    def __init__(self, width: int, n_rows: int) -> None:
        self._width, self._n_rows = width, n_rows
        self._reset()

    def _reset(self) -> None:
        self.tokens: list[int] = []
        self.evaluated = 0
        """May be one more than there are tokens: the last committed one was drafted from."""
        self._in_prompt = False
        self._in_doubt = False
        # Hidden states of consecutive positions, reaching back to the one before the first token that waits. Before
        # the first token of all they are zeros.
        self._rows = RowBuffer(self._width)
        self._rows.add(np.zeros((1, self._width), np.float32))
        self._first = -1
        self._boundaries: dict[int, Rows] = {}

    def begin(self, prompt: Sequence[int]) -> int:
        """A request starts with ``prompt``, all of which the target holds; returns how much of it need not be repeated.

        The hidden state before the first new token is needed. Where it is not kept, the target evaluates one token
        again.
        """
        n = 0 if self._in_doubt else common_prefix(self.tokens, prompt)
        if not n:
            self._reset()
        self._in_prompt = True
        self.keep(n)
        return n if self._holds(n - 1) or n - 1 in self._boundaries else n - 1

    def keep(self, n: int) -> None:
        """Forget all but the first ``n`` tokens."""
        del self.tokens[n:]
        self.evaluated = min(self.evaluated, n)
        self._rows.keep(max(0, n - self._first))
        for pos in [pos for pos in self._boundaries if pos >= n]:
            del self._boundaries[pos]

    def drop(self, n_keep: int, n_drop: int) -> None:
        """``n_drop`` tokens behind the first ``n_keep``, all of them evaluated and others behind them, are gone."""
        del self.tokens[n_keep : n_keep + n_drop]
        self.evaluated -= n_drop
        gone = max(0, n_keep + n_drop - self._first)
        self._rows.drop(gone)
        self._first += gone - n_drop
        self._boundaries = {pos: row for pos, row in self._boundaries.items() if pos < n_keep}

    def _holds(self, pos: int) -> bool:
        """The hidden state of ``pos`` is among the consecutive ones."""
        return self._first <= pos < self._first + len(self._rows)

    def seen(self, decoded: Decoded) -> None:
        """The target decoded more; what is known already is passed over."""
        hidden, pos, new = decoded.hidden, decoded.pos, list(decoded.tokens)
        if hidden is None:
            msg = "the target decoded tokens without their hidden states"
            raise InternalError(msg)
        if self._in_doubt or pos > len(self.tokens):
            return  # something was missed, in an interrupt: no more drafts until the next request
        n_known, end = common_prefix(self.tokens[pos : pos + len(new)], new), pos + len(new)
        if n_known == len(new) and self._holds(end - 1):
            return  # a replay of what is known
        self._in_doubt = True
        if n_known < len(new):
            if pos + n_known < len(self.tokens):
                self.keep(pos + n_known)
            self.tokens.extend(new[n_known:])
        if self._holds(pos - 1):
            self._rows.keep(pos - self._first)
        else:
            self._rows, self._first = RowBuffer(self._width), pos
            if (before := self._boundaries.get(pos - 1)) is not None:
                self._rows.add(before)
                self._first -= 1
        self._rows.add(hidden)
        n_done = max(0, min(self.evaluated - 1, end - self._n_rows) - self._first)
        self._rows.drop(n_done)
        self._first += n_done
        if self._in_prompt:
            self._boundaries[end - 1] = hidden[-1:].copy()
            if len(self._boundaries) > MAX_BOUNDARIES:
                del self._boundaries[min(self._boundaries)]
        self._in_doubt = self.evaluated < len(self.tokens) and self._first >= self.evaluated

    @property
    def usable(self) -> bool:
        """False when an interrupt left it in doubt, or there is nothing."""
        return bool(self.tokens) and not self._in_doubt

    @property
    def n_waiting(self) -> int:
        """Tokens that are not in the memory of the heads."""
        return len(self.tokens) - self.evaluated

    def waiting(self, n: int) -> tuple[list[int], Rows] | None:
        """Tokens of the first ``n`` that wait, with a state for each and for the one after them; None: not known."""
        self.evaluated = min(self.evaluated, n)
        start = self.evaluated - 1 - self._first
        if self._in_doubt or len(self.tokens) < n or start < 0 or not self._holds(n - 1):
            return None
        return self.tokens[self.evaluated : n], self._rows.rows[start : n - self._first]

    def save(self, n_evaluated: int) -> dict[str, npt.NDArray[Any]]:
        """Everything known, with ``n_evaluated`` tokens in the memory of the heads."""
        return {
            "tokens": np.array(self.tokens, np.int32),
            "evaluated": np.array(n_evaluated, np.int64),
            "first": np.array(self._first, np.int64),
            "rows": self._rows.rows,
            "places": np.array(list(self._boundaries), np.int64),
            "states": np.concatenate([np.empty((0, self._width), np.float32), *self._boundaries.values()]),
        }

    def load(self, saved: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over what :meth:`save` returned. Raises ValueError when it is of another model."""
        self._reset()
        rows, states = saved["rows"], saved["states"]
        if rows.shape[1:] != (self._width,) or states.shape != (len(saved["places"]), self._width):
            msg = f"saved hidden states are {rows.shape[1:]} values wide, those of this model {self._width}"
            raise ValueError(msg)
        self.tokens, self.evaluated = saved["tokens"].tolist(), int(saved["evaluated"])
        self._rows, self._first = RowBuffer(self._width), int(saved["first"])
        self._rows.add(rows)
        self._boundaries = {pos: states[i : i + 1] for i, pos in enumerate(saved["places"].tolist())}

    def committed(self, n: int) -> None:
        """The sequence has ``n`` committed tokens now; the last one was not evaluated yet."""
        self._in_prompt = False
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
