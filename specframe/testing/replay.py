"""Was every emitted token plain decoding's own choice? An answer is replayed token by token, and each one judged.

The oracle for drafted output: it knows nothing of drafts, batches or rollbacks. Unlike a comparison of two texts it
does not end at the first difference, because every token is judged behind the answer's own text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np

from specframe.core.errors import BackendError, ConfigError
from specframe.core.history import History
from specframe.core.ports import BatchEntry, Logits, Target
from specframe.core.request import Completion, Request
from specframe.testing.errors import ContractError


@attrs.frozen(kw_only=True)
class Divergence:
    """A token that plain decoding would not have chosen there."""

    at: int
    """Index in the answer."""
    emitted: int
    expected: int
    margin: float
    """Logit of the expected token minus that of the emitted one, in plain decoding."""
    near_tie: bool
    """The margin is within what was allowed: rounding, not a fault."""

    def __str__(self) -> str:
        kind = "a near tie" if self.near_tie else "a fault"
        return f"token {self.at} is {self.emitted} instead of {self.expected}, {kind} (margin {self.margin:.3g})"


@attrs.frozen(kw_only=True)
class ReplayReport:
    """What :func:`replay` saw."""

    n_tokens: int
    """Tokens judged, a final end-of-generation token included; fewer than there are when one could never be chosen."""
    divergences: tuple[Divergence, ...]
    allowed_margin: float

    @property
    def first(self) -> Divergence | None:
        """The first difference, near ties included."""
        return self.divergences[0] if self.divergences else None

    @property
    def faults(self) -> tuple[Divergence, ...]:
        """Differences that rounding does not explain."""
        return tuple(d for d in self.divergences if not d.near_tie)

    def check(self, what: str = "the answer") -> None:
        """Raise ContractError naming the first fault, if there is one."""
        if self.faults:
            raise ContractError(f"{what} is not what plain decoding gives: {self.faults[0]}")

    def to_dict(self) -> dict[str, Any]:
        """Everything, JSON-ready."""
        return {**attrs.asdict(self), "faults": len(self.faults)}


def replay(target: Target, request: Request, completion: Completion, *, margin: float = 0.0) -> ReplayReport:
    """Judge each token of a greedy answer by plain decoding, one token per decode, on sequence 0 of ``target``.

    Args:
        target: the same model with the same settings; what sequence 0 holds is lost.
        request: what was asked, with the prompt.
        completion: what was answered. Its prompt is evaluated here in chunks of ``n_batch``; where parts of it were in
            memory, or the chunks were others, rounding may show.
        margin: largest difference of logits that still counts as a near tie: what batches of other widths may change.
            0 where logits do not depend on the width.

    Raises:
        ConfigError: the answer was sampled, or the context was shifted: then there is no single right token.
    """
    if request.sampling.temperature > 0 or request.sampling.mirostat:
        msg = "only greedy answers can be judged token by token; ask with temperature=0"
        raise ConfigError(msg)
    if completion.stats.shifts:
        msg = "the context was shifted during this answer, so that its earlier tokens cannot be replayed"
        raise ConfigError(msg)
    judge = _Judge(target, request, completion, margin)
    try:
        for row in _rows(target, request, completion):
            if not judge.judges(row):
                break
    finally:
        judge.close()
    return ReplayReport(n_tokens=judge.n_judged, divergences=tuple(judge.found), allowed_margin=margin)


class _Judge:
    def __init__(self, target: Target, request: Request, completion: Completion, margin: float) -> None:
        self._target, self._request, self._emitted, self._margin = target, request, completion.tokens, margin
        self._sampler = target.make_sampler(request.sampling, request.prompt)
        self.n_judged = 0
        self.found: list[Divergence] = []

    def judges(self, row: Logits) -> bool:
        """Judge the next token, chosen from ``row``; False when those behind it cannot be."""
        at, eog = self.n_judged, self._target.vocab.eog
        self.n_judged += 1
        expected = self._sampler.sample(row)
        ends = at == len(self._emitted)
        token = max(eog, key=lambda t: float(row[t])) if ends else self._emitted[at]
        if expected in eog if ends else expected == token:
            self._sampler.accept(expected)
            return True
        margin = float(row[expected]) - float(row[token])
        near_tie = abs(margin) <= self._margin
        self.found.append(Divergence(at=at, emitted=token, expected=expected, margin=margin, near_tie=near_tie))
        return not ends and self._follow(at + 1)

    def _follow(self, n: int) -> bool:
        """A new sampler that accepted the first ``n`` tokens of the answer; False: it would never accept them."""
        self._sampler.close()
        self._sampler = self._target.make_sampler(self._request.sampling, self._request.prompt)
        for token in self._emitted[:n]:
            only = np.full(self._target.info.n_vocab, -1e6, np.float32)
            only[token] = 0.0
            try:
                if self._sampler.sample(only) != token:
                    return False
            except BackendError:
                return False
            self._sampler.accept(token)
        return not self._sampler.finished()

    def close(self) -> None:
        self._sampler.close()


def _rows(target: Target, request: Request, completion: Completion) -> Iterator[Logits]:
    """The row each token of the answer was to be chosen from, callbacks of the request applied."""
    target.clear(0)
    tokens = [*request.prompt, *completion.tokens]
    n_prompt, n_rows = len(request.prompt), len(completion.tokens) + (completion.stop_detail == "eog")
    if not n_rows:
        return
    for pos in range(0, n_prompt, target.info.n_batch):
        # Prompts are evaluated in wide batches by plain decoding too.
        chunk = tokens[pos : min(pos + target.info.n_batch, n_prompt)]
        target.decode([BatchEntry(0, pos, chunk, int(pos + len(chunk) == n_prompt))])
    for at in range(n_rows):
        if at:
            pos = n_prompt + at - 1
            target.decode([BatchEntry(0, pos, tokens[pos : pos + 1], 1)])
        row = target.logits()[0]
        for process in request.logits_processors:
            row = process(History(tokens[: n_prompt + at]), row.copy())
        yield row
