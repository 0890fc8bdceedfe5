"""One step of the engine: a prompt chunk in a batch of its own, then one batch of verifications for all requests.

Prompts are cut at places that depend on the prompt, ``n_batch`` and the checkpoints kept of prompts, never on what is
drafted: the same split with and without a strategy is part of giving the same text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import attrs

from specframe.core.drafting import Drafter
from specframe.core.errors import BackendError, SessionPoisonedError, StrategyError
from specframe.core.observer import Observers
from specframe.core.ports import Logits, Rollback, Target
from specframe.core.proposal import Proposal
from specframe.core.scheduler import Candidate, DraftCall, DraftScheduler, StepReport, Verified
from specframe.core.sequence import ActiveRequest
from specframe.core.slot import PromptCheckpoints, Slot
from specframe.core.strategy import DraftRequest, Outcome
from specframe.core.transaction import InFlight, Transaction
from specframe.core.verify import verify

log = logging.getLogger(__name__)

_T = TypeVar("_T")

#: Committed tokens that may ride along with a verification. Where a rejection is undone by a restore, accepted tokens
#: are evaluated again with each batch until one is not rolled back: with more of them a plain step comes first, which
#: emits a token like any other and after which memory holds them all.
MAX_RIDING = 8


@attrs.define(eq=False)
class _Work(InFlight):
    """One request in the batch of this step."""

    active: ActiveRequest = attrs.field(kw_only=True)
    processed: bool = False
    """Its drafter has seen what was decoded."""

    def verify(self, draft: Sequence[int]) -> None:
        """Have ``draft`` verified."""
        self.draft = draft
        self.n_outputs = len(draft) + 1


class Stepper:
    """Evaluates steps on ``target``; keeps no state between them."""

    def __init__(
        self,
        target: Target,
        observers: Observers,
        checkpoints: PromptCheckpoints,
        scheduler: DraftScheduler,
        clock: Callable[[], float],
    ) -> None:
        self._target = target
        self._info = target.info
        self._observers = observers
        self._checkpoints = checkpoints
        self._scheduler = scheduler
        self._clock = clock
        widest = max(1, self._info.n_batch // self._info.n_seq)
        self._widest = widest if self._info.exact_width is None else min(widest, self._info.exact_width)
        self._max_outputs = self._info.max_outputs

    def step(self, running: Sequence[ActiveRequest]) -> None:
        """Advance the prompt that waits for longest by a chunk, and every request past its prompt by a verification."""
        prompts: list[tuple[ActiveRequest, Slot]] = []
        going: list[tuple[ActiveRequest, Slot]] = []
        for active in running:
            slot = active.slot
            if slot is not None and active.error is None:
                if active.shifts and active.is_full and not self._shift(active, slot):
                    continue
                (prompts if self._in_prompt(active, slot) else going).append((active, slot))
        if prompts:
            self._prefill(prompts)
        if going:
            self._decode(going)

    def _shift(self, active: ActiveRequest, slot: Slot) -> bool:
        """Make room in a full context; False when that failed for good."""
        n_keep = active.request.n_keep
        try:
            n_drop = slot.shift(n_keep)
        except SessionPoisonedError as error:
            active.error = error
            return False
        active.stats.shifts += 1
        log.info("the context of sequence %d is full: %d tokens behind the first %d go", slot.seq, n_drop, n_keep)
        if active.drafter is not None:
            try:
                followed = active.drafter.shift(slot.seq, active.history, n_keep, n_drop)
            except BaseException:
                active.deactivate("strategy-interrupted")
                raise
            if isinstance(followed, StrategyError):
                active.deactivate(f"strategy-error: {followed}")
            elif not followed:
                active.deactivate("context-shifted")
        return True

    # -- prompt -------------------------------------------------------------------------------------------------------

    def _in_prompt(self, active: ActiveRequest, slot: Slot) -> bool:
        """Evaluating a prompt, or replaying committed tokens after memory had to be cleared."""
        return active.stats.emitted == 0 or slot.n_pending > self._widest

    def _prefill(self, waiting: Sequence[tuple[ActiveRequest, Slot]]) -> None:
        """One chunk of the prompt that waits for longest, alone in its batch.

        Company would change how llama.cpp divides the batch among kernels, and with that the last bits of the logits.
        """
        active, slot = waiting[0]
        n_past, n_prompt = slot.n_past, active.stats.prompt_tokens
        # Replayed tokens are evaluated as they were at first: the prompt in wide chunks, generated ones in narrow ones.
        width = n_prompt - n_past if n_past < n_prompt else self._info.exact_width or self._info.n_batch
        width = min(width, self._info.n_batch)
        limits = self._checkpoints
        keeps = self._info.rollback is not Rollback.TRUNCATE and self._info.checkpoints and limits.count > 0
        if keeps and n_past < n_prompt - limits.tail:
            width = min(width, limits.interval, n_prompt - limits.tail - n_past)
        chunk = slot.tokens[n_past : n_past + width]
        work = [_Work(slot, chunk, n_outputs=int(len(chunk) == slot.n_pending), active=active)]
        self._run(work, "prompt", "prompt", drafting=active.drafter is not None)
        if keeps and active.error is None and n_past < slot.n_past <= n_prompt - limits.tail:
            started = self._clock()
            if (checkpoint := slot.save(limits)) is not None:
                active.stats.checkpoints += 1
                active.stats.checkpoint_bytes = max(active.stats.checkpoint_bytes, checkpoint.n_bytes)
            _charge(work, "checkpoint", self._clock() - started)
        progress = active.request.on_prompt_progress
        if progress is not None and active.error is None and active.stats.emitted <= 1:
            try:
                progress(slot.n_past, active.stats.prompt_tokens)
            except Exception as error:  # noqa: BLE001 -- the caller's own callback: its consumer gets the error
                active.error = error

    # -- drafting -----------------------------------------------------------------------------------------------------

    def _decode(self, going: Sequence[tuple[ActiveRequest, Slot]]) -> None:
        started = self._clock()
        work = [_Work(slot, slot.tokens[slot.n_past :], active=active) for active, slot in going]
        drafting = any(active.drafter is not None for active, _ in going)
        drafts, checkpoint_s = self._propose(work, started) if drafting else ((), 0.0)
        self._run(work, "target_submit", "target_wait", drafting=drafting, drafts=drafts, checkpoint_s=checkpoint_s)
        elapsed = self._clock() - started
        for w in work:
            w.active.stats.decode_s += elapsed

    def _propose(self, work: Sequence[_Work], started: float) -> tuple[Sequence[DraftCall], float]:
        """Decide what is verified; returns the calls of strategies, and the seconds that checkpoints took."""
        batch = [self._candidate(w, len(work)) for w in work]
        if not any(c.budget for c in batch):
            return (), 0.0
        asking = [(w, (c, n)) for w, c, n in zip(work, batch, self._scheduler.limits(batch), strict=True) if n]
        drafts = self._draft(asking)
        for w, c, n in zip(work, batch, self._scheduler.cut(batch), strict=True):
            w.verify(c.proposal[:n])
        drafted = self._clock()
        _charge(work, "draft", drafted - started)
        if self._info.rollback is Rollback.TRUNCATE:
            return drafts, 0.0
        self._checkpoint(work)
        checkpoint_s = self._clock() - drafted
        _charge(work, "checkpoint", checkpoint_s)
        return drafts, checkpoint_s

    def _candidate(self, w: _Work, n_sharing: int) -> Candidate:
        active = w.active
        return Candidate(
            seq=w.slot.seq,
            n_past=w.slot.n_past,
            n_rows=len(w.tokens),
            budget=0 if active.drafter is None else max(0, self._draft_budget(w, n_sharing)),
            checkpoint_over=None if self._info.rollback is Rollback.TRUNCATE else self._info.rollback_depth,
            fixed=active.request.draft_length,
        )

    def _draft_budget(self, w: _Work, n_sharing: int) -> int:
        """Most draft tokens that can be verified now: budget, context, batch, logits rows, exact width, rollback."""
        if len(w.tokens) > MAX_RIDING:
            return 0
        info = self._info
        budget = min(
            w.active.n_left - 1,
            info.n_batch // n_sharing - len(w.tokens),
            self._max_outputs // n_sharing - 1,
        )
        if info.exact_width is not None:
            budget = min(budget, info.exact_width - len(w.tokens))
        if info.rollback is Rollback.BOUNDED and not (info.checkpoints and w.active.checkpoints_work):
            budget = min(budget, info.rollback_depth)
        return budget

    def _draft(self, asking: Sequence[tuple[_Work, tuple[Candidate, int]]]) -> list[DraftCall]:
        """Put what strategies propose into the candidates."""
        calls: list[DraftCall] = []
        for drafter, group in _by_drafter(asking):
            requests = [DraftRequest(w.slot.seq, w.active.history, n) for w, (_, n) in group]
            started = self._clock()
            results = drafter.draft(requests)
            seconds, longest = self._clock() - started, 0
            for (w, (candidate, _)), result in zip(group, results, strict=True):
                w.active.asked = True
                if isinstance(result, StrategyError):
                    w.active.deactivate(f"strategy-error: {result}")
                elif result.parts:
                    candidate.proposal = self._take(w, result)
                    candidate.parts = w.parts
                    longest = max(longest, len(candidate.proposal))
            calls.append(DraftCall(seqs=[r.seq for r in requests], longest=longest, seconds=seconds))
        return calls

    def _take(self, w: _Work, proposal: Proposal) -> Sequence[int]:
        active = w.active
        active.stats.count_drafted(proposal.parts)
        for part in proposal.parts:
            if part.n_offered > part.n and not active.warned_overlong:
                active.warned_overlong = True
                log.warning(
                    "draft strategy %r proposed %d tokens where %d could be used; "
                    "what is over is dropped, this time and later",
                    part.strategy,
                    part.n_offered,
                    part.n,
                )
        if not proposal.ids or not active.allows(proposal.ids[0]):
            return ()
        w.parts = proposal.parts
        return proposal.ids

    def _checkpoint(self, work: Sequence[_Work]) -> None:
        """Save what could not be cut after a rejection; without room drafts get as short as can be cut, or end."""
        depth = self._info.rollback_depth if self._info.rollback is Rollback.BOUNDED else 0
        for w in work:
            if len(w.draft) <= depth:
                continue
            stats = w.active.stats
            try:
                w.checkpoint = self._target.checkpoint(w.slot.seq)
            except (BackendError, MemoryError) as error:
                w.verify(w.draft[:depth])
                if depth:
                    log.warning("no room for a checkpoint; drafts of this request end at %d tokens: %s", depth, error)
                    w.active.checkpoints_work = False
                else:
                    w.active.deactivate(f"checkpoint-failed: {error}")
                continue
            stats.checkpoints += 1
            stats.checkpoint_bytes = max(stats.checkpoint_bytes, w.checkpoint.n_bytes)

    # -- one batch ----------------------------------------------------------------------------------------------------

    def _run(
        self,
        work: Sequence[_Work],
        submit_phase: str,
        wait_phase: str,
        *,
        drafting: bool,
        drafts: Sequence[DraftCall] = (),
        checkpoint_s: float = 0.0,
    ) -> None:
        """Decode, verify, commit, reconcile, deliver, observe; memory then equals the committed prefix, always.

        ``drafting``: a request of the batch has a strategy. What concerns strategies alone is left out where none has:
        each evaluation drives Python out of the caches, so that a call that does nothing takes microseconds.
        """
        clock = self._clock
        n_context = sum([w.slot.n_past for w in work])
        transaction = Transaction(self._target, work)
        try:
            with transaction:
                t0 = clock()
                transaction.submit()
                t1 = clock()
                rows = self._target.logits()
                transaction.decoded = True
                t2 = clock()
                if drafting:
                    self._process(work)
                t3 = clock()
                self._verify(work, rows)
                t4 = clock()
        except Exception as error:  # noqa: BLE001 -- memory is reconciled; the requests of this batch get the error
            for w in work:
                w.active.error = w.active.error or error
        else:
            t5 = clock()
            for w in work:
                seconds = w.active.stats.seconds
                seconds[submit_phase] += t1 - t0
                seconds[wait_phase] += t2 - t1
                seconds["process"] += t3 - t2
                seconds["accept"] += t4 - t3
                seconds["rollback"] += t5 - t4
            prompt = submit_phase == "prompt"
            if drafting or prompt:
                self._scheduler.record(
                    StepReport(
                        n_rows=sum([len(w.tokens) + len(w.draft) for w in work]),
                        n_context=n_context,
                        target_s=t2 - t0,
                        process_s=t3 - t2,
                        accept_s=t4 - t3,
                        rollback_s=t5 - t4,
                        checkpoint_s=checkpoint_s,
                        n_checkpoints=sum([w.checkpoint is not None for w in work]) if checkpoint_s else 0,
                        drafts=drafts,
                        verified=[] if prompt else [_verified(w) for w in work],
                    )
                )
        finally:
            self._conclude(work, decoded=transaction.decoded, drafting=drafting)

    def _conclude(self, work: Sequence[_Work], *, decoded: bool, drafting: bool) -> None:
        """What holds after every batch, also one that was interrupted: all that was committed is counted and told."""
        for w in work:
            active = w.active
            if w.rollback is not None:
                active.stats.count_rollback(w.rollback)
            active.error = active.error or w.error
            active.deliver()
            if decoded and not w.processed and active.drafter is not None and active.drafter.processes:
                # It missed tokens that memory keeps: whatever it holds of this sequence is of no use any more.
                active.deactivate("strategy-interrupted")
        if drafting or self._observers:
            self._observe(work)

    def _process(self, work: Sequence[_Work]) -> None:
        if any(w.active.drafter is not None and w.active.drafter.processes for w in work):
            for drafter, group in _by_drafter(list(zip(work, self._target.decoded(), strict=True))):
                error = drafter.process([decoded for _, decoded in group])
                for w, _ in group:
                    w.processed = True
                    if error is not None:
                        w.active.deactivate(f"strategy-error: {error}")

    def _verify(self, work: Sequence[_Work], rows: Logits) -> None:
        offset = 0
        for w in work:
            n = w.n_outputs
            if n:
                try:
                    verify(w.active, w, rows, offset)
                except Exception as error:  # noqa: BLE001 -- a callback of this request raised; the others go on
                    w.active.error = error
            offset += n

    def _observe(self, work: Sequence[_Work]) -> None:
        """Tell strategies and observers what was committed."""
        seen = bool(self._observers)
        outcomes = [(w, _outcome(w)) for w in work if w.n_committed and (seen or w.active.drafter is not None)]
        for drafter, group in _by_drafter(outcomes):
            try:
                errors = drafter.observe([outcome for _, outcome in group])
            except BaseException:
                for w, _ in group:
                    w.active.deactivate("strategy-interrupted")
                raise
            for (w, _), error in zip(group, errors, strict=True):
                if error is not None:
                    w.active.deactivate(f"strategy-error: {error}")
        if seen:
            for _, outcome in outcomes:
                self._observers.step_finished(outcome)


def _verified(w: _Work) -> Verified:
    return Verified(seq=w.slot.seq, committed=w.slot.tokens[len(w.slot.tokens) - w.n_committed :])


def _outcome(w: _Work) -> Outcome:
    return Outcome(w.slot.seq, w.draft, w.n_matched, w.active.history, w.n_committed)


def _by_drafter(pairs: Sequence[tuple[_Work, _T]]) -> list[tuple[Drafter, list[tuple[_Work, _T]]]]:
    """Group by the drafter of each request, in order; requests without one are left out."""
    groups: list[tuple[Drafter, list[tuple[_Work, _T]]]] = []
    for pair in pairs:
        drafter = pair[0].active.drafter
        if drafter is None:
            continue
        for known, group in groups:
            if known is drafter:
                group.append(pair)
                break
        else:
            groups.append((drafter, [pair]))
    return groups


def _charge(work: Sequence[_Work], phase: str, seconds: float) -> None:
    for w in work:
        w.active.stats.seconds[phase] += seconds
