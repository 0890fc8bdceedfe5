"""Drafting changes the speed and nothing else: arbitrary requests, memories, companies and drafters."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specframe.core.engine import Engine
from specframe.core.ports import Rollback
from specframe.testing.generators import TargetPlan, drafters, prompt_checkpoints, requests, targets
from specframe.testing.reference import Output, reference, tape
from tests.support.lossless import SCHEDULERS, check_memory, check_stats, check_strategies, drafted, run, stream


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    # Broken drafters are reported once per request, thousands of times here.
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@given(data=st.data())
def test_plain_engine_equals_the_reference(data: st.DataObject) -> None:
    plan = data.draw(targets())
    request = data.draw(requests(plan))
    with Engine(plan()) as engine:
        generation = engine.submit(request)
        reference(plan(), request).check_equals(stream(generation), "plain output of the engine")
        check_stats(generation.result().stats, generation.result())


@given(data=st.data())
def test_one_request_with_any_drafter_equals_the_reference(data: st.DataObject) -> None:
    plan = data.draw(targets(max_seq=1))
    request = data.draw(requests(plan))
    spec = data.draw(drafters(tape(plan(), request), data))
    target = plan()
    completion = run(
        target,
        drafted(request, spec),
        scheduler=data.draw(st.sampled_from(SCHEDULERS)),
        checkpoints=data.draw(prompt_checkpoints()),
    )
    reference(plan(), request).check_equals(Output.of(completion))
    check_stats(completion.stats, completion)


@given(data=st.data())
def test_requests_in_company_equal_their_lonely_runs(data: st.DataObject) -> None:
    """Requests join while others run, leave early by cancellation, and share sequences and prefixes."""
    plan = data.draw(targets())
    wanted = data.draw(st.lists(requests(plan), min_size=1, max_size=6))
    right = [reference(plan(), request) for request in wanted]
    tapes = [tape(plan(), request) for request in wanted]
    specs = [data.draw(st.one_of(st.none(), drafters(right_tape, data))) for right_tape in tapes]
    target = plan()
    scheduler, limits = data.draw(st.sampled_from(SCHEDULERS)), data.draw(prompt_checkpoints())
    with Engine(target, scheduler=scheduler, checkpoints=limits) as engine:
        running = []
        for request, spec, expected in zip(wanted, specs, right, strict=True):
            running.append((engine.submit(drafted(request, spec)), expected))
            for _ in range(data.draw(st.integers(0, 4), label="steps before the next joins")):
                engine.step()
                check_memory(target, tapes)
            if data.draw(st.booleans(), label="cancel"):
                generation, _ = running.pop(data.draw(st.integers(0, len(running) - 1)))
                generation.cancel()
        for generation, expected in running:
            expected.check_equals(stream(generation), "output in company")
            check_stats(generation.result().stats, generation.result())
        check_memory(target, tapes)
        check_strategies(engine)


@given(data=st.data())
def test_a_second_request_equals_a_fresh_engine(data: st.DataObject) -> None:
    """A turn that continues, repeats or cuts the first one, after a first turn of any fate."""
    plan = data.draw(targets(max_seq=2))
    first = data.draw(requests(plan))
    past = tape(plan(), first)
    turn = data.draw(requests(plan))
    n_ctx = plan.arguments["n_ctx"]
    shared = data.draw(st.integers(1, min(len(past), n_ctx)), label="shared prefix")
    new = turn.prompt[: data.draw(st.integers(0, n_ctx - shared))]
    second = attrs.evolve(turn, prompt=past[:shared] + new, reuse_prefix=True)
    with Engine(plan(), checkpoints=data.draw(prompt_checkpoints())) as engine:
        generation = engine.submit(drafted(first, data.draw(drafters(past, data))))
        for _ in range(data.draw(st.integers(0, 6), label="chunks taken")):
            next(generation, None)
        generation.close()
        spec = data.draw(drafters(tape(plan(), second), data))
        completion = engine.submit(drafted(second, spec)).result()
    reference(plan(), second).check_equals(Output.of(completion), "the second output")


@given(data=st.data())
def test_no_token_is_decoded_twice_when_memory_can_be_cut(data: st.DataObject) -> None:
    plan = data.draw(targets(max_seq=1))
    plan = TargetPlan({**plan.arguments, "rollback": Rollback.TRUNCATE})
    request = data.draw(requests(plan))
    spec = data.draw(drafters(tape(plan(), request), data))
    target = plan()
    run(target, drafted(request, spec))
    assert target.n_redecoded == 0


@given(data=st.data())
def test_drafts_stay_within_the_width_that_rounds_like_single_tokens(data: st.DataObject) -> None:
    """Prompts are cut the same way on both paths, verifications are narrow, and so is what has to be replayed."""
    plan = data.draw(targets(max_seq=3))
    plan = TargetPlan({**plan.arguments, "exact_width": data.draw(st.integers(1, 6))})
    request, limits = data.draw(requests(plan)), data.draw(prompt_checkpoints())
    with Engine(plan(), checkpoints=limits) as engine:
        plain = stream(engine.submit(request))
        right = (*request.prompt, *plain.tokens)
    with Engine(plan(), scheduler=data.draw(st.sampled_from(SCHEDULERS)), checkpoints=limits) as engine:
        generation = engine.submit(drafted(request, data.draw(drafters(right, data))))
        plain.check_equals(stream(generation))
