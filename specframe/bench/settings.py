"""What is measured: settings that both sides share, strategies, and texts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs

PROMPTS = Path(__file__).parent / "prompts"

#: Strategies of specframe, and what llama.cpp's server calls them.
PEERS = {"ngram-k": "ngram-map-k", "ngram-k4v": "ngram-map-k4v"}

#: The texts, in the order of the report.
WORKLOADS = ("code-rewrite", "log-extraction", "prose")

_VARIANT = re.compile(r"(?P<name>[a-z0-9-]+):n(?P<n>\d+)m(?P<m>\d+)")


@attrs.frozen(kw_only=True)
class Settings:
    """What is the same on both sides."""

    model: str
    library: str
    n_ctx: int = 4096
    n_batch: int = 2048
    n_ubatch: int = 512
    n_threads: int = 2
    max_tokens: int = 256
    warm_up_tokens: int = 16
    spin_count: int = 2000
    """``GOMP_SPINCOUNT``: idle OpenMP threads that spin longer starve whatever else wants the cores."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of both sides."""
        return {"OMP_NUM_THREADS": str(self.n_threads), "GOMP_SPINCOUNT": str(self.spin_count)}


@attrs.frozen
class Variant:
    """A way of generating that both sides know."""

    strategy: str = "none"
    n: int = 0
    m: int = 0
    min_hits: int = 1

    @classmethod
    def parse(cls, text: str) -> Variant:
        """Read ``plain`` or ``ngram-k:n12m48``. Raises ValueError that says what is possible."""
        if text == "plain":
            return cls()
        found = _VARIANT.fullmatch(text)
        if found is None or found["name"] not in PEERS:
            raise ValueError(f"{text!r} is no strategy; write plain, or {' or '.join(f'{s}:n12m48' for s in PEERS)}")
        return cls(found["name"], int(found["n"]), int(found["m"]))

    @property
    def label(self) -> str:
        """As :meth:`parse` reads it."""
        return "plain" if self.strategy == "none" else f"{self.strategy}:n{self.n}m{self.m}"

    @property
    def options(self) -> dict[str, int]:
        """Options of specframe's strategy."""
        return {} if self.strategy == "none" else {"n": self.n, "m": self.m, "min_hits": self.min_hits}


VARIANTS = tuple(
    Variant.parse(text) for text in ("plain", "ngram-k:n12m48", "ngram-k:n8m16", "ngram-k4v:n12m48", "ngram-k4v:n8m16")
)


@attrs.frozen(kw_only=True)
class Job:
    """What one worker process does: load, warm up on another text, generate once."""

    settings: Settings
    variant: Variant
    prompt: str
    warm_up: str

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return attrs.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Job:
        """Read :meth:`to_dict` back."""
        return cls(**{**data, "settings": Settings(**data["settings"]), "variant": Variant(**data["variant"])})


@attrs.frozen(kw_only=True)
class Measurement:
    """What one worker process found."""

    library: str
    text: str
    prompt_tokens: int
    tokens: int
    tokens_per_second: float
    """Tokens after the first one over the time after the first one."""
    ttft_s: float
    wall_s: float
    """The whole request as the caller sees it: tokenising, prompt, generation, text."""
    load_s: float
    drafted: int = 0
    accepted: int = 0


def text_of(workload: str) -> str:
    """The prompt called ``workload``. Raises ValueError that names those there are."""
    path = PROMPTS / f"{workload}.txt"
    if not path.is_file():
        raise ValueError(f"there is no prompt {workload!r}; there are {', '.join(sorted(workloads()))}")
    return path.read_text(encoding="utf-8").rstrip("\n")


def workloads() -> list[str]:
    """Names of the prompts that can be measured."""
    return [path.stem for path in PROMPTS.glob("*.txt") if path.stem != "warm-up"]
