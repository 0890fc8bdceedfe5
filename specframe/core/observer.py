"""Watching an engine without being part of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from specframe.core.request import Completion, Request
from specframe.core.strategy import Outcome

log = logging.getLogger(__name__)


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


class Observers(Observer):
    """Several observers as one, none of which can disturb a request."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._all = list(observers)

    def __bool__(self) -> bool:
        return bool(self._all)

    def request_started(self, seq: int, request: Request, n_cached: int) -> None:
        """Tell all."""
        self._tell(lambda observer: observer.request_started(seq, request, n_cached))

    def step_finished(self, outcome: Outcome) -> None:
        """Tell all."""
        self._tell(lambda observer: observer.step_finished(outcome))

    def request_finished(self, seq: int, completion: Completion) -> None:
        """Tell all."""
        self._tell(lambda observer: observer.request_finished(seq, completion))

    def _tell(self, call: Callable[[Observer], None]) -> None:
        for observer in list(self._all):
            try:
                call(observer)
            except Exception:
                log.exception("observer %r raised and is left out from now on", observer)
                self._all.remove(observer)
