"""A failure at every place of a step: the next request equals a fresh engine's, and nobody else notices."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import pytest

from specframe.core.engine import Engine
from specframe.core.errors import BackendError, RollbackError, SessionPoisonedError
from specframe.core.generation import Generation
from specframe.core.observer import Observer
from specframe.core.request import Completion, FinishReason, Request
from specframe.core.sampling import SamplingParams
from specframe.core.scheduler import Unlimited
from specframe.core.slot import PromptCheckpoints
from specframe.core.strategy import Outcome, StrategySpec
from specframe.testing import Crash, Fault, Output, ScriptedTarget, When, reference, tape
from specframe.testing.generators import as_batch
from tests.support.lossless import MEMORIES, check_memory, check_stats, check_strategies, poison

ERRORS = (BackendError, RollbackError, MemoryError, KeyboardInterrupt)
LIMITS = PromptCheckpoints(count=2, interval=8, tail=3)
memories = pytest.mark.parametrize(
    "memory", [MEMORIES[0], MEMORIES[2], MEMORIES[4]], ids=["truncate", "bounded", "snapshot"]
)
companies = pytest.mark.parametrize("n_seq", [1, 3])


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def _target(memory: dict[str, Any], n_seq: int = 1) -> ScriptedTarget:
    return ScriptedTarget(**memory, n_seq=n_seq, n_ctx=48)


def _request(i: int) -> Request:
    prompt = tuple((7 * i + j * j) % 30 for j in range(5 + 7 * i))
    return Request(prompt=prompt, max_tokens=20, sampling=SamplingParams(seed=i, temperature=0.5 * (i % 2)))


# Outputs do not depend on the kind of memory, so they are worked out once.
_TAPES = [tape(_target({}), _request(i)) for i in range(3)]
_RIGHT = {_request(i).prompt: reference(_target({}), _request(i)) for i in range(3)}


def _requests(n: int) -> list[Request]:
    """Requests of several lengths, greedy and seeded, each drafted with some tokens wrong."""
    made = []
    for i in range(n):
        spec = poison(_TAPES[i], k=1 + i, length=4)
        made.append(attrs.evolve(_request(i), strategy=as_batch(spec) if i != 1 else spec))
    return made


def _follow(engine: Engine, requests: Sequence[Request]) -> None:
    """What comes next equals a fresh engine's."""
    for request in requests:
        completion = engine.submit(request).result()
        _RIGHT[request.prompt].check_equals(Output.of(completion))
        check_stats(completion.stats, completion)


@attrs.define
class _Run:
    """What became of some requests whose engine was disturbed."""

    requests: Sequence[Request]
    generations: Sequence[Generation]

    def drive(self, engine: Engine) -> list[BaseException]:
        """Step to the end, through everything that surfaces."""
        surfaced: list[BaseException] = []
        for _ in range(500):
            try:
                if not engine.step():
                    return surfaced
            except ERRORS as error:
                surfaced.append(error)
        pytest.fail("the requests never end")

    def fates(self) -> list[str]:
        """Of each request: "whole", "cut" (cancelled with right tokens so far) or "failed"."""
        return [self._fate(r, g) for r, g in zip(self.requests, self.generations, strict=True)]

    def _fate(self, request: Request, generation: Generation) -> str:
        right = _RIGHT[request.prompt]
        try:
            completion: Completion = generation.result()
        except (*ERRORS, SessionPoisonedError):
            taken = tuple(token for chunk in generation._active.chunks for token in chunk.tokens)
            assert right.tokens[: len(taken)] == taken
            return "failed"
        if completion.finish_reason is FinishReason.CANCELLED:
            assert completion.stop_detail == "interrupted"
            assert right.tokens[: completion.completion_tokens] == completion.tokens
            return "cut"
        right.check_equals(Output.of(completion))
        return "whole"


def _disturb(memory: dict[str, Any], n_seq: int, fault: Fault, *, after: int) -> list[str]:
    """Run ``n_seq`` requests, disturb them after some steps, see what follows; returns their fates."""
    target = _target(memory, n_seq)
    requests = _requests(n_seq)
    with Engine(target, scheduler=Unlimited, checkpoints=LIMITS) as engine:
        run = _Run(requests, [engine.submit(request) for request in requests])
        for _ in range(after):
            engine.step()
        target.inject(fault)
        surfaced = run.drive(engine)
        struck = not target.armed
        target.disarm()
        fates = run.fates()
        assert struck or fates == ["whole"] * n_seq
        if not (struck and issubclass(_class(fault), KeyboardInterrupt)):
            assert surfaced == []
        check_strategies(engine)
        check_memory(target, [(), *_TAPES])
        if struck and fault.call == "clear" and not issubclass(_class(fault), KeyboardInterrupt):
            return fates  # by contract, the sequence is given up
        _follow(engine, _requests(3))
        check_strategies(engine)
    return fates


def _class(fault: Fault) -> type[BaseException]:
    return fault.error if isinstance(fault.error, type) else type(fault.error)


@memories
@companies
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("call", ["decode", "logits"])
def test_the_batch_fails(memory: dict[str, Any], n_seq: int, error: type[BaseException], when: When, call: Any) -> None:
    for after in (1, 2 * n_seq + 2):
        for at in (1, 2):
            fault = Fault(call=call, at=at, when=when, error=error, n_tokens=3)
            fates = _disturb(memory, n_seq, fault, after=after)
            # An interrupt is the user's, not the request's: all of it goes on.
            expected = {"whole"} if error is KeyboardInterrupt else {"whole", "failed"}
            assert set(fates) <= expected, (after, at, fates)


