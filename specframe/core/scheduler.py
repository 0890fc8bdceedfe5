"""How long the next draft may be.

A draft that is rejected costs the rows it filled, so length follows what was accepted lately.
"""

from __future__ import annotations

from typing import Protocol


class DraftScheduler(Protocol):
    """Decides the draft length of one request; one object per request."""

    def limit(self, budget: int) -> int:
        """Tokens to draft now, at most ``budget``; 0 makes this a plain step and the strategy is not asked."""
        ...

    def record(self, n_verified: int, n_accepted: int) -> None:
        """One non-empty draft was verified."""
        ...


class Unlimited:
    """Always the whole budget: what the strategy proposes is verified."""

    def limit(self, budget: int) -> int:
        """The whole budget."""
        return budget

    def record(self, n_verified: int, n_accepted: int) -> None:
        """Nothing is learnt from it."""


class Adaptive:
    """Length follows acceptance: four times longer after a draft wholly accepted, else twice what was accepted.

    Drafts wholly rejected shrink it and are followed by a pause in which the strategy is not even asked. The pause
    doubles with each rejected draft in a row, and drafts shrink to a single token, so a strategy that is always wrong
    costs one extra row now and then.
    """

    START = 8
    """Longest first draft, in tokens."""
    MAX_PAUSE = 128
    """Longest pause, in steps."""
    PATIENCE = 2
    """Wholly rejected drafts in a row before the first pause."""

    def __init__(self) -> None:
        self._cap = self.START
        self._rejected = 0
        self._pause = 0

    def limit(self, budget: int) -> int:
        """0 during a pause, else at most the current cap."""
        if self._pause:
            self._pause -= 1
            return 0
        return min(budget, self._cap)

    def record(self, n_verified: int, n_accepted: int) -> None:
        """Adapt the cap, start or end pauses."""
        if n_accepted == 0:
            self._rejected += 1
            self._cap = max(1, n_verified // 4)
            if self._rejected >= self.PATIENCE:
                self._pause = min(self.MAX_PAUSE, 1 << self._rejected)
            return
        self._rejected = 0
        self._cap = 4 * n_verified if n_accepted == n_verified else 2 * n_accepted + 1
