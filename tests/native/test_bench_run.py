"""The benchmark end to end, on tiny models: the figures mean nothing, that they are there does."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from unittest.mock import MagicMock

import attrs
import pytest
from typer.testing import CliRunner

import specframe
from specframe.backends.llama.audit import Audit
from specframe.backends.llama.model import Model
from specframe.backends.llama.target import LlamaTarget
from specframe.bench import audit, margins, orchestration, program, side_server, side_specframe, turns, verify
from specframe.bench.opened import context_options
from specframe.bench.settings import Job, Settings
from specframe.bench.sides import PLAIN, Side
from specframe.bench.worker import run_process
from specframe.bench.workloads import Workload
from specframe.catalogue import analytic
from specframe.cli import benching
from specframe.cli.app import app
from specframe.cli.benching import MeasureFlags
from specframe.core.errors import ConfigError
from specframe.llm import LLM

SETTINGS = Settings(model="", n_threads=1, n_ctx=512, n_batch=128, n_ubatch=128, max_tokens=8, warm_up_tokens=2)


@attrs.frozen
class Answer:
    code: int
    out: str
    err: str


def run(*arguments: object) -> Answer:
    result = CliRunner().invoke(app, [str(a) for a in arguments], prog_name="specframe")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Answer(result.exit_code, result.stdout, result.stderr)


def bench(*arguments: object) -> Answer:
    return run("bench", *arguments, "-w", "prose", "-n", 8, "--threads", 1, "--ctx", 1024, "-r", 1)


def test_both_engines_run_on_one_model_and_agree(zoo: Callable[[str], Path], tmp_path: Path) -> None:
    sides = ("-s", "mtp(n_max=2)@2", "-s", "server", "-s", "server:draft-mtp(n_max=2)")
    done = bench(zoo("qwen35-mtp"), *sides, "--parts", "compare,turns,verify,audit,checkpoints", "--out", tmp_path)
    assert done.code == 0, done.err
    assert "Speed" in done.out
    data = json.loads((tmp_path / "results.json").read_text())
    assert data["remarks"] == []
    assert [row["side"] for row in data["comparison"]] == ["plain", *sides[1::2]]
    for row in data["comparison"]:
        assert row["notes"] == []
        assert row["same_output"] is True
        assert row["generated_tokens"] == 8
        assert row["tokens_per_second"]["median"] > 0
        assert row["peak_ram_bytes"] > 1_000_000
    drafted = data["comparison"][1]
    assert len(drafted["acceptance_by_position"]) == 2
    assert drafted["ms_per_step"]["draft"] > 0
    assert [turn["side"] for turn in data["turns"]] == ["plain", sides[1]]
    assert all(turn["shared_tokens"] > 100 for turn in data["turns"])
    assert [(each["side"], each["margins"]) for each in data["verified"]] == [("plain", []), (sides[1], [])]
    assert all(each["n_tokens"] >= 8 for each in data["verified"])
    assert {row["context"] for row in data["audit"]["rows"]} == {32, 640}
    assert {cost["place"] for cost in data["checkpoints"]} == {"host", "device"}
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    # Nothing is measured twice: resuming a finished run takes no time, and says the same.
    again = bench(zoo("qwen35-mtp"), *sides, "--out", tmp_path, "--resume", "--json")
    assert again.code == 0
    assert json.loads(again.out)["comparison"] == data["comparison"]


def test_a_side_that_fails_is_named_and_the_others_are_shown(zoo: Callable[[str], Path], tmp_path: Path) -> None:
    prompt = tmp_path / "long.txt"
    prompt.write_text("far too long for this context " * 20, encoding="utf-8")
    done = run("bench", zoo("llama"), "-s", "plain", "--prompts", prompt, "-n", 8, "--ctx", 64, "--batch", 32, "-r", 1)
    assert done.code == 1
    assert "failed: plain on long: plain (generate) failed with exit code 1" in done.out
    assert "plain on long" in done.err


def test_a_report_is_filled_in_without_private_paths(zoo: Callable[[str], Path]) -> None:
    model = zoo("llama")
    arguments = (model, "-s", "ngram-k(n=2)", "-w", "prose", "-n", 8, "--threads", 1, "-r", 1)
    done = run("report", *arguments, "--observations", f"seen in {model.parent}", "--json")
    assert done.code == 0, done.err
    fields = json.loads(done.out)
    assert fields["target model"].startswith("llama.gguf, llama, ")
    assert fields["output"] == {"prose": "the same"}
    assert fields["strategy"] == "ngram-k(n=2)"
    assert str(model.parent) not in done.out
    assert str(Path.home()) + "/" not in done.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-s", "poetry"), "poetry"),
        (("--parts", "all,none"), "no part"),
        (("--resume",), "--out"),
        (("--draft", "missing.gguf"), "missing.gguf"),
        (("--numerics", "right"), "auto, exact or fast"),
        (("--cache-type-k", "q8"), "type_k 'q8' is not a memory format; did you mean 'q8_0'"),
        (("--grid", "n"), "KEY=VALUES"),
        (("--ngram-n", "2", "--grid", "n=3"), "each key once"),
        (("--n-max", "1..2"), "n_max"),
        (("-s", "ngram-k", "--ngram-n", "1..9999999999"), "1000 at most"),
        (("-s", "server:ngram-map-k(n=many)"), "n must be of type int, not 'many'"),
        (("-s", "server:draft-mtp(backend_sampling=1)"), "backend_sampling must be of type bool, not 1"),
        (("-s", "mtp"), "does not hand out the hidden states of llama"),
        (("--library", "missing.so"), "no usable llama.cpp library"),
        (("--temperature", "nan"), "temperature must be"),
        (("--seed", "-1"), "seed must be"),
        (("--parts", " ,"), "name a part"),
    ],
)
def test_what_cannot_be_measured_ends_with_2(
    zoo: Callable[[str], Path], arguments: tuple[str, ...], message: str
) -> None:
    done = bench(zoo("llama"), "-s", "plain", *arguments)
    assert done.code == 2
    assert message in done.err


def test_what_no_process_could_load_is_known_before_any_is_started(zoo: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "junk.gguf").write_bytes(b"GGUFjunk" * 9)
    for arguments, message in (
        ((tmp_path / "junk.gguf", "-w", "prose"), "is not a usable GGUF file"),
        ((zoo("dflash"), "-w", "prose"), "is a dflash draft model"),
        ((zoo("llama"), "-w", "prose", "--threads", 9999), "threads must be"),
        ((zoo("llama"), "-w", ","), "name a text to measure"),
    ):
        for command in ("bench", "report"):
            done = run(command, *arguments, "-s", "ngram-k")
            assert (done.code, message in done.err) == (2, True), done.err


def test_names_are_shown_as_they_are(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    benching._show("of [/b] model", ("",), (("[/red] is as wide",),), ("[bold]",))
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("of [/b] model", "[/red]", "[bold]"))
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    with benching._progress() as progress:
        progress(1, 2, "generate, [/b]")
    assert "generate, [/b]" in terminal.getvalue()


def test_a_file_that_cannot_be_written_takes_no_table_with_it(zoo: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "results.csv").mkdir()
    arguments = ("bench", zoo("llama"), "-s", "plain", "-w", "prose", "--parts", "checkpoints", "--out", tmp_path)
    result = CliRunner().invoke(app, [*map(str, arguments)], prog_name="specframe")
    assert isinstance(result.exception, IsADirectoryError)
    assert "the memory of this model can be cut" in result.stdout


def test_another_model_under_the_same_name_is_not_resumed(zoo: Callable[[str], Path], tmp_path: Path) -> None:
    model, said = tmp_path / "mine.gguf", ""
    for source, arguments, code in (
        (zoo("llama"), (), 0),
        (zoo("llama"), ("--resume",), 0),
        (zoo("qwen3"), ("--resume",), 2),
    ):
        model.write_bytes(source.read_bytes())
        done = bench(model, "-s", "plain", "--parts", "audit", "--out", tmp_path, *arguments)
        assert done.code == code, done.err
        said = done.err
    assert f"was measured with files={{'{model}': " in said


def test_a_report_is_about_a_strategy(zoo: Callable[[str], Path]) -> None:
    for side in ("plain", "server"):
        assert run("report", zoo("llama"), "-s", side).code == 2


def test_a_draft_file_for_nobody_is_refused(zoo: Callable[[str], Path]) -> None:
    done = bench(zoo("llama"), "-s", "ngram-k", "--draft", zoo("draft-simple"))
    assert done.code == 2
    assert "no side uses a draft file" in done.err


def test_a_text_of_the_same_name_twice_is_refused(zoo: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "prose.txt").write_text("x", encoding="utf-8")
    done = bench(zoo("llama"), "--prompts", tmp_path / "prose.txt")
    assert done.code == 2
    assert "two texts called 'prose'" in done.err


def job(model: Path, task: str, **side: Any) -> Job:
    settings = attrs.evolve(SETTINGS, model=str(model))
    return Job(settings=settings, side=Side(**side), prompt="abcdefgh", warm_up="xyz", task=task)


@pytest.mark.parametrize(("numerics", "repack", "exact"), [("auto", True, False), ("exact", True, True)])
def test_a_model_is_audited_and_judged_with_the_numerics_of_the_sides(
    zoo: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    numerics: Literal["auto", "exact"],
    repack: bool,
    exact: bool,
) -> None:
    asked = job(zoo("llama"), "audit")
    asked = attrs.evolve(asked, settings=attrs.evolve(asked.settings, numerics=numerics, n_batch=16, n_ubatch=16))
    found = Audit.from_dict(audit.measure(asked))
    assert (found.use_extra_bufts, found.exact_kernels) == (repack, exact)
    assert max(row.width for row in found.rows) == 16
    assert found.exact_width == (16 if exact else 1)
    contexts: list[dict[str, Any]] = []

    def target(model: Model, **options: Any) -> LlamaTarget:
        contexts.append(options)
        return LlamaTarget(model, **options)

    monkeypatch.setattr(verify, "LlamaTarget", target)
    assert verify.measure(asked) == {"n_tokens": 8, "margins": []}
    assert [options["exact"] for options in contexts] == [exact]


def test_all_sides_store_keys_and_values_alike(zoo: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[dict[str, Any]] = []
    load = specframe.load

    def watched(model: str, **options: Any) -> LLM:
        loaded.append(options)
        return load(model, **options)

    monkeypatch.setattr(specframe, "load", watched)
    asked = job(zoo("llama"), "generate")
    asked = attrs.evolve(asked, settings=attrs.evolve(asked.settings, type_k="bf16", type_v="f32"))
    assert side_specframe.measure(asked)["n_tokens"] == 8
    assert (loaded[0]["type_k"], loaded[0]["type_v"]) == ("bf16", "f32")
    assert context_options(asked.settings)["type_k"] == "bf16"
    types = SimpleNamespace(GGML_TYPE_BF16="its bf16", GGML_TYPE_F32="its f32")
    params = side_server._params(MagicMock(ggml_type=types), attrs.evolve(asked, side=Side(engine="server")))
    assert (params.cache_type_k, params.cache_type_v) == ("its bf16", "its f32")
    assert run_process(attrs.evolve(asked, side=Side(engine="server")))["n_tokens"] == 8


def test_the_server_writes_what_it_is_held_to(zoo: Callable[[str], Path]) -> None:
    own, held = (
        run_process(attrs.evolve(job(zoo("llama"), "generate", engine="server"), text=text))
        for text in (None, "zebras")
    )
    assert held["text"].startswith("zebras")
    assert not own["text"].startswith("zebras")


def test_only_a_greedy_text_can_be_held_to() -> None:
    settings = attrs.evolve(SETTINGS, same_text=True, temperature=0.5)
    with pytest.raises(ConfigError, match="measure with temperature 0, or without --same-text"):
        program.Task(settings=settings, sides=(PLAIN,), workloads=())


def test_margins_belong_to_the_tokens_of_the_plain_run(zoo: Callable[[str], Path]) -> None:
    found = margins.measure(job(zoo("llama"), "margins"))
    tokens = side_specframe.measure(job(zoo("llama"), "generate"))["tokens"]
    assert len(found) == len(tokens) == 8
    assert [entry[0] for entry in found] == [(token, 0.0) for token in tokens]
    assert all(0 < entry[1][1] <= entry[-1][1] for entry in found)


def test_chats_are_rendered_with_the_model_s_template(zoo: Callable[[str], Path]) -> None:
    chat = Workload(name="c", messages=({"role": "user", "content": "Hi"},))
    for name, begins in (("llama-chat", "<|im_start|>user\nHi"), ("llama", "User: Hi")):
        settings = attrs.evolve(SETTINGS, model=str(zoo(name)))
        task = program.Task(settings=settings, sides=(PLAIN,), workloads=(chat,))
        assert program._prompts(task)["c"].startswith(begins)


def test_without_the_server_the_others_are_measured(
    zoo: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "why_no_server", lambda: "it is not there")
    task = program.Task(settings=SETTINGS, sides=(PLAIN, Side(engine="server")), workloads=())
    left, remarks = program.prepare(task)
    assert left.sides == (PLAIN,)
    assert remarks == ["the server is left out: it is not there"]


def test_against_the_server_both_use_its_library() -> None:
    sides = (PLAIN, Side(engine="server"))
    chosen, _ = program.prepare(program.Task(settings=SETTINGS, sides=sides, workloads=()))
    assert chosen.settings.library == program.peer_library()
    alone, _ = program.prepare(program.Task(settings=SETTINGS, sides=(PLAIN,), workloads=()))
    assert alone.settings.library is None
    own = attrs.evolve(SETTINGS, library="mine.so")
    given, _ = program.prepare(program.Task(settings=own, sides=sides, workloads=()))
    assert given.settings.library == "mine.so"


def test_a_draft_can_be_an_analytic_model_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path))
    values: dict[str, Any] = dict.fromkeys(attrs.fields_dict(MeasureFlags)) | {"numerics": "fast"}
    flags = MeasureFlags.from_cli(values | {"draft": "zoo:dflash"})
    assert flags.draft is not None
    assert flags.draft.is_file()
    with pytest.raises(ConfigError, match="the draft: there is no file and no model called 'dflash'"):
        MeasureFlags.from_cli(values | {"draft": "dflash"})


def test_turns_are_measured_without_the_settings_of_a_grid() -> None:
    jobs: list[Job] = []

    def answer(job: Job) -> dict[str, float]:
        jobs.append(job)
        return {"first_s": 1.0, "second_s": 0.5, "shared_tokens": 9, "new_tokens": 2}

    sides = (PLAIN, Side.parse("ngram-k"), attrs.evolve(Side.parse("ngram-k(n=4)"), from_grid=True))
    task = program.Task(settings=SETTINGS, sides=sides, workloads=(), parts=("turns",), repeat=1)
    assert [turn.side for turn in program.measure(task, run=answer).turns] == ["plain", "ngram-k"]
    assert {job.task for job in jobs} == {"turns"}


@pytest.mark.slow
def test_the_large_model_accepts_what_it_is_made_to(tmp_path: Path) -> None:
    path = analytic.LARGE["large-mtp-sure"](tmp_path / "large.gguf")
    assert 80e6 < path.stat().st_size < 130e6
    measured = side_specframe.measure(job(path, "generate", strategy="mtp", options={"n_max": 3}))
    assert measured["drafted"] > 0
    assert measured["accepted"] == measured["drafted"]


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "n_max"), [("dflash", 7), ("dspark", 7), ("eagle3", 4)])
def test_the_large_drafts_are_right_about_most_tokens(tmp_path: Path, strategy: str, n_max: int) -> None:
    target, drafter = (analytic.LARGE[f"large-{name}"](tmp_path / f"{name}.gguf") for name in ("dense", strategy))
    assert 80e6 < target.stat().st_size < 130e6
    side = {"strategy": strategy, "draft": str(drafter), "options": {"n_max": n_max}, "draft_length": n_max}
    measured = side_specframe.measure(job(target, "generate", **side))
    assert measured["drafted"] > 0
    assert measured["accepted"] / measured["drafted"] > 0.5


def test_steps_are_split_into_native_and_python_time(zoo: Callable[[str], Path]) -> None:
    with orchestration.opened(zoo("llama-bigram"), library=None, n_threads=1, n_ctx=256) as opened:
        for case in (orchestration.Case(name="plain"), orchestration.Case(name="wrong", draft=3, wrong_at=1)):
            cost = opened.cost(case, n_tokens=24, repeat=1, top=3)
            assert cost.per_step_us.median > 0
            assert cost.native_us > 0
            assert cost.n_steps > 5
            assert len(cost.profile) == 3


def test_a_context_without_room_for_two_turns_is_refused(zoo: Callable[[str], Path]) -> None:
    asked = job(zoo("llama"), "turns")
    small = attrs.evolve(asked, settings=attrs.evolve(asked.settings, n_ctx=32))
    with pytest.raises(ConfigError, match="do not fit into 32 tokens of context; raise --ctx"):
        turns.measure(small)


def test_a_missing_package_is_known_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    task = program.Task(settings=SETTINGS, sides=(PLAIN,), workloads=(), parts=("compare", "orchestration"))
    with pytest.raises(ConfigError, match="gguf"):
        program.prepare(task)
