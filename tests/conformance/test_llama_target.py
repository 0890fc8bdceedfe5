"""The llama.cpp target keeps the contract on every kind of memory it has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specframe.backends.llama.model import Model
from specframe.backends.llama.target import LlamaTarget
from specframe.core.ports import Rollback
from specframe.testing import check_backend


@pytest.mark.parametrize(
    ("name", "options", "rollback"),
    [
        ("llama", {}, Rollback.TRUNCATE),
        ("gemma4", {}, Rollback.TRUNCATE),
        ("gemma4", {"swa_full": False}, Rollback.SNAPSHOT),
        ("qwen35", {}, Rollback.SNAPSHOT),
        ("qwen35", {"n_rs_seq": 3}, Rollback.BOUNDED),
    ],
)
@pytest.mark.parametrize("n_seq", [1, 3])
def test_llama_target_conforms(
    zoo: Callable[[str], Path], name: str, options: dict[str, Any], rollback: Rollback, n_seq: int
) -> None:
    with Model(zoo(name)) as model:

        def make() -> LlamaTarget:
            target = LlamaTarget(model, n_ctx=256, n_batch=24, n_ubatch=24, n_seq=n_seq, n_threads=1, **options)
            assert target.info.rollback is rollback
            return target

        # Tiny float models: how a batch is divided among kernels moves the last bits.
        report = check_backend(make, tokens=(5, 6, 7, 8, 9, 10), atol=1e-3)
    assert "samplers choose as asked" in report.checks
