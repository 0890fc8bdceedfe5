from __future__ import annotations

import cProfile
import csv
import io
import json
import pstats
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import attrs
import pytest

from specframe.backends.llama.audit import Audit
from specframe.bench import answers, drafting, goals, html, orchestration, plots, program, results, tables
from specframe.bench.answers import TurnCost
from specframe.bench.comparison import Comparison, gather
from specframe.bench.drafting import DraftCost
from specframe.bench.goals import Goal
from specframe.bench.orchestration import CASES, Case, Cost, NativeClock
from specframe.bench.results import Results
from specframe.bench.sides import PLAIN, Side
from specframe.bench.statistics import Summary
from tests.support import bench as made
from tests.support.audits import at, verdict


def one(value: float) -> Summary:
    return Summary.of([value])


def cost(us: float, case: Case = CASES[0]) -> Cost:
    return Cost(case=case, per_step_us=one(us), per_token_us=us, native_us=300.0, n_steps=9, profile=(("step", 4.5),))


def draft_cost(context: int, us: float) -> DraftCost:
    return DraftCost(strategy="ngram-k", context=context, median_us=us, p99_us=us, begin_us=0.5, drafted=3.0)


def turn(side: str, ratio: float | None) -> TurnCost:
    return TurnCost(
        side=side,
        shared_tokens=1300,
        new_tokens=7,
        ttft_s=one(0.05),
        first_turn_s=one(2.0),
        ratio=None if ratio is None else one(ratio),
    )


def compared(*cases: Any, margin: float = 0.25) -> Comparison:
    return gather(cases, lambda _: [[(9, margin)]] * 9)


def found(**parts: Any) -> Results:
    return Results(
        settings=made.SETTINGS,
        repeat=2,
        machine={"cpu": "a | <b>"},
        load_before=parts.pop("load_before", 0.1),
        load_after=0.2,
        **parts,
    )


def audited(difference: float = 0.25) -> Audit:
    return verdict(at(1, context=32, cost_s=0.002), at(4, context=32, cost_s=0.006, exact=False, difference=difference))


CHECKPOINT = {"on_device": True, "length": 128, "n_bytes": 2_000_000, "capture_s": [0.001], "restore_s": [0.002]}

EVERYTHING: dict[str, Any] = {
    "comparison": compared(
        made.case("plain", 99.0),
        made.case("ngram-k(n=8)", 130.0),
        made.case("server", 100.0, stats={}),
        made.case("server:ngram-map-k(n=8)", 100.0, stats={}),
    ),
    "orchestration": {"tiny": [cost(20.0)]},
    "drafting": [draft_cost(1000, 3.0), draft_cost(64000, 3.3)],
    "turns": [turn("plain", 1.0), turn("ngram-k(n=8)", 1.05)],
    "verified": answers.verdicts([(PLAIN, "prose", {"n_tokens": 8, "margins": [[3, 0.0]]})]),
    "checkpoints": answers.checkpoints([CHECKPOINT]),
    "audit": audited(),
    "remarks": ["something was left out"],
}


# -- goals ------------------------------------------------------------------------------------------------------------


def test_bounds_hold_in_their_direction() -> None:
    assert Goal("speed", 1.0, 0.98, at_least=True).met
    assert not Goal("speed", 0.97, 0.98, at_least=True).met
    assert Goal("cost", 25.0, 25.0, at_least=False).met
    assert not Goal("cost", 25.1, 25.0, at_least=False).met
    assert str(Goal("cost", 30.0, 25.0, at_least=False)) == "cost: 30 (not met, goal <= 25)"


def test_peers_are_those_with_equal_settings() -> None:
    reached = goals.of_comparison(EVERYTHING["comparison"])
    assert [(g.bound, g.value, g.met) for g in reached] == [(0.98, 0.99, True), (1.0, 1.3, True), (0, 0, True)]
    others = compared(made.case("plain"), made.case("ngram-k(n=8)"), made.case("server:ngram-map-k(n=6)"))
    assert len(goals.of_comparison(others)) == 1


def test_near_ties_are_no_faults() -> None:
    cases = [made.case("plain"), made.case("ngram-k", tokens=(1, 9))]
    assert [g.met for g in goals.of_comparison(compared(*cases, margin=0.1))] == [True]
    assert [g.met for g in goals.of_comparison(compared(*cases, margin=2.0))] == [False]
    assert [g.met for g in goals.of_comparison(gather(cases, lambda _: []))] == [False]


def test_an_audit_knows_what_a_near_tie_is() -> None:
    cases = compared(made.case("plain"), made.case("ngram-k", tokens=(1, 9)), margin=0.3)
    assert [g.met for g in goals.of_comparison(cases, audited(0.25))] == [True]
    assert [g.met for g in goals.of_comparison(cases, audited(0.125))] == [False]


