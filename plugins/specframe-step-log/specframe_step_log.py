"""An observer that logs every verification, and a strategy made from a plain function to try it with."""

import logging
from collections.abc import Sequence
from typing import Any

import specframe

log = logging.getLogger(__name__)


class StepLog(specframe.Observer):
    """Log at level DEBUG what each step drafted and kept."""

    def step_finished(self, outcome: specframe.Outcome) -> None:
        """One line per step of one sequence."""
        log.debug(
            "sequence %d: %d of %d draft tokens accepted, %d tokens committed",
            outcome.seq,
            outcome.n_accepted,
            len(outcome.drafted),
            outcome.n_committed,
        )


@specframe.draft_strategy("repeat-last")
def repeat_last(request: specframe.DraftRequest) -> Sequence[int]:
    """Guess that the last token is said again."""
    return [request.history[-1]] * min(request.budget, 4)


@specframe.hookimpl
def specframe_register_observers(register: Any) -> None:
    """Every engine builds a StepLog of its own."""
    register(StepLog)


@specframe.hookimpl
def specframe_register_strategies(register: Any) -> None:
    """Offer the function as a strategy."""
    register(repeat_last)
