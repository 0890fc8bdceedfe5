"""Requests that are left, interrupted or sabotaged: memory goes back to what was committed, and life goes on."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from specframe.core.engine import Engine
from specframe.core.generation import Generation
from specframe.core.history import History
from specframe.core.ports import Logits
from specframe.core.request import FinishReason, Request
from specframe.core.sampling import SamplingParams
from specframe.core.scheduler import Unlimited
from specframe.core.strategy import StrategySpec
from specframe.strategies.ngram_k import NgramK
from specframe.testing import AsBatch, Crash, Output
from specframe.testing.drafters import CrashPlace
from tests.support.exact import (
    ExactZoo,
    Memory,
    WatchedTarget,
    every_memory,
    fresh,
    once,
    right_tape,
    watched,
)
from tests.support.lossless import drafted, oracle

PROMPT = tuple(b"the cat the cat the ")
OTHER = tuple(b"a bad dog had ")
SAMPLING = SamplingParams(seed=21, temperature=1.5, top_k=0, repeat_penalty=1.05, logprobs=1)
REQUEST = Request(prompt=PROMPT, max_tokens=30, sampling=SAMPLING)


def check_next_requests(
    exact_zoo: ExactZoo, memory: Memory, engine: Engine, target: WatchedTarget, spec: StrategySpec | None
) -> None:
    """The same request and one that shares nothing with it equal those of a fresh engine, plain and drafted."""
    model = exact_zoo(memory.model)
    other = Request(prompt=OTHER, max_tokens=20, sampling=SAMPLING)
    ngram = StrategySpec.of(NgramK, {"n": 1, "m": 4})
    right = [fresh(model, request, **memory.options) for request in (REQUEST, other)]
    for i, strategy in ((0, spec), (1, ngram), (0, None)):
        request = drafted((REQUEST, other)[i], strategy)
        right[i].check_equals(Output.of(engine.submit(request).result()), "the next request")
    assert not engine.step()
    assert target.n_past(0) < len(PROMPT) + 30


# -- left by the consumer ---------------------------------------------------------------------------------------------


@every_memory
@pytest.mark.parametrize("n_taken", [0, 3])
def test_a_generator_closed_early_leaves_a_clean_engine(exact_zoo: ExactZoo, memory: Memory, n_taken: int) -> None:
    right = right_tape(exact_zoo(memory.model), REQUEST, **memory.options)
    with (
        watched(exact_zoo(memory.model), **memory.options) as target,
        Engine(target, scheduler=Unlimited) as engine,
    ):
        generation = engine.submit(drafted(REQUEST, oracle(right, 5)))
        taken: list[int] = []
        while len(taken) < n_taken:
            taken += next(generation).tokens
        generation.close()
        generation.close()
        completion = generation.result()
        assert completion.finish_reason is FinishReason.CANCELLED
        committed = (*PROMPT, *completion.tokens)
        assert committed == right[: len(committed)]
        assert completion.tokens[:n_taken] == tuple(taken)[:n_taken]
        # No drafted token that was not verified and emitted is in memory, nor one that was not handed out.
        assert target.n_past(0) <= max(0, len(committed) - 1)
        assert len(taken) == completion.completion_tokens
        check_next_requests(exact_zoo, memory, engine, target, oracle(right, 5))


@every_memory
@pytest.mark.parametrize("at", [2, 5])
def test_a_request_cancelled_inside_a_block(exact_zoo: ExactZoo, memory: Memory, at: int) -> None:
    """By a callback, between two tokens of one verified block."""
    right = right_tape(exact_zoo(memory.model), REQUEST, **memory.options)
    generation: Generation | None = None
    with (
        watched(exact_zoo(memory.model), **memory.options) as target,
        Engine(target, scheduler=Unlimited) as engine,
    ):

        def leave(history: History, row: Logits) -> bool:
            del row
            if len(history) == len(PROMPT) + 1 + at and generation is not None:
                generation.cancel()
            return False

        request = Request(
            prompt=PROMPT, max_tokens=30, sampling=SAMPLING, strategy=oracle(right, 5), stopping_criteria=(leave,)
        )
        generation = engine.submit(request)
        completion = generation.result()
        assert completion.finish_reason is FinishReason.CANCELLED
        assert completion.tokens == right[len(PROMPT) : len(PROMPT) + 1 + at]
        assert target.n_past(0) <= len(PROMPT) + at
        check_next_requests(exact_zoo, memory, engine, target, oracle(right, 5))


# -- interrupted ------------------------------------------------------------------------------------------------------


@every_memory
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_an_interrupt_around_the_native_decode(exact_zoo: ExactZoo, memory: Memory, when: str, at: int) -> None:
    """The request itself can be taken up again where it was."""
    right = right_tape(exact_zoo(memory.model), REQUEST, **memory.options)
    expected = fresh(exact_zoo(memory.model), REQUEST, **memory.options)
    with (
        watched(exact_zoo(memory.model), **memory.options) as target,
        Engine(target, scheduler=Unlimited) as engine,
    ):
        strike = once(KeyboardInterrupt(), at=at)
        if when == "before":
            target.before_decode = strike
        else:
            target.after_decode = strike
        generation = engine.submit(drafted(REQUEST, oracle(right, 5)))
        with pytest.raises(KeyboardInterrupt):
            generation.result()
        expected.check_equals(Output.of(generation.result()), "the resumed request")
        check_next_requests(exact_zoo, memory, engine, target, oracle(right, 5))


@every_memory
def test_an_interrupted_request_that_is_given_up(exact_zoo: ExactZoo, memory: Memory) -> None:
    right = right_tape(exact_zoo(memory.model), REQUEST, **memory.options)
    with (
        watched(exact_zoo(memory.model), **memory.options) as target,
        Engine(target, scheduler=Unlimited) as engine,
    ):
        target.after_decode = once(KeyboardInterrupt(), at=3)
        with engine.submit(drafted(REQUEST, oracle(right, 5))) as generation, pytest.raises(KeyboardInterrupt):
            generation.result()
        assert generation.result().finish_reason is FinishReason.CANCELLED
        check_next_requests(exact_zoo, memory, engine, target, oracle(right, 5))


@every_memory
@pytest.mark.parametrize("batched", [False, True], ids=["per-request", "batched"])
@pytest.mark.parametrize("place", ["begin", "draft", "observe", "process"])
def test_a_strategy_that_fails_costs_the_drafts_only(
    exact_zoo: ExactZoo, memory: Memory, place: CrashPlace, batched: bool
) -> None:
    right = right_tape(exact_zoo(memory.model), REQUEST, **memory.options)
    expected = fresh(exact_zoo(memory.model), REQUEST, **memory.options)
    crash = StrategySpec.of(Crash, {"tape": right, "where": place, "at": 2 if place == "observe" else 1})
    if batched:
        crash = StrategySpec.of(AsBatch, {"cls": Crash, "options": crash.options})
    with (
        watched(exact_zoo(memory.model), **memory.options) as target,
        Engine(target, scheduler=Unlimited) as engine,
    ):
        completion = engine.submit(drafted(REQUEST, crash)).result()
        expected.check_equals(Output.of(completion), "output beside a failing strategy")
        if batched or place != "process":  # only batched strategies are shown the batches
            assert completion.stats.inactive_reason is not None
            assert f"crash in {place}" in completion.stats.inactive_reason
        check_next_requests(exact_zoo, memory, engine, target, oracle(right, 5))


@every_memory
@pytest.mark.parametrize("place", ["begin", "draft", "observe"])
def test_an_interrupt_inside_a_strategy(exact_zoo: ExactZoo, memory: Memory, place: CrashPlace) -> None:
    right = right_tape(exact_zoo(memory.model), REQUEST, **memory.options)
    expected = fresh(exact_zoo(memory.model), REQUEST, **memory.options)
    crash = StrategySpec.of(
        Crash, {"tape": right, "where": place, "at": 2 if place == "observe" else 1, "error": KeyboardInterrupt}
    )
    with (
        watched(exact_zoo(memory.model), **memory.options) as target,
        Engine(target, scheduler=Unlimited) as engine,
    ):
        generation = engine.submit(drafted(REQUEST, crash))
        with pytest.raises(KeyboardInterrupt):
            generation.result()
        expected.check_equals(Output.of(generation.result()), "the resumed request")
        check_next_requests(exact_zoo, memory, engine, target, oracle(right, 5))


# -- the end of the process -------------------------------------------------------------------------------------------

OPENING = """
from specframe.backends.llama.model import Model
from specframe.backends.llama.target import LlamaTarget
from specframe.core.engine import Engine
from specframe.core.request import Request
from specframe.core.strategy import StrategySpec
from specframe.strategies.ngram_k import NgramK
model = Model(PATH)
target = LlamaTarget(model, n_ctx=256, n_threads=2)
engine = Engine(target)
request = Request(prompt=tuple(b"the cat the cat the "), strategy=StrategySpec.of(NgramK, {"n": 1, "m": 4}))
generation = engine.submit(request)
"""


@pytest.mark.parametrize(
    "code",
    [
        OPENING,
        OPENING + "next(generation)",
        OPENING + "next(generation); rows = target.logits()",
        OPENING + "next(generation); cycle = [generation]; cycle.append(cycle)",
        OPENING + "next(generation); del engine, target, model",
        "import specframe; llm = specframe.load(PATH, n_ctx=256); stream = llm.stream('the cat'); next(stream)",
    ],
    ids=["queued", "running", "logits-held", "in-a-cycle", "owner-gone", "application"],
)
def test_a_process_may_exit_with_everything_open(zoo: object, code: str) -> None:
    assert callable(zoo)
    script = textwrap.dedent(code).replace("PATH", repr(str(zoo("qwen35"))))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
