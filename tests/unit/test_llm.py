"""The application API over a scripted target: options, strategies, chats, closing."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest

from specframe.core.errors import ClosedError, ConfigError
from specframe.core.sampling import SamplingParams
from specframe.core.strategy import StrategySpec
from specframe.llm import LLM, SamplingOptions, Stream
from specframe.llm.choosing import StrategyChooser
from specframe.llm.options import sampling_params
from tests.support.llm import BOS, Repeat, make

# -- options -----------------------------------------------------------------------------------------------------------


def test_every_sampling_parameter_is_a_keyword() -> None:
    fields = {field.name for field in attrs.fields(SamplingParams)}
    assert set(SamplingOptions.__annotations__) == fields | {"present_penalty"}


def test_sampling_keywords_are_laid_over_a_base() -> None:
    base = SamplingParams(top_k=7, logit_bias={3: 1.0})
    params = sampling_params({"temperature": 0.5, "max_tokens": 3}, base)
    assert params == SamplingParams(top_k=7, temperature=0.5, logit_bias={3: 1.0})


def test_present_penalty_is_presence_penalty() -> None:
    assert sampling_params({"present_penalty": 0.5}).presence_penalty == 0.5
    with pytest.raises(ConfigError, match="another spelling"):
        sampling_params({"present_penalty": 0.5, "presence_penalty": 0.5})


@pytest.mark.parametrize("method", ["generate", "stream", "chat", "stream_chat", "astream", "astream_chat", "render"])
def test_unknown_keywords_are_refused_with_the_nearest(method: str) -> None:
    with make() as llm, pytest.raises(TypeError, match=rf"{method}\(\).*'temprature'.*'temperature'"):
        getattr(llm, method)("x", temprature=1)


@pytest.mark.parametrize("method", ["agenerate", "achat"])
def test_unknown_keywords_are_refused_in_coroutines(method: str) -> None:
    with make() as llm, pytest.raises(TypeError, match="'stopp'"):
        asyncio.run(getattr(llm, method)("x", stopp="a"))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"strategy": "no-such"}, "no-such"),
        ({"options": {"n": 1}}, "were given .n., but 'none' is plain decoding"),
        ({"strategy": "none", "options": {"n": 1}}, "options"),
        ({"strategy": Repeat, "options": {"lenght": 1}}, "lenght"),
        ({"logits_processors": [1]}, "logits_processors"),
        ({"stopping_criteria": [1]}, "stopping_criteria"),
        ({"on_prompt_progress": 1}, "on_prompt_progress"),
        ({"strategy": 7}, "7 is not a subclass of specframe.Strategy"),
        ({"strategy": int}, "is not a subclass of specframe.Strategy"),
        ({"strategy": ["ngram-k", "mtp"]}, r"combined with specframe\.first_of"),
        ({"strategy": Repeat(None, None)}, "give the class Repeat"),  # type: ignore[arg-type]
        ({"reuse_prefix": "x"}, "reuse_prefix must be true or false, not 'x'"),
        ({"strategy": Repeat, "options": "length=1"}, "mapping from their names"),
        ({"strategy": Repeat, "options": {1: 1}}, "mapping from their names"),
        ({"options": []}, "mapping from their names"),
        ({"sampling": "hot"}, "sampling must be a SamplingParams"),
        ({"sampling": {}}, "sampling must be a SamplingParams"),
        ({"grammar": 7}, "grammar must be a text, not 7"),
        ({"stop": 7}, "stop must be a sequence, not 7"),
        ({"dry_sequence_breakers": ":;"}, "dry_sequence_breakers must be a sequence, not ':;'"),
        ({"dry_sequence_breakers": [7]}, "dry_sequence_breakers must be texts, not 7"),
        ({"logits_processors": None}, "logits_processors must be a sequence, not None"),
        ({"stopping_criteria": 7}, "stopping_criteria must be a sequence, not 7"),
        ({"parse_special": "yes"}, "parse_special must be true or false"),
    ],
)
def test_bad_values_are_refused(options: dict[str, Any], problem: str) -> None:
    with make() as llm, pytest.raises(ConfigError, match=problem):
        llm.generate("x", **options)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"tools": "search"}, "tools must be a sequence, not 'search'"),
        ({"tools": ["search"]}, "each of tools must be a mapping"),
        ({"template_variables": "thinking"}, "template variables must be a mapping"),
        ({"template_variables": {1: 2}}, "template variables must be a mapping"),
    ],
)
def test_bad_values_for_a_template_are_refused(options: dict[str, Any], problem: str) -> None:
    with make() as llm, pytest.raises(ConfigError, match=problem):
        llm.chat([{"role": "user", "content": "x"}], **options)


def test_prompts_are_text_or_token_ids() -> None:
    with make() as llm:
        by_text = llm.generate("hello", max_tokens=8)
        assert llm.generate(llm.tokenize("hello", add_special=True), max_tokens=8).tokens == by_text.tokens
        assert llm.generate(np.array([BOS, 40, 41]), max_tokens=1).prompt_tokens == 3  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="a prompt is a sequence of token ids"):
            llm.generate([1.5], max_tokens=1)  # type: ignore[list-item]
        with pytest.raises(ConfigError, match="a prompt is a sequence of token ids"):
            llm.generate(b"abc", max_tokens=1)
        with pytest.raises(ConfigError, match="outside the vocabulary"):
            llm.generate([10**9], max_tokens=1)
        with pytest.raises(ConfigError, match="parse_special"):
            llm.generate([1], parse_special=True)


def test_special_tokens_in_a_prompt_are_text_unless_asked_for() -> None:
    with make(add_bos=False) as llm:
        assert llm.generate("a<s>", max_tokens=0).prompt_tokens == 4
        assert llm.generate("a<s>", max_tokens=0, parse_special=True).prompt_tokens == 2


def test_tokenize_and_detokenize() -> None:
    with make() as llm:
        assert llm.tokenize("hi", add_special=True) == [BOS, 72, 73]
        assert llm.detokenize([BOS, 72, 73]) == "hi"
        assert llm.detokenize([BOS, 72, 73], special=True) == "<s>hi"


# -- strategies --------------------------------------------------------------------------------------------------------


def test_the_strategy_is_chosen_per_request() -> None:
    with make() as llm:
        plain = llm.generate("hello", max_tokens=20)
        drafted = llm.generate("hello", max_tokens=20, strategy=Repeat, options={"length": 3})
        assert (plain.strategy, drafted.strategy) == ("none", "repeat")
        assert drafted.stats.drafted > 0
        assert plain.stats.drafted == 0
        assert plain.stats.inactive_reason is None
        assert drafted.text == plain.text


def test_request_options_are_laid_over_those_of_load() -> None:
    chooser = StrategyChooser(Repeat, {"length": 5})
    spec = chooser.choose(options={"other": 1}).spec
    assert isinstance(spec, StrategySpec)
    assert (spec.options.length, spec.options.other) == (5, 1)
    fresh = chooser.choose(Repeat, {"other": 1}).spec
    assert isinstance(fresh, StrategySpec)
    assert fresh.options.length == 2
    assert chooser.choose("none").spec is None
    assert chooser.choose(None).spec is None
    assert chooser.choose(spec).spec is spec
    again = chooser.choose(spec, {"length": 9}).spec
    assert isinstance(again, StrategySpec)
    assert (again.options.length, again.options.other) == (9, 1)


# -- chat --------------------------------------------------------------------------------------------------------------


def test_two_turns_evaluate_only_what_is_new() -> None:
    with make(template="{% for m in messages %}{{ m.content }}{% endfor %}") as llm:
        messages = [{"role": "user", "content": "Hello there"}]
        first = llm.chat(messages, max_tokens=12)
        messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And?"}]
        second = llm.chat(messages, max_tokens=4)
        # The last emitted token was never evaluated, so it is new together with the four of the new turn.
        assert second.stats.cached_tokens == first.prompt_tokens + first.completion_tokens - 1
        assert second.prompt_tokens - second.stats.cached_tokens == 5


@pytest.mark.parametrize(
    ("template", "add_bos"), [("{{ bos_token }}hi", True), ("{{ bos_token }}hi", False), ("hi", True)]
)
def test_exactly_one_bos(template: str, add_bos: bool, caplog: pytest.LogCaptureFixture) -> None:
    with make(template=template, add_bos=add_bos) as llm, caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert llm.encode_chat([{"role": "user", "content": "x"}]) == [BOS, 72, 73]
    dropped = [r for r in caplog.records if "dropped" in r.message]
    assert len(dropped) == (1 if template.startswith("{{") and add_bos else 0)


def test_template_options() -> None:
    template = "{{ tools[0].name }}{{ x }}{{ add_generation_prompt }}"
    with make(template=template) as llm:
        text = llm.render(
            [{"role": "user", "content": "x"}],
            tools=[{"name": "f"}],
            template_variables={"x": 1},
            add_generation_prompt=False,
        )
    assert text == "f1False"


# -- closing -----------------------------------------------------------------------------------------------------------


def test_closing_twice_and_using_it_afterwards() -> None:
    closed: list[str] = []
    llm = make(closed=closed)
    stream = llm.stream("hello", max_tokens=100)
    next(stream)
    llm.close()
    llm.close()
    assert closed == ["model"]
    assert llm.closed
    with pytest.raises(ClosedError):
        stream.result()
    for call in (llm.generate, llm.stream, llm.tokenize, llm.astream):
        with pytest.raises(ClosedError):
            call("x")
    with pytest.raises(ClosedError):
        llm.engine  # noqa: B018 -- a property
    with pytest.raises(ClosedError), llm:
        pass


def test_a_forgotten_model_is_closed_when_collected() -> None:
    closed: list[str] = []
    llm = make(closed=closed)
    del llm
    gc.collect()
    assert closed == ["model"]


@pytest.mark.parametrize(
    "start",
    [
        lambda llm: llm.stream("hello", max_tokens=8),
        lambda llm: llm.stream_chat([{"role": "user", "content": "hello"}], max_tokens=8),
    ],
)
def test_a_stream_keeps_its_model_open(start: Callable[[LLM], Stream]) -> None:
    closed: list[str] = []
    stream = start(make(closed=closed))
    gc.collect()
    assert closed == []
    assert "".join(chunk.text for chunk in stream) == stream.result().text != ""
    del stream
    gc.collect()
    assert closed == ["model"]
