"""Named scenarios that pass on the real core; each mutant must make the ones it names fail."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable
from typing import Any

from specframe.core.engine import Engine
from specframe.core.errors import BackendError, RollbackError
from specframe.core.ports import Rollback
from specframe.core.request import Completion, Request
from specframe.core.sampling import SamplingParams
from specframe.core.scheduler import Unlimited
from specframe.core.strategy import StrategySpec
from specframe.testing import ALL_JUNK, Arbitrary, Crash, Fault, Junk, Output, ScriptedTarget, When, reference, tape
from tests.support.lossless import (
    MEMORIES,
    PROMPT,
    ask,
    assert_plain,
    check_memory,
    drafted,
    oracle,
    poison,
    run,
    stream,
)
from tests.unit import (
    test_endings,
    test_faults,
    test_interruptions,
    test_misbehaving_drafters,
    test_prompt_checkpoints,
    test_prompts_and_text,
    test_rollback,
    test_sampling_of_drafts,
)

Scenario = Callable[[], None]

SCENARIOS: dict[str, Scenario] = {}


def scenario(name: str) -> Callable[[Scenario], Scenario]:
    def register(function: Scenario) -> Scenario:
        SCENARIOS[name] = function
        return function

    return register


def fails(name: str) -> bool:
    """Run one scenario; True when it notices something, whatever way."""
    logging.disable(logging.CRITICAL)
    try:
        SCENARIOS[name]()
    except (Exception, KeyboardInterrupt):  # noqa: BLE001 -- a broken core may raise anything
        return True
    finally:
        logging.disable(logging.NOTSET)
    return False


@scenario("poison at every position")
def _() -> None:
    for memory, k in itertools.product(MEMORIES, (0, 1, 3)):
        right = tape(ScriptedTarget(**memory), ask())
        target = ScriptedTarget(**memory)
        completion = run(target, ask(strategy=poison(right, k, 4)))
        assert_plain(ScriptedTarget(**memory), ask(), completion)
        check_memory(target, [right])


@scenario("no token is decoded twice")
def _() -> None:
    test_misbehaving_drafters.test_alternating_good_and_empty_drafts_decode_no_token_twice()
    right = tape(ScriptedTarget(), ask())
    target = ScriptedTarget()
    run(target, ask(strategy=poison(right, 2, 4)))
    assert target.n_redecoded == 0


@scenario("end token inside a draft")
def _() -> None:
    for memory, k in itertools.product(MEMORIES, (1, 3)):
        test_endings.test_end_token_accepted_inside_a_draft_cuts_the_output(memory, k)


@scenario("end token only proposed")
def _() -> None:
    test_endings.test_end_token_the_target_does_not_choose_does_not_end_the_request()


@scenario("chat turns after an end inside a draft")
def _() -> None:
    right = tape(ScriptedTarget(seed=3), ask())
    at = next(i for i in range(8, len(right)) if right[i] not in right[5:i])
    target = ScriptedTarget(seed=3, eog=(right[at],))
    with Engine(target, scheduler=Unlimited) as engine:
        engine.submit(ask(strategy=oracle(right, 16))).result()
        held = target.memory(0)
        assert len(held) <= at, "memory holds the end token whose row nobody asked for"
        second = ask(prompt=right[: at + 1])
        assert_plain(ScriptedTarget(seed=3, eog=(right[at],)), second, engine.submit(second).result())


@scenario("bounded memory is never cut too deep")
def _() -> None:
    right = tape(ScriptedTarget(), ask())
    for checkpoints, k in itertools.product((True, False), (0, 3)):
        target = ScriptedTarget(rollback=Rollback.BOUNDED, rollback_depth=2, silent_cuts=True, checkpoints=checkpoints)
        completion = run(target, ask(strategy=poison(right, k, 9)))
        assert_plain(ScriptedTarget(), ask(), completion)
        assert "replay" not in completion.stats.rollbacks


@scenario("snapshots are restored")
def _() -> None:
    memory: dict[str, Any] = {"rollback": Rollback.SNAPSHOT}
    right = tape(ScriptedTarget(), ask())
    completion = run(ScriptedTarget(**memory), ask(strategy=poison(right, 1, 4)))
    assert_plain(ScriptedTarget(), ask(), completion)
    assert set(completion.stats.rollbacks) == {"snapshot"}


@scenario("checkpoints only when needed")
def _() -> None:
    for length in (1, 3, 4, 9):
        test_rollback.test_a_checkpoint_is_taken_only_for_drafts_longer_than_the_depth(length)


@scenario("failing criteria on bounded memory")
def _() -> None:
    test_rollback.test_a_step_that_commits_nothing_cannot_be_cut_away()


@scenario("turns that depart from a prompt")
def _() -> None:
    for memory in test_prompt_checkpoints.KINDS:
        test_prompt_checkpoints.test_drafts_do_not_disturb_them(memory)
        for n_shared, n_cached in ((60, 56), (55, 48), (47, 32), (31, 0)):
            test_prompt_checkpoints.test_a_diverging_turn_starts_from_the_best_checkpoint(memory, n_shared, n_cached)


@scenario("interrupted strategies")
def _() -> None:
    test_faults.test_a_strategy_that_missed_tokens_is_not_asked_again()


@scenario("strategies with a memory of their own")
def _() -> None:
    for memory in ({}, *test_prompt_checkpoints.KINDS):
        for forgets in (0, 1, 5, 1000):
            test_prompt_checkpoints.test_a_strategy_sees_again_what_it_asks_for(memory, forgets)


@scenario("interrupts anywhere")
def _() -> None:
    calls = ("decode", "logits", "truncate", "restore")
    for memory, call, when, at in itertools.product(MEMORIES, calls, When, (1, 3)):
        test_interruptions.test_interrupt_anywhere_loses_nothing(memory, when, call, at)


@scenario("interrupted admissions")
def _() -> None:
    for when in When:
        target = ScriptedTarget()
        with Engine(target) as engine:
            engine.submit(ask(6)).result()
            target.inject(Fault(call="clear", when=when, error=KeyboardInterrupt))
            following = ask(prompt=(7, 8, 9), reuse_prefix=False)
            generation = engine.submit(following)
            try:
                generation.result()
            except KeyboardInterrupt:
                assert_plain(ScriptedTarget(), following, generation.result())
            else:
                raise AssertionError("the interrupt was swallowed")
            held = target.memory(0)
            target.inject(Fault(call="clear", when=when, error=KeyboardInterrupt))
            given_up = engine.submit(ask(prompt=(9,), reuse_prefix=False))
            with contextlib.suppress(KeyboardInterrupt):
                engine.step()
            given_up.cancel()
            going_on = ask(prompt=(*held, 5))
            assert_plain(ScriptedTarget(), going_on, engine.submit(going_on).result())


@scenario("interrupted draws")
def _() -> None:
    test_interruptions.test_interrupt_during_the_draw_ends_the_request_without_a_wrong_token()


@scenario("a second engine on a used target")
def _() -> None:
    target = ScriptedTarget()
    for prompt in (PROMPT, (7, 8)):
        assert_plain(ScriptedTarget(), ask(prompt=prompt), run(target, ask(prompt=prompt)))


@scenario("refused rollbacks")
def _() -> None:
    right = tape(ScriptedTarget(), ask())
    target = ScriptedTarget(faults=[Fault(call="truncate", error=RollbackError)])
    completion = run(target, ask(strategy=poison(right, 0, 3)))
    assert target.armed == 0
    assert completion.stats.rollbacks["replay"] == 1
    assert_plain(ScriptedTarget(), ask(), completion)


@scenario("the same prompt again")
def _() -> None:
    for memory in MEMORIES:
        test_prompts_and_text.test_fully_cached_prompt_evaluates_its_last_token_again(memory)


@scenario("prompts that share a beginning")
def _() -> None:
    right = tape(ScriptedTarget(), ask())
    for memory in MEMORIES:
        with Engine(ScriptedTarget(**memory)) as engine:
            engine.submit(ask()).result()
            for n in (3, 9, 14, 20):
                turn = ask(prompt=(*right[:n], (right[n] + 1) % 32, 5, 6))
                assert_plain(ScriptedTarget(**memory), turn, engine.submit(turn).result())


@scenario("reuse can be declined")
def _() -> None:
    with Engine(ScriptedTarget()) as engine:
        engine.submit(ask()).result()
        assert engine.submit(ask(reuse_prefix=False)).result().stats.cached_tokens == 0
        assert engine.submit(ask()).result().stats.cached_tokens == 4


@scenario("token budget")
def _() -> None:
    for budget in (1, 2, 6, 7):
        test_endings.test_token_budget_is_kept_to_the_token(MEMORIES[0], budget)


@scenario("known counters")
def _() -> None:
    test_misbehaving_drafters.test_counters_of_a_known_run()


@scenario("sampled and drafted")
def _() -> None:
    test_sampling_of_drafts.test_one_random_number_is_drawn_per_emitted_token()
    request = ask(sampling=SamplingParams(seed=9, temperature=1.0))
    right = tape(ScriptedTarget(), request)
    for k in (0, 2):
        assert_plain(ScriptedTarget(), request, run(ScriptedTarget(), drafted(request, poison(right, k, 5))))


@scenario("penalties")
def _() -> None:
    test_sampling_of_drafts.test_sampling_parameters_apply_to_every_drafted_token(0.8, {"frequency_penalty": 0.7})


@scenario("logprobs")
def _() -> None:
    test_sampling_of_drafts.test_logprobs_of_accepted_tokens_are_those_of_the_target()


@scenario("processors and criteria")
def _() -> None:
    test_sampling_of_drafts.test_logits_processors_see_the_row_and_history_of_their_own_token()

    def process(history: Any, row: Any) -> Any:
        row[history[-1]] -= 9.0
        return row

    request = ask(sampling=SamplingParams(temperature=0.0, logprobs=2), logits_processors=(process,))
    right = tape(ScriptedTarget(), request)
    assert_plain(ScriptedTarget(), request, run(ScriptedTarget(), drafted(request, oracle(right, 4))))


@scenario("grammars")
def _() -> None:
    test_sampling_of_drafts.test_grammar_that_is_complete_ends_the_request_inside_a_draft()


@scenario("requests in company")
def _() -> None:
    requests = [ask(prompt=(i, 2, 3), sampling=SamplingParams(seed=i)) for i in range(5)]
    with Engine(ScriptedTarget(n_seq=3), scheduler=Unlimited) as engine:
        running = []
        for i, request in enumerate(requests):
            right = tape(ScriptedTarget(), request)
            running.append(engine.submit(drafted(request, poison(right, i % 3, 4) if i % 2 else None)))
            engine.step()
        for request, generation in zip(requests, running, strict=True):
            assert_plain(ScriptedTarget(), request, generation.result())


@scenario("stop string inside a draft")
def _() -> None:
    test_endings.test_stop_string_over_several_tokens_inside_a_block_cuts_text_and_memory()


@scenario("text that began like a stop string")
def _() -> None:
    test_endings.test_text_that_only_began_like_a_stop_string_is_delivered()


@scenario("streams")
def _() -> None:
    request = ask(sampling=SamplingParams(temperature=0.0, logprobs=1))
    right = tape(ScriptedTarget(), request)
    with Engine(ScriptedTarget(), scheduler=Unlimited) as engine:
        output = stream(engine.submit(drafted(request, poison(right, 1, 3))))
    reference(ScriptedTarget(), request).check_equals(output)


@scenario("full context")
def _() -> None:
    test_endings.test_full_context_clamps_drafts_and_ends_the_request()


@scenario("small batches")
def _() -> None:
    test_prompts_and_text.test_prompts_of_one_token_or_longer_than_the_batch_work(9)
    right = tape(ScriptedTarget(), ask())
    narrow = ScriptedTarget(rollback=Rollback.SNAPSHOT, n_batch=8)  # accepted tokens wait for the next batch
    assert_plain(ScriptedTarget(), ask(), run(narrow, ask(strategy=poison(right, 3))))


@scenario("few logits rows")
def _() -> None:
    right = tape(ScriptedTarget(), ask())
    completion = run(ScriptedTarget(n_outputs=3), ask(strategy=oracle(right)))
    assert_plain(ScriptedTarget(), ask(), completion)
    assert completion.stats.accepted > 0


@scenario("exact width")
def _() -> None:
    prompt = tuple(range(9))
    plain = run(ScriptedTarget(exact_width=3), ask(prompt=prompt))
    completion = run(ScriptedTarget(exact_width=3), ask(prompt=prompt, strategy=oracle((*prompt, *plain.tokens))))
    Output.of(plain).check_equals(Output.of(completion))
    assert completion.stats.accepted > 0
    edge = tuple(range(4))  # one token fewer would be narrow
    plain = run(ScriptedTarget(exact_width=3), ask(prompt=edge))
    completion = run(ScriptedTarget(exact_width=3), ask(prompt=edge, strategy=oracle((*edge, *plain.tokens))))
    Output.of(plain).check_equals(Output.of(completion))


@scenario("garbage")
def _() -> None:
    for kind in ALL_JUNK:
        completion = run(ScriptedTarget(), ask(strategy=StrategySpec.of(Junk, {"kinds": (kind,)})))
        assert_plain(ScriptedTarget(), ask(), completion)


@scenario("over-long drafts")
def _() -> None:
    right = tape(ScriptedTarget(), ask())
    spec = StrategySpec.of(Arbitrary, {"choose": lambda r: right[len(r.history) : len(r.history) + r.budget + 1]})
    assert_plain(ScriptedTarget(), ask(), run(ScriptedTarget(n_batch=8), ask(strategy=spec)))


def _crash(where: str) -> Completion:
    right = tape(ScriptedTarget(), ask())
    spec = StrategySpec.of(Crash, {"tape": right, "where": where, "at": 1, "length": 3})
    completion = run(ScriptedTarget(), ask(strategy=spec))
    assert_plain(ScriptedTarget(), ask(), completion)
    return completion


@scenario("crashes")
def _() -> None:
    for where in ("init", "begin", "draft", "max_draft", "observe", "close"):
        _crash(where)


@scenario("crashes are reported")
def _() -> None:
    for where in ("init", "begin", "draft", "max_draft", "observe"):
        assert "'crash'" in str(_crash(where).stats.inactive_reason)


@scenario("strategies are closed with their request")
def _() -> None:
    closed: list[int] = []

    class Closing(Arbitrary):
        name = "closing"

        def close(self) -> None:
            closed.append(1)

    with Engine(ScriptedTarget()) as engine:
        for n in range(1, 4):
            engine.submit(ask(4, strategy=StrategySpec.of(Closing))).result()
            assert len(closed) == n
    assert len(closed) == 3


@scenario("closed generators")
def _() -> None:
    for memory in MEMORIES:
        test_interruptions.test_closed_generator_leaves_a_clean_engine(memory, 2)


@scenario("failing decodes")
def _() -> None:
    target = ScriptedTarget(faults=[Fault(call="decode", at=3, error=BackendError)])
    with Engine(target) as engine:
        generation = engine.submit(ask())
        try:
            generation.result()
        except BackendError:
            assert_plain(ScriptedTarget(), ask(), engine.submit(Request(**_fields(ask()))).result())
        else:
            raise AssertionError("the failure was swallowed")


def _fields(request: Request) -> dict[str, Any]:
    return {"prompt": request.prompt, "max_tokens": request.max_tokens, "sampling": request.sampling}
