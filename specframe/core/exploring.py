"""What a scheduler may spend on trying out what does not pay as far as is known."""

from __future__ import annotations

import attrs

#: Share of the time that may be spent on trying.
EXPLORING = 0.01
#: The same, when a draft model that is tried has to go through what it missed, for that and for all other trying.
CATCHING_UP = 0.02
#: In plain steps: what may be spent on trying before any time has passed, and what can be saved up for it, or be spent
#: on catching up beyond its share.
_FIRST_CREDIT = 3.0
_MOST_CREDIT = 10.0


@attrs.define
class ExploringBudget:
    """Time earned by decoding, and spent on what is expected to lose it."""

    _credit_s: float | None = None
    """None: nothing was measured yet."""
    _elapsed_s: float = 0.0
    _tried_s: float = 0.0
    """Of it, what was spent on trying, catching up included."""

    def passed(self, seconds: float) -> None:
        """Time went by in which nothing is earned: a prompt was evaluated."""
        self._elapsed_s += seconds

    def earn(self, took_s: float, *, plain_s: float) -> None:
        """A step took ``took_s``; a plain one takes ``plain_s``."""
        credit_s = _FIRST_CREDIT * plain_s if self._credit_s is None else self._credit_s
        self._credit_s = min(_MOST_CREDIT * plain_s, credit_s + EXPLORING * took_s)
        self._elapsed_s += took_s

    def spend(self, seconds: float) -> bool:
        """Try something that is expected to lose this much; False when that cannot be afforded."""
        if self._credit_s is None or self._credit_s < seconds:
            return False
        self.pay(max(0.0, seconds))
        return True

    def may_try(self, catching_up_s: float, *, plain_s: float) -> bool:
        """Whether something may be tried, whatever it takes, for which a draft model catches up first."""
        most_s = CATCHING_UP * self._elapsed_s + _MOST_CREDIT * plain_s
        affordable = not catching_up_s or self._tried_s + catching_up_s <= most_s
        return self._credit_s is not None and self._credit_s > 0 and affordable

    def pay(self, seconds: float) -> None:
        """What was tried is expected to lose this much."""
        self._credit_s = (self._credit_s or 0.0) - seconds
        self._tried_s += seconds

    def caught_up(self, seconds: float) -> None:
        """A draft model went through what it missed."""
        self._tried_s += seconds
