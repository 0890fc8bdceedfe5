from __future__ import annotations

import json

import attrs
import pytest

from specframe.bench.comparison import Comparison, Divergence, first_difference, gather
from specframe.bench.runner import Case
from specframe.bench.settings import Margins
from tests.support.bench import case, failed, measured


def no_margins(_: str) -> Margins:
    raise AssertionError("nothing parts from plain decoding here")


def rows_of(*cases: Case) -> Comparison:
    return gather(cases, lambda _: [[(1, 0.0), (7, 0.5)], [(2, 0.0), (7, 0.1), (9, 0.25)], [(3, 0.0), (7, 0.125)]])


@pytest.mark.parametrize(
    ("one", "other", "at"), [("same", "same", None), ("abc", "abd", 2), ("ab", "abc", 2), ("", "x", 0), ("x", "y", 0)]
)
def test_first_difference(one: str, other: str, at: int | None) -> None:
    assert first_difference(one, other) == at


def test_ratios_are_of_pairs_of_the_same_repetition() -> None:
    # The machine was ten times slower in the second repetition; both pairs say 2.
    found = rows_of(case("plain", 100, 0), case("ngram-k", 200, 0), case("ngram-k", 20, 1), case("plain", 10, 1))
    row = found.row("prose", "ngram-k")
    assert row is not None
    assert row.speed_up is not None
    assert (row.speed_up.low, row.speed_up.median, row.speed_up.high) == (2.0, 2.0, 2.0)
    assert row.speed.median == 110


def test_repetitions_without_a_partner_are_left_out_of_ratios() -> None:
    found = rows_of(case("plain", 100, 0), case("ngram-k", 200, 0), case("ngram-k", 1, 1))
    row = found.row("prose", "ngram-k")
    assert row is not None
    assert row.speed_up is not None
    assert (row.speed_up.median, row.speed_up.n) == (2.0, 1)


def test_without_plain_decoding_there_is_no_ratio_and_no_verdict() -> None:
    [row] = rows_of(case("ngram-k")).rows
    assert row.speed_up is None
    assert row.to_dict()["same_output"] is None


def test_the_same_output_asks_for_no_margins() -> None:
    found = gather([case("plain"), case("ngram-k"), case("server", tokens=(1, 2, 3))], no_margins)
    assert [row.divergence for row in found.rows] == [None, None, None]


def test_where_tokens_part_the_margin_of_plain_decoding_is_told() -> None:
    found = rows_of(case("plain"), case("ngram-k", tokens=(1, 9, 3)))
    assert found.rows[1].divergence == Divergence(1, "token", 0.25)
    assert str(found.rows[1].divergence) == "token 1 (margin 0.25)"


def test_a_token_that_was_far_from_chosen_is_no_near_tie_where_two_others_were() -> None:
    # Token 7 was nearly as probable as the right one, but it is not what was emitted.
    assert rows_of(case("plain"), case("ngram-k", tokens=(1, 5, 3))).rows[1].divergence == Divergence(1, "token", 0.25)
    assert rows_of(case("plain"), case("ngram-k", tokens=(1, 7, 3))).rows[1].divergence == Divergence(1, "token", 0.1)


def test_where_an_output_ends_early_the_margin_is_unknown() -> None:
    assert rows_of(case("plain"), case("ngram-k", tokens=(1,))).rows[1].divergence == Divergence(1, "token", None)


def test_a_longer_output_parts_where_plain_decoding_ends() -> None:
    assert rows_of(case("plain"), case("ngram-k", tokens=(1, 2, 3, 4))).rows[1].divergence == Divergence(
        3, "token", None
    )


def test_the_server_is_compared_by_its_text() -> None:
    found = gather([case("plain"), case("server", text="12x", tokens=())], no_margins)
    assert str(found.rows[1].divergence) == "character 2"


def test_comparable_sides_have_no_notes() -> None:
    assert [row.notes for row in rows_of(case("plain"), case("server")).rows] == [[], []]


@pytest.mark.parametrize(
    ("cases", "note"),
    [
        ([case("server", prompt_tokens=6)], "a prompt of 6 tokens, not 5"),
        ([case("server", library="other.so")], "another library: other.so, not lib.so"),
        ([case("server"), case("server", repetition=1, text="other")], "different texts in different repetitions"),
        ([case("server"), failed("server", 1)], "failed: it broke"),
    ],
)
def test_what_makes_sides_incomparable_is_said(cases: list[Case], note: str) -> None:
    row = rows_of(case("plain"), *cases).row("prose", "server")
    assert row is not None
    assert row.notes == [note]


def test_a_side_that_always_fails_is_a_failure_not_a_row() -> None:
    found = rows_of(case("plain"), failed("ngram-k"))
    assert [row.side.label for row in found.rows] == ["plain"]
    assert found.failures == ("ngram-k on prose: it broke\nhere",)


def test_a_row_is_ready_for_json() -> None:
    row = rows_of(case("plain"), case("ngram-k", 200, tokens=(1, 9)))
    data = json.loads(json.dumps(row.rows[1].to_dict()))
    assert data["speed_up"]["median"] == 2.0
    assert data["divergence"] == {"at": 1, "unit": "token", "margin": 0.25}
    assert data["acceptance"] == 0.75
    assert data["acceptance_by_position"] == [1.0, 0.5]
    assert data["rollbacks"] == {"truncate": 1}
    assert data["ms_per_step"]["draft"] == 1.0
    assert "prompt" not in data["ms_per_step"]
    assert data["peak_ram_bytes"] == 50_000_000
    assert data["vram_bytes"] is None


def test_the_server_tells_less() -> None:
    row = rows_of(case("server", stats={}, peak_ram_bytes=None)).rows[0]
    assert row.acceptance == 0.75
    assert row.acceptance_by_position == []
    assert row.mean_accepted_length is None
    assert row.ms_per_step == {}
    assert row.peak_ram_bytes is None


def test_the_best_of_the_server_is_among_those_that_were_repeated() -> None:
    found = rows_of(
        case("server:ngram-map-k(n=4)", 500, grid=True),
        case("server:ngram-map-k(n=6)", 100, 0, grid=True),
        case("server:ngram-map-k(n=6)", 100, 1, grid=True),
        case("server:ngram-map-k(n=8)", 90, 0, grid=True),
        case("server:ngram-map-k(n=8)", 300, 1, grid=True),
        case("server", 120, 0),
        case("server", 120, 1),
    )
    best = found.best_of_server("prose")
    assert best is not None
    assert best.side.label == "server:ngram-map-k(n=8)"
    assert found.best_of_server("chat") is None


def test_memory_is_the_most_that_was_taken() -> None:
    found = rows_of(case("plain", peak_ram_bytes=1), case("plain", repetition=1, peak_ram_bytes=3, vram_bytes=2))
    assert (found.rows[0].peak_ram_bytes, found.rows[0].vram_bytes) == (3, 2)


def test_sustained_speed_counts_the_whole_request() -> None:
    assert measured(wall_s=2.0).sustained == 3.5
    assert attrs.evolve(measured(), wall_s=0.0).sustained == 0.0
