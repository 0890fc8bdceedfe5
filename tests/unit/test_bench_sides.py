from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specframe.bench import sides
from specframe.bench.settings import Job
from specframe.bench.sides import PLAIN, Side, expand, parse_values
from specframe.bench.wrong import AlwaysWrong
from specframe.core.errors import ConfigError
from specframe.core.history import History
from specframe.core.ports import TargetInfo
from specframe.core.strategy import DraftRequest, StrategyContext
from specframe.testing.vocabulary import ScriptedVocab
from tests.support.bench import SETTINGS


@pytest.mark.parametrize(
    "label",
    ["plain", "ngram-k", "ngram-k(m=16,n=8)", "mtp(n_max=3,p_min=0.5)", "server", "server:ngram-map-k(m=16,n=8)"],
)
def test_labels_are_read_back(label: str) -> None:
    assert Side.parse(f" {label} ").label == label
    assert Side.parse(label).family == label.partition("(")[0]


def test_options_have_the_types_of_json() -> None:
    side = Side.parse("server:draft-mtp(n-max=3,p_min=0.25,backend_sampling=false)")
    assert side.options == {"n_max": 3, "p_min": 0.25, "backend_sampling": False}


@pytest.mark.parametrize("label", ["server:plain", "server:none", "server:"])
def test_the_server_can_be_plain(label: str) -> None:
    assert Side.parse(label) == Side(engine="server")


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("poetry", "poetry"),
        ("ngram-k(size=3)", "size"),
        ("ngram-k(n=0)", "n"),
        ("ngram-k(n)", "name=value"),
        ("ngram-k(n=3", "closing parenthesis"),
        ("ngram-k:n=3", "ngram-k:n"),
        ("", "the name of a strategy"),
        ("plain(n=3)", "'none' is plain decoding; leave one"),
        ("server:mtp", "there are ngram-simple"),
        ("server:first-of(ngram-map-k,ngram-simple)", "no combinations"),
        ("server:ngram-map-k(n_max=3)", "there are n, m, min_hits"),
        ("server:plain(n=3)", "there are none"),
    ],
)
def test_what_cannot_be_measured_is_refused(label: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Side.parse(label)


def test_only_those_that_use_a_draft_file_get_it(tmp_path: Path) -> None:
    file = tmp_path / "draft.gguf"
    texts = ("plain", "ngram-k", "mtp", "server", "server:ngram-map-k", "server:draft-mtp")
    assert [Side.parse(text, file).draft == str(file) for text in texts] == [False, False, True, False, False, True]


def test_jobs_survive_the_way_to_a_worker() -> None:
    job = Job(settings=SETTINGS, side=Side.parse("ngram-k(n=8)"), prompt="é\n", warm_up="w", task="turns")
    assert Job.from_dict(json.loads(json.dumps(job.to_dict()))) == job


def test_all_sides_get_the_same_environment() -> None:
    assert SETTINGS.environment == {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "2000"}


@pytest.mark.parametrize(
    ("text", "values"),
    [("6,8,10", (6, 8, 10)), ("1..4", (1, 2, 3, 4)), ("1..2,8, 2", (1, 2, 8)), ("0,0.5", (0, 0.5)), ("f16", ("f16",))],
)
def test_values_of_an_axis(text: str, values: tuple[Any, ...]) -> None:
    assert parse_values(text) == values


@pytest.mark.parametrize("text", ["", "1,,2", "4..1", "a..b", "1.."])
def test_what_is_no_list_of_values_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no list of values"):
        parse_values(text)


@pytest.mark.parametrize("label", ["auto", "first-of(ngram-k(n=8),ngram-k4v)", "extend(mtp,ngram-k(n=3))"])
def test_of_a_choice_and_a_combination_only_the_draft_length_varies(label: str) -> None:
    side = Side.parse(label)
    assert (side.label, side.family, side.strategy, side.option_names) == (label, label, label, ("draft_length",))
    with pytest.raises(ConfigError, match="'mtp' cannot continue"):
        Side.parse("extend(ngram-k,mtp)")


def test_blanks_in_a_combination_make_no_other_side() -> None:
    assert Side.parse("first-of( ngram-k , mtp )").label == "first-of(ngram-k,mtp)"


def test_auto_looks_at_the_model(zoo: Callable[[str], Path]) -> None:
    side = Side.parse("auto", model=zoo("qwen35-mtp"))
    assert {spec.name for spec in side.members(None, zoo("qwen35-mtp"))} == {"ngram-k", "mtp"}
    assert side.members(None, None) == ()


def test_being_wrong_can_be_measured() -> None:
    strategy = AlwaysWrong(
        Side.parse("always-wrong(length=3)").members(None, None)[0].options,
        StrategyContext(target=TargetInfo(n_vocab=50, n_ctx=64, n_batch=8, n_seq=1), vocab=ScriptedVocab([])),
    )
    drafts = [strategy.draft(DraftRequest(0, History.view([1]), budget)) for budget in (8, 2)]
    assert [len(draft) for draft in drafts] == [3, 2]
    assert all(0 <= token < 50 for draft in drafts for token in draft)
    with pytest.raises(ConfigError, match="length"):
        Side.parse("always-wrong(length=0)")


@pytest.mark.parametrize(("text", "length"), [("mtp(n_max=8)@3", 3), ("auto@off", "off"), ("ngram-k@auto", "auto")])
def test_a_side_can_have_a_draft_length(text: str, length: int | str) -> None:
    side = Side.parse(text)
    assert (side.label, side.draft_length) == (text, length)
    assert "draft_length" not in side.option_names


@pytest.mark.parametrize(
    ("text", "message"), [("plain@3", "no draft length"), ("mtp@x", "of mtp must be a whole number >= 0, auto or off")]
)
def test_another_draft_length_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Side.parse(text)


def test_draft_lengths_are_an_axis() -> None:
    found = expand([PLAIN, Side.parse("auto"), Side.parse("mtp@5")], {"draft_length": (1, 2)})
    assert [side.label for side in found] == ["plain", "auto@1", "auto@2", "mtp@5"]


def test_a_grid_expands_over_the_sides_that_have_its_options() -> None:
    found = expand([PLAIN, Side.parse("ngram-k"), Side.parse("mtp")], {"n": (6, 8), "m": (16, 32), "n_max": (1, 2)})
    assert [side.label for side in found] == [
        "plain", "ngram-k(m=16,n=6)", "ngram-k(m=32,n=6)", "ngram-k(m=16,n=8)", "ngram-k(m=32,n=8)", "mtp(n_max=1)",
        "mtp(n_max=2)",
    ]  # fmt: skip
    assert [side.from_grid for side in found] == [False] + [True] * 6


def test_an_option_that_is_set_already_is_no_axis() -> None:
    found = expand([Side.parse("ngram-k(n=4)"), Side.parse("server:ngram-map-k")], {"n": (6, 8)})
    assert [side.label for side in found] == ["ngram-k(n=4)", "server:ngram-map-k(n=6)", "server:ngram-map-k(n=8)"]


def test_empty_parentheses_are_the_defaults_beside_a_grid() -> None:
    found = expand([Side.parse("server:ngram-map-k()"), Side.parse("server:ngram-map-k")], {"n": (6, 8)})
    assert [(side.label, side.from_grid) for side in found] == [
        ("server:ngram-map-k", False),
        ("server:ngram-map-k(n=6)", True),
        ("server:ngram-map-k(n=8)", True),
    ]


def test_what_was_asked_for_by_itself_is_not_one_of_a_grid() -> None:
    found = expand([Side.parse("ngram-k"), Side.parse("ngram-k(n=6)")], {"n": (6, 8)})
    assert [(side.label, side.from_grid) for side in found] == [("ngram-k(n=6)", False), ("ngram-k(n=8)", True)]


def test_a_side_is_measured_once() -> None:
    assert expand([PLAIN, PLAIN, Side.parse("ngram-k"), Side.parse("ngram-k")], {}) == [PLAIN, Side.parse("ngram-k")]


def test_an_axis_for_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match="'n_max' left open: plain, ngram-k"):
        expand([PLAIN, Side.parse("ngram-k")], {"n_max": (1, 2)})


def test_a_value_that_cannot_work_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="n"):
        expand([Side.parse("ngram-k")], {"n": (8, 0)})


def test_a_missing_server_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sides.why_no_server() is None
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert "not installed" in str(sides.why_no_server())
