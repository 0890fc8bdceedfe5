"""Requests that end inside a block of drafted tokens: nothing behind the end is emitted, counted or kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specframe.backends.llama.model import Model
from specframe.core.engine import Engine
from specframe.core.errors import ConfigError, RequestTooLongError
from specframe.core.ports import Rollback
from specframe.core.request import FinishReason, Request
from specframe.core.sampling import SamplingParams
from specframe.core.scheduler import Unlimited
from specframe.core.strategy import StrategySpec
from specframe.strategies.ngram_k import NgramK
from specframe.strategies.ngram_k4v import NgramK4V
from specframe.testing import Junk, Oracle, Output, tape
from tests.support.exact import ExactZoo, Memory, every_memory, fresh, watched
from tests.support.lossless import check_stats, drafted, oracle

GREEDY = SamplingParams(temperature=0.0, logprobs=1)
#: Greedy, but never in a loop: some token comes up late for the first time.
VARIED = SamplingParams(temperature=0.0, logprobs=1, frequency_penalty=3.0, penalty_last_n=-1)
PROMPT = tuple(b"the cat sat on ")
BLOCK = 6


def declare_end(exact_zoo: ExactZoo, name: str, after: int, **options: Any) -> tuple[Model, tuple[int, ...], int]:
    """Declare a token that the model says anyway, for the first time ``after`` tokens or more, to be its end.

    Returns the model, what it says after PROMPT, and the index of the end.
    """
    with watched(exact_zoo(name), **options) as target:
        right = tape(target, Request(prompt=PROMPT, sampling=VARIED))
    n = len(PROMPT)
    end = next(i for i in range(n + after, len(right)) if right[i] not in right[n:i])
    return exact_zoo(name, eos=right[end]), right, end


@every_memory
def test_an_end_of_sequence_at_every_place_of_a_block(exact_zoo: ExactZoo, memory: Memory) -> None:
    """And the next turn continues from memory as if from scratch."""
    model, right, end = declare_end(exact_zoo, memory.model, BLOCK + 3, **memory.options)
    seen: set[int] = set()
    # The longer the prompt, the earlier in its block comes the end.
    for n_prompt in range(end - BLOCK - 2, end + 1):
        request = Request(prompt=right[:n_prompt], max_tokens=100, sampling=VARIED, strategy=oracle(right, BLOCK))
        with watched(model, **memory.options) as target, Engine(target, scheduler=Unlimited) as engine:
            first = engine.submit(request).result()
            assert first.tokens == right[n_prompt:end]
            assert (first.finish_reason, first.stop_detail) == (FinishReason.STOP, "eog")
            check_stats(first.stats, first)
            assert first.stats.emitted == end - n_prompt + 1
            held = target.n_past(0)
            # Never the end itself: a next turn may be rendered without it.
            assert held <= end
            if memory.kind is Rollback.TRUNCATE:
                assert held == end
            assert held >= end - BLOCK
            seen.add(first.stats.accepted % (BLOCK + 1))
            for close in ((right[end],), ()):
                turn = Request(
                    prompt=(*right[:end], *close, *b"? and "),
                    max_tokens=20,
                    sampling=VARIED,
                    strategy=oracle(right, BLOCK),
                )
                second = engine.submit(turn).result()
                fresh(model, turn, **memory.options).check_equals(Output.of(second), "the second turn")
                if close:  # the other one is cut behind the answer, which takes memory that can be cut
                    assert second.stats.cached_tokens == held
    assert len(seen) >= BLOCK


@pytest.mark.parametrize("options", [{}, {"n_rs_seq": 8}], ids=["snapshot", "bounded"])
def test_a_second_turn_on_recurrent_memory_evaluates_only_what_is_new(
    exact_zoo: ExactZoo, options: dict[str, int]
) -> None:
    model, right, end = declare_end(exact_zoo, "qwen35", 10, **options)
    with watched(model, **options) as target, Engine(target, scheduler=Unlimited) as engine:
        first = engine.submit(Request(prompt=PROMPT, sampling=VARIED, strategy=oracle(right, BLOCK))).result()
        target.forget()
        turn = Request(
            prompt=(*right[: end + 1], *b" so "), max_tokens=1, sampling=VARIED, strategy=oracle(right, BLOCK)
        )
        second = engine.submit(turn).result()
        assert first.stop_detail == "eog"
        assert target.n_clears == 0
        assert target.n_decoded == second.prompt_tokens - second.stats.cached_tokens
        # At most the block that the end was in is evaluated again.
        assert second.prompt_tokens - second.stats.cached_tokens <= BLOCK + 1 + 1 + len(b" so ")
    fresh(model, turn, **options).check_equals(Output.of(second))


@every_memory
def test_a_grammar_that_ends_inside_a_block(exact_zoo: ExactZoo, memory: Memory) -> None:
    model = exact_zoo(memory.model)
    request = Request(prompt=PROMPT, max_tokens=20, sampling=SamplingParams(temperature=0.0, grammar='root ::= "a"'))
    past_the_end = oracle((*PROMPT, *b"aaaaaaaa"))
    longer = Request(
        prompt=PROMPT, max_tokens=20, sampling=SamplingParams(temperature=0.0, grammar='root ::= "abc" "d"?')
    )
    with watched(model, **memory.options) as target, Engine(target, scheduler=Unlimited) as engine:
        done = engine.submit(drafted(request, past_the_end)).result()
        assert (done.text, done.stop_detail) == ("a", "grammar")
        also = engine.submit(drafted(longer, oracle((*PROMPT, *b"abcxyz")))).result()
        assert also.stats.accepted == 2  # the first token comes with the prompt
        fresh(model, longer, **memory.options).check_equals(Output.of(also))


def test_garbage_under_a_json_grammar(exact_zoo: ExactZoo) -> None:
    rules = r"""
        root ::= "{" pair ("," pair)? "}"
        pair ::= "\"" [a-w]{1,4} "\":" ([0-9]{1,3} | "\"" [a-w]{0,5} "\"")
    """
    model = exact_zoo("llama")
    for sampling in (
        SamplingParams(temperature=0.0, grammar=rules),
        SamplingParams(seed=5, temperature=1.5, grammar=rules),
    ):
        request = Request(prompt=PROMPT, max_tokens=60, sampling=sampling)
        expected = fresh(model, request)
        assert json.loads(expected.text)
        for spec in (
            StrategySpec.of(Junk),
            StrategySpec.of(Junk, {"kinds": ["special"]}),
            StrategySpec.of(NgramK, {"n": 1, "m": 8}),
            oracle((*PROMPT, *b'{"aa":1,"aa":1}')),
        ):
            with watched(model) as target, Engine(target, scheduler=Unlimited) as engine:
                expected.check_equals(Output.of(engine.submit(drafted(request, spec)).result()))


# -- room -------------------------------------------------------------------------------------------------------------


@every_memory
def test_drafts_are_clamped_to_the_room_in_the_context(exact_zoo: ExactZoo, memory: Memory) -> None:
    model = exact_zoo(memory.model)
    options = {**memory.options, "n_ctx": 64}
    request = Request(prompt=(PROMPT * 4)[:56], sampling=GREEDY)
    with watched(model, n_ctx=256) as target:
        right = tape(target, request)
    expected = fresh(model, request, **options)
    with watched(model, **options) as target, Engine(target, scheduler=Unlimited) as engine:
        completion = engine.submit(drafted(request, oracle(right, 16))).result()
        assert (completion.finish_reason, completion.stop_detail) == (FinishReason.LENGTH, "context-full")
        assert completion.completion_tokens == 9  # the last one is chosen from the logits of the last cell
        assert all(entry.pos + len(entry.tokens) <= 64 for batch in target.batches for entry in batch)
    expected.check_equals(Output.of(completion))


def test_a_prompt_of_no_token_is_refused_before_anything_native_happens(exact_zoo: ExactZoo) -> None:
    with watched(exact_zoo("llama")) as target, Engine(target) as engine:
        with pytest.raises(ConfigError, match="at least one"):
            engine.submit(Request(prompt=()))
        with pytest.raises(RequestTooLongError, match="257 tokens"):
            engine.submit(Request(prompt=[97] * 257))
        with pytest.raises(ConfigError, match="288 at index 1"):
            engine.submit(Request(prompt=[97, 288]))
        assert not target.batches


@every_memory
@pytest.mark.parametrize("n_prompt", [1, 7, 8, 9, 40])
def test_prompts_around_the_batch_size_and_drafts_wider_than_it(
    exact_zoo: ExactZoo, memory: Memory, n_prompt: int
) -> None:
    model = exact_zoo(memory.model)
    request = Request(prompt=(PROMPT * 3)[:n_prompt], max_tokens=30, sampling=GREEDY)
    with watched(model, **memory.options) as target:
        right = tape(target, request)
    expected = fresh(model, request, **memory.options)
    for spec in (None, oracle(right, 9), StrategySpec.of(NgramK, {"n": 1, "m": 9})):
        with watched(model, **memory.options, n_batch=8) as target, Engine(target, scheduler=Unlimited) as engine:
            completion = engine.submit(drafted(request, spec)).result()
            assert max(target.widths) <= 8
            # Where cutting is limited the prompt is saved four tokens before its end, so it is divided there too.
            tail = 4 if memory.kind is not Rollback.TRUNCATE and n_prompt > 4 else 0
            expected_widths = [
                width for n in (n_prompt - tail, tail) for width in (*[8] * (n // 8), *[n % 8] * (n % 8 > 0))
            ]
            assert target.widths[: len(expected_widths)] == expected_widths
            if spec is not None and spec.cls is Oracle:
                # A draft longer than what can be cut is guarded by a checkpoint, not shortened.
                assert len(completion.stats.verified_per_position) == 7
                assert max(completion.stats.verified_per_position) > 0
        expected.check_equals(Output.of(completion))


@pytest.mark.parametrize("cls", [NgramK, NgramK4V])
def test_a_draft_length_that_no_batch_holds_is_clamped(exact_zoo: ExactZoo, cls: type[NgramK | NgramK4V]) -> None:
    model = exact_zoo("llama-bigram")
    request = Request(prompt=tuple(b"abcdefghijklmnopqrstuvw " * 2), max_tokens=120, sampling=GREEDY)
    expected = fresh(model, request, n_batch=8)
    spec = StrategySpec.of(cls, {"n": 1, "m": 48})
    with watched(model, n_batch=8) as target, Engine(target, scheduler=Unlimited) as engine:
        completion = engine.submit(drafted(request, spec)).result()
        assert max(target.widths) == 8
        assert completion.stats.accepted > 20
    expected.check_equals(Output.of(completion))
