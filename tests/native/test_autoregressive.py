"""Drafts of one token after another: the text is the target's, and drafts depend on it alone, whatever happened before.

For prediction heads, EAGLE-3 and language models; what is theirs alone is in files of their own.
"""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specframe.core.request import FinishReason, Request
from specframe.core.sampling import SamplingParams
from specframe.strategies import _rows
from specframe.strategies.drafting import HeldSequence
from tests.support.llama import Zoo
from tests.support.mtp import (
    CASES,
    EAGLES,
    GREEDY,
    PLAIN,
    PROMPTS,
    SEEDED,
    Case,
    compare_with_fresh_starts,
    engine,
    request,
    spec,
    strategy_of,
)
from tests.support.recorded import Never, Pausing
from tests.support.server import ask

ALL = [*CASES, *EAGLES, *PLAIN]
#: One of each kind of model and memory.
SOME = [CASES[0], CASES[1], CASES[4], CASES[5], EAGLES[0], EAGLES[2], EAGLES[5], PLAIN[0], PLAIN[1]]
#: Kinds of drafts, as llama.cpp's server tells them apart.
SERVED = [CASES[1], *CASES[3:6], EAGLES[0], EAGLES[1], EAGLES[3], EAGLES[4]]


def path_of(zoo: Zoo, name: str | None) -> Path | None:
    return None if name is None else zoo(name)


# -- the text ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("n_seq", [1, 3])
@pytest.mark.parametrize("case", ALL, ids=str)
def test_the_text_is_the_targets(zoo: Zoo, case: Case, n_seq: int, sampling: SamplingParams) -> None:
    draft = path_of(zoo, case.draft)
    with engine(zoo(case.target), draft, n_seq=n_seq, **case.options) as (running, _):
        plain = [running.submit(request(p, n=40, sampling=sampling)).result().tokens for p in PROMPTS]
        for n_max in (1, 2, 3, 8):
            wanted = [request(p, spec(draft, case.cls, n_max=n_max), n=40, sampling=sampling) for p in PROMPTS]
            done = [generation.result() for generation in [running.submit(each) for each in wanted]]
            assert [each.tokens for each in done] == plain
            assert all(each.stats.accepted > 0 for each in done)
            assert {each.stats.inactive_reason for each in done} == {None}


@pytest.mark.parametrize("case", SOME, ids=str)
def test_a_full_context_ends_the_same_way(zoo: Zoo, case: Case) -> None:
    draft = path_of(zoo, case.draft)
    with engine(zoo(case.target), draft, n_ctx=64, **case.options) as (running, _):
        prompt = PROMPTS[0] * 2
        plain = running.submit(request(prompt, n=200)).result()
        drafted = running.submit(request(prompt, spec(draft, case.cls, n_max=8), n=200)).result()
    assert drafted.tokens == plain.tokens
    assert len(plain.tokens) == 64 + 1 - len(prompt)
    assert drafted.finish_reason is plain.finish_reason is FinishReason.LENGTH
    assert drafted.stats.accepted > 0


@pytest.mark.parametrize("case", ALL, ids=str)
def test_drafts_with_a_smaller_context_stop(zoo: Zoo, case: Case) -> None:
    draft = path_of(zoo, case.draft)
    with engine(zoo(case.target), draft, **case.options) as (running, _):
        plain = running.submit(request(PROMPTS[0])).result()
        wanted = spec(draft, case.cls, n_max=4, n_ctx=60, n_batch=2)
        drafted = running.submit(request(PROMPTS[0], wanted)).result()
        made = strategy_of(running, wanted).drafts
    assert drafted.tokens == plain.tokens
    assert drafted.stats.inactive_reason is None
    assert all(len(history) - 1 + len(ids) <= 60 + case.cls.lag for history, ids in made if ids)
    assert any(len(history) > 50 and ids for history, ids in made)


# -- the wiring -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ALL, ids=str)
def test_a_draft_depends_on_the_text_alone(zoo: Zoo, case: Case) -> None:
    """Not on batches, acceptance, rollbacks, other sequences or earlier requests: each equals a fresh start's."""
    draft = path_of(zoo, case.draft)
    with engine(zoo(case.target), draft, n_seq=2, **case.options) as (running, _):
        wanted = spec(draft, case.cls, n_max=3)
        for prompt in PROMPTS[:2]:
            both = [running.submit(request(prompt, wanted, n=50)), running.submit(request(PROMPTS[2], wanted, n=30))]
            for generation in both:
                generation.result()
        assert compare_with_fresh_starts(running, wanted, every=3) > 20


