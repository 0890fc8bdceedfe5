"""Options of strategies: from text, validated, and what they make of a strategy class."""

from __future__ import annotations

from pathlib import Path

import pytest

from specframe.core.errors import ConfigError
from specframe.plugins import Registry, parse_options
from specframe.strategies.ngram_k import NgramK


def test_spec_validates_options_and_draft_file() -> None:
    registry = Registry.discover(entry_points=())
    spec = registry.spec("ngram-k", {"n": 4})
    assert (spec.cls, spec.options.n, spec.options.m, spec.draft_path) == (NgramK, 4, 48, None)
    assert spec == registry.spec("ngram-k", {"n": 4})
    assert hash(spec) == hash(registry.spec("ngram-k", {"n": 4}))
    with pytest.raises(ConfigError, match="has no option 'k'"):
        registry.spec("ngram-k", {"k": 4})
    with pytest.raises(ConfigError, match="does not use a draft file"):
        registry.spec("ngram-k", draft_path=Path("draft.gguf"))


def test_parse_options() -> None:
    pairs = ["n=8", "p-min=0.5", "on=true", "none=null", 'text="a b"', "mode=fast", "empty=", "eq=a=b", "list=[1]"]
    assert parse_options([*pairs, "nan=NaN", " pad = 3 "]) == {
        "n": 8,
        "p_min": 0.5,
        "on": True,
        "none": None,
        "text": "a b",
        "mode": "fast",
        "empty": "",
        "eq": "a=b",
        "list": "[1]",
        "nan": "NaN",
        "pad": 3,
    }


@pytest.mark.parametrize("bad", ["n", "=8", "", " =1"])
def test_option_without_a_name_or_value_is_shown(bad: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options(["m=1", bad])
    assert str(caught.value) == f"strategy option {bad!r} is not of the form name=value"


def test_option_given_twice() -> None:
    with pytest.raises(ConfigError, match="'min_hits' is given twice: 1 and '2'"):
        parse_options(["min_hits=1", "min-hits=2"])
