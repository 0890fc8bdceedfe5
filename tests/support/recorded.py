"""Strategies whose drafts are recorded with the text they continue, and schedulers that make strategies wait."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from specframe.core.scheduler import Candidate, SchedulerStats, Unlimited
from specframe.core.strategy import BatchStrategy, DraftRequest


class Recording(BatchStrategy):
    """Remembers every draft with what it continues; mixed in before a strategy."""

    drafts: list[tuple[tuple[int, ...], tuple[int, ...]]]

    def draft(self, requests: Sequence[DraftRequest]) -> Sequence[Sequence[int]]:
        if not hasattr(self, "drafts"):
            self.drafts = []
        results = super().draft(requests)  # type: ignore[safe-super]
        for request, result in zip(requests, results, strict=True):
            self.drafts.append((tuple(request.history[:]), tuple(result)))
        return results


@functools.cache
def recording(cls: type[BatchStrategy]) -> type[BatchStrategy]:
    """``cls``, recorded."""
    return type(f"Recording{cls.__name__}", (Recording, cls), {"name": f"recording-{cls.name}"})


class Pausing(Unlimited):
    """A draft after 5, 10, 15, ... plain steps."""

    def begin(self, seq: int, strategy: str, stats: SchedulerStats) -> None:
        super().begin(seq, strategy, stats)
        self.pause, self.left = 0, 0

    def limits(self, batch: Sequence[Candidate]) -> list[int]:
        if self.left:
            self.left -= 1
            return [0] * len(batch)
        self.pause += 5
        self.left = self.pause
        return super().limits(batch)


class Never(Unlimited):
    """Asks for no drafts at all."""

    def limits(self, batch: Sequence[Candidate]) -> list[int]:
        return [0] * len(batch)
