from __future__ import annotations

import cProfile
import io
import json
import pstats
from typing import Any

import pytest
from rich.console import Console

from specframe.bench import __main__ as program
from specframe.bench import drafting, goals, orchestration, results, tables
from specframe.bench.comparison import Cell
from specframe.bench.drafting import DraftCost
from specframe.bench.goals import Goal
from specframe.bench.orchestration import CASES, Case, Cost, NativeClock
from specframe.bench.results import Results
from specframe.bench.settings import Measurement, Settings, Variant
from specframe.bench.statistics import Summary
from specframe.bench.turns import TurnCost


def measurement(speed: float, text: str = "text") -> Measurement:
    return Measurement(
        library="lib.so", text=text, prompt_tokens=5, tokens=7, tokens_per_second=speed, ttft_s=0.1, wall_s=1.0,
        load_s=0.5, drafted=4, accepted=3,
    )  # fmt: skip


def cell(label: str, ours: float, theirs: float, text: str = "text") -> Cell:
    return Cell(
        variant=Variant.parse(label),
        workload="prose",
        ours=(measurement(ours, text), measurement(ours, text)),
        theirs=(measurement(theirs), measurement(theirs)),
    )


def one(value: float) -> Summary:
    return Summary.of([value])


def cost(us: float, case: Case = CASES[0]) -> Cost:
    return Cost(case=case, per_step_us=one(us), per_token_us=us, native_us=300.0, n_steps=9, profile=(("step", 4.5),))


def draft_cost(context: int, us: float) -> DraftCost:
    return DraftCost(strategy="ngram-k", context=context, median_us=us, p99_us=us, begin_us=0.5, drafted=3.0)


def turn(label: str, ratio: float) -> TurnCost:
    return TurnCost(
        strategy=label, shared_tokens=1300, new_tokens=7, ttft_s=one(0.05), first_turn_s=one(2.0), ratio=one(ratio)
    )


def found(**parts: Any) -> Results:
    return Results(
        settings=Settings(model="/models/tiny.gguf", library="lib.so"),
        repeat=2,
        machine={"cpu": "a | b"},
        load_before=parts.pop("load_before", 0.1),
        load_after=0.2,
        **parts,
    )


EVERYTHING: dict[str, Any] = {
    "comparison": [cell("plain", 99.0, 100.0), cell("ngram-k:n8m16", 130.0, 100.0)],
    "orchestration": {"tiny": [cost(20.0)]},
    "drafting": [draft_cost(1000, 3.0), draft_cost(64000, 3.3)],
    "turns": [turn("plain", 1.0), turn("ngram-k:n8m16", 1.05)],
}


def test_bounds_hold_in_their_direction() -> None:
    assert Goal("speed", 1.0, 0.98, at_least=True).met
    assert not Goal("speed", 0.97, 0.98, at_least=True).met
    assert Goal("cost", 25.0, 25.0, at_least=False).met
    assert not Goal("cost", 25.1, 25.0, at_least=False).met
    assert str(Goal("cost", 30.0, 25.0, at_least=False)) == "cost: 30 (not met, goal <= 25)"


def test_plain_and_drafted_cells_have_different_bounds() -> None:
    reached = goals.of_comparison(EVERYTHING["comparison"])
    assert [(g.bound, g.value, g.met) for g in reached] == [(0.98, 0.99, True), (1.0, 1.3, True), (0, 0, True)]


def test_a_drafted_text_that_differs_misses_a_goal() -> None:
    cells = [cell("plain", 100.0, 100.0), cell("ngram-k:n8m16", 100.0, 100.0, text="tent")]
    assert [g.met for g in goals.of_comparison(cells)] == [True, True, False]


def test_only_cases_with_a_goal_have_one() -> None:
    costs = [cost(20.0), cost(500.0, Case(name="long", draft=48))]
    assert [(g.value, g.bound) for g in goals.of_orchestration("tiny", costs)] == [(20.0, 25.0)]


def test_growth_is_longest_over_shortest_context_in_any_order() -> None:
    costs = [draft_cost(64_000, 9.0), draft_cost(1_000, 3.0), draft_cost(16_000, 1.0)]
    assert drafting.growth(costs) == 3.0
    assert [(g.value, g.met) for g in goals.of_drafting(costs)] == [(3.0, False)]
    assert goals.of_drafting(costs[:1]) == []


def test_turns_are_held_against_plain() -> None:
    assert [(g.value, g.met) for g in goals.of_turns([turn("plain", 1.0), turn("ngram-k:n8m16", 3.0)])] == [
        (3.0, False)
    ]


def test_json_has_everything() -> None:
    data = json.loads(json.dumps(found(**EVERYTHING).to_dict()))
    assert [goal["met"] for goal in data["goals"]] == [True] * 6
    assert data["drafting_growth"] == {"ngram-k": pytest.approx(1.1)}
    assert data["text_differs_from_plain_at"] == {"ngram-k:n8m16 on prose": None}
    assert data["load_average"] == {"before": 0.1, "after": 0.2}


