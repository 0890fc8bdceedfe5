"""Everything one run found, and the machine it ran on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import attrs

from specframe.bench import goals
from specframe.bench.comparison import Cell, lossless
from specframe.bench.drafting import DraftCost, growth
from specframe.bench.goals import Goal
from specframe.bench.orchestration import Cost
from specframe.bench.settings import Settings
from specframe.bench.turns import TurnCost


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
        "xllamacpp": importlib.metadata.version("xllamacpp"),
    }


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
    comparison: list[Cell] = attrs.field(factory=list)
    orchestration: dict[str, list[Cost]] = attrs.field(factory=dict)
    """By model."""
    drafting: list[DraftCost] = attrs.field(factory=list)
    turns: list[TurnCost] = attrs.field(factory=list)

    @property
    def goals(self) -> list[Goal]:
        """Every goal that what was measured speaks to."""
        return [
            *goals.of_comparison(self.comparison),
            *(goal for model, costs in self.orchestration.items() for goal in goals.of_orchestration(model, costs)),
            *goals.of_drafting(self.drafting),
            *goals.of_turns(self.turns),
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
            "comparison": [cell.to_dict() for cell in self.comparison],
            "text_differs_from_plain_at": lossless(self.comparison),
            "orchestration": {model: [attrs.asdict(c) for c in costs] for model, costs in self.orchestration.items()},
            "drafting": [attrs.asdict(cost) for cost in self.drafting],
            "drafting_growth": {
                name: growth([c for c in self.drafting if c.strategy == name])
                for name in dict.fromkeys(c.strategy for c in self.drafting)
            },
            "turns": [attrs.asdict(cost) for cost in self.turns],
            "goals": [attrs.asdict(goal) | {"met": goal.met} for goal in self.goals],
        }
