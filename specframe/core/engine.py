"""Many requests on one target: submission, admission, retirement.

One :meth:`Engine.step` evaluates at most two batches: a prompt chunk, then one verification of every request that is
past its prompt; see :mod:`specframe.core.step` for what happens inside.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType

from typing_extensions import Self

from specframe.core.combination import AnySpec
from specframe.core.cost_aware import CostAware
from specframe.core.errors import ClosedError, ConfigError, RequestTooLongError, SessionPoisonedError, StrategyError
from specframe.core.generation import Generation
from specframe.core.observer import Observer, Observers
from specframe.core.pool import DrafterPool
from specframe.core.ports import Rollback, Target
from specframe.core.request import FinishReason, Request
from specframe.core.scheduler import DraftScheduler
from specframe.core.sequence import ActiveRequest
from specframe.core.session import Session
from specframe.core.slot import PromptCheckpoints, Slot
from specframe.core.step import Stepper

log = logging.getLogger(__name__)


class Engine:
    """Runs requests on ``target``; thread-safe.

    Args:
        target: the model; stays open when the engine is closed.
        observers: told about starts, steps and ends.
        checkpoints: how many checkpoints of prompts are kept where memory cannot be cut.
        scheduler: makes the object that decides how much is drafted and verified;
            :class:`~specframe.core.cost_aware.CostAware` unless given.
        clock: seconds, for the times in statistics and those the scheduler decides by.

    Raises:
        ConfigError: ``n_batch`` or ``n_outputs`` is smaller than the number of sequences.
    """

    def __init__(
        self,
        target: Target,
        *,
        observers: Sequence[Observer] = (),
        scheduler: Callable[[], DraftScheduler] | None = None,
        checkpoints: PromptCheckpoints | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        info = target.info
        if min(info.n_batch, info.max_outputs) < info.n_seq:
            msg = (
                f"n_batch ({info.n_batch}) and n_outputs ({info.max_outputs}) must be at least the number of sequences "
                f"({info.n_seq}); raise them, or run fewer sequences at once"
            )
            raise ConfigError(msg)
        self._target = target
        self._info = info
        self._observers = Observers(observers)
        self._scheduler: DraftScheduler = (scheduler or CostAware)()
        self._checkpoints = checkpoints or PromptCheckpoints()
        self._stepper = Stepper(target, self._observers, self._checkpoints, self._scheduler, clock)
        self._free = [Slot(target, seq) for seq in range(info.n_seq)]
        self._queue: deque[ActiveRequest] = deque()
        self._running: list[ActiveRequest] = []
        self._drafters = DrafterPool(target)
        self._prepared: AnySpec | None = None
        self._lock = threading.RLock()
        self._inside = False
        self._closed = False
        self._n_uses = 0

    # -- public -------------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> Generation:
        """Queue a request; nothing is evaluated until its output is asked for or :meth:`step` is called.

        Raises:
            ConfigError: a parameter cannot be honoured (RequestTooLongError: the prompt does not fit).
            StrategyError: a strategy with a model of its own could not be set up.
            ClosedError: the engine is closed.
        """
        self._check_prompt(request.prompt)
        if request.context_full == "shift":
            self._check_shift(request.n_keep)
        with self._lock:
            self._check_open()
            sampler = self._target.make_sampler(request.sampling, request.prompt)
            active = ActiveRequest(request, self._target.vocab, self._info.n_ctx, sampler)
            active.stats.rollback_means = self._info.rollback_means
            try:
                self._attach_drafter(active)
            except BaseException:
                sampler.close()
                raise
            if request.max_tokens == 0:
                active.finish = (FinishReason.LENGTH, "max-tokens")
                active.end()
            else:
                self._queue.append(active)
        return Generation(active, self._advance, self._cancel)

    def prepare(self, strategy: AnySpec) -> None:
        """Set up what ``strategy`` drafts with now instead of at the first request for it, and keep it.

        Raises:
            ConfigError: it cannot be set up with its options and files.
            StrategyError: its set-up failed.
            ClosedError: the engine is closed.
        """
        with self._lock:
            self._check_open()
            self._drafters.get(strategy, used=self._used_strategies())
            self._prepared = strategy

    def step(self) -> bool:
        """Evaluate the next prompt chunk and one verification per request; False when there is nothing left to do.

        Errors of single requests are kept for their consumers. KeyboardInterrupt and the like come out of here with the
        memory of every sequence already reconciled.
        """
        with self._lock:
            self._check_outside()
            self._inside = True
            try:
                self._reap()
                if self._queue:
                    self._admit()
                self._stepper.step(self._running)
            finally:
                self._inside = False
                self._settle()
            return bool(self._running or self._queue)

    def save_session(self, prompt: Sequence[int] = ()) -> Session:
        """What memory holds of ``prompt`` and behind it, or else what the latest finished request left there.

        Raises:
            ConfigError: no sequence that is free holds anything of it.
            BackendError: the target could not hand out its state.
        """
        with self._lock:
            self._check_outside()
            known = [slot for slot in self._free if slot.n_past and not slot.in_flight and slot.n_pure is None]
            if prompt:
                wanted = (*prompt, -1)  # no token: all of the prompt may match
                known = [slot for slot in known if slot.common_prefix(wanted)]
                known.sort(key=lambda slot: slot.common_prefix(wanted))
            else:
                known.sort(key=lambda slot: slot.last_used)
            if not known:
                msg = (
                    "there is nothing to save: no finished request left anything of this prompt in memory, or its "
                    "context was full and lost a part"
                )
                raise ConfigError(msg)
            slot = known[-1]
            return Session(
                identity=self._target.identity,
                tokens=tuple(slot.tokens[: slot.n_past]),
                state=self._target.save_state(slot.seq),
                strategies={**slot.strategy_states, **self._drafters.save(slot.seq, slot.strategies)},
            )

    def load_session(self, session: Session) -> int:
        """Put a session into the sequence idle for longest; a request that begins like it starts from there.

        Returns the number of tokens that need not be evaluated again.

        Raises:
            ConfigError: it is of another model or made with other settings, or every sequence is in use.
            BackendError: the target refused it.
        """
        session.check_fits(self._target.identity)
        with self._lock:
            self._check_outside()
            if not self._free:
                msg = "every sequence is in use; load the session when a request has finished"
                raise ConfigError(msg)
            slot = min(self._free, key=lambda s: s.last_used)
            slot.load(session.tokens, session.state)
            slot.strategy_states, slot.strategies = dict(session.strategies), ()
            if self._info.rollback is not Rollback.TRUNCATE and self._info.checkpoints:
                slot.save(self._checkpoints)
            self._n_uses += 1
            slot.last_used = self._n_uses
            return slot.n_past

    def close(self) -> None:
        """End every request (their consumers get ClosedError) and close the strategies. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for active in [*self._running, *self._queue]:
                active.error = ClosedError("the engine was closed while this request was running")
            with ExitStack() as stack:  # one that is interrupted does not keep the others open
                stack.callback(self._drafters.close)
                stack.callback(self._settle)
                self._queue_out()

    def halt(self) -> None:
        """Wait for the step that is running, and let no other thread begin one ever again; for the end of a process.

        Closing instead would raise ClosedError in daemon threads that stream, on stderr, while the interpreter exits;
        and letting them run would tear the library down under a computation.
        """
        self._lock.acquire()  # never released

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()

    # -- submission ---------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            msg = "the engine is closed"
            raise ClosedError(msg)

    def _check_outside(self) -> None:
        self._check_open()
        if self._inside:
            msg = "the engine cannot be stepped, saved or loaded from inside a callback of its own"
            raise ConfigError(msg)

    def _check_prompt(self, prompt: Sequence[int]) -> None:
        if not prompt:
            msg = "the prompt is empty: it has no tokens; give a text, or at least one token (BOS will do)"
            raise ConfigError(msg)
        if min(prompt) < 0 or max(prompt) >= self._info.n_vocab:
            at = next(i for i, t in enumerate(prompt) if not 0 <= t < self._info.n_vocab)
            msg = f"prompt token {prompt[at]} at index {at} is outside the vocabulary of {self._info.n_vocab} tokens"
            raise ConfigError(msg)
        if len(prompt) > self._info.n_ctx:
            msg = (
                f"the prompt has {len(prompt)} tokens but the context holds {self._info.n_ctx}; "
                "raise n_ctx or shorten the prompt"
            )
            raise RequestTooLongError(msg)

    def _check_shift(self, n_keep: int) -> None:
        info = self._info
        if not info.can_shift:
            why = f"its memory is of the kind {info.rollback.value!r}"
            if info.rollback is Rollback.TRUNCATE:
                why = "positions cannot be moved in its memory, or not in this format of keys"
            msg = f"context_full='shift' does not work with this model: {why}; use context_full='stop'"
            raise ConfigError(msg)
        if info.n_ctx - n_keep < 2:  # noqa: PLR2004 -- half of it must be a token
            msg = f"n_keep ({n_keep}) leaves nothing to drop of a context of {info.n_ctx} tokens; lower it"
            raise ConfigError(msg)

    def _attach_drafter(self, active: ActiveRequest) -> None:
        spec = active.request.strategy
        if spec is None:
            return
        if active.request.draft_length == 0:
            active.stats.inactive_reason = "switched-off"
            return
        required = active.request.strategy_required
        drafter = self._drafters.get(spec, used=self._used_strategies(), required=required)
        if isinstance(drafter, str):
            active.deactivate(drafter)
            return
        active.drafter = drafter
        active.scheduler = self._scheduler

    def _used_strategies(self) -> list[AnySpec]:
        """Those of all requests there are, and the one that is prepared."""
        requests = [active.request.strategy for active in (*self._running, *self._queue)]
        return [spec for spec in (self._prepared, *requests) if spec is not None]

    # -- admission and retirement -------------------------------------------------------------------------------------

    def _advance(self, active: ActiveRequest, to_end: bool) -> None:
        """One step, unless another thread's step brought what is wanted while this one waited for the lock."""
        with self._lock:
            if active.completion is None and (to_end or not active.chunks):
                self.step()

    def _cancel(self, active: ActiveRequest) -> None:
        active.cancelled = True
        with self._lock:
            if not self._inside and not self._closed:
                self._reap()
                self._settle()

    def _reap(self) -> None:
        """Take out what was cancelled, and bring back memory that an interrupted reconciliation left unknown."""
        over = False
        for active in self._running:
            if active.slot is not None and active.slot.in_flight:
                try:
                    active.slot.ensure_settled()
                except SessionPoisonedError as error:
                    active.error = error
            if active.cancelled and active.finish is None:
                active.finish = (FinishReason.CANCELLED, "cancelled")
            over = over or active.finish is not None
        if self._queue and any(a.cancelled for a in self._queue):
            self._queue_out()
        if over:
            self._settle()

    def _queue_out(self) -> None:
        """End the queued requests that were cancelled or failed."""
        for active in list(self._queue):
            if active.error is not None or active.cancelled:
                active.finish = active.finish or (FinishReason.CANCELLED, "cancelled")
                active.end()
                self._queue.remove(active)

    def _admit(self) -> None:
        while self._queue and self._free:
            active = self._queue[0]
            slot = self._pick_slot(active.request)
            try:
                # An interrupt in here leaves the request queued and the sequence free, marked as unknown.
                slot.start(active.request.prompt, reuse=active.request.reuse_prefix)
            except SessionPoisonedError as error:
                log.error("one sequence less: %s", error)  # noqa: TRY400 -- the message says it all
                self._free.remove(slot)
                continue
            self._queue.popleft()
            self._free.remove(slot)
            self._running.append(active)
            active.start(slot)
            self._begin_drafting(active, slot)
            active.stats.cached_tokens = slot.n_past
            self._observers.request_started(slot.seq, active.request, slot.n_past)
        if self._queue and not self._free and not self._running:
            for active in self._queue:
                active.error = SessionPoisonedError("no usable sequence is left; load the model anew")
            self._queue_out()

    def _begin_drafting(self, active: ActiveRequest, slot: Slot) -> None:
        states, slot.strategy_states, slot.strategies = slot.strategy_states, {}, ()
        if active.drafter is None or active.request.strategy is None:
            return
        try:
            if states:
                active.drafter.load(slot.seq, states)
            held = active.drafter.begin(slot.seq, active.history, slot.n_past)
        except BaseException:
            active.deactivate("strategy-interrupted")
            raise
        if isinstance(held, StrategyError):
            active.deactivate(f"strategy-error: {held}")
            return
        slot.strategies = active.request.strategy.members
        self._scheduler.begin(slot.seq, active.request.strategy.label, active.stats.scheduler)
        try:
            slot.shrink(held)
        except SessionPoisonedError as error:
            active.error = error

    def _pick_slot(self, request: Request) -> Slot:
        """The free sequence that holds most of the prompt; among equals the one idle for longest."""
        if request.reuse_prefix and len(self._free) > 1:
            return max(self._free, key=lambda s: (s.common_prefix(request.prompt), -s.last_used))
        return min(self._free, key=lambda s: s.last_used)

    def _settle(self) -> None:
        """Retire every running request that is over, for whatever reason."""
        for active in list(self._running):
            if active.mid_token and active.error is None:
                active.finish = (FinishReason.CANCELLED, "interrupted")
            if active.finish is not None or active.error is not None:
                self._retire(active)

    def _retire(self, active: ActiveRequest) -> None:
        """An interrupt in here leaves the request among the running ones, to be retired again."""
        slot = active.slot
        assert slot is not None  # noqa: S101 -- running requests have a sequence
        if active.drafter is not None:
            if not active.stats.verified:
                reason = "nothing-proposed" if active.asked else "no-room"
                if active.stats.scheduler.declined:
                    reason = "does-not-pay"
                active.stats.inactive_reason = reason
                log.info("speculation had no effect on this request: %s", reason)
            active.end_drafting()
        active.end()
        self._running.remove(active)
        self._n_uses += 1
        slot.last_used = self._n_uses
        if not slot.poisoned:
            self._free.append(slot)
        if active.completion is not None:
            self._observers.request_finished(slot.seq, active.completion)