@pytest.mark.parametrize("case", ALL, ids=str)
def test_nothing_is_lost_while_drafting_pauses(zoo: Zoo, case: Case) -> None:
    """What was decoded in the meantime waits, some of it for more steps than a draft takes in."""
    draft = path_of(zoo, case.draft)
    with engine(zoo(case.target), draft, scheduler=Pausing, **case.options) as (running, _):
        wanted = spec(draft, case.cls, n_max=4)
        plain = running.submit(request(PROMPTS[1], n=330)).result()
        done = running.submit(request(PROMPTS[1], wanted, n=330)).result()
        assert done.tokens == plain.tokens
        assert done.stats.draft_steps < 14
        assert compare_with_fresh_starts(running, wanted, every=1) > 10


@pytest.mark.parametrize("case", [CASES[0], CASES[4], EAGLES[2], PLAIN[0]], ids=str)
def test_nothing_is_evaluated_while_nothing_is_drafted(zoo: Zoo, monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    """Neither the prompt nor what follows, until too much waits."""
    draft = path_of(zoo, case.draft)
    with engine(zoo(case.target), draft, scheduler=Never, **case.options) as (running, _):
        drafting = spec(draft, case.cls)
        wanted = request(PROMPTS[0] * 5, drafting, n=60)
        plain = running.submit(request(PROMPTS[0] * 5, n=60)).result()
        assert running.submit(wanted).result().tokens == plain.tokens
        strategy = strategy_of(running, drafting)
        assert strategy._context.n_past(0) == 0
        assert strategy._held[0].n_waiting > 150
        strategy._patience = 100
        assert running.submit(wanted).result().tokens == plain.tokens
        assert strategy._context.n_past(0) > 100 - case.cls.lag
        assert strategy._held[0].n_waiting < 100
    monkeypatch.setattr(_rows, "MAX_WAITING_BYTES", 32 * 4 * max(1, strategy._n_held))
    with engine(zoo(case.target), draft, scheduler=Pausing, **case.options) as (running, _):
        assert running.submit(wanted).result().tokens == plain.tokens
        assert strategy_of(running, drafting)._patience == 32
        assert compare_with_fresh_starts(running, drafting, every=1) > 10


@pytest.mark.parametrize("case", SERVED, ids=str)
@pytest.mark.parametrize("settings", [{"n_max": 4}, {"n_max": 3, "n_min": 2, "p_min": 0.9998}])
def test_llama_cpps_server_drafts_the_same(zoo: Zoo, case: Case, settings: dict[str, Any]) -> None:
    draft = path_of(zoo, case.draft)
    theirs = ask(zoo(case.target), PROMPTS[:1], kind=case.kind, draft=draft, max_tokens=96, **settings)
    with engine(zoo(case.target), draft, **case.options) as (running, opened):
        for prompt, answer in zip(PROMPTS[:1], theirs, strict=True):
            done = running.submit(request(prompt, spec(draft, case.cls, **settings))).result()
            assert opened.vocab.detokenize(done.tokens).decode() == answer["choices"][0]["text"]
            timings = answer["timings"]
            assert (done.stats.verified, done.stats.accepted) == (timings["draft_n"], timings["draft_n_accepted"])


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", SOME, ids=str)
def test_choosing_on_the_host_gives_the_same_drafts(zoo: Zoo, case: Case) -> None:
    draft = path_of(zoo, case.draft)
    with engine(zoo(case.target), draft, n_seq=3, **case.options) as (running, _):
        for p_min in (0.0, 0.999):
            made = []
            for backend_sampling in (True, False):
                wanted = spec(draft, case.cls, n_max=4, p_min=p_min, backend_sampling=backend_sampling)
                for generation in [running.submit(request(p, wanted)) for p in PROMPTS]:
                    generation.result()
                made.append(strategy_of(running, wanted).drafts)
            assert made[0] == made[1]
            assert any(ids for _, ids in made[0])


# -- what happened before ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ALL, ids=str)
def test_the_second_turn_of_a_chat_goes_on_from_the_first(zoo: Zoo, case: Case) -> None:
    draft = path_of(zoo, case.draft)
    cached: dict[bool, int] = {}
    made: list[Any] = []
    for strategy in (None, spec(draft, case.cls, n_max=3)):
        with engine(zoo(case.target), draft, **case.options) as (running, _):
            first = running.submit(request(PROMPTS[2] * 3, strategy, n=20, reuse_prefix=True)).result()
            history = [*PROMPTS[2] * 3, *first.tokens, *b" and then"]
            second = running.submit(request(history, strategy, n=40, reuse_prefix=True)).result()
            fresh = running.submit(request(history, strategy, n=40)).result()
            assert second.tokens == fresh.tokens
            cached[strategy is None] = second.stats.cached_tokens
            if strategy is not None:
                made = strategy_of(running, strategy).drafts
    assert cached[True] > 40
    assert cached[False] >= cached[True] - 1, "one token may have to be evaluated again for its hidden state"
    turns: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for text, ids in made:
        turns.setdefault(text, set()).add(ids)
    assert [text for text, drafts in turns.items() if len(drafts) > 1] == [], "the second turn drafts as a fresh one"
    assert len(turns) < len(made)


@pytest.mark.parametrize("case", SOME[:-2], ids=str)
def test_a_state_of_another_model_is_refused(zoo: Zoo, case: Case) -> None:
    draft = path_of(zoo, case.draft)
    with engine(zoo(case.target), draft, **case.options) as (running, _):
        wanted = spec(draft, case.cls)
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


@pytest.mark.parametrize("case", [EAGLES[1], PLAIN[0]], ids=str)
def test_targets_that_evaluate_one_token_at_a_time(zoo: Zoo, case: Case) -> None:
    draft = path_of(zoo, case.draft)
    with engine(zoo(case.target), draft, n_batch=2, n_ubatch=1) as (running, _):
        plain = running.submit(request(PROMPTS[0], n=40)).result()
        done = running.submit(request(PROMPTS[0], spec(draft, case.cls, n_max=4), n=40)).result()
        assert done.tokens == plain.tokens
        assert done.stats.accepted > 0


@pytest.mark.parametrize("n_keep", [0, 4])
@pytest.mark.parametrize("case", [CASES[5], EAGLES[0], EAGLES[4], PLAIN[0]], ids=str)
def test_a_shifted_context_is_followed(zoo: Zoo, case: Case, n_keep: int) -> None:
    draft = path_of(zoo, case.draft)
    with engine(zoo(case.target), draft, n_ctx=64) as (running, _):
        wanted = spec(draft, case.cls, n_max=4)
        shifting: dict[str, Any] = {"context_full": "shift", "n_keep": n_keep}
        plain = running.submit(request(PROMPTS[0], n=150, **shifting)).result()
        drafted = running.submit(request(PROMPTS[0], wanted, n=150, **shifting)).result()
        assert drafted.tokens == plain.tokens
        assert drafted.stats.inactive_reason is None
        assert drafted.stats.accepted > 40
        made = strategy_of(running, wanted).drafts
    ends = [len(history) for history, ids in made if ids]
    assert any(later < earlier for earlier, later in pairwise(ends)), "drafts go on behind a shift"


@pytest.mark.parametrize("case", ALL, ids=str)
def test_a_cancelled_request_leaves_nothing_behind(zoo: Zoo, case: Case) -> None:
    draft = path_of(zoo, case.draft)
    with engine(zoo(case.target), draft, **case.options) as (running, _):
        wanted = spec(draft, case.cls, n_max=4)
        reference = running.submit(request(PROMPTS[0], wanted)).result()
        for n_chunks in (1, 2, 5):
            generation = running.submit(request(PROMPTS[1], wanted))
            for _ in range(n_chunks):
                next(generation)
            generation.close()
            again = running.submit(Request(prompt=PROMPTS[0], max_tokens=96, sampling=GREEDY, strategy=wanted)).result()
            assert again.tokens == reference.tokens
            assert again.stats.accepted_per_position == reference.stats.accepted_per_position


@pytest.mark.parametrize("case", SOME, ids=str)
@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("where", ["decode", "choices", "truncate"])
def test_failing_drafts_cost_speed_only(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch, case: Case, where: str, error: BaseException
) -> None:
    draft = path_of(zoo, case.draft)
    with engine(zoo(case.target), draft, **case.options) as (running, _):
        wanted = spec(draft, case.cls, n_max=3)
        plain = running.submit(request(PROMPTS[0], n=40)).result().tokens
        reference = running.submit(request(PROMPTS[0], wanted, n=40)).result()
        context = strategy_of(running, wanted)._context
        original = getattr(context, where)
        for nth in range(1, 12, 2):
            calls = iter(range(1, 1000))

            def fail(*args: Any, calls: Any = calls, nth: int = nth) -> Any:
                if next(calls) == nth:
                    raise error
                return original(*args)

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


@pytest.mark.parametrize("order", ["model", "target", "engine"])
@pytest.mark.parametrize("case", SOME, ids=str)
def test_things_may_be_closed_in_any_order(zoo: Zoo, case: Case, order: str) -> None:
    draft = path_of(zoo, case.draft)
    with engine(zoo(case.target), draft, **case.options) as (running, opened):
        wanted = spec(draft, case.cls, n_max=3)
        running.submit(request(PROMPTS[0], wanted, n=10)).result()
        context = strategy_of(running, wanted)._context
        {"model": opened.model, "target": opened, "engine": running}[order].close()  # type: ignore[attr-defined]
        assert context.closed