@memories
@companies
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER])
@pytest.mark.parametrize("call", ["truncate", "checkpoint", "restore", "clear"])
def test_reconciling_fails(
    memory: dict[str, Any], n_seq: int, error: type[BaseException], when: When, call: Any
) -> None:
    for after in (1, 2 * n_seq + 2):
        for at in (1, 2):
            fates = _disturb(memory, n_seq, Fault(call=call, at=at, when=when, error=error), after=after)
            # There is always another means, except when even forgetting fails.
            given_up = call == "clear" and error is not KeyboardInterrupt
            assert fates.count("whole") >= n_seq - given_up, (after, at, fates)


@memories
@companies
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER])
@pytest.mark.parametrize("call", ["sample", "accept"])
def test_choosing_a_token_fails(
    memory: dict[str, Any], n_seq: int, error: type[BaseException], when: When, call: Any
) -> None:
    for after in (1, 2 * n_seq + 2):
        for at in (1, 2, 3):
            fates = _disturb(memory, n_seq, Fault(call=call, at=at, when=when, error=error), after=after)
            # Its random stream cannot be rewound, so this one request ends; no other does.
            assert fates.count("whole") == n_seq - 1
            assert ("cut" if error is KeyboardInterrupt else "failed") in fates


@memories
@companies
def test_two_failures_in_a_row(memory: dict[str, Any], n_seq: int) -> None:
    """The means of taking back fails while a failure is being taken back."""
    for first in ("decode", "logits", "sample"):
        for second in ("truncate", "restore", "clear"):
            for error in (KeyboardInterrupt, MemoryError):
                target = _target(memory, n_seq)
                requests = _requests(n_seq)
                with Engine(target, scheduler=Unlimited, checkpoints=LIMITS) as engine:
                    run = _Run(requests, [engine.submit(request) for request in requests])
                    for _ in range(2 * n_seq + 1):
                        engine.step()
                    for call in (first, second):
                        target.inject(Fault(call=call, when=When.AFTER, error=error))
                    run.drive(engine)
                    target.disarm()
                    run.fates()
                    check_strategies(engine)
                    if second != "clear" or error is KeyboardInterrupt:
                        _follow(engine, requests)


@memories
@companies
@pytest.mark.parametrize("error", [BackendError, MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
@pytest.mark.parametrize("where", ["begin", "draft", "observe", "process", "close"])
def test_a_hook_of_a_strategy_fails(
    memory: dict[str, Any], n_seq: int, error: type[BaseException], batched: bool, where: str
) -> None:
    """It costs speed only, whatever is raised; also the sequences that share the strategy go on."""
    for at in (1, 2):
        target = _target(memory, n_seq)
        requests = []
        for i, request in enumerate(_requests(n_seq)):
            spec = StrategySpec.of(Crash, {"tape": _TAPES[i], "where": where, "at": at, "error": error, "length": 3})
            requests.append(attrs.evolve(request, strategy=as_batch(spec) if batched else spec))
        with Engine(target, scheduler=Unlimited, checkpoints=LIMITS) as engine:
            run = _Run(requests, [engine.submit(request) for request in requests])
            surfaced = run.drive(engine)
            assert run.fates() == ["whole"] * n_seq
            assert bool(surfaced) <= (error is KeyboardInterrupt)
            check_strategies(engine)
            _follow(engine, _requests(n_seq))


def test_a_strategy_that_missed_tokens_is_not_asked_again() -> None:
    """Interrupted between the decode of a prompt chunk, which memory keeps, and the strategy's look at it."""
    crash = {"tape": _TAPES[2], "where": "process", "at": 1, "error": KeyboardInterrupt}
    request = attrs.evolve(_request(2), strategy=as_batch(StrategySpec.of(Crash, crash)))
    with Engine(ScriptedTarget(n_batch=8), scheduler=Unlimited) as engine:
        generation = engine.submit(request)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
        completion = generation.result()
        check_strategies(engine)
    assert completion.stats.inactive_reason == "strategy-interrupted"
    assert completion.stats.drafted == 0
    _RIGHT[request.prompt].check_equals(Output.of(completion))


class _Watcher(Observer):
    def __init__(self, where: str, at: int, error: type[BaseException]) -> None:
        self.where, self.at, self.error = where, at, error
        self.n = 0

    def _reach(self, place: str) -> None:
        if place == self.where:
            self.n += 1
            if self.n == self.at:
                raise self.error(place)

    def request_started(self, seq: int, request: Request, n_cached: int) -> None:
        self._reach("started")

    def step_finished(self, outcome: Outcome) -> None:
        self._reach("step")

    def request_finished(self, seq: int, completion: Completion) -> None:
        self._reach("finished")


@memories
@companies
@pytest.mark.parametrize("error", [BackendError, MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["started", "step", "finished"])
def test_an_observer_fails(memory: dict[str, Any], n_seq: int, error: type[BaseException], where: str) -> None:
    for at in (1, 2, 3):
        target = _target(memory, n_seq)
        requests = _requests(n_seq)
        watcher = _Watcher(where, at, error)
        with Engine(target, scheduler=Unlimited, checkpoints=LIMITS, observers=[watcher]) as engine:
            run = _Run(requests, [engine.submit(request) for request in requests])
            surfaced = run.drive(engine)
            assert run.fates() == ["whole"] * n_seq
            assert len(surfaced) == (error is KeyboardInterrupt and watcher.n >= at)
            watcher.where = "nowhere"
            check_strategies(engine)
            _follow(engine, _requests(n_seq))
