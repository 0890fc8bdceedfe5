"""Threads that share an engine, and sequences that share batches: each output is what it would be alone."""

from __future__ import annotations

import attrs
import pytest

from specframe.core.engine import Engine
from specframe.core.request import FinishReason, Request
from specframe.core.sampling import SamplingParams
from specframe.core.scheduler import Unlimited
from specframe.core.strategy import StrategySpec
from specframe.strategies.ngram_k import NgramK
from specframe.strategies.ngram_k4v import NgramK4V
from specframe.testing import Crash, Junk, Oracle, Output, Poison, tape
from tests.support.exact import ExactZoo, Memory, every_memory, fresh, watched
from tests.support.lossless import drafted
from tests.support.threads import at_once

TEXTS = (b"the cat the cat ", b"a", b"abcabcabcabc", b"wvut", b"one two one two one", b"no ", b"k k k k ", b"hello ")


def wanted(i: int) -> Request:
    sampling = (
        SamplingParams(temperature=0.0, logprobs=0),
        SamplingParams(seed=i, temperature=1.2, logprobs=1),
        SamplingParams(seed=i, mirostat=2),
    )[i % 3]
    return Request(prompt=tuple(TEXTS[i]), max_tokens=20 + 3 * i, sampling=sampling)


@every_memory
def test_eight_threads_on_one_engine(exact_zoo: ExactZoo, memory: Memory) -> None:
    model = exact_zoo(memory.model)
    expected = [fresh(model, wanted(i), **memory.options) for i in range(8)]
    specs: list[StrategySpec | None] = []
    for i in range(8):
        with watched(model, **memory.options) as target:
            right = tape(target, wanted(i))
        choices = (
            None,
            StrategySpec.of(NgramK, {"n": 1, "m": 6}),
            StrategySpec.of(NgramK4V, {"n": 1, "m": 3}),
            StrategySpec.of(Oracle, {"tape": right, "length": 4}),
            StrategySpec.of(Poison, {"tape": right, "length": 4, "k": 1}),
            StrategySpec.of(Junk),
            StrategySpec.of(Crash, {"tape": right, "where": "observe", "at": 2}),
            None,
        )
        specs.append(choices[i])
    got: dict[int, list[Output]] = {i: [] for i in range(8)}
    with watched(model, n_seq=3, **memory.options) as target, Engine(target, scheduler=Unlimited) as engine:

        def work(i: int) -> None:
            for turn in range(3):
                generation = engine.submit(drafted(wanted(i), specs[(i + turn) % 8] if turn != 1 else specs[i]))
                if turn == 1 and i % 2:
                    next(generation)
                    generation.close()
                    # Unless steps of other threads had brought it to its end by then.
                    left = generation.result()
                    assert left.finish_reason in {FinishReason.CANCELLED, expected[i].finish_reason}
                    assert left.tokens == expected[i].tokens[: left.completion_tokens]
                else:
                    got[i].append(Output.of(generation.result()))

        at_once(work)
        assert not engine.step()
    for i in range(8):
        assert len(got[i]) == (2 if i % 2 else 3)
        for output in got[i]:
            expected[i].check_equals(output, f"output of thread {i}")


@every_memory
def test_two_sequences_of_different_strategies_accept_what_they_accept_alone(
    exact_zoo: ExactZoo, memory: Memory
) -> None:
    model = exact_zoo(memory.model)
    requests, alone = [], []
    for i in (0, 4):
        request = attrs.evolve(wanted(i), max_tokens=30)
        with watched(model, **memory.options) as target:
            right = tape(target, request)
        poison = StrategySpec.of(Poison, {"tape": right, "length": 1, "k": 0})
        request = drafted(request, StrategySpec.of(NgramK, {"n": 1, "m": 1}) if i == 0 else poison)
        requests.append(request)
        with watched(model, **memory.options) as target, Engine(target, scheduler=Unlimited) as engine:
            alone.append(engine.submit(request).result())
    with watched(model, n_seq=2, **memory.options) as target, Engine(target, scheduler=Unlimited) as engine:
        running = [engine.submit(request) for request in requests]
        together = [generation.result() for generation in running]
        assert max(len(batch) for batch in target.batches) == 2
    for one, other in zip(alone, together, strict=True):
        Output.of(one).check_equals(Output.of(other), "output in company")
        for name in ("drafted", "verified", "accepted", "accepted_per_position", "steps", "rollbacks"):
            assert getattr(one.stats, name) == getattr(other.stats, name)
    assert alone[0].stats.accepted > 0


@pytest.mark.parametrize("reuse", [True, False])
@every_memory
def test_the_same_prompt_three_times(exact_zoo: ExactZoo, memory: Memory, reuse: bool) -> None:
    """Drafts in each of them; the last prompt token is evaluated again where its logits are needed."""
    model = exact_zoo(memory.model)
    prompt = tuple(b"the cat the cat the ")
    request = Request(
        prompt=prompt, max_tokens=1, sampling=SamplingParams(temperature=0.0, logprobs=2), reuse_prefix=reuse
    )
    longer = attrs.evolve(request, max_tokens=25, strategy=StrategySpec.of(NgramK, {"n": 1, "m": 4}))
    right, right_longer = fresh(model, request, **memory.options), fresh(model, longer, **memory.options)
    with watched(model, **memory.options) as target, Engine(target, scheduler=Unlimited) as engine:
        for _ in range(3):
            target.forget()
            completion = engine.submit(request).result()
            right.check_equals(Output.of(completion))
            assert target.n_decoded == len(prompt) - completion.stats.cached_tokens > 0
            assert target.n_past(0) == len(prompt)
        for _ in range(3):
            completion = engine.submit(longer).result()
            right_longer.check_equals(Output.of(completion))
            assert completion.stats.drafted > 0
            assert (completion.stats.cached_tokens > 0) <= reuse
