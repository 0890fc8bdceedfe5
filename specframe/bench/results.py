"""Everything one run found, and the machine it ran on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import attrs

from specframe.backends.llama.audit import Audit
from specframe.backends.llama.declarations import pin
from specframe.bench import goals
from specframe.bench.answers import CheckpointCost, TurnCost, Verdict
from specframe.bench.comparison import Comparison
from specframe.bench.drafting import DraftCost, growth
from specframe.bench.goals import Goal
from specframe.bench.orchestration import Cost
from specframe.bench.settings import Settings


def load() -> float | None:
    """Jobs that wanted a core in the last minute; None where the system does not tell."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def machine() -> dict[str, Any]:
    """Facts that a reader needs to compare with a machine of theirs."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "specframe": importlib.metadata.version("specframe"),
        "llama.cpp": pin().tag,
        "xllamacpp": _version("xllamacpp"),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _cpu(info: Path = Path("/proc/cpuinfo")) -> str:
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


@attrs.define(kw_only=True)
class Results:
    """What was measured; parts that were left out are empty."""

    settings: Settings
    repeat: int
    machine: dict[str, Any] = attrs.field(factory=machine)
    load_before: float | None = attrs.field(factory=load)
    load_after: float | None = None
    comparison: Comparison = attrs.field(factory=Comparison)
    orchestration: dict[str, list[Cost]] = attrs.field(factory=dict)
    """By model."""
    drafting: list[DraftCost] = attrs.field(factory=list)
    turns: list[TurnCost] = attrs.field(factory=list)
    verified: list[Verdict] = attrs.field(factory=list)
    checkpoints: list[CheckpointCost] = attrs.field(factory=list)
    audit: Audit | None = None
    remarks: list[str] = attrs.field(factory=list)
    """What was left out, and why."""
    failed_parts: list[str] = attrs.field(factory=list)
    """What went wrong while other parts than the comparison were measured."""

    @property
    def failures(self) -> list[str]:
        """Everything that was to be measured and could not be."""
        return [*self.comparison.failures, *self.failed_parts]

    @property
    def goals(self) -> list[Goal]:
        """Every goal that what was measured speaks to."""
        return [
            *goals.of_comparison(self.comparison, self.audit),
            *(goal for model, costs in self.orchestration.items() for goal in goals.of_orchestration(model, costs)),
            *goals.of_drafting(self.drafting),
            *goals.of_turns(self.turns),
            *goals.of_verified(self.verified, self.audit),
        ]

    @property
    def busy(self) -> bool:
        """Whether other jobs wanted the cores when the run started: then only the ratios mean something."""
        return (self.load_before or 0.0) > 0.5  # noqa: PLR2004 -- half a core

    def to_dict(self) -> dict[str, Any]:
        """Everything, JSON-ready."""
        return {
            "machine": self.machine,
            "load_average": {"before": self.load_before, "after": self.load_after},
            "settings": attrs.asdict(self.settings),
            "repeat": self.repeat,
            "comparison": [row.to_dict() for row in self.comparison.rows],
            "failures": self.failures,
            "orchestration": {model: [attrs.asdict(c) for c in costs] for model, costs in self.orchestration.items()},
            "drafting": [attrs.asdict(cost) for cost in self.drafting],
            "drafting_growth": {
                name: growth([c for c in self.drafting if c.strategy == name])
                for name in dict.fromkeys(c.strategy for c in self.drafting)
            },
            "turns": [attrs.asdict(cost) for cost in self.turns],
            "verified": [attrs.asdict(each) for each in self.verified],
            "checkpoints": [attrs.asdict(cost) for cost in self.checkpoints],
            "audit": None if self.audit is None else self.audit.to_dict(),
            "goals": [attrs.asdict(goal) | {"met": goal.met} for goal in self.goals],
            "remarks": self.remarks,
        }
