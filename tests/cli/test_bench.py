"""``specframe bench``: what it asks for and how it ends; tests/native/test_bench_run.py tests what it measures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specframe.bench import program
from specframe.bench.comparison import gather
from specframe.bench.program import PARTS, Task
from specframe.bench.results import Results
from specframe.bench.workloads import BUILT_IN
from tests.support.bench import case

Cli = Callable[..., Any]


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """What was asked to be measured; nothing is. Plain decoding made 100 tokens per second, being wrong 96."""
    asked: list[Task] = []

    def measure(task: Task, **_: object) -> Results:
        asked.append(task)
        comparison = gather([case("plain", 100.0), case("always-wrong", 96.0)], lambda _: [])
        return Results(settings=task.settings, repeat=task.repeat, comparison=comparison)

    monkeypatch.setattr(program, "measure", measure)
    return asked


def test_what_is_asked_for_is_measured(cli: Cli, model: Path, tasks: list[Task], tmp_path: Path) -> None:
    arguments = (
        *("-w", "prose,chat", "-r", 5, "-n", 32, "--temperature", 0.5, "--seed", 7, "--ctx", 512, "--batch", 64),
        *("--threads", 1, "--gpu-layers", 3, "--screen", 2, "--parts", "compare,turns", "--out", tmp_path, "--resume"),
    )
    assert cli("bench", model, "-s", "ngram-k", *arguments).code == 0
    [task] = tasks
    assert [workload.name for workload in task.workloads] == ["prose", "chat"]
    assert [side.label for side in task.sides] == ["plain", "ngram-k"]
    assert (task.repeat, task.screen, task.parts) == (5, 2, ("compare", "turns"))
    assert (task.directory, task.resume) == (tmp_path, True)
    asked = task.settings
    assert (asked.max_tokens, asked.temperature, asked.seed, asked.same_text) == (32, 0.5, 7, False)
    assert (asked.n_ctx, asked.n_batch, asked.n_ubatch, asked.n_threads, asked.n_gpu_layers) == (512, 64, 64, 1, 3)


def test_without_options_everything_is_compared(cli: Cli, model: Path, tasks: list[Task]) -> None:
    assert cli("bench", model).code == 0
    assert cli("bench", model, "--quick", "--same-text", "--parts", "all").code == 0
    usual, quick = tasks
    assert tuple(workload.name for workload in usual.workloads) == BUILT_IN
    assert [side.label for side in usual.sides] == ["plain", "auto", "server", "server:ngram-map-k"]
    assert (usual.repeat, usual.settings.max_tokens, usual.parts, usual.screen) == (3, 256, ("compare",), None)
    assert (quick.repeat, quick.settings.max_tokens, quick.parts, quick.settings.same_text) == (1, 48, PARTS, True)
    assert quick.n_steps < usual.n_steps


def test_each_axis_of_a_grid_varies_its_option(cli: Cli, model: Path, tasks: list[Task]) -> None:
    axes = ("--ngram-n", "6,8", "--ngram-m", "16", "--n-max", "1..2", "--p-min", "0.5", "--grid", "min-hits=1")
    assert cli("bench", model, "-s", "server:ngram-map-k", "-s", "server:draft-mtp", *axes).code == 0
    assert [side.label for side in tasks[0].sides] == [
        "plain",
        "server:ngram-map-k(m=16,min_hits=1,n=6)",
        "server:ngram-map-k(m=16,min_hits=1,n=8)",
        "server:draft-mtp(n_max=1,p_min=0.5)",
        "server:draft-mtp(n_max=2,p_min=0.5)",
    ]


def test_a_goal_that_is_not_met_fails_a_run_that_is_checked(cli: Cli, model: Path, tasks: list[Task]) -> None:
    assert cli("bench", model).code == 0
    checked = cli("bench", model, "--check")
    assert (checked.code, "a goal is not met" in checked.err) == (1, True)
    assert "always-wrong on prose, x plain" in checked.out
    assert len(tasks) == 2
