"""Per-request statistics: what was drafted, verified and accepted, and where the time went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from specframe.core.proposal import Part, credit
from specframe.core.scheduler import SchedulerStats

#: Phases that are timed, in the order of a step.
PHASES = ("prompt", "draft", "checkpoint", "target_submit", "target_wait", "process", "accept", "rollback")


@attrs.define(kw_only=True)
class StrategyStats:
    """What one strategy contributed to a request."""

    draft_steps: int = 0
    """Steps that verified tokens of it."""
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    """As in :class:`RequestStats`, whose counters are the sums of these."""
    ended: str | None = None
    """Why it left a combination before the request was over; None: it did not."""


@attrs.define(kw_only=True)
class RequestStats:
    """Counters of one request; ``emitted == steps + accepted_emitted`` and ``accepted <= verified <= drafted`` hold.

    Seconds of a phase are wall time of the batches this request took part in, so with several sequences in one batch
    each of them is charged the whole batch.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens found in memory and not evaluated again."""
    steps: int = 0
    """Target decodes that emitted at least one token (the last prompt chunk included)."""
    draft_steps: int = 0
    """Steps that verified a non-empty draft."""
    drafted: int = 0
    """Tokens the strategy proposed."""
    verified: int = 0
    """Draft tokens that were in a target batch."""
    accepted: int = 0
    """Draft tokens the target agreed with."""
    accepted_emitted: int = 0
    """Tokens emitted beyond the first one of each step: what drafting gained."""
    emitted: int = 0
    """Tokens generated, an end-of-generation token included."""
    verified_per_position: list[int] = attrs.field(factory=list)
    """``[i]``: drafts of more than ``i`` tokens that were verified."""
    accepted_per_position: list[int] = attrs.field(factory=list)
    """``[i]``: those of them whose token at ``i`` was accepted."""
    strategy_reason: str = ""
    """Why this strategy drafted: it was asked for, or what ``auto`` found."""
    draft_length: int | None = None
    """Draft length the request asked for; 0: off, None: auto, ``scheduler`` says what came of it."""
    rollback_means: str = ""
    """How this target takes a rejected draft back: ``TargetInfo.rollback_means``."""
    strategies: dict[str, StrategyStats] = attrs.field(factory=dict)
    """What each strategy that guessed something contributed, by its label: name and options."""
    rollbacks: dict[str, int] = attrs.field(factory=dict)
    """Rollbacks by the means used: truncate, bounded, snapshot, replay."""
    checkpoints: int = 0
    """Checkpoints taken, of the prompt and before verifications; their seconds are the phase ``checkpoint``."""
    checkpoint_bytes: int = 0
    """Size of the largest checkpoint taken."""
    restores: int = 0
    """Checkpoints restored: for the prompt, after rejections and after failures."""
    restore_s: float = 0.0
    """Seconds of that; after a rejection they are a part of the phase ``rollback``."""
    shifts: int = 0
    """Times the context was full and a part of it was dropped."""
    seconds: dict[str, float] = attrs.field(factory=lambda: dict.fromkeys(PHASES, 0.0))
    """Seconds by phase, see ``PHASES``."""
    ttft_s: float | None = None
    """Submission to first token."""
    decode_s: float = 0.0
    """First token to last token, time in which the engine was not running this request excluded."""
    total_s: float = 0.0
    """Submission to end."""
    seed: int | None = None
    """The seed that was used, given or drawn."""
    scheduler: SchedulerStats = attrs.field(factory=SchedulerStats)
    """What was decided about drafts, and why; empty for a plain request."""
    inactive_reason: str | None = None
    """Why no drafting took place (or why it ended); None while it is active."""

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / verified."""
        return self.accepted / self.verified if self.verified else None

    @property
    def mean_accepted_length(self) -> float | None:
        """Mean tokens per step that verified a draft: the accepted ones plus the bonus token (vLLM's definition)."""
        return 1 + self.accepted / self.draft_steps if self.draft_steps else None

    @property
    def acceptance_per_position(self) -> list[float]:
        """Share of verified drafts whose token at each position was accepted."""
        return [a / v for a, v in zip(self.accepted_per_position, self.verified_per_position, strict=True)]

    @property
    def tokens_per_second(self) -> float | None:
        """Generation speed once the first token is there, engine time only."""
        return (self.emitted - 1) / self.decode_s if self.decode_s > 0 and self.emitted > 1 else None

    @property
    def sustained_tokens_per_second(self) -> float | None:
        """Tokens over the whole life of the request: queueing, prompt and pauses included."""
        return self.emitted / self.total_s if self.total_s > 0 else None

    def of(self, strategy: str) -> StrategyStats:
        """The part of the strategy with this label, made when it is asked for first."""
        if (stats := self.strategies.get(strategy)) is None:
            stats = self.strategies[strategy] = StrategyStats()
        return stats

    def count_drafted(self, parts: Sequence[Part]) -> None:
        """Record what was proposed."""
        for part in parts:
            self.drafted += part.n_offered
            self.of(part.strategy).drafted += part.n_offered

    def count_verified(self, parts: Sequence[Part], n_verified: int, n_accepted: int) -> None:
        """Record the verification of one non-empty draft, the first ``n_verified`` tokens of ``parts``."""
        for part, verified, accepted in credit(parts, n_verified, n_accepted):
            if verified:
                own = self.of(part.strategy)
                own.draft_steps += 1
                own.verified += verified
                own.accepted += accepted
        self.draft_steps += 1
        self.verified += n_verified
        self.accepted += n_accepted
        grow = n_verified - len(self.verified_per_position)
        if grow > 0:
            self.verified_per_position.extend([0] * grow)
            self.accepted_per_position.extend([0] * grow)
        for i in range(n_verified):
            self.verified_per_position[i] += 1
        for i in range(n_accepted):
            self.accepted_per_position[i] += 1

    def count_rollback(self, means: str) -> None:
        """Record one rollback by the means used."""
        self.rollbacks[means] = self.rollbacks.get(means, 0) + 1

    def to_dict(self) -> dict[str, Any]:
        """Everything, JSON-ready, derived figures included."""
        derived = (
            "acceptance_rate",
            "mean_accepted_length",
            "acceptance_per_position",
            "tokens_per_second",
            "sustained_tokens_per_second",
        )
        return attrs.asdict(self) | {name: getattr(self, name) for name in derived}
