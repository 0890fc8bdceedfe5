"""Draft models of every kind when something goes wrong: requests that are left, interrupted or sabotaged."""

from __future__ import annotations

from typing import Any

import pytest

from specframe.backends.llama.context import Context
from specframe.backends.llama.model import Model
from specframe.backends.llama.nextn_context import _kept_memory
from specframe.core.engine import Engine
from specframe.core.errors import BackendError, RollbackError
from specframe.core.ports import BatchEntry
from specframe.core.request import Request
from specframe.core.sampling import SamplingParams
from specframe.core.scheduler import Unlimited
from specframe.core.strategy import BatchStrategy
from specframe.strategies.dflash import Dflash
from specframe.strategies.dflash2 import Dflash2
from specframe.strategies.draft_model import DraftModel
from specframe.strategies.eagle3 import Eagle3
from specframe.testing import Output
from tests.support.drafting import (
    BLOCKS,
    CASES,
    GREEDY,
    PROMPTS,
    SOME,
    SOME_BLOCKS,
    SOME_TOKENWISE,
    Case,
    request,
    spec,
    strategy_of,
)
from tests.support.exact import ExactZoo, Memory, every_memory, fresh, once, watched
from tests.support.llama import Zoo
from tests.support.lossless import SCHEDULERS, drafted

# -- left by the consumer ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_cancelled_request_leaves_nothing_behind(zoo: Zoo, case: Case) -> None:
    with case.engine(zoo) as (running, _):
        wanted = case.spec(zoo, n_max=4)
        reference = running.submit(request(PROMPTS[0], wanted)).result()
        for n_chunks in (1, 2, 5):
            generation = running.submit(request(PROMPTS[1], wanted))
            for _ in range(n_chunks):
                next(generation)
            generation.close()
            again = running.submit(Request(prompt=PROMPTS[0], max_tokens=96, sampling=GREEDY, strategy=wanted)).result()
            assert again.tokens == reference.tokens
            assert again.stats.accepted_per_position == reference.stats.accepted_per_position


@pytest.mark.parametrize("order", ["model", "target", "engine"])
@pytest.mark.parametrize("case", [*SOME, BLOCKS[5]], ids=str)
def test_things_may_be_closed_in_any_order(zoo: Zoo, case: Case, order: str) -> None:
    with case.engine(zoo) as (running, opened):
        wanted = case.spec(zoo, n_max=3)
        running.submit(request(PROMPTS[0], wanted, n=10)).result()
        context = strategy_of(running, wanted)._context
        {"model": opened.model, "target": opened, "engine": running}[order].close()  # type: ignore[attr-defined]
        assert context.closed


# -- sabotaged --------------------------------------------------------------------------------------------------------

PLACES = [
    *((case, where) for where in ("decode", "choices", "truncate") for case in SOME_TOKENWISE),
    *((case, where) for where in ("inject", "draft", "truncate", "_evaluate") for case in SOME_BLOCKS),
]


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize(("case", "where"), PLACES, ids=str)
def test_a_failing_draft_costs_speed_only(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch, case: Case, where: str, error: BaseException
) -> None:
    with case.engine(zoo) as (running, _):
        wanted = case.spec(zoo, n_max=3)
        plain = running.submit(request(PROMPTS[0], n=40)).result().tokens
        reference = running.submit(request(PROMPTS[0], wanted, n=40)).result()
        context = strategy_of(running, wanted)._context
        original = getattr(context, where)
        for nth in (1, 3, 4, 7, 10):
            calls = iter(range(1, 1000))

            def fail(*args: Any, calls: Any = calls, nth: int = nth, **more: Any) -> Any:
                if next(calls) == nth:
                    raise error
                return original(*args, **more)

            with monkeypatch.context() as patch:
                patch.setattr(context, where, fail)
                generation = running.submit(request(PROMPTS[0], wanted, n=40))
                try:
                    assert generation.result().tokens == plain
                except KeyboardInterrupt:
                    generation.close()
            again = running.submit(request(PROMPTS[0], wanted, n=40)).result()
            assert again.tokens == plain
            assert again.stats.accepted_per_position == reference.stats.accepted_per_position


