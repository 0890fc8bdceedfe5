"""Block drafters: the text is the target's, and the drafts are what the weights say, whatever happened before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specframe.core.sampling import SamplingParams
from specframe.core.strategy import StrategySpec
from specframe.strategies.dflash import Dflash
from specframe.testing.zoo import Block, World, dflash, targets
from tests.support.acceptance import expected
from tests.support.blocks import BlockCase, RecordingDspark
from tests.support.llama import Zoo
from tests.support.mtp import GREEDY, PROMPTS, SEEDED, engine, request, spec

ERRORS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)

#: Own and shared embeddings; both layouts of dspark; every kind of rollback.
CASES = [
    BlockCase("llama", "dflash"),
    BlockCase("llama", "dflash-shared"),
    BlockCase("qwen35", "dflash-qwen35"),
    BlockCase("qwen35", "dflash-qwen35", options={"n_rs_seq": 8}),
    BlockCase("gemma4", "dflash"),
    BlockCase("gemma4", "dflash-shared", options={"swa_full": False}),
    BlockCase("llama", "dspark-anchor", RecordingDspark),
    BlockCase("qwen35", "dspark-anchor", RecordingDspark),
    BlockCase("qwen35", "dspark-bonus", RecordingDspark, {"n_rs_seq": 8}),
    BlockCase("gemma4", "dspark-bonus", RecordingDspark, {"swa_full": False}),
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