def auto(workload: str, speed: float) -> Any:
    return attrs.evolve(made.case("plain", speed, workload=workload), side=Side(strategy="auto"))


def test_auto_is_held_against_plain_the_default_and_the_best_of_the_server() -> None:
    comparison = compared(
        *(made.case("plain", 100, workload=w) for w in ("code-rewrite", "log-extraction", "prose")),
        auto("code-rewrite", 144),
        auto("log-extraction", 100),
        auto("prose", 97),
        made.case("server:ngram-map-k", 72, workload="code-rewrite"),
        made.case("server:ngram-map-k", 400, workload="prose"),
        made.case("server:ngram-map-k(n=8)", 150, workload="code-rewrite", grid=True),
        made.case("server:ngram-map-k(n=4)", 120, workload="code-rewrite", grid=True),
    )
    reached: dict[str, Any] = {
        goal.what: (pytest.approx(goal.value), goal.met) for goal in goals.of_comparison(comparison)
    }
    assert reached == {
        "auto on code-rewrite, x plain": (1.44, True),
        "auto on log-extraction, x plain": (1.0, True),
        "auto on prose, x plain": (0.97, False),
        "auto on code-rewrite, x the server's best, server:ngram-map-k(n=8)": (0.96, False),
        "auto on prose, x the server's best, server:ngram-map-k": (0.2425, False),
        "auto where the answer repeats the prompt, x plain, geometric mean of 2": (1.2, True),
        "auto where the answer repeats the prompt, x server:ngram-map-k, geometric mean of 1": (2.0, True),
        "drafted outputs that part from plain decoding at no near tie": (0, True),
    }


def test_being_wrong_must_cost_next_to_nothing() -> None:
    comparison = compared(made.case("plain", 100), made.case("always-wrong", 96))
    assert next((g.value, g.bound, g.met) for g in goals.of_comparison(comparison)) == (0.96, 0.97, False)


def test_chosen_lengths_are_held_against_the_best_fixed_one() -> None:
    stats = {**made.STATS, "scheduler": {"lengths": {"0": 3, "4": 9}}}
    comparison = compared(
        made.case("plain"),
        made.case("mtp(n_max=8)@auto", 190, stats=stats),
        made.case("mtp(n_max=8)@2", 100, grid=True),
        made.case("mtp(n_max=8)@6", 200, grid=True),
        made.case("mtp(n_max=4)@4", 900),
    )
    lengths = goals.of_comparison(comparison)[:2]
    assert [(g.value, g.bound, g.met) for g in lengths] == [(0.95, 0.95, True), (2, 1, False)]
    assert goals.of_comparison(compared(made.case("plain"), made.case("mtp@auto")))[0].bound == 0


def test_only_cases_with_a_goal_have_one() -> None:
    measured = [cost(20.0), cost(500.0, Case(name="long", draft=48))]
    assert [(g.value, g.bound) for g in goals.of_orchestration("tiny", measured)] == [(20.0, 25.0)]


def test_growth_is_longest_over_shortest_context_in_any_order() -> None:
    measured = [draft_cost(64_000, 9.0), draft_cost(1_000, 3.0), draft_cost(16_000, 1.0)]
    assert drafting.growth(measured) == 3.0
    assert [(g.value, g.met) for g in goals.of_drafting(measured)] == [(3.0, False)]
    assert goals.of_drafting(measured[:1]) == []


def test_tokens_that_plain_decoding_would_not_choose_are_counted() -> None:
    judged = answers.verdicts([(PLAIN, "prose", {"n_tokens": 8, "margins": [[3, 0.25], [5, 9.0]]})])
    assert [(g.value, g.met) for g in goals.of_verified(judged)] == [(1, False)]  # 0.25 is taken for a near tie
    assert [g.value for g in goals.of_verified(judged, audited(0.1))] == [2]  # rounding explains up to 0.2
    assert goals.of_verified([]) == []


def test_turns_are_held_against_plain() -> None:
    measured = [turn("plain", 1.0), turn("ngram-k", 3.0), turn("mtp", None)]
    assert [(g.value, g.met) for g in goals.of_turns(measured)] == [(3.0, False)]


# -- costs ------------------------------------------------------------------------------------------------------------


