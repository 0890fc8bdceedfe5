from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from specframe.bench import comparison
from specframe.bench.comparison import SIDES, Cell, compare, lossless, order
from specframe.bench.settings import VARIANTS, WORKLOADS, Job, Measurement, Settings, Variant, text_of, workloads

PLAIN = Variant()
DRAFTED = Variant.parse("ngram-k:n8m16")
SETTINGS = Settings(model="model.gguf", library="lib.so", max_tokens=7)


def measured(speed: float = 100.0, *, text: str = "text", wall_s: float = 2.0, tokens: int = 7) -> Measurement:
    return Measurement(
        library="lib.so", text=text, prompt_tokens=5, tokens=tokens, tokens_per_second=speed, ttft_s=0.1, wall_s=wall_s,
        load_s=0.5,
    )  # fmt: skip


def cell(ours: list[Measurement], theirs: list[Measurement], variant: Variant = PLAIN) -> Cell:
    return Cell(variant=variant, workload="prose", ours=tuple(ours), theirs=tuple(theirs))


def recorder(calls: list[tuple[str, Job]]) -> Callable[[str, Job], Measurement]:
    def run(side: str, job: Job) -> Measurement:
        calls.append((side, job))
        return measured(float(len(calls)))

    return run


@pytest.mark.parametrize("text", ["plain", "ngram-k:n12m48", "ngram-k4v:n8m16"])
def test_labels_are_read_back(text: str) -> None:
    assert Variant.parse(text).label == text


def test_labels_carry_the_options() -> None:
    assert Variant.parse("ngram-k4v:n8m16").options == {"n": 8, "m": 16, "min_hits": 1}
    assert PLAIN.options == {}


@pytest.mark.parametrize("text", ["", "ngram-k", "ngram-k:n8", "mtp:n8m16", "ngram-k:n8m16 ", "none"])
def test_other_strategies_are_refused_with_what_is_possible(text: str) -> None:
    with pytest.raises(ValueError, match="ngram-k4v:n12m48"):
        Variant.parse(text)


def test_jobs_survive_the_way_to_a_worker() -> None:
    job = Job(settings=SETTINGS, variant=DRAFTED, prompt="é\n", warm_up="w")
    assert Job.from_dict(json.loads(json.dumps(job.to_dict()))) == job


def test_both_sides_get_the_same_environment() -> None:
    assert SETTINGS.environment == {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "2000"}


def test_every_workload_has_a_text_of_its_own_and_the_warm_up_is_another() -> None:
    assert sorted(WORKLOADS) == sorted(workloads())
    texts = [text_of(name) for name in [*WORKLOADS, "warm-up"]]
    assert len(set(texts)) == len(texts)
    assert all(len(text) > 100 for text in texts)


def test_unknown_texts_are_refused() -> None:
    with pytest.raises(ValueError, match="there are code-rewrite"):
        text_of("poetry")


def test_each_side_goes_first_in_turn() -> None:
    assert order(0) == SIDES
    assert order(1) == SIDES[::-1]


def test_sides_alternate_and_get_the_same_job() -> None:
    calls: list[tuple[str, Job]] = []
    cells = compare(SETTINGS, [PLAIN, DRAFTED], ["prose"], repeat=2, run=recorder(calls))
    assert [side for side, _ in calls] == ["specframe", "server"] * 2 + ["server", "specframe"] * 2
    assert all(calls[i][1] == calls[i + 1][1] for i in range(0, len(calls), 2))
    assert calls[0][1].prompt == text_of("prose")
    assert [(c.variant, c.workload) for c in cells] == [(PLAIN, "prose"), (DRAFTED, "prose")]
    assert [m.tokens_per_second for m in cells[0].ours] == [1.0, 6.0]
    assert [m.tokens_per_second for m in cells[0].theirs] == [2.0, 5.0]


def test_progress_ends_at_its_total() -> None:
    seen: list[tuple[int, int]] = []
    compare(SETTINGS, [PLAIN], ["prose"], repeat=1, run=recorder([]), progress=lambda n, of, _: seen.append((n, of)))
    assert seen == [(0, 2), (1, 2), (2, 2)]


def test_ratios_above_one_mean_that_specframe_is_faster() -> None:
    faster = cell([measured(200.0, wall_s=1.0)], [measured(100.0, wall_s=3.0)])
    assert faster.speed_ratio.median == 2.0
    assert faster.wall_ratio.median == 3.0
    assert [side.median for side in faster.speed] == [200.0, 100.0]


def test_comparable_sides_have_no_notes() -> None:
    assert cell([measured()], [measured()]).notes == ()


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"prompt_tokens": 6}, "prompts of 5 and 6 tokens"),
        ({"tokens": 6}, "7 and 6 tokens generated"),
        ({"library": "other.so"}, "different libraries: lib.so and other.so"),
    ],
)
def test_what_makes_sides_incomparable_is_said(change: dict[str, Any], note: str) -> None:
    assert cell([measured()], [attrs.evolve(measured(), **change)]).notes == (note,)


def test_a_side_that_changes_its_text_is_named() -> None:
    notes = cell([measured(), measured()], [measured(), measured(text="other")]).notes
    assert notes == ("server gave different texts in different repetitions",)


def test_texts_of_the_sides_are_compared() -> None:
    assert cell([measured()], [measured()]).differs_at is None
    assert cell([measured(text="tent")], [measured()]).differs_at == 2


def test_drafted_text_is_held_against_our_own_plain_text() -> None:
    plain = cell([measured()], [measured(text="theirs")])
    same, other = cell([measured()], [measured()], DRAFTED), cell([measured(text="tex")], [measured()], DRAFTED)
    assert lossless([plain, same]) == {"ngram-k:n8m16 on prose": None}
    assert lossless([plain, other]) == {"ngram-k:n8m16 on prose": 3}
    assert lossless([same]) == {}


def test_a_cell_is_ready_for_json() -> None:
    data = json.loads(json.dumps(cell([measured(200.0)], [measured(100.0)]).to_dict()))
    assert data["speed_ratio"]["median"] == 2.0
    assert data["runs"]["server"][0]["tokens_per_second"] == 100.0
    assert data["tokens_per_second"]["specframe"]["median"] == 200.0


def test_the_default_strategies_are_plain_and_both_ngrams() -> None:
    assert VARIANTS[0].label == "plain"
    assert {v.strategy for v in VARIANTS} == {"none", "ngram-k", "ngram-k4v"}


def test_a_failing_worker_is_quoted() -> None:
    job = Job(settings=SETTINGS, variant=PLAIN, prompt="p", warm_up="w")
    with pytest.raises(RuntimeError, match=r"the nobody worker failed(.|\n)*bench.side_nobody"):
        comparison.run_process("nobody", job)
