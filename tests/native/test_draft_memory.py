"""What draft models remember: earlier turns, sessions, requests beside them, contexts that were full."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specframe.core.errors import RollbackError
from specframe.strategies.dflash import Dflash
from specframe.strategies.drafting import HeldSequence
from specframe.strategies.held_features import HeldFeatures
from specframe.testing.zoo import Block, dflash
from tests.support.drafting import (
    BLOCKS,
    CASES,
    EAGLES,
    HEADS,
    PLAIN,
    PROMPTS,
    SOME_TOKENWISE,
    Case,
    engine,
    request,
    spec,
    strategy_of,
)
from tests.support.llama import Zoo

each_case = pytest.mark.parametrize("case", CASES, ids=str)


@each_case
def test_the_second_turn_of_a_chat_goes_on_from_the_first(zoo: Zoo, case: Case) -> None:
    cached: dict[bool, int] = {}
    made: list[Any] = []
    for strategy in (None, case.spec(zoo, n_max=3)):
        with case.engine(zoo) as (running, _):
            first = running.submit(request(PROMPTS[2] * 3, strategy, n=20, reuse_prefix=True)).result()
            history = [*PROMPTS[2] * 3, *first.tokens, *b" and then"]
            second = running.submit(request(history, strategy, n=40, reuse_prefix=True)).result()
            fresh = running.submit(request(history, strategy, n=40)).result()
            assert second.tokens == fresh.tokens
            cached[strategy is None] = second.stats.cached_tokens
            if strategy is not None:
                made = strategy_of(running, strategy).drafts
    assert cached[True] > 40
    # One token may have to be evaluated again for its hidden state.
    assert cached[False] >= cached[True] - (case not in BLOCKS)
    turns: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for text, ids in made:
        turns.setdefault(text, set()).add(ids)
    assert [text for text, drafts in turns.items() if len(drafts) > 1] == [], "the second turn drafts as a fresh one"
    assert len(turns) < len(made)


@each_case
def test_a_session_goes_on_in_another_engine(zoo: Zoo, case: Case) -> None:
    """It carries what a draft model knows of a text, which is not evaluated again."""
    wanted = case.spec(zoo, n_max=3)
    with case.engine(zoo) as (running, _):
        first = running.submit(request(PROMPTS[2] * 3, wanted, n=20)).result()
        session = running.save_session()
        prompt = [*PROMPTS[2] * 3, *first.tokens, *b" and then"]
        here = running.submit(request(prompt, wanted, n=40, reuse_prefix=True)).result()
        made_here = dict(strategy_of(running, wanted).drafts)
    assert session.strategies
    with case.engine(zoo) as (running, _):
        running.load_session(session)
        there = running.submit(request(prompt, wanted, n=40, reuse_prefix=True)).result()
        made_there = dict(strategy_of(running, wanted).drafts)
        assert there.tokens == here.tokens
        assert there.stats.cached_tokens >= here.stats.cached_tokens > 40
        assert made_there.items() <= made_here.items()
        assert there.stats.accepted_per_position == here.stats.accepted_per_position


@pytest.mark.parametrize("case", SOME_TOKENWISE[:-2], ids=str)
def test_a_state_of_another_model_is_refused(zoo: Zoo, case: Case) -> None:
    with case.engine(zoo) as (running, _):
        wanted = case.spec(zoo)
        assert running.submit(request(PROMPTS[0], wanted, n=5)).result().stats.emitted == 5
        strategy = strategy_of(running, wanted)
        data = strategy.save(0)
        narrow = HeldSequence(32, 4)
        with np.load(io.BytesIO(data)) as saved, pytest.raises(ValueError, match="values wide, those of this model 32"):
            narrow.load(saved)
        assert not narrow.usable
        strategy._held[0] = HeldSequence(strategy._n_held, 4)
        assert strategy.save(0) is None
        strategy.load(0, data)
        assert strategy._held[0].usable


@pytest.mark.parametrize("case", [HEADS[0], EAGLES[0], PLAIN[0], BLOCKS[0]], ids=str)
def test_an_interrupted_load_leaves_nothing_known(zoo: Zoo, monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    """Else tokens would count as evaluated that memory does not hold."""
    with case.engine(zoo) as (running, _):
        wanted = case.spec(zoo, n_max=3)
        right = running.submit(request(PROMPTS[0], wanted, n=9)).result()
        strategy = strategy_of(running, wanted)
        data = strategy.save(0)
        running.submit(request(PROMPTS[1], wanted, n=9)).result()
        restore = strategy._restore

        def interrupted(seq: int, saved: Any) -> int:
            restore(seq, saved)
            raise KeyboardInterrupt

        monkeypatch.setattr(strategy, "_restore", interrupted)
        with pytest.raises(KeyboardInterrupt):
            strategy.load(0, data)
        assert not strategy._held[0].tokens
        running.submit(request(PROMPTS[0])).result()
        done = running.submit(request(PROMPTS[0], wanted, n=9, reuse_prefix=True)).result()
        assert done.stats.inactive_reason is None
        assert done.tokens == right.tokens
        assert done.stats.accepted == right.stats.accepted > 0


def test_a_state_of_another_block_drafter_is_refused(zoo: Zoo) -> None:
    with BLOCKS[0].engine(zoo) as (running, _):
        wanted = BLOCKS[0].spec(zoo)
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


@pytest.mark.parametrize("case", [HEADS[5], HEADS[6], BLOCKS[3], BLOCKS[4]], ids=str)
def test_a_draft_that_comes_late_leaves_running_requests_alone(zoo: Zoo, case: Case) -> None:
    """It is made while the target, whose memory or embeddings it shares, is at work; llama.cpp empties such memory."""
    with case.engine(zoo, n_seq=3) as (running, _):
        plain = [running.submit(request(p, n=60)).result().tokens for p in PROMPTS]
        early = running.submit(request(PROMPTS[0], n=60))
        first = [next(early).tokens for _ in range(9)]
        late = [running.submit(request(p, case.spec(zoo, n_max=n), n=60)) for n, p in enumerate(PROMPTS[1:], start=2)]
        assert [generation.result().tokens for generation in late] == plain[1:]
        done = early.result()
        assert done.tokens == plain[0]
        assert done.tokens[:9] == tuple(token for part in first for token in part)
        assert done.stats.rollbacks == {}


@pytest.mark.parametrize("n_keep", [0, 4])
@pytest.mark.parametrize("case", [HEADS[5], EAGLES[0], EAGLES[4], PLAIN[0], BLOCKS[0], BLOCKS[4]], ids=str)
def test_a_shifted_context_is_followed(zoo: Zoo, case: Case, n_keep: int) -> None:
    with case.engine(zoo, n_ctx=64) as (running, _):
        wanted = case.spec(zoo, n_max=4)
        shifting: dict[str, Any] = {"context_full": "shift", "n_keep": n_keep}
        plain = running.submit(request(PROMPTS[0], n=150, **shifting)).result()
        drafted = running.submit(request(PROMPTS[0], wanted, n=150, **shifting)).result()
        assert drafted.tokens == plain.tokens
        assert drafted.stats.inactive_reason is None
        assert drafted.stats.accepted > 40
        made = strategy_of(running, wanted).drafts
    ends = [len(history) for history, ids in made if ids]
    assert any(later < earlier for earlier, later in pairwise(ends)), "drafts go on behind a shift"


@pytest.mark.parametrize(
    ("options", "sections"),
    [
        ({"n_ctx": 40}, ()),
        ({}, (16, 0, 0, 0)),
        ({"type_k": "bf16"}, ()),
        ({"type_k": "q8_0", "type_v": "q8_0"}, ()),
    ],
    ids=["short", "mrope", "bf16", "q8_0"],
)
def test_a_draft_that_cannot_follow_a_shift_is_left_out(
    zoo: Zoo, tmp_path: Path, options: dict[str, Any], sections: tuple[int, ...]
) -> None:
    """Its memory holds less than was dropped, positions of several axes, or keys in a format that cannot be moved."""
    draft = dflash(tmp_path / "draft.gguf", block=Block(rope_sections=sections))
    with engine(zoo("llama"), draft, n_ctx=64) as (running, _):
        shifting: dict[str, Any] = {"context_full": "shift", "n_keep": 4}
        plain = running.submit(request(PROMPTS[0], n=100, **shifting)).result()
        drafted = running.submit(request(PROMPTS[0], spec(draft, Dflash, **options), n=100, **shifting)).result()
    assert drafted.tokens == plain.tokens
    assert drafted.stats.accepted > 0
    assert drafted.stats.inactive_reason == "context-shifted"
