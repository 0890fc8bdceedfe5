"""Block drafters: the text is the target's, and the drafts are what the weights say, whatever happened before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from specframe.core.sampling import SamplingParams
from specframe.core.strategy import StrategySpec
from specframe.strategies.dflash import Dflash
from specframe.testing.zoo import Block, World, dflash, targets
from tests.support.blocks import BlockCase
from tests.support.llama import Zoo
from tests.support.mtp import GREEDY, PROMPTS, SEEDED, engine, request, spec

ERRORS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)

#: Own and shared embeddings; every kind of rollback.
CASES = [
    BlockCase("llama", "dflash"),
    BlockCase("llama", "dflash-shared"),
    BlockCase("qwen35", "dflash-qwen35"),
    BlockCase("qwen35", "dflash-qwen35", options={"n_rs_seq": 8}),
    BlockCase("gemma4", "dflash"),
    BlockCase("gemma4", "dflash-shared", options={"swa_full": False}),
]
each_case = pytest.mark.parametrize("case", CASES, ids=str)


def wanted_of(zoo: Zoo, case: BlockCase, **options: Any) -> StrategySpec:
    return spec(zoo(case.draft), case.cls, **options)


# -- the text ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("n_seq", [1, 3])
@each_case
def test_the_text_is_the_targets(zoo: Zoo, case: BlockCase, n_seq: int, sampling: SamplingParams) -> None:
    with engine(zoo(case.target), zoo(case.draft), n_seq=n_seq, **case.options) as (running, _):
        plain = [running.submit(request(p, n=40, sampling=sampling)).result().tokens for p in PROMPTS]
        for n_max in (1, 2, 4, 7, 20):
            wanted = [request(p, wanted_of(zoo, case, n_max=n_max), n=40, sampling=sampling) for p in PROMPTS]
            done = [generation.result() for generation in [running.submit(each) for each in wanted]]
            assert [each.tokens for each in done] == plain
            assert all(each.stats.accepted > 0 for each in done)
            assert {each.stats.inactive_reason for each in done} == {None}


# -- acceptance -------------------------------------------------------------------------------------------------------


def expected(world: World, prompt: Sequence[int], n: int, wrong: frozenset[int], n_max: int) -> tuple[int, int]:
    """Drafted and accepted tokens when a cycle is recited and predictions of the ``wrong`` places are."""
    at = world.active.index(world.successor(prompt[-1]))  # the first token comes from the prompt
    emitted, drafted, accepted = 1, 0, 0
    while emitted < n:
        length = min(n_max, n - emitted - 1)
        right = 0
        while right < length and (at + right) % world.n_active not in wrong:
            right += 1
        drafted, accepted = drafted + length, accepted + right
        emitted, at = emitted + right + 1, (at + right + 1) % world.n_active
    return drafted, accepted


@pytest.mark.parametrize("error", ERRORS)
def test_acceptance_is_what_the_weights_say(tmp_path: Path, error: float) -> None:
    target = targets.dense(tmp_path / "target.gguf", strength=0.0)
    draft = dflash(tmp_path / "draft.gguf", block=Block(error=error, strength=0.0))
    wrong = World().wrong(error)
    with engine(target, draft, n_seq=3) as (running, _):
        wanted = spec(draft, Dflash, n_max=4)
        for generation in [(p, running.submit(request(p, wanted))) for p in PROMPTS]:
            stats = generation[1].result().stats
            assert (stats.verified, stats.accepted) == expected(World(), generation[0], 96, wrong, 4)
