"""Prompts of any length, cached ones, and characters spread over tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specframe.core.engine import Engine
from specframe.core.errors import ConfigError, RequestTooLongError
from specframe.core.request import Request
from specframe.core.sampling import SamplingParams
from specframe.core.scheduler import Unlimited
from specframe.core.strategy import StrategySpec
from specframe.testing import (
    UTF8_PIECES,
    Junk,
    ScriptedTarget,
    reference,
    tape,
)
from tests.support.lossless import (
    GREEDY,
    PROMPT,
    ask,
    assert_plain,
    every_memory,
    oracle,
    run,
    stream,
)


def test_empty_prompt_is_refused_before_anything_is_decoded() -> None:
    target = ScriptedTarget()
    with Engine(target) as engine, pytest.raises(ConfigError, match="prompt is empty"):
        engine.submit(ask(prompt=()))
    assert target.count("decode") == 0


@pytest.mark.parametrize("n_prompt", [1, 7, 8, 9, 30])
def test_prompts_of_one_token_or_longer_than_the_batch_work(n_prompt: int) -> None:
    prompt = tuple(range(n_prompt))
    right = tape(ScriptedTarget(n_batch=8), ask(prompt=prompt))
    request = ask(prompt=prompt, strategy=oracle(right, 9))
    target = ScriptedTarget(n_batch=8)
    completion = run(target, request)
    assert_plain(ScriptedTarget(n_batch=8), request, completion)
    assert completion.stats.accepted > 0


@pytest.mark.parametrize("prompt", ["ab", b"ab", [1.5], [None], 7])
def test_prompts_are_token_ids(prompt: Any) -> None:
    with pytest.raises(ConfigError, match=r"a prompt is a sequence of token ids.* not "):
        Request(prompt=prompt)


def test_token_ids_of_any_kind_become_plain_integers() -> None:
    """A session is JSON, which numpy's integers are not."""
    prompt = Request(prompt=np.array([1, 2, 3])).prompt
    assert prompt == (1, 2, 3)
    assert {type(token) for token in prompt} == {int}


@pytest.mark.parametrize("bias", [{1.5: 1.0}, {"a": 1.0}, {1: "x"}, {None: 1.0}, 3])
def test_a_bias_is_for_a_token_id(bias: Any) -> None:
    with pytest.raises(ConfigError, match="logit_bias must map token ids to numbers, not "):
        SamplingParams(logit_bias=bias)


def test_token_ids_of_a_bias_may_come_from_json_or_numpy() -> None:
    biases: dict[Any, float] = {"7": 1, np.int32(3): 0.5}
    assert SamplingParams(logit_bias=biases).logit_bias == ((3, 0.5), (7, 1.0))


def test_prompt_that_cannot_fit_is_refused_with_the_sizes() -> None:
    with Engine(ScriptedTarget(n_ctx=16)) as engine, pytest.raises(RequestTooLongError, match=r"17 tokens.*holds 16"):
        engine.submit(ask(prompt=tuple(range(17))))


@pytest.mark.parametrize(("n_batch", "n_outputs"), [(2, None), (8, 2)])
def test_a_batch_has_room_for_every_sequence(n_batch: int, n_outputs: int | None) -> None:
    target = ScriptedTarget(n_seq=3, n_batch=n_batch, n_outputs=n_outputs)
    with pytest.raises(ConfigError, match=rf"n_batch \({n_batch}\) and n_outputs \(2\) must be at least .* \(3\)"):
        Engine(target)


@pytest.mark.parametrize("bad", [(1, -1), (1, 32)])
def test_prompt_tokens_outside_the_vocabulary_are_refused(bad: tuple[int, ...]) -> None:
    with Engine(ScriptedTarget()) as engine, pytest.raises(ConfigError, match="index 1 is outside the vocabulary"):
        engine.submit(ask(prompt=bad))


@every_memory
def test_fully_cached_prompt_evaluates_its_last_token_again(memory: dict[str, Any]) -> None:
    target = ScriptedTarget(**memory)
    with Engine(target) as engine:
        first = engine.submit(ask(1)).result()
        second = engine.submit(ask()).result()
        third = engine.submit(ask()).result()
    assert first.tokens == second.tokens[:1]
    assert second.tokens == third.tokens
    assert_plain(ScriptedTarget(), ask(), third)


def test_cached_tokens_that_are_a_prefix_of_the_prompt_are_not_evaluated_again() -> None:
    target = ScriptedTarget()
    with Engine(target) as engine:
        first = engine.submit(ask(10)).result()
        before = target.n_decoded
        longer = ask(1, prompt=(*PROMPT, *first.tokens, 7, 8), strategy=StrategySpec.of(Junk))
        completion = engine.submit(longer).result()
    # The last token of the first turn was never evaluated: its logits were not needed.
    assert completion.stats.cached_tokens == 5 + 10 - 1
    assert target.n_decoded - before == 3
    assert_plain(ScriptedTarget(), longer, completion)


@pytest.mark.parametrize("budget", range(1, 16))
def test_characters_split_over_tokens_arrive_whole(budget: int) -> None:
    """Streaming, drafted, and cut by the budget in the middle of a character."""
    text = "a\N{GRINNING FACE} b\N{LATIN SMALL LETTER E WITH ACUTE}\N{CJK UNIFIED IDEOGRAPH-4F60}a"
    ids = (0, 6, 7, 1, 2, 3, 4, 5, 0)
    assert b"".join(UTF8_PIECES[i] for i in ids) == text.encode()
    right = (9, *ids, *ids)
    target = ScriptedTarget(pieces=UTF8_PIECES, scripts=[right])
    request = Request(prompt=(9,), max_tokens=budget, sampling=GREEDY, strategy=oracle(right, 4))
    with Engine(target, scheduler=Unlimited) as engine:
        output = stream(engine.submit(request))
    assert "\N{REPLACEMENT CHARACTER}" not in output.text
    assert (text + text).startswith(output.text)
    reference(ScriptedTarget(pieces=UTF8_PIECES, scripts=[right]), request).check_equals(output)
