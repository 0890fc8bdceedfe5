"""What block drafters remember: earlier turns, sessions, requests beside them, contexts that were full."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specframe.core.errors import RollbackError
from specframe.strategies.held_features import HeldFeatures
from specframe.testing.zoo import Block, dflash
from tests.support.blocks import CASES, BlockCase, RecordingDflash, wanted_of
from tests.support.llama import Zoo
from tests.support.mtp import PROMPTS, engine, request, spec, strategy_of

each_case = pytest.mark.parametrize("case", CASES, ids=str)


@each_case
def test_the_second_turn_of_a_chat_goes_on_from_the_first(zoo: Zoo, case: BlockCase) -> None:
    cached: dict[bool, int] = {}
    made: list[Any] = []
    for strategy in (None, wanted_of(zoo, case, n_max=3)):
        with engine(zoo(case.target), zoo(case.draft), **case.options) as (running, _):
            first = running.submit(request(PROMPTS[2] * 3, strategy, n=20, reuse_prefix=True)).result()
            history = [*PROMPTS[2] * 3, *first.tokens, *b" and then"]
            second = running.submit(request(history, strategy, n=40, reuse_prefix=True)).result()
            fresh = running.submit(request(history, strategy, n=40)).result()
            assert second.tokens == fresh.tokens
            cached[strategy is None] = second.stats.cached_tokens
            if strategy is not None:
                made = strategy_of(running, strategy).drafts
    assert cached[False] == cached[True] > 40
    turns: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for text, ids in made:
        turns.setdefault(text, set()).add(ids)
    assert [text for text, drafts in turns.items() if len(drafts) > 1] == [], "the second turn drafts as a fresh one"
    assert len(turns) < len(made)


def test_a_state_of_another_drafter_is_refused(zoo: Zoo) -> None:
    with engine(zoo("llama"), zoo("dflash")) as (running, _):
        wanted = spec(zoo("dflash"), RecordingDflash)
        assert running.submit(request(PROMPTS[0], wanted, n=5)).result().stats.emitted == 5
        strategy = strategy_of(running, wanted)
        data = strategy.save(0)
        strategy._held[0] = HeldFeatures([0], 64)
        with pytest.raises(ValueError, match=r"128,.* values wide.* 64"):
            strategy.load(0, data)
        assert strategy.save(0) is None
        strategy._held[0] = HeldFeatures([0, 2], 128)
        strategy.load(0, data)
        assert strategy.save(0) == data
        with np.load(io.BytesIO(data)) as saved:
            arrays = {**saved, "memory": saved["memory"][:-8]}
        damaged = io.BytesIO()
        np.savez(damaged, **arrays)
        with pytest.raises(RollbackError):
            strategy.load(0, damaged.getvalue())
        assert (strategy._context.n_past(0), strategy.save(0)) == (0, None)


@pytest.mark.parametrize("case", [CASES[3], CASES[4]], ids=str)
def test_a_drafter_that_comes_late_leaves_running_requests_alone(zoo: Zoo, case: BlockCase) -> None:
    """It is made while the target, whose embeddings it uses, is at work."""
    with engine(zoo(case.target), zoo(case.draft), n_seq=3, **case.options) as (running, _):
        plain = [running.submit(request(p, n=60)).result().tokens for p in PROMPTS]
        early = running.submit(request(PROMPTS[0], n=60))
        first = [next(early).tokens for _ in range(9)]
        late = [running.submit(request(p, wanted_of(zoo, case, n_max=3), n=60)) for p in PROMPTS[1:]]
        assert [generation.result().tokens for generation in late] == plain[1:]
        done = early.result()
        assert done.tokens == plain[0]
        assert done.tokens[:9] == tuple(token for part in first for token in part)
        assert done.stats.rollbacks == {}


@pytest.mark.parametrize("case", [CASES[0], CASES[4]], ids=str)
def test_a_shifted_context_is_followed(zoo: Zoo, case: BlockCase) -> None:
    with engine(zoo(case.target), zoo(case.draft), n_ctx=64) as (running, _):
        wanted = wanted_of(zoo, case)
        shifting: dict[str, Any] = {"context_full": "shift", "n_keep": 4}
        plain = running.submit(request(PROMPTS[0], n=150, **shifting)).result()
        drafted = running.submit(request(PROMPTS[0], wanted, n=150, **shifting)).result()
        assert drafted.tokens == plain.tokens
        assert drafted.stats.inactive_reason is None
        assert drafted.stats.accepted > 50
        made = strategy_of(running, wanted).drafts
    ends = [len(history) for history, ids in made if ids]
    assert any(later < earlier for earlier, later in pairwise(ends)), "drafts go on behind a shift"


@pytest.mark.parametrize("options", [{"n_ctx": 40}, {}], ids=["short", "mrope"])
def test_a_drafter_that_cannot_follow_a_shift_is_left_out(zoo: Zoo, tmp_path: Path, options: dict[str, Any]) -> None:
    """Its memory holds less than was dropped, or positions of several axes, which cannot be moved."""
    sections = () if options else (16, 0, 0, 0)
    draft = dflash(tmp_path / "draft.gguf", block=Block(rope_sections=sections))
    with engine(zoo("llama"), draft, n_ctx=64) as (running, _):
        shifting: dict[str, Any] = {"context_full": "shift", "n_keep": 4}
        plain = running.submit(request(PROMPTS[0], n=100, **shifting)).result()
        drafted = running.submit(
            request(PROMPTS[0], spec(draft, RecordingDflash, **options), n=100, **shifting)
        ).result()
    assert drafted.tokens == plain.tokens
    assert drafted.stats.accepted > 0
    assert drafted.stats.inactive_reason == "context-shifted"


@pytest.mark.parametrize("order", ["model", "target", "engine"])
@pytest.mark.parametrize("case", [CASES[0], CASES[3], CASES[5]], ids=str)
def test_things_may_be_closed_in_any_order(zoo: Zoo, case: BlockCase, order: str) -> None:
    with engine(zoo(case.target), zoo(case.draft), **case.options) as (running, opened):
        wanted = wanted_of(zoo, case, n_max=3)
        running.submit(request(PROMPTS[0], wanted, n=10)).result()
        context = strategy_of(running, wanted)._context
        {"model": opened.model, "target": opened, "engine": running}[order].close()  # type: ignore[attr-defined]
        assert context.closed