def test_turns_are_paired_by_repetition() -> None:
    def answer(second_s: float) -> dict[str, Any]:
        return {"first_s": 1.0, "second_s": second_s, "shared_tokens": 9, "new_tokens": 2}

    drafted = Side.parse("ngram-k")
    told = [(PLAIN, 0, answer(0.1)), (drafted, 0, answer(0.2)), (drafted, 1, answer(3.0)), (PLAIN, 1, answer(1.0))]
    plain, other = answers.turns(told)
    assert (plain.side, other.side, other.shared_tokens) == ("plain", "ngram-k", 9)
    assert other.ratio is not None
    assert (other.ratio.low, other.ratio.high) == (2.0, 3.0)
    assert answers.turns(told[1:3])[0].ratio is None


def test_a_device_that_keeps_checkpoints_on_the_host_is_counted_once() -> None:
    host = {**CHECKPOINT, "on_device": False}
    assert [(c.place, c.length) for c in answers.checkpoints([host, host])] == [("host", 128)]
    [device] = answers.checkpoints([CHECKPOINT])
    assert (device.place, device.capture_ms.median, device.restore_ms.median) == ("device", 1.0, 2.0)


def test_batches_are_held_against_a_single_row() -> None:
    text = tables.markdown(found(audit=audited()))
    assert "| 32 | 1 | 2.00 | 1.00 | yes |" in text
    assert "| 32 | 4 | 6.00 | 3.00 | no, 0.25 |" in text


def test_an_answer_of_one_token_has_no_speed() -> None:
    comparison = compared(
        *(made.case(label, speed, workload="code-rewrite") for label, speed in
          (("plain", 0.0), ("auto", 0.0), ("server", 1e6), ("server:ngram-map-k", 1e6)))
    )  # fmt: skip
    assert goals.of_comparison(comparison) == [
        Goal("drafted outputs that part from plain decoding at no near tie", 0, 0, at_least=False)
    ]
    assert found(comparison=comparison).to_dict()["comparison"][1]["speed_up"] is None


# -- formats ----------------------------------------------------------------------------------------------------------


def test_json_has_everything() -> None:
    data = json.loads(json.dumps(found(**EVERYTHING).to_dict()))
    assert [goal["met"] for goal in data["goals"]] == [True] * 7
    assert data["drafting_growth"] == {"ngram-k": pytest.approx(1.1)}
    assert [row["side"] for row in data["comparison"]][:2] == ["plain", "ngram-k(n=8)"]
    assert data["load_average"] == {"before": 0.1, "after": 0.2}
    assert data["checkpoints"][0]["place"] == "device"


