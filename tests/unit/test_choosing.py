"""How a strategy is written down, combined from Python, and chosen by what the files are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import specframe
from specframe import plugins
from specframe.core.combination import Combination, Join
from specframe.core.errors import ConfigError
from specframe.core.ports import Need
from specframe.core.strategy import BatchStrategy, DraftRequest, StrategySpec, Suitability
from specframe.llm.choosing import Combined, Named, StrategyChooser, parse
from specframe.plugins import Registry

TARGET = Path("model.gguf")


# -- as a text --------------------------------------------------------------------------------------------------------


def test_names_options_and_combinations_are_read() -> None:
    assert parse("ngram-k") == Named("ngram-k")
    assert parse(" ngram-k ( n = 8, m=16 ) ") == Named("ngram-k", {"n": 8, "m": 16})
    assert parse("mtp()") == Named("mtp")
    assert parse('a(text="b, (c)",p-min=0.5,on=true)') == Named("a", {"text": "b, (c)", "p_min": 0.5, "on": True})
    assert parse("first_of(a,b)") == parse("first-of(a,b)")
    assert parse("first-of(ngram-k(n=8,m=16), extend(mtp, ngram-k))") == Combined(
        Join.FIRST_OF,
        (Named("ngram-k", {"n": 8, "m": 16}), Combined(Join.EXTEND, (Named("mtp"), Named("ngram-k")))),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the name of a strategy expected where '' stands"),
        ("ngram-k(", "an option name=value expected"),
        ("ngram-k(n=8", "a comma or a closing parenthesis expected where '' stands"),
        ("ngram-k(n=8)x", "nothing more expected where 'x' stands"),
        ("ngram-k(n)", "'n' is not of the form name=value"),
        ("ngram-k(n=1,n=2)", "given twice"),
        ("first-of", "the strategies of first-of in parentheses"),
        ("first-of(,a)", "the name of a strategy expected where ',a\\)' stands"),
        ("first-of(a b)", "a comma or a closing parenthesis expected where 'b\\)' stands"),
    ],
)
def test_text_that_makes_no_sense_is_refused_where_it_stops_making_sense(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(text)


_LEAF = st.sampled_from(["ngram-k", "ngram-k4v"]).flatmap(
    lambda name: st.dictionaries(st.sampled_from(["n", "m"]), st.integers(1, 99)).map(lambda o: Named(name, o))
)


@given(
    st.recursive(
        _LEAF,
        lambda parts: st.builds(Combined, st.sampled_from(Join), st.lists(parts, min_size=2, max_size=3).map(tuple)),
    )
)
def test_label_of_a_strategy_is_read_as_the_same_strategy(choice: Named | Combined) -> None:
    chooser = StrategyChooser()
    spec = chooser.choose(choice).spec
    assert spec is not None
    assert chooser.choose(spec.label).spec == spec


# -- from Python ------------------------------------------------------------------------------------------------------


def test_python_and_text_mean_the_same() -> None:
    text = StrategyChooser("first-of(ngram-k(n=8),extend(ngram-k,ngram-k4v(m=4)))").default
    written = specframe.first_of("ngram-k(n=8)", specframe.extend("ngram-k", Named("ngram-k4v", {"m": 4})))
    assert StrategyChooser(written).default == text
    assert StrategyChooser(text).default == text
    assert StrategyChooser("ngram-k(n=8)", {"m": 4}).default == StrategyChooser("ngram-k", {"n": 8, "m": 4}).default
    assert isinstance(text, Combination)


@pytest.mark.parametrize(
    ("strategy", "options", "message"),
    [
        ("first-of(ngram-k,ngram-k4v)", {"n": 3}, "first-of has several strategies; put them behind"),
        ("auto", {"n": 3}, "'auto' has none"),
        ("none", {"n": 3}, "'none' is plain decoding; leave one"),
        ("first-of(ngram-k,none)", {}, "'none' cannot be combined"),
        ("first-of(ngram-k,auto)", {}, "'auto' cannot be combined"),
        (specframe.first_of("ngram-k", None), {}, "None cannot be combined"),
        ("first-of(ngram-k,mtb)", {}, "did you mean 'mtp'"),
        ("first-of(ngram-k(q=1),mtp)", {}, "'ngram-k' has no option 'q'"),
        ("first-of(ngram-k(n=0),mtp)", {}, r"strategy 'ngram-k': n must be a whole number in \[1, 1024\]"),
        ("extend(ngram-k,mtp)", {}, "'mtp' cannot continue"),
        ("auto", {}, "looks at the file"),
    ],
)
def test_mistakes_are_named_with_the_member_they_are_about(
    strategy: Any, options: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        StrategyChooser(strategy, options)


# -- by the files -----------------------------------------------------------------------------------------------------


class Heads(BatchStrategy):
    """Drafts with what is in the target's file."""

    name = "heads"
    needs = Need.HIDDEN
    uses_draft_file = True

    @classmethod
    def suitability(cls, target: Path, draft: Path | None) -> Suitability:
        return Suitability.BUILT_IN if draft is None else Suitability.DRAFT_FILE

    @classmethod
    def model_options(cls, options: Any, draft_path: Path | None) -> Mapping[str, Any]:
        return {"load_heads": True} if draft_path is None else {}

    def draft(self, requests: Sequence[DraftRequest]) -> Sequence[Sequence[int]]:
        return [()] * len(requests)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """Of the strategies that draft from text."""
    found = Registry()
    for name in ("ngram-k", "ngram-k4v"):
        found.register(plugins.registry().get(name))
    monkeypatch.setattr(plugins, "registry", lambda: found)
    return found


