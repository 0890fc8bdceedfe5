"""Callbacks of a request see the row of their own token, drafted or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from specframe.core.engine import Engine
from specframe.core.history import History
from specframe.core.ports import Logits, Rollback
from specframe.core.request import Request, StoppingCriterion
from specframe.core.sampling import SamplingParams
from specframe.core.scheduler import Unlimited
from specframe.core.strategy import StrategySpec
from specframe.strategies.ngram_k import NgramK
from specframe.testing import Oracle, Output, Poison, tape
from tests.support.exact import ExactZoo, Memory, every_memory, watched
from tests.support.lossless import drafted

Row = npt.NDArray[np.float32]
PROMPT = tuple(b"the cat the cat the ")
SAMPLING = SamplingParams(seed=4, temperature=1.0, logprobs=1)


class Witness:
    """Remembers what it was called with; as a processor it bans the letter it saw last."""

    def __init__(self) -> None:
        self.seen: list[tuple[tuple[int, ...], bytes]] = []

    def process(self, history: History, logits: Row) -> Row:
        self.seen.append((tuple(history), logits.tobytes()))
        logits[history[-1]] = -np.inf
        return logits

    def criterion(self, history: History, row: Logits) -> bool:
        self.seen.append((tuple(history), row.tobytes()))
        return len(history) == len(PROMPT) + 23


def stop_after(n: int) -> StoppingCriterion:
    return lambda history, _: len(history) >= len(PROMPT) + n


def specs(right: Sequence[int]) -> list[StrategySpec | None]:
    return [
        None,
        StrategySpec.of(NgramK, {"n": 1, "m": 5}),
        StrategySpec.of(Oracle, {"tape": right, "length": 5}),
        *(StrategySpec.of(Poison, {"tape": right, "length": 4, "k": k}) for k in range(3)),
    ]


def compare(exact_zoo: ExactZoo, memory: Memory, role: str) -> Output:
    model = exact_zoo(memory.model)
    results: list[tuple[Output, list[tuple[tuple[int, ...], bytes]]]] = []
    right: tuple[int, ...] = ()
    n_saved = 0
    for i in range(len(specs(right))):
        witness = Witness()
        callbacks: dict[str, Any] = (
            {"logits_processors": (witness.process,)}
            if role == "processor"
            else {"stopping_criteria": (witness.criterion,)}
        )
        request = Request(prompt=PROMPT, max_tokens=32, sampling=SAMPLING, **callbacks)
        if not right:
            with watched(model, **memory.options) as target:
                right = tape(target, request)
            witness.seen.clear()
        with watched(model, **memory.options) as target, Engine(target, scheduler=Unlimited) as engine:
            completion = engine.submit(drafted(request, specs(right)[i])).result()
        n_saved += completion.stats.accepted_emitted
        results.append((Output.of(completion), witness.seen))
    plain, calls = results[0]
    for other, other_calls in results[1:]:
        plain.check_equals(other)
        assert other_calls == calls
    assert n_saved > 30
    histories = [history for history, _ in calls]
    first = len(PROMPT) + (role == "criterion")
    assert histories == [right[:n] for n in range(first, first + len(calls))]
    assert len(calls) == len(plain.tokens)
    return plain


@every_memory
def test_a_logits_processor_sees_and_changes_the_row_of_its_own_token(exact_zoo: ExactZoo, memory: Memory) -> None:
    plain = compare(exact_zoo, memory, "processor")
    said = (*PROMPT, *plain.tokens)
    # Its ban held for every token.
    assert all(a != b for a, b in zip(said[len(PROMPT) - 1 :], said[len(PROMPT) :], strict=False))
    assert len(plain.tokens) == 32


@every_memory
def test_a_stopping_criterion_sees_the_row_its_token_came_from(exact_zoo: ExactZoo, memory: Memory) -> None:
    plain = compare(exact_zoo, memory, "criterion")
    assert (len(plain.tokens), plain.stop_detail) == (23, "criterion")


@every_memory
def test_nothing_behind_a_stopping_criterion_stays_in_memory(exact_zoo: ExactZoo, memory: Memory) -> None:
    model = exact_zoo(memory.model)
    with watched(model, **memory.options) as target:
        right = tape(target, Request(prompt=PROMPT, sampling=SAMPLING))
    spec = StrategySpec.of(Oracle, {"tape": right, "length": 6})
    for n in range(1, 9):
        request = Request(
            prompt=PROMPT,
            sampling=SAMPLING,
            strategy=spec,
            stopping_criteria=(stop_after(n),),
        )
        with watched(model, **memory.options) as target, Engine(target, scheduler=Unlimited) as engine:
            completion = engine.submit(request).result()
            assert completion.tokens == right[len(PROMPT) : len(PROMPT) + n]
            assert target.n_past(0) <= len(PROMPT) + n - 1
            if memory.kind is Rollback.TRUNCATE:
                assert target.n_past(0) == len(PROMPT) + n - 1


def test_rows_that_a_stopping_criterion_keeps_stay_what_they_were(exact_zoo: ExactZoo) -> None:
    """The target's own row is overwritten by the next batch, moves with a wider one, and is freed with the context."""
    kept: list[Logits] = []
    seen: list[bytes] = []

    def keep(_: History, row: Logits) -> bool:
        kept.append(row)
        seen.append(row.tobytes())
        return False

    request = Request(prompt=PROMPT, max_tokens=12, sampling=SAMPLING)
    with watched(exact_zoo("llama")) as target:
        right = tape(target, request)
    watching = Request(
        prompt=PROMPT,
        max_tokens=12,
        sampling=SAMPLING,
        stopping_criteria=(keep,),
        strategy=StrategySpec.of(Oracle, {"tape": right, "length": 5}),
    )
    with watched(exact_zoo("llama")) as target, Engine(target, scheduler=Unlimited) as engine:
        assert engine.submit(watching).result().stats.accepted > 0
        assert [row.tobytes() for row in kept] == seen
    assert [row.tobytes() for row in kept] == seen
    assert len(set(seen)) == 12
    assert not any(row.flags.writeable for row in kept)