def test_files_are_written_whatever_things_are_called(tmp_path: Path) -> None:
    name = "a|<b>\"'$x_1$ and $\\frac$ [/red]"
    comparison = compared(made.case("plain", workload=name), made.case("ngram-k", workload=name, tokens=(1, 9)),
                          margin=float("inf"))  # fmt: skip
    results = found(comparison=comparison, failed_parts=["verify: it broke"])
    results.settings = attrs.evolve(made.SETTINGS, model=f"/x/{name}\udc80")
    written = program.write(results, tmp_path)
    assert [path.name for path in written] == ["results.json", "results.csv", "results.md", "report.html"]
    data = json.loads(written[0].read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert data["comparison"][1]["divergence"]["margin"] is None
    assert data["comparison"][1]["workload"] == name
    assert data["failures"] == ["verify: it broke"]
    rows = list(csv.DictReader(io.StringIO(written[1].read_text(encoding="utf-8"))))
    assert [row["workload"] for row in rows] == [name, name]
    assert "failed: verify: it broke" in written[2].read_text(encoding="utf-8")
    page, references = written[3].read_text(encoding="utf-8"), References()
    references.feed(page)
    assert (references.fetched, references.open) == ([], [])
    assert page.count("$x_1$ and $\\frac$ [/red]") > 4


TITLES = (
    "Machine",
    "Speed",
    "Acceptance",
    "Milliseconds of a step",
    "Memory and checkpoints",
    "A batch of the target by its width",
    "Outside native calls, tiny",
    "Drafting as",
    "First token of",
    "Checkpoints",
    "Goals",
)


def test_markdown_shows_each_part_once() -> None:
    text = tables.markdown(found(**EVERYTHING))
    for title in TITLES:
        assert text.count(f"### {title}") == 1
    assert "| cpu | a \\| <b> |" in text
    assert "| prose | ngram-k(n=8) | 130.0 | 1.313 | 7.0 | 100 | 7 | same |" in text
    assert "- something was left out" in text
    assert "Other jobs" not in text


def test_chosen_lengths_are_shown_in_their_order() -> None:
    stats = {**made.STATS, "scheduler": {"lengths": {"10": 2, "3": 5, "0": 7}}}
    text = tables.markdown(found(comparison=compared(made.case("ngram-k", stats=stats))))
    assert "| 0:7 3:5 10:2 | 1 truncate |" in text


def test_markdown_tables_are_rectangular() -> None:
    for table in tables.tables(found(**EVERYTHING)):
        assert {len(row) for row in table.rows} == {len(table.headings)}


def test_parts_that_were_left_out_are_not_shown() -> None:
    assert [t.title for t in tables.tables(found())] == ["Machine and settings"]


def test_failures_and_differences_are_shown() -> None:
    comparison = compared(made.case("plain"), made.case("ngram-k", tokens=(1, 9)), made.failed("ngram-k4v"))
    text = tables.markdown(found(comparison=comparison))
    assert "diverges at token 1 (margin 0.25)" in text
    assert "failed: ngram-k4v on prose: it broke" in text


def test_a_busy_machine_is_mentioned() -> None:
    assert "Other jobs wanted the cores" in tables.markdown(found(load_before=2.0))


def test_one_repetition_has_no_range() -> None:
    assert tables.spread(Summary.of([2.0]), 2) == "2.00"
    assert tables.spread(Summary.of([2.0, 3.0]), 1) == "2.5 (2.0-3.0)"
    assert tables.spread(None) == ""


def test_csv_has_a_line_per_side_and_text() -> None:
    lines = list(csv.DictReader(io.StringIO(tables.as_csv(found(**EVERYTHING)))))
    assert [line["side"] for line in lines] == ["plain", "ngram-k(n=8)", "server", "server:ngram-map-k(n=8)"]
    assert float(lines[1]["speed_up_median"]) == pytest.approx(130 / 99)
    assert (lines[1]["options"], lines[1]["rollbacks"], lines[2]["rollbacks"]) == ("n=8", "1", "0")
    assert float(lines[1]["draft_ms_per_step"]) == 1.0
    assert tables.as_csv(found()).strip() == ""


class References(HTMLParser):
    """Collects what a browser would fetch or run, and elements left open."""

    VOID = frozenset({"meta", "br", "hr", "img", "link", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        if tag in {"script", "link", "iframe", "img", "object", "embed", "base"}:
            self.fetched.append(tag)
        for name, value in attrs:
            outside = name in {"src", "href", "xlink:href", "data", "action"} and not (value or "").startswith("#")
            if outside or name.startswith("on"):
                self.fetched.append(f"{name}={value}")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_html_report_needs_nothing_else() -> None:
    page = html.report(found(**EVERYTHING))
    references = References()
    references.feed(page)
    assert references.fetched == []
    assert references.open == []
    assert re.findall(r"url\((?!#)|@import|@font-face", page) == []
    assert page.count("<svg") == 4
    assert all(f"<h2>{title}" in page for title in TITLES)
    assert "a | &lt;b&gt;" in page


def test_a_report_that_needs_something_would_be_found() -> None:
    references = References()
    references.feed('<script src="https://example.org/x.js"></script><a href="#here"></a>')
    assert references.fetched == ["script", "src=https://example.org/x.js"]


def test_the_html_report_is_the_same_each_time() -> None:
    assert html.report(found(**EVERYTHING)) == html.report(found(**EVERYTHING))


def test_without_matplotlib_the_report_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "available", lambda: False)
    page = html.report(found(**EVERYTHING))
    assert "<svg" not in page
    assert "pip install specframe[bench]" in page


def test_nothing_compared_is_nothing_drawn() -> None:
    assert plots.figures(Comparison()) == {}
    assert "There was nothing to draw." in html.report(found())


def test_figures_name_what_they_show() -> None:
    drawn = plots.figures(EVERYTHING["comparison"])
    assert [svg.count(">ngram-k(n=8)<") for svg in drawn.values()] == [1, 1, 1]
    assert ">prose<" in drawn["Speed over plain decoding, by text"]


def test_of_a_grid_the_best_is_drawn() -> None:
    comparison = compared(
        made.case("plain"),
        made.case("ngram-k(n=4)", 120, grid=True),
        made.case("ngram-k(n=8)", 130, grid=True),
        made.case("ngram-k(n=6)", 90),
    )
    assert [row.side.label for row in plots.shown(comparison)] == ["plain", "ngram-k(n=8)", "ngram-k(n=6)"]


# -- costs of specframe itself ----------------------------------------------------------------------------------------


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


def test_load_is_a_number_here() -> None:
    load = results.load()
    assert load is not None
    assert load >= 0


def test_a_machine_is_described_without_packages_it_does_not_have() -> None:
    assert {"cpu", "cores", "system", "python", "specframe", "llama.cpp", "xllamacpp"} == results.machine().keys()
    assert results._version("no-such-package") == "not installed"