# -- targets whose logits are the same at every width -----------------------------------------------------------------

SAMPLING = SamplingParams(seed=21, temperature=1.2, top_k=0, repeat_penalty=1.05, logprobs=1)
REQUEST = Request(prompt=tuple(b"the cat the cat the "), max_tokens=30, sampling=SAMPLING)
OTHER = Request(prompt=tuple(b"a bad dog had "), max_tokens=20, sampling=SAMPLING)

each_draft = pytest.mark.parametrize(
    ("draft", "cls"),
    [("eagle3", Eagle3), ("draft-simple", DraftModel), ("dflash", Dflash), ("dflash2-shared", Dflash2)],
)


@every_memory
@each_draft
def test_the_output_is_that_of_plain_decoding_to_the_last_bit(
    exact_zoo: ExactZoo, zoo: Zoo, memory: Memory, draft: str, cls: type[BatchStrategy]
) -> None:
    model = exact_zoo(memory.model)
    right = [fresh(model, each, **memory.options) for each in (REQUEST, OTHER)]
    for scheduler in SCHEDULERS:
        with watched(model, n_seq=2, **memory.options) as target, Engine(target, scheduler=scheduler) as running:
            for n_max in (2, 7):
                wanted = spec(zoo(draft), cls, n_max=n_max)
                both = [running.submit(drafted(each, wanted)) for each in (REQUEST, OTHER)]
                for expected, generation in zip(right, both, strict=True):
                    done = generation.result()
                    expected.check_equals(Output.of(done), f"n_max={n_max}")
                    assert done.stats.verified > 0


@every_memory
@pytest.mark.parametrize("error", [KeyboardInterrupt(), BackendError("broken")], ids=["interrupt", "error"])
@each_draft
def test_a_decode_that_fails(
    exact_zoo: ExactZoo, zoo: Zoo, memory: Memory, error: BaseException, draft: str, cls: type[BatchStrategy]
) -> None:
    """Before it began or after it was done. An interrupted request can be taken up again where it was."""
    model, wanted = exact_zoo(memory.model), spec(zoo(draft), cls, n_max=5)
    right = [fresh(model, each, **memory.options) for each in (REQUEST, OTHER)]
    with watched(model, **memory.options) as target, Engine(target, scheduler=Unlimited) as running:
        reference = running.submit(drafted(REQUEST, wanted)).result().stats.accepted_per_position
        for place, at in (("before_decode", 1), ("after_decode", 1), ("before_decode", 4), ("after_decode", 2)):
            target.clear(0)
            setattr(target, place, once(error, at=at))
            generation = running.submit(drafted(REQUEST, wanted))
            with pytest.raises(type(error)):
                generation.result()
            if isinstance(error, KeyboardInterrupt):
                right[0].check_equals(Output.of(generation.result()), f"resumed, {place} {at}")
            setattr(target, place, None)
            right[1].check_equals(Output.of(running.submit(drafted(OTHER, wanted)).result()), "another request")
            again = running.submit(drafted(REQUEST, wanted)).result()
            right[0].check_equals(Output.of(again), "the same again")
            assert again.stats.accepted_per_position == reference


# -- a memory that another context comes to share ---------------------------------------------------------------------


def test_a_sequence_that_cannot_be_brought_back_does_not_keep_the_others_out(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Model(zoo("gemma4")) as model, Context(model, n_ctx=256, n_seq=3) as context:
        for seq in range(3):
            context.decode([BatchEntry(seq, 0, [1, 2, 3 + seq], 1)])
        unpack = context.memory.unpack

        def refused(seq: int, packed: Any, n_past: int) -> None:
            if seq == 1:
                context.memory.clear(seq)
                raise RollbackError("refused")
            unpack(seq, packed, n_past)

        monkeypatch.setattr(context.memory, "unpack", refused)
        with pytest.raises(RollbackError, match="refused"), _kept_memory(context):
            assert [context.memory.n_past(seq) for seq in range(3)] == [0, 0, 0]
        assert [context.memory.n_past(seq) for seq in range(3)] == [3, 0, 3]
