"""Failures on demand: which call fails, how, and whether it had taken effect."""

from __future__ import annotations

import enum
from collections import Counter
from typing import Any, Literal, TypeAlias

import attrs

from specframe.core.errors import BackendError

#: Calls of a scripted target (and of its samplers) that can be made to fail.
Operation: TypeAlias = Literal[
    "decode",
    "logits",
    "truncate",
    "checkpoint",
    "restore",
    "clear",
    "shift",
    "save_state",
    "load_state",
    "sample",
    "accept",
]


class When(enum.Enum):
    """How far a failing call gets."""

    BEFORE = "before"
    """Nothing happened."""
    PARTIAL = "partial"
    """Only decode: the first ``Fault.n_tokens`` tokens of the batch are in memory. Other calls: as BEFORE."""
    AFTER = "after"
    """Everything happened, then it failed."""


@attrs.frozen(kw_only=True)
class Fault:
    """One failure, used up when it strikes."""

    call: Operation
    at: int = 1
    """Strikes the ``at``-th such call counted from the moment the fault is injected."""
    error: BaseException | type[BaseException] = BackendError
    when: When = When.BEFORE
    n_tokens: int = 1

    def make(self) -> BaseException:
        """The exception to raise."""
        if isinstance(self.error, BaseException):
            return self.error
        return self.error(f"injected into {self.call}")


@attrs.frozen
class Call:
    """One call a scripted target received."""

    operation: str
    seq: int | None
    detail: Any = None


@attrs.define
class FaultPlan:
    """Faults that are still to come, counted per operation."""

    _pending: list[tuple[int, Fault]] = attrs.field(factory=list)
    _counts: Counter[str] = attrs.field(factory=Counter)

    def inject(self, fault: Fault) -> None:
        """Arm ``fault``; its count starts now."""
        self._pending.append((self._counts[fault.call] + fault.at, fault))

    def disarm(self) -> None:
        """Forget every fault that has not struck."""
        self._pending.clear()

    @property
    def armed(self) -> int:
        """Faults that have not struck yet."""
        return len(self._pending)

    def due(self, call: str) -> Fault | None:
        """Count one call and return the fault that strikes it, if any."""
        self._counts[call] += 1
        for entry in self._pending:
            number, fault = entry
            if fault.call == call and number == self._counts[call]:
                self._pending.remove(entry)
                return fault
        return None
