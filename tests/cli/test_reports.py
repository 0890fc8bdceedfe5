"""``strategies``, ``info``, ``check``, ``doctor``, ``pull``: text and JSON."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specframe.backends.llama.processor import machine_features
from specframe.compatibility import check_files
from specframe.core.errors import ConfigError

Cli = Callable[..., Any]
Zoo = Callable[[str], Path]


def test_version(cli: Cli) -> None:
    answer = cli("--version")
    assert answer.code == 0
    assert answer.out.startswith("specframe 0.")


def test_commands_are_listed_with_their_exit_codes(cli: Cli) -> None:
    out = cli("--help").out
    for name in ("generate", "chat", "strategies", "info", "check", "doctor", "pull", "130 interrupted"):
        assert name in out


def test_strategies(cli: Cli) -> None:
    document = cli("strategies", "--json").document
    by_name = {entry["name"]: entry for entry in document["strategies"]}
    entry = by_name["ngram-k"]
    assert (entry["package"], entry["builtin"], entry["needs"], entry["uses_draft_file"]) == (
        "specframe",
        True,
        [],
        False,
    )
    assert {option["name"]: option["default"] for option in entry["options"]}["n"] == 12
    assert isinstance(document["problems"], list)
    text = cli("strategies")
    assert text.code == 0
    assert text.out.count("  -o n=12  (int) tokens that must match\n") == 1
    assert "\noptions of ngram-k, ngram-k4v:\n" in text.out


def test_info(cli: Cli, zoo: Zoo) -> None:
    document = cli("info", zoo("llama-chat"), "--json").document
    assert document["architecture"] == "llama"
    assert document["chat_templates"] == ["default"]
    assert document["vocabulary"] > 0
    assert document["parameters"] > 0
    assert document["metadata"]["general.architecture"] == "llama"
    text = cli("info", zoo("qwen35-mtp"))
    assert "nextn layers" in text.out
    assert "hidden" in text.out
    assert document["draft_strategy"] is None
    assert document["auto_strategy"] == "ngram-k(n=4)"
    assert "\nauto strategy     first-of(ngram-k(n=4),mtp)\n" in text.out
    assert "\nauto reason       ngram-k from the text before mtp, whose layers are in the model's file" in text.out
    assert "draft strategy" in text.out
    draft = cli("info", zoo("dflash2"), "--json").document
    assert draft["draft_strategy"] == "dflash2"
    assert draft["auto_strategy"] is draft["auto_reason"] is None
    assert draft["metadata"]["dflash.selector_top_k"] == 6


@pytest.mark.parametrize(
    ("target", "draft", "strategy", "subjects"),
    [
        ("llama", None, "ngram-k(n=4,m=8)", ["ngram-k"]),
        ("qwen35", "mtp-qwen35", "first-of(ngram-k(n=8),mtp)", ["ngram-k", "mtp"]),
        ("qwen35-mtp", None, "auto", ["auto", "ngram-k", "mtp"]),
        ("llama", "draft-simple", "auto", ["auto", "ngram-k", "draft-model"]),
        ("llama", None, "none", []),
    ],
)
def test_check_takes_what_generate_takes(
    cli: Cli, zoo: Zoo, target: str, draft: str | None, strategy: str, subjects: list[str]
) -> None:
    answer = cli("check", zoo(target), "-s", strategy, *(() if draft is None else ("-d", zoo(draft))), "--json")
    assert answer.code == 0
    found = [entry["subject"] for entry in answer.document["checks"] if entry["subject"].startswith("strategy")]
    assert found == [f"strategy {name}" for name in subjects]


def test_check_says_what_is_wrong_with_a_member(cli: Cli, zoo: Zoo) -> None:
    answer = cli("check", zoo("llama"), "-s", "first-of(ngram-k,mtp)")
    assert (answer.code, "ok  strategy ngram-k" in answer.out, "NO  strategy mtp: " in answer.out) == (2, True, True)
    assert "no option 'q'" in cli("check", zoo("llama"), "-s", "ngram-k(q=1)").err
    answer = cli("check", zoo("llama"), "-s", "auto", "-d", zoo("mtp-qwen35"))
    assert (answer.code, "NO  strategy auto: " in answer.out) == (2, True)


def test_check_usable(cli: Cli, zoo: Zoo) -> None:
    document = cli("check", zoo("llama"), "--json").document
    assert document["usable"] is True
    assert {"target", "chat template", "strategy ngram-k"} <= {entry["subject"] for entry in document["checks"]}
    text = cli("check", zoo("llama-chat"), "--strategy", "ngram-k")
    assert text.code == 0
    assert text.out.endswith("usable\n")
    assert cli("check", zoo("llama"), "-s", "none").code == 0


@pytest.mark.parametrize("name", ["dflash", "mtp-qwen35"])
def test_a_draft_model_is_no_target(cli: Cli, zoo: Zoo, name: str) -> None:
    answer = cli("check", zoo(name), "--json")
    assert answer.code == 2
    assert answer.document["usable"] is False
    assert "draft" in answer.document["checks"][0]["detail"]


def test_a_broken_file_is_reported_with_its_reason(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00 and nothing else")
    text = cli("check", path)
    assert text.code == 2
    assert "NO  target:" in text.out
    assert text.out.endswith("not usable\n")
    assert cli("info", path).code == 2


def test_a_draft_nobody_uses(cli: Cli, zoo: Zoo) -> None:
    answer = cli("check", zoo("llama"), "--draft", zoo("draft-simple"), "--strategy", "ngram-k")
    assert answer.code == 2
    assert "no strategy asked for uses a draft file" in answer.out


def test_unknown_names(cli: Cli, zoo: Zoo) -> None:
    answer = cli("check", zoo("llama"), "--strategy", "ngramk")
    assert answer.code == 2
    assert "'ngram-k'" in answer.err
    with pytest.raises(ConfigError):
        check_files(zoo("llama"), strategy="nothing")
    assert cli("info", "smollm3").code == 2


def test_doctor(cli: Cli) -> None:
    document = cli("doctor", "--json").document
    assert document["runtime"]["source"]
    assert sum(entry["state"] == "in use" for entry in document["candidates"]) == 1
    assert document["machine"]["threads"] >= 1
    assert "ngram-k" in {entry["name"] for entry in document["strategies"]}
    assert document["runtime_problem"] is None
    assert document["runtime"]["devices"]
    text = cli("doctor")
    assert text.code == 0
    assert "in use" in text.out


def test_doctor_without_a_usable_runtime(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    junk = tmp_path / "libllama.so"
    junk.write_bytes(b"no library")
    monkeypatch.setenv("SPECFRAME_LLAMA_LIB", str(junk))
    answer = cli("doctor", "--json")
    assert answer.code == 2
    assert answer.document["runtime"] is None
    [candidate] = answer.document["candidates"]
    assert candidate["state"] == "refused"
    assert "linker" in candidate["why"]
    text = cli("doctor")
    assert (text.code, text.err) == (2, "")
    assert "refused" in text.out


def test_machine_features(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor: 0\nflags : fpu avx2 avx512f junk\n")
    assert machine_features(cpuinfo) == ["avx2", "avx512"]
    cpuinfo.write_text("Features : asimd i8mm\n")
    assert machine_features(cpuinfo) == ["neon", "matmul_int8"]
    assert machine_features(tmp_path / "missing") == []


def test_pull_of_a_local_file_and_of_nothing(cli: Cli, zoo: Zoo) -> None:
    path = zoo("llama")
    assert cli("pull", path).out.strip() == str(path)
    assert cli("pull", path, "--json").document == {
        "name": str(path),
        "path": str(path),
        "n_bytes": path.stat().st_size,
    }
    names = {entry["name"] for entry in cli("pull", "--json").document["catalogue"]}
    assert names >= {"smollm2-135m", "gemma3-270m"}
    assert "smollm2-135m" in cli("pull").out
    assert cli("pull", "smollm2").code == 2


def test_pull_failures_are_exit_1(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    monkeypatch.setenv("SPECFRAME_CACHE", str(blocked))
    answer = cli("pull", "smollm2-135m")
    assert answer.code == 1
    assert "SPECFRAME_CACHE" in answer.err
