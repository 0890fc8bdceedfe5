"""The number of threads to use by default."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specframe.backends.llama.threads import default_threads


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four cores of two hyperthreads; this process may use five processors on three cores."""
    for cpu in range(8):
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 4, 5}, raising=False)
    return tmp_path


def test_physical_cores_this_process_may_use(machine: Path) -> None:
    assert default_threads(cpus=machine, quota=machine / "none") == 3


@pytest.mark.parametrize(("text", "n"), [("150000 100000", 2), ("max 100000", 3), ("900000 100000", 3), ("junk", 3)])
def test_quota_of_a_container(machine: Path, text: str, n: int) -> None:
    quota = machine / "cpu.max"
    quota.write_text(text)
    assert default_threads(cpus=machine, quota=quota) == n


def test_without_topology_every_processor_counts(machine: Path) -> None:
    assert default_threads(cpus=machine / "none", quota=machine / "none") == 5


def test_without_affinity_all_processors_count(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_pid: int) -> set[int]:
        raise AttributeError

    monkeypatch.setattr(os, "sched_getaffinity", missing)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert default_threads(cpus=machine, quota=machine / "none") == 4
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert default_threads(cpus=machine, quota=machine / "none") == 1
