"""A full context: the request stops, or drops a part of it and goes on, the same with and without drafting."""

from __future__ import annotations

import logging
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from specframe.core.engine import Engine
from specframe.core.errors import BackendError, ConfigError
from specframe.core.history import History
from specframe.core.ports import Need, Rollback
from specframe.core.request import FinishReason, Request
from specframe.core.sampling import SamplingParams
from specframe.core.scheduler import Unlimited
from specframe.core.strategy import StrategySpec
from specframe.strategies.ngram_k import NgramK
from specframe.testing import AsBatch, Fault, Oracle, Output, ScriptedTarget, When, reference, tape
from specframe.testing.generators import as_batch, drafters
from tests.support.lossless import GREEDY, SCHEDULERS, check_stats, check_strategies, drafted, oracle, run


def _target(**more: Any) -> ScriptedTarget:
    return ScriptedTarget(**{"n_vocab": 12, "n_ctx": 24, "n_batch": 16, "order": 2, **more})


def _ask(max_tokens: int | None = 80, **more: Any) -> Request:
    shifting: dict[str, Any] = {"prompt": (1, 2, 3, 4, 5), "context_full": "shift", "sampling": GREEDY}
    return Request(**(shifting | {"max_tokens": max_tokens} | more))


def _check(request: Request, target: ScriptedTarget) -> Any:
    completion = run(target, request)
    reference(_target(), attrs.evolve(request, strategy=None)).check_equals(Output.of(completion))
    check_stats(completion.stats, completion)
    return completion.stats


def test_it_stops_unless_asked_otherwise() -> None:
    request = _ask(context_full="stop")
    completion = run(_target(), request)
    assert (completion.finish_reason, completion.stop_detail) == (FinishReason.LENGTH, "context-full")
    assert completion.completion_tokens == 24 + 1 - 5
    assert completion.stats.shifts == 0


def test_it_shifts_and_ends_with_the_budget() -> None:
    target = _target()
    completion = run(target, _ask())
    assert (completion.finish_reason, completion.stop_detail) == (FinishReason.LENGTH, "max-tokens")
    assert completion.completion_tokens == 80
    # 20 fill the context, then 10 after each shift.
    assert completion.stats.shifts == target.count("shift") == 6
    assert {call.detail for call in target.calls if call.operation == "shift"} == {(4, 10)}
    assert target.n_redecoded == 0
    reference(_target(), _ask()).check_equals(Output.of(completion))


@pytest.mark.parametrize("n_keep", [0, 1, 4, 22])
@pytest.mark.parametrize("length", [1, 3, 15])
def test_drafting_changes_nothing(n_keep: int, length: int) -> None:
    request = _ask(n_keep=n_keep)
    emitted = run(_target(), request).tokens
    spec = StrategySpec.of(NgramK, {"n": 1, "m": length})
    stats = _check(attrs.evolve(request, strategy=spec), _target())
    assert stats.accepted > 0
    assert stats.inactive_reason is None
    assert stats.shifts == run(_target(), request).stats.shifts >= 5
    assert len(set(emitted)) > 2


@given(data=st.data())
def test_any_drafter_changes_nothing(data: st.DataObject) -> None:
    n_seq = data.draw(st.integers(1, 3))
    plan: dict[str, Any] = {"n_ctx": data.draw(st.integers(6, 20)), "n_seq": n_seq, "eog": {7}}
    requests = [
        _ask(
            data.draw(st.integers(1, 60)),
            prompt=data.draw(st.lists(st.integers(0, 11), min_size=1, max_size=plan["n_ctx"])),
            n_keep=data.draw(st.integers(0, 4)),
            sampling=SamplingParams(seed=1, temperature=data.draw(st.sampled_from([0.0, 1.0])), repeat_penalty=1.1),
            context_full=data.draw(st.sampled_from(["stop", "shift", "shift"])),
        )
        for _ in range(n_seq + 1)
    ]
    logging.disable(logging.CRITICAL)
    with Engine(_target(**plan), scheduler=data.draw(st.sampled_from(SCHEDULERS))) as engine:
        running = []
        for request in requests:
            spec = data.draw(st.one_of(st.none(), drafters(tape(_target(**plan), request), data)))
            running.append(engine.submit(drafted(request, spec)))
        for request, generation in zip(requests, running, strict=True):
            completion = generation.result()
            reference(_target(**plan), request).check_equals(Output.of(completion))
            check_stats(completion.stats, completion)
        check_strategies(engine)
    logging.disable(logging.NOTSET)


