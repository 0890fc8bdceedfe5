"""Order, screening, and going on after an interruption; no process is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from specframe.backends.llama.gbnf import check_grammar
from specframe.bench import worker
from specframe.bench.runner import Plan, Runner, screened
from specframe.bench.settings import Job
from specframe.bench.side_server import grammar
from specframe.bench.sides import PLAIN, Side, expand
from specframe.bench.store import Store
from specframe.bench.worker import WorkerError, run_process
from specframe.core.errors import ConfigError
from tests.support.bench import SETTINGS, answer, case, failed, measured

DRAFTED = Side.parse("ngram-k(n=8)")


def plan(**changes: Any) -> Plan:
    settled: dict[str, Any] = {"sides": (PLAIN, DRAFTED), "prompts": {"prose": "p", "chat": "c"}, "repeat": 2}
    return Plan(settings=SETTINGS, **{**settled, **changes})


class Worker:
    """Remembers what it was told to do, and fails or is interrupted when wanted."""

    def __init__(self, *, fails_at: int = -1, error: BaseException | None = None) -> None:
        self.jobs: list[Job] = []
        self._fails_at = fails_at
        self._error = error or WorkerError("it broke")

    def __call__(self, job: Job) -> Any:
        self.jobs.append(job)
        if len(self.jobs) - 1 == self._fails_at:
            raise self._error
        return answer(job)


def test_sides_take_turns_and_repetitions_are_outermost() -> None:
    worker = Worker()
    Runner(plan(), Store(None, {}), run=worker).compare()
    assert [(job.prompt, job.side.label) for job in worker.jobs] == [
        ("p", "plain"), ("p", "ngram-k(n=8)"), ("c", "plain"), ("c", "ngram-k(n=8)"),
        ("p", "ngram-k(n=8)"), ("p", "plain"), ("c", "ngram-k(n=8)"), ("c", "plain"),
    ]  # fmt: skip
    assert {job.settings for job in worker.jobs} == {SETTINGS}
    assert all(job.warm_up not in {"p", "c", ""} for job in worker.jobs)


def test_progress_is_told_before_each_case_and_at_the_end() -> None:
    seen: list[tuple[int, int]] = []
    Runner(
        plan(repeat=1), Store(None, {}), run=Worker(), progress=lambda done, total, _: seen.append((done, total))
    ).compare()
    assert seen == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]


def test_a_case_that_fails_takes_no_other_with_it() -> None:
    cases = Runner(plan(repeat=1), Store(None, {}), run=Worker(fails_at=1)).compare()
    assert [case.error for case in cases] == ["", "it broke", "", ""]
    assert [case.measurement is None for case in cases] == [False, True, False, False]


def test_finished_cases_are_not_repeated(tmp_path: Path) -> None:
    path, interrupted, rest = tmp_path / "cases.jsonl", Worker(fails_at=3, error=KeyboardInterrupt()), Worker()
    with pytest.raises(KeyboardInterrupt):
        Runner(plan(), Store(path, {"a": 1}), run=interrupted).compare()
    resumed = Runner(plan(), Store(path, {"a": 1}, resume=True), run=rest).compare()
    assert len(rest.jobs) == 8 - 3
    assert resumed == Runner(plan(), Store(None, {}), run=Worker()).compare()


def test_failed_cases_are_tried_again(tmp_path: Path) -> None:
    path, again = tmp_path / "cases.jsonl", Worker()
    Runner(plan(), Store(path, {}), run=Worker(fails_at=2)).compare()
    cases = Runner(plan(), Store(path, {}, resume=True), run=again).compare()
    assert len(again.jobs) == 1
    assert not any(case.error for case in cases)


def test_the_server_can_be_held_to_the_text_of_plain_decoding() -> None:
    settings = attrs.evolve(SETTINGS, same_text=True)
    sides, worker = (PLAIN, DRAFTED, Side.parse("server")), Worker()
    Runner(attrs.evolve(plan(sides=sides), settings=settings), Store(None, {}), run=worker).compare()
    held = {(job.prompt, job.side.label): job.text for job in worker.jobs}
    assert held == {
        (prompt, side.label): "123" if side.label == "server" else None for prompt in "pc" for side in sides
    }


def test_without_a_plain_text_nothing_is_held_to_it() -> None:
    settings = attrs.evolve(SETTINGS, same_text=True)
    sides, worker = (PLAIN, Side.parse("server")), Worker(fails_at=0)
    cases = Runner(attrs.evolve(plan(sides=sides, repeat=1), settings=settings), Store(None, {}), run=worker).compare()
    assert [case.error for case in cases] == [
        "it broke",
        "there is no text of plain decoding that it could be held to",
        "",
        "",
    ]


@pytest.mark.parametrize("text", ['a "b"\\n\n\ttab', "Füße [x] \x7f\x00", "half a \ufffd"])
def test_the_grammar_of_a_text_is_one(text: str) -> None:
    made = grammar(text)
    check_grammar(made)
    assert made.endswith('" .*')
    assert "\n" not in made
    assert "\ufffd" not in made


def test_more_can_be_asked_of_a_finished_run(tmp_path: Path) -> None:
    path, more = tmp_path / "cases.jsonl", Worker()
    Runner(plan(repeat=1), Store(path, {}), run=Worker()).compare()
    Runner(plan(repeat=2), Store(path, {}, resume=True), run=more).compare()
    assert len(more.jobs) == 4


def test_without_resume_a_run_begins_anew(tmp_path: Path) -> None:
    path, worker = tmp_path / "deep" / "cases.jsonl", Worker()
    for _ in range(2):
        Runner(plan(repeat=1), Store(path, {}), run=worker).compare()
    assert len(worker.jobs) == 8


def test_a_torn_line_is_measured_again(tmp_path: Path) -> None:
    path, worker = tmp_path / "cases.jsonl", Worker()
    Runner(plan(repeat=1), Store(path, {}), run=Worker()).compare()
    path.write_text(path.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    Runner(plan(repeat=1), Store(path, {}, resume=True), run=worker).compare()
    assert len(worker.jobs) == 1
    assert len(Store(path, {}, resume=True)) == 4


def test_texts_with_any_line_end_survive(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    Store(path, {})["k"] = "a\u2028b\r\nc\x0b\u0085"
    assert Store(path, {}, resume=True)["k"] == "a\u2028b\r\nc\x0b\u0085"


def test_measurements_of_other_settings_are_not_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    Store(path, {"n_ctx": 4096, "texts": ("a",)})
    assert len(Store(path, {"n_ctx": 4096, "texts": ["a"]}, resume=True)) == 0
    with pytest.raises(ConfigError, match="n_ctx=4096, not 512"):
        Store(path, {"n_ctx": 512, "texts": ["a"]}, resume=True)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{\n",
        b"[]\n",
        b'{"format": 9, "settings": {}}\n',
        b'{"format": 1}\n',
        b'{"format": 1, "settings": 3}\n',
        b"\xff\xfe{\n",
        b"[" * 100_000 + b"\n",
    ],
)
def test_another_file_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="not a file of measurements"):
        Store(path, {}, resume=True)
    assert path.read_bytes() == data


@pytest.mark.parametrize("line", [b"{}", b"\0\0\0", b'{"key": "b", "val', b'{"key": [], "value": 1}', b"\xff", b""])
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "cases.jsonl"
    store = Store(path, {})
    store["a"], store["b"] = 1, 2
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*whole[:2], line + b"\n", *whole[2:]]))
    with pytest.raises(ConfigError, match=r"line 3 is not a measurement .* delete the line"):
        Store(path, {}, resume=True)


def test_only_the_fastest_of_each_grid_go_on() -> None:
    cases = [
        case("plain", 10),
        case("ngram-k(n=4)", 30, grid=True),
        case("ngram-k(n=6)", 20, grid=True),
        case("ngram-k(n=8)", 40, grid=True),
        case("server:ngram-map-k(n=4)", 1, grid=True),
        case("server:ngram-map-k", 0.5),
        attrs.evolve(failed("ngram-k(n=9)"), side=attrs.evolve(Side.parse("ngram-k(n=9)"), from_grid=True)),
    ]
    assert [side.label for side in screened(cases, 2)] == [
        "plain", "ngram-k(n=4)", "ngram-k(n=8)", "server:ngram-map-k(n=4)", "server:ngram-map-k",
    ]  # fmt: skip


def test_screening_is_by_text() -> None:
    def run(job: Job) -> Any:
        fast = {"p": 4, "c": 6}.get(job.prompt) == job.side.options.get("n")
        return attrs.asdict(measured(200.0 if fast else 100.0))

    sides = tuple(expand([PLAIN, Side.parse("ngram-k")], {"n": (4, 6, 8)}))
    cases = Runner(plan(sides=sides, screen=1, repeat=2), Store(None, {}), run=run).compare()
    later = [(c.workload, c.side.label) for c in cases if c.repetition == 1]
    assert sorted(later) == [("chat", "ngram-k(n=6)"), ("chat", "plain"), ("prose", "ngram-k(n=4)"), ("prose", "plain")]


@pytest.mark.parametrize("task", ["turns", "verify"])
def test_a_side_that_fails_takes_no_other_with_it(task: str) -> None:
    runner = Runner(plan(repeat=1), Store(None, {}), run=Worker(fails_at=0))
    sides = [PLAIN, DRAFTED]
    found = list(runner.verified(sides) if task == "verify" else runner.repeated(task, sides))
    assert len(found) == (3 if task == "verify" else 1)
    assert found[0][0] is DRAFTED
    assert runner.failures == ["it broke"]
    assert Runner(plan(), Store(None, {}), run=Worker(fails_at=0)).once("audit") is None


def test_margins_that_cannot_be_had_are_unknown() -> None:
    known = Runner(plan(), Store(None, {}), run=Worker()).margins("prose")
    assert [[tuple(pair) for pair in place] for place in known] == [[(9, 0.25)]] * 7
    assert Runner(plan(), Store(None, {}), run=Worker(fails_at=0)).margins("prose") == ()


def test_tasks_without_a_text_are_interleaved_too() -> None:
    worker = Worker()
    found = list(Runner(plan(), Store(None, {}), run=worker).repeated("turns", [PLAIN, DRAFTED]))
    assert [(side.label, repetition) for side, repetition, _ in found] == [
        ("plain", 0), ("ngram-k(n=8)", 0), ("ngram-k(n=8)", 1), ("plain", 1),
    ]  # fmt: skip
    assert {job.task for job in worker.jobs} == {"turns"}


def test_every_side_is_verified_on_every_text() -> None:
    worker = Worker()
    found = list(Runner(plan(), Store(None, {}), run=worker).verified([PLAIN, DRAFTED]))
    assert [(side.label, workload) for side, workload, _ in found] == [
        (side.label, workload) for workload in plan().prompts for side in (PLAIN, DRAFTED)
    ]
    assert {job.task for job in worker.jobs} == {"verify"}


JOB = Job(settings=SETTINGS, side=PLAIN, prompt="p", warm_up="w", task="nothing")


def test_a_failing_worker_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('not the module that was meant')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WorkerError, match=r"^plain \(nothing\) failed with exit code 1: .*bench.nothing"):
        run_process(JOB)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("print('hello')", r"gave no answer, but 'hello\\n'"),
        ("pass", "gave no answer, but ''"),
        ("import os; os.kill(os.getpid(), 9)", "was ended by SIGKILL: it said nothing"),
        ("import sys; sys.exit('oh')", "failed with exit code 1: oh"),
        ("import os; os._exit(3)", "failed with exit code 3: it said nothing"),
    ],
)
def test_a_worker_that_gives_no_answer_is_a_failure(monkeypatch: pytest.MonkeyPatch, program: str, said: str) -> None:
    monkeypatch.setattr(worker, "_START", program)
    with pytest.raises(WorkerError, match=rf"^plain \(nothing\) {said}"):
        run_process(JOB)
