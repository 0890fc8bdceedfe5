"""Where a request ends: inside a draft, at a stop string, at the budget, at the end of the context."""

from __future__ import annotations

from typing import Any

import pytest

from specframe.core.engine import Engine
from specframe.core.ports import Rollback
from specframe.core.request import FinishReason
from specframe.core.scheduler import Unlimited
from specframe.core.strategy import StrategySpec
from specframe.testing import (
    Junk,
    ScriptedTarget,
    tape,
)
from tests.support.lossless import (
    PROMPT,
    ask,
    assert_plain,
    check_stats,
    every_memory,
    oracle,
    run,
)


@every_memory
@pytest.mark.parametrize("k", range(8))
def test_end_token_accepted_inside_a_draft_cuts_the_output(memory: dict[str, Any], k: int) -> None:
    """At every position of the block: an end token is declared to be the one the model was going to produce there."""
    right = tape(ScriptedTarget(seed=3, **memory), ask())
    at = next(i for i in range(5 + k, len(right)) if right[i] not in right[5:i] and i >= 5 + k)
    target = ScriptedTarget(seed=3, eog=(right[at],), **memory)
    request = ask(strategy=oracle(right, 8))
    with Engine(target, scheduler=Unlimited) as engine:
        completion = engine.submit(request).result()
        assert completion.tokens == right[5:at]
        assert (completion.finish_reason, completion.stop_detail) == (FinishReason.STOP, "eog")
        assert completion.stats.emitted == at - 5 + 1
        check_stats(completion.stats, completion)
        assert target.memory(0) == right[: len(target.memory(0))]
        assert len(target.memory(0)) <= at
        following = ask(prompt=(*right[: at + 1], 7, 8))
        assert_plain(ScriptedTarget(seed=3, eog=(right[at],), **memory), following, engine.submit(following).result())


@pytest.mark.parametrize(("depth", "length", "n_cached"), [(4, 4, 7), (8, 8, 7), (4, 9, 5)])
def test_second_chat_turn_reuses_the_first_although_it_ended_inside_a_block(
    depth: int, length: int, n_cached: int
) -> None:
    """A draft that is longer than the depth is taken back by a checkpoint: then its block is evaluated again."""
    right = tape(ScriptedTarget(seed=3), ask())
    target = ScriptedTarget(seed=3, eog=(right[12],), rollback=Rollback.BOUNDED, rollback_depth=depth)
    at = right.index(right[12], 5)
    with Engine(target, scheduler=Unlimited) as engine:
        engine.submit(ask(strategy=oracle(right, length))).result()
        second = ask(prompt=(*right[: at + 1], 7, 8, 9))
        completion = engine.submit(second).result()
    assert at == 7
    assert completion.stats.cached_tokens == n_cached
    assert_plain(ScriptedTarget(seed=3, eog=(right[12],)), second, completion)


def test_stop_string_over_several_tokens_inside_a_block_cuts_text_and_memory() -> None:
    right = tape(ScriptedTarget(seed=5), ask())
    vocab = ScriptedTarget().vocab
    stop = b"".join(vocab.piece(t) for t in right[10:13]).decode()
    target = ScriptedTarget(seed=5)
    request = ask(stop=(stop,), strategy=oracle(right, 16))
    with Engine(target, scheduler=Unlimited) as engine:
        chunks = list(generation := engine.submit(request))
        completion = generation.result()
    assert "".join(c.text for c in chunks) == completion.text == "".join(vocab.piece(t).decode() for t in right[5:10])
    assert completion.stop_detail == "stop-string"
    assert completion.tokens == right[5:13]
    assert len(target.memory(0)) <= 13
    assert_plain(ScriptedTarget(seed=5), request, completion)


def test_text_that_only_began_like_a_stop_string_is_delivered() -> None:
    target = ScriptedTarget(scripts=[(*PROMPT, 6, 7, 8, 9)])
    completion = run(target, ask(4, stop=("hij!",)))
    assert completion.text == "ghij"


@every_memory
@pytest.mark.parametrize("budget", [0, 1, 2, 5, 6, 7])
def test_token_budget_is_kept_to_the_token(memory: dict[str, Any], budget: int) -> None:
    right = tape(ScriptedTarget(), ask())
    request = ask(budget, strategy=oracle(right, 6))
    target = ScriptedTarget(**memory)
    completion = run(target, request)
    assert completion.completion_tokens == completion.stats.emitted == budget
    assert completion.finish_reason is FinishReason.LENGTH
    assert_plain(ScriptedTarget(**memory), request, completion)
    assert len(target.memory(0)) <= 5 + budget


def test_end_token_the_target_does_not_choose_does_not_end_the_request() -> None:
    right = tape(ScriptedTarget(), ask())
    absent = next(token for token in range(32) if token not in right[:29])
    target = ScriptedTarget(eog=(absent,))
    completion = run(target, ask(strategy=StrategySpec.of(Junk, {"kinds": ("special",)})))
    assert completion.tokens == right[5:29]
    assert completion.stats.verified > 0


def test_full_context_clamps_drafts_and_ends_the_request() -> None:
    prompt = tuple(i % 30 for i in range(56))
    right = tape(ScriptedTarget(n_ctx=64), ask(prompt=prompt))
    request = ask(None, prompt=prompt, strategy=oracle(right, 16))
    completion = run(ScriptedTarget(n_ctx=64), request)
    assert (completion.finish_reason, completion.stop_detail) == (FinishReason.LENGTH, "context-full")
    assert_plain(ScriptedTarget(n_ctx=64), request, completion)
    assert completion.completion_tokens == 9


def test_generation_past_the_context_ends_without_a_budget() -> None:
    completion = run(ScriptedTarget(n_ctx=20), ask(None))
    assert completion.completion_tokens == 16
