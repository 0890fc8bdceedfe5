"""``specframe audit``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from specframe.backends.llama import audit as auditor
from specframe.backends.llama.audit import Audit
from specframe.backends.llama.model import Model

Cli = Callable[..., Any]


@pytest.fixture(autouse=True)
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough to see that it works, and verdicts are kept where nobody else looks."""
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path))
    real = auditor.audit
    monkeypatch.setattr(
        auditor, "audit", lambda model, **options: real(model, **{**options, "widths": (1, 2, 4), "contexts": (8,)})
    )


def test_audit_as_a_table_and_as_json(cli: Cli, model: Path) -> None:
    document = cli("audit", model, "--threads", 1, "--ubatch", 64, "--no-repack", "--json").document
    assert [row["width"] for row in document["rows"]] == [1, 2, 4]
    assert document["rows"][0]["exact"] is True
    assert document["exact_width"] >= 1
    assert (document["flash_attn"], document["n_threads"], document["use_extra_bufts"]) == (True, 1, False)
    text = cli("audit", model, "--threads", 1, "--no-flash-attn")
    assert text.code == 0
    assert "flash attention off" in text.out
    assert "equal to" in text.out


def test_audit_looks_at_the_memory_that_was_asked_for(cli: Cli, model: Path) -> None:
    options = ("--threads", 1, "--threads-batch", 2, "--cache-type-k", "bf16", "--cache-type-v", "f32")
    document = cli("audit", model, *options, "--no-kv-offload", "--json").document
    assert [document[key] for key in ("type_k", "type_v", "n_threads", "n_threads_batch")] == ["bf16", "f32", 1, 2]
    assert document["settings"].startswith("1 thread (2 for batches), flash attention on, bf16 keys and f32 values, ")
    assert "type_v 'q8_0' needs flash_attn" in cli("audit", model, "--no-flash-attn", "--cache-type-v", "q8_0").err


def test_a_sweep_names_the_fastest_settings(cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    document = cli("audit", model, "--sweep", "--json").document
    settings = document["settings"]
    assert {each["use_extra_bufts"] for each in settings} == {True, False}
    assert "flash attention off" in {each["settings"].split(", ")[1] for each in settings}
    assert document["recommended"] in settings
    assert "recommended for widths 2 to 16: " in cli("audit", model, "--sweep").out


def test_exact_numerics_of_a_model_that_rounds_are_exit_2(
    cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = auditor.audit

    def rounding(opened: Model, **options: Any) -> Audit:
        found = real(opened, **options)
        return attrs.evolve(found, rows=tuple(attrs.evolve(row, exact=row.width == 1) for row in found.rows))

    monkeypatch.setattr(auditor, "audit", rounding)
    answer = cli("generate", model, "-p", "x", "-n", 2, "--threads", 1, "--numerics", "exact")
    assert answer.code == 2
    assert "numerics='exact' cannot be had" in answer.err
    assert cli("generate", model, "-p", "x", "--numerics", "nice").code == 2
    assert cli("audit", "no-such-model").code == 2