def test_auto_drafts_from_the_text_where_no_model_suits(registry: Registry) -> None:
    choice = StrategyChooser("auto", target=TARGET).choose()
    assert choice.spec is not None
    assert choice.spec.label == "ngram-k(n=4)"
    assert choice.reason == "auto: ngram-k from the text"


def test_auto_puts_the_text_before_what_suits_the_files(registry: Registry) -> None:
    registry.register(Heads)
    chooser = StrategyChooser("auto", target=TARGET)
    assert chooser.default is not None
    assert chooser.default.label == "first-of(ngram-k(n=4),heads)"
    assert chooser.default.model_options == {"load_heads": True}
    assert chooser.choose().reason == "auto: ngram-k from the text before heads, whose layers are in the model's file"
    with_file = StrategyChooser("auto", draft=Path("draft.gguf"), target=TARGET)
    assert with_file.default is not None
    assert [member.draft_path for member in with_file.default.members] == [None, Path("draft.gguf")]
    assert "which the draft file is for" in with_file.choose().reason


def test_auto_says_what_volunteered_and_cannot_work(registry: Registry) -> None:
    class Stripped(Heads):
        name = "stripped"

        @classmethod
        def check_files(cls, target: Path, draft: Path | None) -> None:
            raise ConfigError("the layers were left out")

    registry.register(Stripped)
    choice = StrategyChooser("auto", target=TARGET).choose()
    assert choice.reason == "auto: ngram-k from the text; not stripped: the layers were left out"
    assert not choice.required


def test_what_was_asked_for_is_required_and_what_auto_found_is_not(registry: Registry) -> None:
    registry.register(Heads)
    chooser = StrategyChooser("auto", target=TARGET)
    assert not chooser.choose().required
    assert chooser.choose("auto") is chooser.default_choice
    assert chooser.choose("heads").required
    assert StrategyChooser("auto", draft=Path("draft.gguf"), target=TARGET).choose().required


def test_auto_of_a_request_takes_the_model_as_it_was_opened(registry: Registry) -> None:
    registry.register(Heads)
    plain = StrategyChooser("none", target=TARGET)
    spec = plain.choose("auto").spec
    assert spec is not None
    assert [member.name for member in spec.members] == ["ngram-k"]
    opened = StrategyChooser(Heads, target=TARGET).choose("auto").spec
    assert opened is not None
    assert [member.name for member in opened.members] == ["ngram-k", "heads"]


def test_auto_is_plain_decoding_where_nothing_suits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "registry", Registry)
    choice = StrategyChooser("auto", target=TARGET).choose()
    assert (choice.spec, choice.reason) == (None, "auto: no strategy suits these files")


def test_auto_of_one_strategy_is_that_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Registry()
    found.register(plugins.registry().get("ngram-k"))
    monkeypatch.setattr(plugins, "registry", lambda: found)
    assert isinstance(StrategyChooser("auto", target=TARGET).default, StrategySpec)
