"""An engine under any sequence of events: submitted, stepped, read, cancelled, failing, closed, used again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest
from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from specframe.core.engine import Engine
from specframe.core.errors import BackendError, ClosedError, RollbackError, SessionPoisonedError
from specframe.core.generation import Generation
from specframe.core.request import FinishReason, Request
from specframe.core.sampling import SamplingParams
from specframe.core.slot import PromptCheckpoints
from specframe.testing import Fault, ScriptedTarget, When
from specframe.testing.generators import TargetPlan, drafters, prompt_checkpoints, samplings, targets
from specframe.testing.reference import Output, reference, tape
from tests.support.lossless import SCHEDULERS, check_memory, check_stats, check_strategies, drafted, stream

#: What an injected failure may look like to whoever steps the engine or reads the request it struck.
FAILURES = (BackendError, MemoryError, KeyboardInterrupt, SessionPoisonedError)


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@attrs.define(eq=False)
class Live:
    """A request the machine looks after."""

    generation: Generation
    right: Output
    tape: tuple[int, ...]
    taken: list[int] = attrs.field(factory=list)
    text: str = ""
    cancelled: bool = False


class EngineMachine(RuleBasedStateMachine):
    """Drives one target through several engines; every output must be a prefix of the lonely plain run."""

    plan: TargetPlan
    target: ScriptedTarget
    engine: Engine

    @initialize(plan=targets(max_seq=3), scheduler=st.sampled_from(SCHEDULERS), checkpoints=prompt_checkpoints())
    def start(self, plan: TargetPlan, scheduler: Any, checkpoints: PromptCheckpoints) -> None:
        self.plan, self.options = plan, {"scheduler": scheduler, "checkpoints": checkpoints}
        self.target = plan()
        self.engine = Engine(self.target, **self.options)
        self.live: list[Live] = []
        self.tapes: list[tuple[int, ...]] = [()]
        self.disturbed = False

    @contextmanager
    def failures_tolerated(self) -> Iterator[None]:
        """Injected failures, and only those, may surface."""
        before = self.target.armed
        try:
            yield
        except FAILURES:
            # A request keeps its error, so an older failure may surface late.
            if not self.disturbed and before == self.target.armed:
                raise
        self.disturbed = self.disturbed or self.target.armed < before

    @rule(data=st.data())
    def submit(self, data: st.DataObject) -> None:
        n_vocab, n_ctx = self.plan.n_vocab, self.plan.arguments["n_ctx"]
        known = data.draw(st.sampled_from(self.tapes), label="continues")
        keep = data.draw(st.integers(0, min(len(known), n_ctx)))
        new = st.lists(st.integers(0, n_vocab - 1), min_size=keep == 0, max_size=max(keep == 0, min(6, n_ctx - keep)))
        request = Request(
            prompt=known[:keep] + tuple(data.draw(new)),
            max_tokens=data.draw(st.one_of(st.none(), st.integers(0, 12))),
            sampling=data.draw(samplings(n_vocab)),
        )
        right_tape = tape(self.plan(), request)
        spec = data.draw(st.one_of(st.none(), drafters(right_tape, data)))
        generation = self.engine.submit(drafted(request, spec))
        self.live.append(Live(generation, reference(self.plan(), request), right_tape))
        self.tapes.append(right_tape)

    @rule(n=st.integers(1, 5))
    def step(self, n: int) -> None:
        for _ in range(n):
            with self.failures_tolerated():
                self.engine.step()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def take_a_chunk(self, data: st.DataObject) -> None:
        live = data.draw(st.sampled_from(self.live))
        with self.failures_tolerated():
            chunk = next(live.generation, None)
            if chunk is not None:
                live.taken += chunk.tokens
                live.text += chunk.text
        assert live.right.tokens[: len(live.taken)] == tuple(live.taken)
        assert live.right.text.startswith(live.text)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def run_to_the_end(self, data: st.DataObject) -> None:
        live = data.draw(st.sampled_from(self.live))
        with self.failures_tolerated():
            live.generation.result()
            self.live.remove(live)
            self._check_finished(live)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        live = data.draw(st.sampled_from(self.live))
        live.cancelled = True
        with self.failures_tolerated():
            live.generation.cancel()

    @precondition(lambda self: self.live)
    @rule(
        call=st.sampled_from(["decode", "logits", "truncate", "checkpoint", "restore", "clear", "sample", "accept"]),
        at=st.integers(1, 2),
        when=st.sampled_from(When),
        error=st.sampled_from([BackendError, KeyboardInterrupt, MemoryError]),
        n_tokens=st.integers(1, 4),
        patience=st.integers(0, 8),
    )
    def fail(self, call: Any, at: int, when: When, error: type[BaseException], n_tokens: int, patience: int) -> None:
        """Something fails within the next steps, or later."""
        if error is BackendError and call in ("truncate", "restore"):
            error = RollbackError
        self.target.inject(Fault(call=call, at=at, when=when, error=error, n_tokens=n_tokens))
        for _ in range(patience):
            if self.target.armed:
                self.step(1)

    @rule()
    def close_and_start_again(self) -> None:
        with self.failures_tolerated():
            self.engine.close()
        for live in self.live:
            try:
                live.generation.result()
                self._check_finished(live)
            except (ClosedError, *FAILURES) as error:
                note(f"ended by {error!r}")
        self.live.clear()
        with pytest.raises(ClosedError):
            self.engine.step()
        self._fresh_engine()

    def _fresh_engine(self) -> None:
        self.target.disarm()
        for seq in range(self.target.info.n_seq):
            self.target.clear(seq)
        self.engine = Engine(self.target, **self.options)
        self.disturbed = False

    def _check_finished(self, live: Live) -> None:
        completion = live.generation.result()
        check_stats(completion.stats, completion)
        if completion.finish_reason is FinishReason.CANCELLED:
            assert live.cancelled or self.disturbed
            assert live.right.tokens[: completion.completion_tokens] == completion.tokens
            return
        live.right.check_equals(Output.of(completion))

    @invariant()
    def memory_holds_committed_tokens_only(self) -> None:
        # An interrupted reconciliation is repaired by the next step of the sequence, not before.
        if not self.disturbed:
            check_memory(self.target, self.tapes)

    @invariant()
    def strategies_are_driven_by_their_contract(self) -> None:
        check_strategies(self.engine)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.target.disarm()
        for live in self.live:
            with self.failures_tolerated():
                live.generation.result()
                self._check_finished(live)
        request = Request(prompt=(0,), max_tokens=8, sampling=SamplingParams(seed=5))
        try:
            output = stream(self.engine.submit(request))
        except SessionPoisonedError:
            assert self.disturbed, "a sequence was given up although nothing failed"
        else:
            reference(self.plan(), request).check_equals(output, "the request after all this")
        self.engine.close()
        self.engine.close()


EngineMachine.TestCase.settings = settings(stateful_step_count=30)
TestEngine = EngineMachine.TestCase
