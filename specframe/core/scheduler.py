"""How much of what strategies guess is verified: the contract of a scheduler, and the one that verifies all of it.

There are two decisions in a step. Before anybody drafts: who is asked, and for how many tokens. Afterwards, when the
drafts are known: how many tokens of each are worth their row in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

import attrs

from specframe.core.proposal import Part

#: Why a step verified as many draft tokens as it did.
Reason: TypeAlias = Literal[
    "pays",
    "explores",  # a width that may cost less than is known
    "does-not-pay",
    "not-asked",  # what drafting takes would not pay either, or the drafts before were far from it
    "nothing-proposed",
    "no-room",
    "fixed",  # the request asked for a length
    "all",  # nobody chose
]


@attrs.define(kw_only=True)
class SchedulerStats:
    """What a scheduler did for one request, and the figures behind its latest decision."""

    lengths: dict[int, int] = attrs.field(factory=dict)
    """Draft tokens verified in a step -> number of such steps; plain steps are those of length 0."""
    reasons: dict[Reason, int] = attrs.field(factory=dict)
    """Why a step was as long as it was -> number of such steps."""
    expected_plain: float | None = None
    """Tokens per second the whole batch was expected to make without drafts, at the latest decision that had one."""
    expected_drafted: float | None = None
    """The same for the lengths with the most, of those that draft at all; they were chosen if that is clearly more."""

    @property
    def declined(self) -> bool:
        """A draft could have been verified, and was not worth it."""
        return not {"does-not-pay", "not-asked"}.isdisjoint(self.reasons)

    def count(self, length: int, reason: Reason) -> None:
        """One more step."""
        self.lengths[length] = self.lengths.get(length, 0) + 1
        self.reasons[reason] = self.reasons.get(reason, 0) + 1


@attrs.define(kw_only=True, eq=False)
class Candidate:
    """One sequence of the coming batch."""

    seq: int
    n_past: int
    """Tokens its memory holds."""
    n_rows: int
    """Committed tokens the batch evaluates of it in any case."""
    budget: int = 0
    """Most draft tokens that could be verified; 0: it has no strategy, or no room."""
    checkpoint_over: int | None = None
    """A draft of more tokens needs a checkpoint; None: none does."""
    fixed: int | None = None
    """Its request asked for drafts of this many tokens, whatever they cost."""
    proposal: Sequence[int] = ()
    """What its strategy proposed, at most ``budget`` tokens."""
    parts: Sequence[Part] = ()
    """Which members of a combination proposed what of it, in order; one part when it is a single strategy."""


@attrs.define(kw_only=True, eq=False)
class DraftCall:
    """One call of a strategy, for one or several sequences that share it."""

    seqs: Sequence[int]
    longest: int
    """Tokens of the longest proposal."""
    seconds: float


@attrs.define(kw_only=True, eq=False)
class Verified:
    """What a step committed of one sequence."""

    seq: int
    committed: Sequence[int]
    """Tokens it appended."""


@attrs.define(kw_only=True, eq=False)
class StepReport:
    """What one target batch was and what it took, in seconds; ``verified`` is empty for a chunk of a prompt."""

    n_rows: int
    n_context: int
    """Tokens in memory before it, over all sequences of the batch."""
    target_s: float
    """Submitting it, and waiting for the logits."""
    process_s: float = 0.0
    """Strategies looking at what was decoded."""
    accept_s: float = 0.0
    """Sampling and committing."""
    rollback_s: float = 0.0
    """Dropping what was rejected."""
    checkpoint_s: float = 0.0
    n_checkpoints: int = 0
    drafts: Sequence[DraftCall] = ()
    verified: Sequence[Verified] = ()


class DraftScheduler(Protocol):
    """Decides draft lengths for all requests of one engine. Between ``begin`` and ``end`` a sequence has a strategy."""

    def begin(self, seq: int, strategy: str, stats: SchedulerStats) -> None:
        """A request that drafts with ``strategy`` starts on ``seq``; what is decided for it is told in ``stats``."""
        ...

    def limits(self, batch: Sequence[Candidate]) -> Sequence[int]:
        """Before drafting: most tokens to ask each strategy for, at most ``budget``; 0: it is not asked."""
        ...

    def cut(self, batch: Sequence[Candidate]) -> Sequence[int]:
        """After drafting: how many tokens of each ``proposal`` are verified."""
        ...

    def record(self, report: StepReport) -> None:
        """A batch was evaluated, verified and committed.

        Not told of batches that failed, and of those in which no request has a strategy only of chunks of prompts.
        """
        ...

    def end(self, seq: int) -> None:
        """The request on ``seq`` drafts no more."""
        ...


class Unlimited:
    """What strategies propose is verified, all of it, up to the length a request asked for."""

    def __init__(self) -> None:
        self._stats: dict[int, SchedulerStats] = {}

    def begin(self, seq: int, strategy: str, stats: SchedulerStats) -> None:  # noqa: ARG002 -- all are alike
        """Count for ``stats`` from now on."""
        self._stats[seq] = stats

    def limits(self, batch: Sequence[Candidate]) -> list[int]:
        """The whole budget."""
        return [c.budget if c.fixed is None else min(c.budget, c.fixed) for c in batch]

    def cut(self, batch: Sequence[Candidate]) -> list[int]:
        """Everything."""
        for c in batch:
            if (stats := self._stats.get(c.seq)) is not None:
                stats.count(len(c.proposal), reason_without_choice(c))
        return [len(c.proposal) for c in batch]

    def record(self, report: StepReport) -> None:
        """Nothing is learnt from it."""

    def end(self, seq: int) -> None:
        """Nothing to count any more."""
        self._stats.pop(seq, None)


def reason_without_choice(candidate: Candidate) -> Reason:
    """Reason code of a step whose length no figures decided."""
    if candidate.budget == 0:
        return "no-room"
    if not candidate.proposal:
        return "nothing-proposed"
    return "all" if candidate.fixed is None else "fixed"
