"""Plain decoding without an engine, one token per decode, nothing reused: what all other ways must equal."""

from __future__ import annotations

import math
from collections.abc import Iterator

import attrs
import numpy as np

from specframe.core.history import History
from specframe.core.ports import BatchEntry, Logits, Target, TokenSampler
from specframe.core.request import Completion, FinishReason, Request, TokenLogprob
from specframe.testing.errors import ContractError

#: Log probabilities of two runs may differ by this much; the field's own tolerance.
LOGPROB_TOLERANCE = 1e-4


@attrs.frozen(kw_only=True)
class Output:
    """What a user sees of a finished request."""

    tokens: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    stop_detail: str
    logprobs: tuple[TokenLogprob, ...] = attrs.field(default=(), repr=False)

    @classmethod
    def of(cls, completion: Completion) -> Output:
        """The visible part of a completion."""
        return cls(
            tokens=completion.tokens,
            text=completion.text,
            finish_reason=completion.finish_reason,
            stop_detail=completion.stop_detail,
            logprobs=completion.logprobs,
        )

    def check_equals(self, other: Output, what: str = "the drafted output") -> None:
        """Raise ContractError naming the first difference between this (right) and ``other`` (under test)."""
        for name in ("tokens", "text", "finish_reason", "stop_detail"):
            right, wrong = getattr(self, name), getattr(other, name)
            if right != wrong:
                raise ContractError(f"{what} differs from plain decoding: {name} is {wrong!r} instead of {right!r}")
        if len(self.logprobs) != len(other.logprobs):
            raise ContractError(f"{what} has {len(other.logprobs)} logprobs instead of {len(self.logprobs)}")
        for at, (mine, theirs) in enumerate(zip(self.logprobs, other.logprobs, strict=True)):
            same = mine.token == theirs.token and [t for t, _ in mine.top] == [t for t, _ in theirs.top]
            pairs = [
                (mine.logprob, theirs.logprob),
                *((a[1], b[1]) for a, b in zip(mine.top, theirs.top, strict=False)),
            ]
            if not same or max(abs(a - b) for a, b in pairs) > LOGPROB_TOLERANCE:
                raise ContractError(f"{what} has logprobs {theirs} instead of {mine} at token {at}")


def reference(target: Target, request: Request, *, seq: int = 0) -> Output:
    """Decode ``request`` on a cleared sequence of ``target`` as simply as possible.

    Written from the contracts alone, so that it shares no code and no mistake with the engine. The last token may be
    the one that fills the context: its own position is never evaluated.
    """
    emitted: list[int] = []
    logprobs: list[TokenLogprob] = []
    ended = (FinishReason.LENGTH, "max-tokens") if request.max_tokens == 0 else (FinishReason.LENGTH, "context-full")
    for token, row, sampler in _choices(target, request, seq) if request.max_tokens != 0 else ():
        if token in target.vocab.eog:
            ended = (FinishReason.STOP, "eog")
            break
        emitted.append(token)
        if request.sampling.logprobs is not None:
            logprobs.append(_logprob(row, token, request.sampling.logprobs))
        now = _ending(target, request, emitted, row, sampler)
        if now is not None:
            ended = now
            break
    text = _text(target, emitted)
    stop = _stop_at(text, request.stop)
    return Output(
        tokens=tuple(emitted),
        text=text if stop is None else text[:stop],
        finish_reason=ended[0],
        stop_detail=ended[1],
        logprobs=tuple(logprobs),
    )


def tape(target: Target, request: Request, *, seq: int = 0) -> tuple[int, ...]:
    """The sequence ``request`` follows, prompt included, past every end it has, until the context is full."""
    return (*request.prompt, *(token for token, _, _ in _choices(target, request, seq)))


def _choices(target: Target, request: Request, seq: int) -> Iterator[tuple[int, Logits, TokenSampler]]:
    """Token after token, until the context is full or a grammar is complete."""
    target.clear(seq)
    sampler = target.make_sampler(request.sampling, request.prompt)
    tokens = list(request.prompt)
    n_ctx = target.info.n_ctx
    n_emitted = 0
    while not sampler.finished():
        if len(tokens) > n_ctx:
            if request.context_full == "stop" or n_emitted >= (request.max_tokens or 0):
                return
            n_drop = (n_ctx - request.n_keep) // 2
            target.shift(seq, request.n_keep, n_drop)
            del tokens[request.n_keep : request.n_keep + n_drop]
        for pos in range(target.n_past(seq), len(tokens)):
            target.decode([BatchEntry(seq, pos, tokens[pos : pos + 1], 1)])
        row = target.logits()[0]
        processed = row
        for process in request.logits_processors:
            processed = process(History(tokens), processed.copy())
        token = sampler.sample(processed)
        sampler.accept(token)
        tokens.append(token)
        n_emitted += 1
        yield token, row, sampler


def _ending(
    target: Target, request: Request, emitted: list[int], row: Logits, sampler: TokenSampler
) -> tuple[FinishReason, str] | None:
    """Why the last emitted token, which is no end-of-generation token, is the last one; None: it is not."""
    if _stop_at(_text(target, emitted), request.stop) is not None:
        return FinishReason.STOP, "stop-string"
    history = History((*request.prompt, *emitted))
    if any(criterion(history, row) for criterion in request.stopping_criteria):
        return FinishReason.STOP, "criterion"
    if request.sampling.grammar is not None and sampler.finished():
        return FinishReason.STOP, "grammar"
    if request.max_tokens is not None and len(emitted) >= request.max_tokens:
        return FinishReason.LENGTH, "max-tokens"
    return None


def _text(target: Target, emitted: list[int]) -> str:
    """Text of all bytes; a character that is cut off at the end is left out."""
    data = b"".join(map(target.vocab.piece, emitted))
    for cut in range(min(4, len(data) + 1)):
        tail = data[len(data) - cut :]
        if cut and _is_unfinished(tail):
            return data[: len(data) - cut].decode("utf-8", "replace")
    return data.decode("utf-8", "replace")


def _is_unfinished(tail: bytes) -> bool:
    """True when ``tail`` is the beginning of one longer character."""
    try:
        tail.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start == 0 and error.reason == "unexpected end of data"
    return False


def _stop_at(text: str, stops: tuple[str, ...]) -> int | None:
    """Where the text is cut: at the beginning of the stop string that is complete first."""
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return min(ends)[1] if ends else None


def _logprob(row: Logits, token: int, n_top: int) -> TokenLogprob:
    values = [float(x) for x in row]
    peak = max(values)
    total = peak + math.log(math.fsum(math.exp(x - peak) for x in values))
    best = np.argsort(-row, kind="stable")[:n_top]
    return TokenLogprob(token, values[token] - total, tuple((int(i), values[int(i)] - total) for i in best))
