"""Watching an engine without being part of it."""

from __future__ import annotations

from specframe.core.request import Completion, Request
from specframe.core.strategy import Outcome


class Observer:
    """Base class with empty methods; override what you want to see. An observer that raises is reported and left out.

    Called on the thread that runs the step; keep it short.
    """

    def request_started(self, seq: int, request: Request, n_cached: int) -> None:
        """``request`` got the sequence ``seq``; ``n_cached`` prompt tokens were found in memory."""

    def step_finished(self, outcome: Outcome) -> None:
        """One step of one sequence was committed."""

    def request_finished(self, seq: int, completion: Completion) -> None:
        """The request on ``seq`` is over."""