def test_markdown_shows_each_part_once() -> None:
    text = tables.markdown(found(**EVERYTHING))
    for title in (
        "Machine",
        "Against the server",
        "Outside native calls, tiny",
        "Drafting as",
        "First token of",
        "Goals",
    ):
        assert text.count(f"### {title}") == 1
    assert "| cpu | a \\| b |" in text
    assert "| ngram-k:n8m16 | prose | 130.0 (130.0-130.0) | 100.0 (100.0-100.0) |" in text
    assert "| 1.31 | 3/4 | 3/4 | equal |" in text
    assert "Other jobs" not in text


def test_markdown_tables_are_rectangular() -> None:
    for table in tables.tables(found(**EVERYTHING)):
        assert {len(row) for row in table.rows} == {len(table.headings)}


def test_parts_that_were_left_out_are_not_shown() -> None:
    assert [t.title for t in tables.tables(found())] == ["Machine and settings", "Goals"]


def test_a_busy_machine_is_mentioned() -> None:
    assert "Other jobs wanted the cores" in tables.markdown(found(load_before=2.0))


def test_one_repetition_has_no_range() -> None:
    assert tables.spread(Summary.of([2.0]), 2) == "2.00"
    assert tables.spread(Summary.of([2.0, 3.0]), 1) == "2.5 (2.0-3.0)"


def test_missed_goals_are_shown() -> None:
    screen = io.StringIO()
    program.show(found(turns=[turn("ngram-k:n8m16", 9.0)]), Console(file=screen, width=160))
    assert "not met" in screen.getvalue()


class FakeLibrary:
    CONSTANT = 3

    def llama_add(self, one: int, other: int) -> int:
        return one + other

    def llama_fail(self) -> None:
        raise RuntimeError("native")


def test_native_calls_are_timed_and_answer_as_before() -> None:
    clock = NativeClock(FakeLibrary())
    assert clock.llama_add(1, 2) == 3
    assert clock.CONSTANT == 3
    with pytest.raises(RuntimeError, match="native"):
        clock.llama_fail()
    assert clock.calls == 2
    assert clock.seconds > 0
    assert clock.llama_add is clock.llama_add  # wrapped once


def test_the_cost_of_timing_is_taken_off() -> None:
    clock = NativeClock(FakeLibrary())
    clock.calibrate(n=200)
    assert clock.overhead_s > 0
    assert clock.seconds == 0
    clock.calls = 10
    assert clock.read()[1] == pytest.approx(10 * clock.overhead_s)


def test_a_step_emits_what_was_accepted_and_one_more() -> None:
    assert Case(name="plain").emitted == 1
    assert Case(name="all", draft=8).emitted == 9
    assert Case(name="some", draft=8, wrong_at=4).emitted == 5


def test_profiles_leave_native_functions_out() -> None:
    def llama_native() -> int:
        return sum(range(50_000))

    def ours() -> int:
        return sum(range(10_000))

    profiler = cProfile.Profile()
    profiler.runcall(lambda: (llama_native(), ours()))
    names = [name for name, _ in orchestration.hottest(pstats.Stats(profiler), steps=2, top=10)]
    assert any(".ours:" in name for name in names)
    assert not any("llama_native" in name for name in names)


def test_drafting_cost_is_measured_on_something_that_repeats() -> None:
    measured = drafting.measure("ngram-k", 1_000, steps=100)
    assert measured.drafted > 10
    assert 0 < measured.median_us <= measured.p99_us


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--strategies", "mtp"], "is no strategy"),
        (["--workloads", "poetry"], "there is no prompt 'poetry'"),
        (["--parts", "all"], "there is no part 'all'"),
        (["--tokens", "1"], "at least 2"),
        (["--repeat", "-1"], "at least 1"),
    ],
)
def test_wrong_arguments_exit_with_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        program.parse(arguments)
    assert raised.value.code == 2
    assert message in capsys.readouterr().err


def test_quick_is_one_short_repetition_unless_told_otherwise() -> None:
    quick, full = program.parse(["--quick"]), program.parse([])
    assert (quick.repeat, quick.tokens) == (1, 48)
    assert (full.repeat, full.tokens) == (5, 256)
    assert program.parse(["--quick", "--repeat", "3"]).repeat == 3


def test_missed_goals_fail_a_check_only(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = found(turns=[turn("ngram-k:n8m16", 9.0)])
    monkeypatch.setattr(program, "measure", lambda *_: slow)
    assert program.main([]) == 0
    assert program.main(["--check"]) == 1


def test_load_is_a_number_here() -> None:
    load = results.load()
    assert load is not None
    assert load >= 0
