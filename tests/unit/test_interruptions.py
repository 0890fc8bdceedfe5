"""Closed, interrupted, failing, crowded: the next request equals that of a fresh engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from specframe.core.engine import Engine
from specframe.core.errors import BackendError
from specframe.core.request import Chunk, FinishReason
from specframe.core.sampling import SamplingParams
from specframe.core.scheduler import Unlimited
from specframe.core.strategy import StrategySpec
from specframe.strategies.ngram_k import NgramK
from specframe.testing import (
    Fault,
    ScriptedTarget,
    When,
    tape,
)
from tests.support.lossless import (
    PROMPT,
    ask,
    assert_plain,
    every_memory,
    oracle,
    poison,
)
from tests.support.threads import at_once


@every_memory
@pytest.mark.parametrize("n_chunks", [0, 1, 2, 3])
def test_closed_generator_leaves_a_clean_engine(memory: dict[str, Any], n_chunks: int) -> None:
    right = tape(ScriptedTarget(**memory), ask())
    target = ScriptedTarget(**memory)
    with Engine(target, scheduler=Unlimited) as engine:
        generation = engine.submit(ask(strategy=poison(right, 1, 3)))
        taken = [t for _ in range(n_chunks) for t in next(generation).tokens]
        n_decodes = target.count("decode")
        generation.close()
        assert generation.done
        assert target.count("decode") == n_decodes
        assert generation.result().finish_reason is FinishReason.CANCELLED
        assert generation.result().tokens[: len(taken)] == tuple(taken) == right[5 : 5 + len(taken)]
        for prompt in (PROMPT, right[:9], (7, 8)):
            following = ask(prompt=prompt, strategy=oracle(right, 4))
            assert_plain(ScriptedTarget(**memory), following, engine.submit(following).result())


@every_memory
@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("call", ["decode", "logits", "truncate", "checkpoint", "restore"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_interrupt_anywhere_loses_nothing(memory: dict[str, Any], when: When, call: Any, at: int) -> None:
    """The interrupted request goes on to the same output, and so does the next one."""
    right = tape(ScriptedTarget(**memory), ask())
    target = ScriptedTarget(**memory, faults=[Fault(call=call, at=at, when=when, error=KeyboardInterrupt, n_tokens=2)])
    with Engine(target, scheduler=Unlimited) as engine:
        generation = engine.submit(ask(strategy=poison(right, 1, 3)))
        struck = False
        try:
            generation.result()
        except KeyboardInterrupt:
            struck = True
        assert struck == (target.armed == 0)
        target.disarm()
        assert_plain(ScriptedTarget(**memory), ask(), generation.result())
        following = ask(prompt=right[:8])
        assert_plain(ScriptedTarget(**memory), following, engine.submit(following).result())


@every_memory
@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("error", [MemoryError, OSError])
def test_failing_decode_reaches_its_consumers_and_nobody_else(
    memory: dict[str, Any], when: When, error: type[Exception]
) -> None:
    target = ScriptedTarget(**memory, n_seq=2)
    with Engine(target) as engine:
        struck = [engine.submit(ask()), engine.submit(ask(prompt=(8, 9)))]
        for _ in range(4):
            engine.step()
        target.inject(Fault(call="decode", when=when, error=error, n_tokens=1))
        waiting = ask(prompt=(4, 4))
        later = engine.submit(waiting)
        for generation in struck:
            with pytest.raises(error):
                generation.result()
        assert_plain(ScriptedTarget(**memory), waiting, later.result())
        for request in (ask(), ask(prompt=(8, 9, 1))):
            assert_plain(ScriptedTarget(**memory), request, engine.submit(request).result())


def test_interrupt_during_the_draw_ends_the_request_without_a_wrong_token() -> None:
    for when in When:
        target = ScriptedTarget(faults=[Fault(call="sample", at=3, when=when, error=KeyboardInterrupt)])
        request = ask(sampling=SamplingParams(seed=1))
        with Engine(target) as engine:
            generation = engine.submit(request)
            with pytest.raises(KeyboardInterrupt):
                generation.result()
            completion = generation.result()
            assert completion.finish_reason is FinishReason.CANCELLED
            assert completion.tokens == tape(ScriptedTarget(), request)[5:7]
            assert_plain(ScriptedTarget(), request, engine.submit(request).result())


def test_closing_the_engine_with_a_generation_open_is_quiet() -> None:
    target = ScriptedTarget()
    engine = Engine(target)
    generation = engine.submit(ask())
    next(generation)
    engine.close()
    engine.close()
    assert generation.done
    del generation, engine
    assert target.info.n_seq == 1  # the target is not the engine's to close


def test_a_generation_that_is_thrown_away_frees_its_sequence() -> None:
    with Engine(ScriptedTarget()) as engine:
        next(engine.submit(ask()))
        assert_plain(ScriptedTarget(), ask(), engine.submit(ask()).result())


def test_eight_threads_on_one_engine_each_get_their_own_text() -> None:
    requests = [ask(prompt=(i, i + 1, i + 2), sampling=SamplingParams(seed=i)) for i in range(8)]
    with Engine(ScriptedTarget(n_seq=3)) as engine:
        completions = at_once(lambda i: engine.submit(requests[i]).result())
    for request, completion in zip(requests, completions, strict=True):
        assert_plain(ScriptedTarget(), request, completion)


class Overtaken(deque[Chunk]):
    """Empty when it is looked at first; before anything else is looked at, another consumer has the engine finish."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self._meanwhile: Callable[[], object] | None = meanwhile

    def __len__(self) -> int:
        n = super().__len__()
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return n


@pytest.mark.parametrize("error", [None, BackendError("lost")])
def test_output_that_another_consumer_brought_is_not_lost_at_the_end(error: BackendError | None) -> None:
    def stop(_: object, __: object) -> bool:
        if error is not None:
            raise error
        return True

    with Engine(ScriptedTarget(n_seq=2)) as engine:
        watched = engine.submit(ask(max_tokens=4, stopping_criteria=(stop,)))
        other = engine.submit(ask(max_tokens=8))
        watched._active.chunks = Overtaken(other.result)
        assert len(next(watched).tokens) == 1
        with pytest.raises(StopIteration if error is None else BackendError):
            next(watched)


def test_two_hundred_requests_leave_no_state_behind() -> None:
    """Objects the engine keeps do not grow with the number of requests."""

    def kept(engine: Engine) -> int:
        return len(engine._queue) + len(engine._running) + len(engine._free) + len(engine._drafters.members)

    spec = StrategySpec.of(NgramK)
    with Engine(ScriptedTarget(n_seq=2)) as engine:
        engine.submit(ask(4, strategy=spec)).result()
        before = kept(engine)
        for i in range(200):
            engine.submit(ask(4, prompt=(i % 32, 1), strategy=spec)).result()
        assert kept(engine) == before