def test_only_what_took_nothing_from_dropped_tokens_is_reused() -> None:
    target = _target()
    with Engine(target) as engine:
        engine.submit(_ask()).result()
        held = target.memory(0)
        for prompt in (held, (*held[:10], 3), (1, 2, 3, 4, 5, 6)):
            request = _ask(6, prompt=prompt, context_full="stop")
            completion = engine.submit(request).result()
            assert completion.stats.cached_tokens >= 4
            reference(_target(), request).check_equals(Output.of(completion))
            engine.submit(_ask()).result()
            with pytest.raises(ConfigError, match="nothing to save"):
                engine.save_session()


def test_requests_that_cannot_shift_are_refused_with_the_reason() -> None:
    for kind in (Rollback.SNAPSHOT, Rollback.BOUNDED):
        with Engine(_target(rollback=kind)) as engine, pytest.raises(ConfigError, match=kind.value):
            engine.submit(_ask())
    with Engine(_target(can_shift=False)) as engine, pytest.raises(ConfigError, match="positions cannot be moved"):
        engine.submit(_ask())
    with Engine(_target()) as engine, pytest.raises(ConfigError, match="nothing to drop"):
        engine.submit(_ask(n_keep=23))
    broken: list[dict[str, Any]] = [{"context_full": "wrap"}, {"n_keep": -1}, {"n_keep": True}, {"max_tokens": None}]
    for bad in broken:
        with pytest.raises(ConfigError):
            _ask(**bad)


@pytest.mark.parametrize("error", [BackendError, MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER])
def test_a_failing_shift_costs_time_and_what_was_dropped(when: When, error: type[BaseException]) -> None:
    """What is left is evaluated anew, so what follows may differ; how much there is does not."""
    target = _target(faults=[Fault(call="shift", when=when, error=error)])
    with Engine(target, scheduler=Unlimited) as engine:
        generation = engine.submit(_ask(strategy=as_batch(oracle((), 3))))
        try:
            generation.result()
        except KeyboardInterrupt:
            assert error is KeyboardInterrupt
        completion = generation.result()
        assert completion.completion_tokens == 80
        assert completion.tokens[:20] == run(_target(), _ask()).tokens[:20]
        check_strategies(engine)
        following = engine.submit(_ask()).result()
        reference(_target(), _ask()).check_equals(Output.of(following))


class _WithMemory(AsBatch):
    """Needs features, so it has a memory of its own, and does not say how that could follow."""

    name = "with-memory"
    needs = Need.HIDDEN


class _Follows(_WithMemory):
    name = "follows"

    @override
    def shift(self, seq: int, history: History, n_keep: int, n_drop: int) -> bool:
        self._seen[seq] -= n_drop
        return True


class _Fails(_WithMemory):
    name = "fails"

    @override
    def shift(self, seq: int, history: History, n_keep: int, n_drop: int) -> bool:
        raise KeyError(n_drop)


@pytest.mark.parametrize(
    ("cls", "reason"), [(_WithMemory, "context-shifted"), (_Follows, None), (_Fails, "strategy-error")]
)
def test_a_strategy_with_a_memory_follows_or_ends(cls: type[AsBatch], reason: str | None) -> None:
    right = (1, 2, 3, 4, 5, *run(_target(), _ask()).tokens)
    options = {"cls": Oracle, "options": oracle(right, 3).options}
    target = _target(provides=Need.HIDDEN)
    with Engine(target, scheduler=Unlimited) as engine:
        completion = engine.submit(_ask(strategy=StrategySpec.of(cls, options))).result()
        check_strategies(engine)
    reference(_target(), _ask()).check_equals(Output.of(completion))
    found = completion.stats.inactive_reason
    assert (found or "").split(":")[0] == (reason or "")
    assert completion.stats.accepted > 0


def test_a_strategy_that_wants_to_see_tokens_again_cannot_follow() -> None:
    """Evaluating them again would give them another memory than plain decoding has."""
    completion = run(_target(), _ask(strategy=as_batch(oracle((), 2), forgets=1)))
    assert completion.stats.inactive_reason == "context-shifted"
    reference(_target(), _ask()).check_equals(Output.of(completion))
