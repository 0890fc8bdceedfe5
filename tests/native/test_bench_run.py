"""The benchmark end to end, on a tiny model: the figures mean nothing, that they are there does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specframe.bench import __main__ as program
from specframe.bench import orchestration
from specframe.testing import zoo


@pytest.mark.slow
def test_both_sides_run_on_one_model_and_agree(tmp_path: Path) -> None:
    model, answer, report = zoo.build("llama", tmp_path), tmp_path / "answer.json", tmp_path / "report.md"
    code = program.main(
        [
            "--model", str(model), "--quick", "--tokens", "8", "--workloads", "prose", "--threads", "1", "--parts",
            "compare", "--strategies", "plain,ngram-k4v:n2m4", "--json", str(answer), "--markdown", str(report),
        ]
    )  # fmt: skip
    assert code == 0
    data = json.loads(answer.read_text())
    assert len(data["comparison"]) == 2
    for cell in data["comparison"]:
        assert cell["notes"] == []
        assert cell["text_differs_at"] is None
        assert cell["runs"]["specframe"][0]["tokens"] == cell["runs"]["server"][0]["tokens"] == 8
    assert set(data["text_differs_from_plain_at"].values()) == {None}
    assert "ngram-k4v:n2m4" in report.read_text()


def test_steps_are_split_into_native_and_python_time(tmp_path: Path) -> None:
    with orchestration.opened(zoo.build("llama-bigram", tmp_path), library=None, n_threads=1, n_ctx=256) as bench:
        for case in (orchestration.Case(name="plain"), orchestration.Case(name="wrong", draft=3, wrong_at=1)):
            cost = bench.cost(case, n_tokens=24, repeat=1, top=3)
            assert cost.per_step_us.median > 0
            assert cost.native_us > cost.per_step_us.median
            assert cost.n_steps > 5
            assert len(cost.profile) == 3
