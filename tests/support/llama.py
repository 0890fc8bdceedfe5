"""Short hands for tests on llama.cpp models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from specframe.backends.llama.model import Model
from specframe.backends.llama.target import LlamaTarget
from specframe.core.ports import BatchEntry, Logits

Zoo = Callable[[str], Path]


@contextmanager
def target(path: Path, **options: Any) -> Iterator[LlamaTarget]:
    """A small target on one thread; closed together with its model."""
    with Model(path) as model, LlamaTarget(model, **{"n_ctx": 512, "n_threads": 1, **options}) as opened:
        yield opened


def feed(target: LlamaTarget, tokens: Sequence[int], *, seq: int = 0, rows: int | None = None) -> Logits:
    """Append ``tokens`` in one decode; a copy of their logits."""
    n_rows = len(tokens) if rows is None else rows
    target.decode([BatchEntry(seq, target.n_past(seq), tokens, n_rows)])
    return np.array(target.logits())


def tokens(n: int, *, seed: int = 0, below: int = 250) -> list[int]:
    """Any ``n`` tokens."""
    return [int(token) for token in np.random.default_rng(seed).integers(0, below, n)]
