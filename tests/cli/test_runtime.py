"""``specframe runtime``: what it prints and how it ends; tests/native/test_runtime_build.py tests what it does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specframe import runtime
from specframe.backends.llama.native_builds import NativeBuild, chosen_runtime
from specframe.cli import progress
from specframe.runtime import BuildError, Plan
from specframe.runtime.installed import workshop_of
from tests.support.builds import described

Cli = Callable[..., Any]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, and the usual search."""
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path))
    monkeypatch.delenv("SPECFRAME_RUNTIME")
    monkeypatch.delenv("SPECFRAME_LLAMA_LIB", raising=False)
    return tmp_path


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """What was asked to be built; nothing is."""
    asked: list[Plan] = []

    def build(plan: Plan, *, progress: Callable[[str, int, int], None]) -> NativeBuild:
        asked.append(plan)
        for stage, done, total in [("download", 5, 10), ("configure", 0, 0), ("compile", 3, 9), ("compile", 9, 9)]:
            progress(stage, done, total)
        return described("cpu-abc")

    monkeypatch.setattr(runtime, "build", build)
    return asked


def test_build_says_what_it_does_and_prints_where_the_library_is(cli: Cli, plans: list[Plan], cache: Path) -> None:
    answer = cli("runtime", "build", "-b", "cuda", "-D", "A=1", "--define", "B=x=y", "-j", 3, "--keep")
    assert (answer.code, answer.out.strip()) == (0, str(cache / "runtimes" / "cpu-abc" / "libllama.so"))
    assert answer.err.splitlines() == ["downloading", "setting up", "compiling"]
    assert plans == [Plan(backend="cuda", options={"A": "1", "B": "x=y"}, jobs=3, keep=True)]


def test_build_as_json(cli: Cli, plans: list[Plan], cache: Path) -> None:
    answer = cli("runtime", "build", "--source", cache / "s.tar.gz", "--json")
    assert answer.document["name"] == "cpu-abc"
    assert answer.document["path"] == str(cache / "runtimes" / "cpu-abc" / "libllama.so")
    assert answer.err == ""
    assert plans == [Plan(source=cache / "s.tar.gz")]


def test_the_bar_counts_bytes_and_steps(
    cli: Cli, plans: list[Plan], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Terminal:
        """Stderr, and a terminal."""

        def isatty(self) -> bool:
            return True

        def __getattr__(self, name: str) -> Any:
            return getattr(sys.__stderr__, name)

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress.progress_bar(announce=True) as report:
        report("download", 1_000_000, 2_000_000)
    download = capfd.readouterr().err
    with progress.progress_bar(announce=True) as report:
        report("compile", 3, 9)
    assert "1.0/2.0 MB" in download
    assert "3/9" in capfd.readouterr().err


@pytest.mark.parametrize("bad", ["A", "=1", ""])
def test_a_definition_without_key_or_value_is_refused(cli: Cli, plans: list[Plan], bad: str) -> None:
    answer = cli("runtime", "build", "-D", bad)
    assert answer.code == 2
    assert "--define takes KEY=VALUE" in answer.err
    assert plans == []


def test_a_failed_build_is_exit_1_with_the_words_of_the_compiler(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_plan: Plan, *, progress: object) -> NativeBuild:
        raise BuildError("compiling llama.cpp failed:\n  a.c:1: error: no")

    monkeypatch.setattr(runtime, "build", fail)
    answer = cli("runtime", "build")
    assert answer.code == 1
    assert answer.err == "specframe: error: compiling llama.cpp failed:\n  a.c:1: error: no\n"
    assert cli("runtime", "build", "--backend", "tpu").code == 2


def test_list_shows_the_order_and_what_became_of_each(cli: Cli) -> None:
    described("cpu-abc")  # without a library
    (workshop_of("cuda-abc") / "source").mkdir(parents=True)
    document = cli("runtime", "list", "--json").document
    assert [(entry["name"], entry["state"]) for entry in document["runtimes"]] == [
        ("cpu-abc", "refused"),
        ("xllamacpp", "in use"),
        ("llama-cpp-py-sync", "not tried"),
    ]
    assert [build["name"] for build in document["builds"]] == ["cpu-abc"]
    assert (document["chosen"], document["unfinished"]) == (None, ["cuda-abc"])
    assert document["runtimes"][0]["why"] == "there is no such file"
    text = cli("runtime", "list").out
    assert "refused" in text
    assert "unfinished: cuda-abc" in text


def test_use_and_remove(cli: Cli) -> None:
    described("cpu-abc")
    assert cli("runtime", "use", "xllamacpp").code == 0
    assert chosen_runtime() == "xllamacpp"
    assert cli("runtime", "use", "auto").code == 0
    assert chosen_runtime() is None
    assert cli("runtime", "remove", "cpu-abc").code == 0
    answer = cli("runtime", "remove", "cpu-abc")
    assert answer.code == 2
    assert "there are none" in answer.err
    assert cli("runtime", "use", "cpu-abc").code == 2


def test_doctor_says_what_the_generic_library_leaves_idle(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specframe.diagnosis.machine_features", lambda: ["avx2", "sve"])
    [advice] = cli("doctor", "--json").document["advice"]
    assert advice.startswith("this build of llama.cpp makes no use of sve; ")
    assert "specframe runtime build" in advice
    monkeypatch.setattr("specframe.diagnosis.find_compiler", lambda: None)
    assert "needs a C++ compiler, and there is none" in cli("doctor").out.replace("\n", " ")
    monkeypatch.setattr("specframe.diagnosis.machine_features", lambda: ["avx2"])
    assert cli("doctor", "--json").document["advice"] == []
