"""A running request: how its next token is chosen, and what committing one means."""

from __future__ import annotations

import logging
import sys
import time
from collections import deque

import numpy as np

from specframe.core.drafting import Drafter
from specframe.core.history import History
from specframe.core.ports import Logits, TokenSampler, Vocab
from specframe.core.request import Chunk, Completion, FinishReason, Request, TokenLogprob
from specframe.core.scheduler import DraftScheduler
from specframe.core.slot import Slot
from specframe.core.stats import RequestStats
from specframe.core.text import TextStream

log = logging.getLogger(__name__)


class ActiveRequest:
    """State of one request from submission to completion. Only the engine changes it, under its lock."""

    def __init__(self, request: Request, vocab: Vocab, n_ctx: int, sampler: TokenSampler) -> None:
        self.request = request
        self.chunks: deque[Chunk] = deque()
        self.completion: Completion | None = None
        self.error: BaseException | None = None
        self.cancelled = False
        self.slot: Slot | None = None
        self.stats = RequestStats(
            prompt_tokens=len(request.prompt),
            strategy_reason=request.strategy_reason,
            draft_length=request.draft_length,
        )
        self.drafter: Drafter | None = None
        self.scheduler: DraftScheduler | None = None
        self.finish: tuple[FinishReason, str] | None = None
        self.asked = False
        """The strategy was asked for a draft at least once."""
        self.warned_overlong = False
        self.checkpoints_work = True
        """False once the target had no room for one."""
        self.mid_token = False
        """True while a token is between its random draw and its commit: then the request cannot be resumed."""
        self._vocab = vocab
        self._eog = vocab.eog
        # The token after the last one that fits is still emitted: it needs no place.
        self._n_full = n_ctx + 1
        self.shifts = request.context_full == "shift"
        room = sys.maxsize if self.shifts else self._n_full - len(request.prompt)
        self._limit = room if request.max_tokens is None else min(request.max_tokens, room)
        self._stream = TextStream(request.stop)
        self._emitted: list[int] = []
        self._text: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._delivered = 0
        self._delivered_text = 0
        self._submitted_at = time.perf_counter()
        self._sampler: TokenSampler | None = sampler
        seed = getattr(sampler, "seed", None)
        self.stats.seed = seed if isinstance(seed, int) else request.sampling.seed

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self, slot: Slot) -> None:
        """The request got a sequence; its prompt is what ``slot.tokens`` holds."""
        self.slot = slot
        self.history = History.view(slot.tokens)

    @property
    def strategy_name(self) -> str:
        """Name of the strategy asked for; "none" is plain decoding."""
        return self.request.strategy.name if self.request.strategy else "none"

    def deactivate(self, reason: str) -> None:
        """Stop drafting for this request and say why, once."""
        self.stats.inactive_reason = reason
        log.warning("speculation is off for this request: %s", reason)
        self.end_drafting()

    def end_drafting(self) -> None:
        """Tell the strategy, once, that this request needs no more drafts."""
        drafter, self.drafter = self.drafter, None
        if drafter is not None and self.slot is not None:
            if self.scheduler is not None:
                self.scheduler.end(self.slot.seq)
            for strategy, why in drafter.end(self.slot.seq).items():
                self.stats.of(strategy).ended = why

    @property
    def n_left(self) -> int:
        """Tokens that may still be emitted: the budget, and the room in the context."""
        left = self._limit - self.stats.emitted
        return min(left, self._n_full - len(self.history)) if self.shifts else left

    @property
    def is_full(self) -> bool:
        """True when nothing more can be evaluated without a shift."""
        return len(self.history) >= self._n_full

    def end(self) -> None:
        """Build the completion; releases the sampler. Once."""
        if self.completion is not None:
            return
        if self._sampler is not None:
            self._sampler.close()
            self._sampler = None
        reason, detail = self.finish or (FinishReason.ERROR, "error")
        if self._stream.matched is None and (tail := self._stream.finish()):
            self._text.append(tail)
        if self.slot is not None:
            self.stats.restores, self.stats.restore_s = self.slot.n_restores, self.slot.restore_s
        self.stats.total_s = time.perf_counter() - self._submitted_at
        self.deliver()
        self.completion = Completion(
            text="".join(self._text),
            tokens=tuple(self._emitted),
            finish_reason=reason,
            stop_detail=detail,
            prompt_tokens=len(self.request.prompt),
            strategy=self.strategy_name,
            stats=self.stats,
            logprobs=tuple(self._logprobs),
        )

    # -- one token ----------------------------------------------------------------------------------------------------

    def step(self, row: Logits) -> int:
        """Choose the next token from its own row and commit it; returns it. ``finish`` is set when it was the last."""
        sampler = self._sampler
        assert sampler is not None  # noqa: S101 -- for the type checker
        self.mid_token = True
        used = row
        for process in self.request.logits_processors:
            if used is row:
                used = row.copy()
            used = np.asarray(process(self.history, used), dtype=np.float32)
            if used.shape != row.shape:
                msg = f"logits processor {process!r} returned shape {used.shape} for a row of shape {row.shape}"
                raise ValueError(msg)
        token = sampler.sample(used)
        sampler.accept(token)
        self._commit(token, row)
        self.mid_token = False
        return token

    def allows(self, token: int) -> bool:
        """False when a grammar forbids ``token`` as the next one."""
        return self.request.sampling.grammar is None or self._sampler is None or self._sampler.allowed(token)

    def _commit(self, token: int, row: Logits) -> None:
        slot, stats, request = self.slot, self.stats, self.request
        assert slot is not None  # noqa: S101 -- for the type checker
        assert self._sampler is not None  # noqa: S101 -- for the type checker
        slot.tokens.append(token)
        stats.emitted += 1
        if stats.ttft_s is None:
            stats.ttft_s = time.perf_counter() - self._submitted_at
        if token in self._eog:
            self.finish = (FinishReason.STOP, "eog")
            return
        self._emitted.append(token)
        if request.sampling.logprobs is not None:
            self._logprobs.append(_logprob(token, row, request.sampling.logprobs))
        if text := self._stream.feed(self._vocab.piece(token)):
            self._text.append(text)
        if self._stream.matched is not None:
            self.finish = (FinishReason.STOP, "stop-string")
        elif request.stopping_criteria and self._met(row):
            self.finish = (FinishReason.STOP, "criterion")
        elif request.sampling.grammar is not None and self._sampler.finished():
            self.finish = (FinishReason.STOP, "grammar")
        elif stats.emitted >= self._limit:
            full = request.max_tokens is None or stats.emitted < request.max_tokens
            self.finish = (FinishReason.LENGTH, "context-full" if full else "max-tokens")
        elif self.cancelled:
            self.finish = (FinishReason.CANCELLED, "cancelled")

    def _met(self, row: Logits) -> bool:
        """Whether a stopping criterion is; they may keep the row, and the target's own is overwritten or gets freed."""
        own = np.frombuffer(row.tobytes(), row.dtype)
        return any(criterion(self.history, own) for criterion in self.request.stopping_criteria)

    def deliver(self) -> None:
        """Make what was committed since the last time available to the consumer, as one chunk."""
        n, n_text = self._delivered, self._delivered_text
        if n < len(self._emitted) or n_text < len(self._text):
            self.chunks.append(Chunk(tuple(self._emitted[n:]), "".join(self._text[n_text:]), tuple(self._logprobs[n:])))
            self._delivered, self._delivered_text = len(self._emitted), len(self._text)


def _logprob(token: int, row: Logits, n_top: int) -> TokenLogprob:
    shifted = row.astype(np.float64) - float(row.max())
    logs = shifted - np.log(np.exp(shifted).sum())
    best: list[int] = []
    if n_top:
        n_top = min(n_top, len(row))
        top = np.argpartition(-logs, n_top - 1)[:n_top]
        best = [int(i) for i in top[np.lexsort((top, -logs[top]))]]
    return TokenLogprob(token, float(logs[token]), tuple((i, float(logs[i])) for i in best))
