"""What is the same for all sides, what a worker process is told, and what it answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import attrs

from specframe.bench.sides import Side
from specframe.core.stats import PHASES

#: For each token of a text: the most probable ones there, best first, and how far they were from the best.
Margins: TypeAlias = Sequence[Sequence[tuple[int, float]]]


@attrs.frozen(kw_only=True)
class Settings:
    """What is the same on both sides."""

    model: str
    library: str | None = None
    """None: the one that is found first."""
    n_ctx: int = 4096
    n_batch: int = 2048
    n_ubatch: int = 512
    n_threads: int = 2
    n_gpu_layers: int | None = None
    type_k: str = "f16"
    type_v: str = "f16"
    numerics: Literal["auto", "exact", "fast"] = "auto"
    max_tokens: int = 256
    temperature: float = 0.0
    seed: int = 1
    warm_up_tokens: int = 16
    same_text: bool = False
    """The server is held to the text of our plain decoding."""
    spin_count: int = 2000
    """``GOMP_SPINCOUNT``: idle OpenMP threads that spin longer starve whatever else wants the cores."""

    @property
    def memory(self) -> str:
        """Formats of keys and values, for people; empty: the usual ones."""
        usual = self.type_k == self.type_v == "f16"
        return "" if usual else f"{self.type_k} keys and {self.type_v} values"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of all sides."""
        return {"OMP_NUM_THREADS": str(self.n_threads), "GOMP_SPINCOUNT": str(self.spin_count)}


@attrs.frozen(kw_only=True)
class Job:
    """What one worker process does: load, warm up on another text, do its task once."""

    settings: Settings
    side: Side
    prompt: str
    warm_up: str
    text: str | None = None
    """What the server is held to; None: it writes its own."""
    task: str = "generate"
    """``generate``; ``margins``, how clear each token of a plain run was; ``turns``, two turns of a chat;
    ``verify``, every token judged by plain decoding;
    ``audit`` and ``checkpoints``, what they cost. Each is a module with a function ``measure(job)``.
    """

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return attrs.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Job:
        """Read :meth:`to_dict` back."""
        return cls(**{**data, "settings": Settings(**data["settings"]), "side": Side(**data["side"])})


def _ids(value: Iterable[int]) -> tuple[int, ...]:
    return tuple(value)


@attrs.frozen(kw_only=True)
class Measurement:
    """One generation."""

    library: str
    text: str
    tokens: tuple[int, ...] = attrs.field(default=(), converter=_ids)
    """Token ids; the server does not tell them."""
    prompt_tokens: int
    n_tokens: int
    tokens_per_second: float
    """Tokens after the first one over the time after the first one."""
    ttft_s: float
    wall_s: float
    """The whole request as the caller sees it: tokenising, prompt, generation, text."""
    load_s: float
    drafted: int = 0
    """Draft tokens that were verified."""
    accepted: int = 0
    rollback: str = ""
    """How memory is brought back after a rejection; empty: not told."""
    peak_ram_bytes: int | None = None
    """Of the process, what is mapped of the model's file included."""
    vram_bytes: int | None = None
    """Device memory taken between the start and the end; None: there is no device that tells."""
    stats: Mapping[str, Any] = attrs.field(factory=dict)
    """``RequestStats.to_dict()``; the server has none."""

    @property
    def sustained(self) -> float:
        """Tokens per second over the whole request."""
        return self.n_tokens / self.wall_s if self.wall_s else 0.0

    @property
    def ms_per_step(self) -> dict[str, float]:
        """Milliseconds by phase, per step; the prompt is no part of a step."""
        steps = max(1, self.stats.get("steps", 0) - 1)
        seconds = self.stats.get("seconds", {})
        return {phase: seconds[phase] / steps * 1e3 for phase in PHASES if phase in seconds and phase != "prompt"}
