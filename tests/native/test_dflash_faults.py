"""Block drafters when something goes wrong: requests that are left, interrupted or sabotaged, and those after them."""

from __future__ import annotations

from typing import Any

import pytest

from specframe.core.request import Request
from tests.support.blocks import CASES, BlockCase, wanted_of
from tests.support.llama import Zoo
from tests.support.mtp import GREEDY, PROMPTS, engine, request, strategy_of

SOME = [CASES[0], *CASES[2:5]]

# -- left by the consumer ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", SOME, ids=str)
def test_a_cancelled_request_leaves_nothing_behind(zoo: Zoo, case: BlockCase) -> None:
    with engine(zoo(case.target), zoo(case.draft), **case.options) as (running, _):
        wanted = wanted_of(zoo, case, n_max=4)
        reference = running.submit(request(PROMPTS[0], wanted)).result()
        for n_chunks in (1, 2, 5):
            generation = running.submit(request(PROMPTS[1], wanted))
            for _ in range(n_chunks):
                next(generation)
            generation.close()
            again = running.submit(Request(prompt=PROMPTS[0], max_tokens=96, sampling=GREEDY, strategy=wanted)).result()
            assert again.tokens == reference.tokens
            assert again.stats.accepted_per_position == reference.stats.accepted_per_position


# -- sabotaged --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", SOME, ids=str)
@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("where", ["inject", "draft", "truncate", "_evaluate"])
def test_a_failing_drafter_costs_speed_only(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch, case: BlockCase, where: str, error: BaseException
) -> None:
    with engine(zoo(case.target), zoo(case.draft), **case.options) as (running, _):
        wanted = wanted_of(zoo, case, n_max=3)
        plain = running.submit(request(PROMPTS[0], n=40)).result().tokens
        reference = running.submit(request(PROMPTS[0], wanted, n=40)).result()
        context = strategy_of(running, wanted)._context
        original = getattr(context, where)
        for nth in range(1, 12, 3):
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
