"""Draft models of every kind: the text is the target's, and drafts depend on it alone, whatever happened before.

What is theirs alone is in files of their own.
"""

from __future__ import annotations

from typing import Any

import pytest

from specframe.core.request import FinishReason
from specframe.core.strategy import BatchStrategy
from specframe.strategies import _rows
from specframe.strategies.dflash import Dflash
from specframe.strategies.dflash2 import Dflash2
from specframe.strategies.draft_model import DraftModel
from specframe.strategies.dspark import Dspark
from specframe.strategies.eagle3 import Eagle3
from specframe.strategies.held_features import HeldFeatures
from specframe.strategies.mtp import Mtp
from tests.support.drafting import (
    BLOCKS,
    CASES,
    EAGLES,
    GREEDY,
    HEADS,
    PLAIN,
    PROMPTS,
    SEEDED,
    SOME,
    SOME_TOKENWISE,
    Case,
    compare_with_fresh_starts,
    request,
    strategy_of,
)
from tests.support.llama import Zoo
from tests.support.lossless import drafted
from tests.support.recorded import Never, Pausing
from tests.support.server import ask

each_case = pytest.mark.parametrize("case", CASES, ids=str)
some_cases = pytest.mark.parametrize("case", SOME, ids=str)

# -- the text ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_seq", [1, 3])
@each_case
def test_the_text_is_the_targets(zoo: Zoo, case: Case, n_seq: int) -> None:
    samplings = [GREEDY, SEEDED, GREEDY] if n_seq == 1 else [SEEDED, GREEDY, SEEDED]
    with case.engine(zoo, n_seq=n_seq) as (running, _):
        asked = [request(p, n=40, sampling=sampling) for p, sampling in zip(PROMPTS, samplings, strict=True)]
        plain = [running.submit(each).result().tokens for each in asked]
        for n_max in (1, 2, 3, 8):
            wanted = case.spec(zoo, n_max=n_max)
            done = [generation.result() for generation in [running.submit(drafted(each, wanted)) for each in asked]]
            assert [each.tokens for each in done] == plain
            assert all(each.stats.accepted > 0 for each in done)
            assert {each.stats.inactive_reason for each in done} == {None}


@some_cases
def test_a_full_context_ends_the_same_way(zoo: Zoo, case: Case) -> None:
    with case.engine(zoo, n_ctx=64) as (running, _):
        prompt = PROMPTS[0] * 2
        plain = running.submit(request(prompt, n=200)).result()
        done = running.submit(request(prompt, case.spec(zoo, n_max=8), n=200)).result()
    assert done.tokens == plain.tokens
    assert len(plain.tokens) == 64 + 1 - len(prompt)
    assert done.finish_reason is plain.finish_reason is FinishReason.LENGTH
    assert done.stats.accepted > 0


@each_case
def test_a_draft_with_a_smaller_context_stops(zoo: Zoo, case: Case) -> None:
    with case.engine(zoo) as (running, _):
        plain = running.submit(request(PROMPTS[0])).result()
        wanted = case.spec(zoo, n_max=4, n_ctx=60, n_batch=2)
        done = running.submit(request(PROMPTS[0], wanted)).result()
        made = strategy_of(running, wanted).drafts
    assert done.tokens == plain.tokens
    assert done.stats.inactive_reason is None
    assert 50 < max(len(history) for history, ids in made if ids) <= 60 + 1


# -- the wiring -------------------------------------------------------------------------------------------------------


@each_case
def test_a_draft_depends_on_the_text_alone(zoo: Zoo, case: Case) -> None:
    """Not on batches, acceptance, rollbacks, other sequences or earlier requests: each equals a fresh start's."""
    with case.engine(zoo, n_seq=3, n_ubatch=16) as (running, _):
        wanted = case.spec(zoo, n_max=3)
        for prompt in PROMPTS[:2]:
            texts = [(prompt, 50), (PROMPTS[1], 20), (PROMPTS[2] * 3, 30)]  # the middle one ends first
            for generation in [running.submit(request(text, wanted, n=n)) for text, n in texts]:
                generation.result()
        assert compare_with_fresh_starts(running, wanted, every=4) > 20


@each_case
def test_nothing_is_lost_while_drafting_pauses(zoo: Zoo, case: Case) -> None:
    """What was decoded in the meantime waits, some of it for more steps than a draft takes in."""
    with case.engine(zoo, scheduler=Pausing) as (running, _):
        wanted = case.spec(zoo, n_max=4)
        plain = running.submit(request(PROMPTS[1], n=330)).result()
        done = running.submit(request(PROMPTS[1], wanted, n=330)).result()
        assert done.tokens == plain.tokens
        assert done.stats.draft_steps < 14
        assert compare_with_fresh_starts(running, wanted, every=1) > 10


@pytest.mark.parametrize("case", [HEADS[0], HEADS[4], EAGLES[2], PLAIN[0], BLOCKS[1]], ids=str)
def test_nothing_is_evaluated_while_nothing_is_drafted(zoo: Zoo, monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    """Neither the prompt nor what follows, until too much waits."""
    with case.engine(zoo, scheduler=Never) as (running, _):
        drafting = case.spec(zoo)
        wanted = request(PROMPTS[0] * 5, drafting, n=60)
        plain = running.submit(request(PROMPTS[0] * 5, n=60)).result()
        assert running.submit(wanted).result().tokens == plain.tokens
        strategy = strategy_of(running, drafting)
        assert strategy._context.n_past(0) == 0
        assert n_waiting(strategy) > 150
        strategy._patience = 100
        assert running.submit(wanted).result().tokens == plain.tokens
        assert strategy._context.n_past(0) > 100 - (case.cls is Eagle3)
        assert n_waiting(strategy) < 100
    width = strategy._context.n_features if case in BLOCKS else strategy._n_held
    monkeypatch.setattr(_rows, "MAX_WAITING_BYTES", 32 * 4 * max(1, width))
    with case.engine(zoo, scheduler=Pausing) as (running, _):
        assert running.submit(wanted).result().tokens == plain.tokens
        assert strategy_of(running, drafting)._patience == 32
        assert compare_with_fresh_starts(running, drafting, every=1) > 10


def n_waiting(strategy: Any) -> int:
    """Tokens of the first sequence that a draft will have to catch up with."""
    held = strategy._held[0]
    return len(held.waiting) if isinstance(held, HeldFeatures) else int(held.n_waiting)


@pytest.mark.parametrize("case", [EAGLES[1], PLAIN[0]], ids=str)
def test_targets_that_evaluate_one_token_at_a_time(zoo: Zoo, case: Case) -> None:
    with case.engine(zoo, n_batch=2, n_ubatch=1) as (running, _):
        plain = running.submit(request(PROMPTS[0], n=40)).result()
        done = running.submit(request(PROMPTS[0], case.spec(zoo, n_max=4), n=40)).result()
        assert done.tokens == plain.tokens
        assert done.stats.accepted > 0


# -- a peer -----------------------------------------------------------------------------------------------------------

#: What llama.cpp's server calls the strategies.
KINDS: dict[type[BatchStrategy], str] = {
    Mtp: "DRAFT_MTP",
    Eagle3: "DRAFT_EAGLE3",
    DraftModel: "DRAFT_SIMPLE",
    Dflash: "DRAFT_DFLASH",
    Dflash2: "DRAFT_DFLASH",
    Dspark: "DRAFT_DSPARK",
}
#: Each kind of draft as the server tells them apart, with a second setting.
SERVED: list[tuple[Case, dict[str, Any]]] = [
    *((case, {"n_max": 3, "n_min": 2, "p_min": 0.9998}) for case in [HEADS[1], *HEADS[3:6], *EAGLES[:2], *EAGLES[3:5]]),
    *((case, {"n_max": 7, "n_min": 2, "p_min": 0.6}) for case in [BLOCKS[0], BLOCKS[2], BLOCKS[4], BLOCKS[5]]),
    (Case(Dspark, "llama", "dspark-anchor"), {"n_max": 8}),
    (Case(Dspark, "llama", "dspark-bonus"), {"n_max": 7, "n_min": 2, "p_min": 0.5}),
    (Case(Dspark, "qwen35", "dspark-anchor", {"n_rs_seq": 8}), {"n_max": 8, "n_min": 2, "p_min": 0.5}),
    (Case(Dspark, "gemma4", "dspark-bonus"), {"n_max": 3}),
    (PLAIN[0], {"n_max": 8}),
    (Case(DraftModel, "llama", "qwen3"), {"n_max": 5, "p_min": 0.97}),
]


@pytest.mark.parametrize(("case", "settings"), SERVED, ids=str)
def test_llama_cpps_server_drafts_the_same(zoo: Zoo, case: Case, settings: dict[str, Any]) -> None:
    both = [{"n_max": 4}, settings]
    answers = ask(zoo(case.target), PROMPTS, both, kind=KINDS[case.cls], draft=case.path(zoo))
    with case.engine(zoo) as (running, opened):
        for given, theirs in zip(both, answers, strict=True):
            for prompt, answer in zip(PROMPTS, theirs, strict=True):
                done = running.submit(request(prompt, case.spec(zoo, **given))).result()
                assert opened.vocab.detokenize(done.tokens).decode() == answer["choices"][0]["text"]
                timings = answer["timings"]
                assert (done.stats.verified, done.stats.accepted) == (timings["draft_n"], timings["draft_n_accepted"])
                assert done.stats.accepted > 0


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [*SOME_TOKENWISE, BLOCKS[0], BLOCKS[8], BLOCKS[10]], ids=str)
def test_choosing_on_the_host_gives_the_same_drafts(zoo: Zoo, case: Case) -> None:
    with case.engine(zoo, n_seq=3) as (running, _):
        for p_min in (0.0, 0.5 if case.cls is Dspark else 0.999):
            made = []
            for inside in (True, False, None):
                wanted = case.spec(zoo, n_max=4, p_min=p_min, backend_sampling=inside)
                for generation in [running.submit(request(p, wanted)) for p in PROMPTS]:
                    generation.result()
                made.append(strategy_of(running, wanted).drafts)
            assert made[0] == made[1] == made[2]
            assert any(ids for _, ids in made[0])


@pytest.mark.parametrize(("case", "p_min"), [(HEADS[0], 0.9998), (BLOCKS[0], 0.9), (BLOCKS[4], 0.9)], ids=str)
def test_unlikely_tokens_are_not_drafted(zoo: Zoo, case: Case, p_min: float) -> None:
    with case.engine(zoo) as (running, _):
        done = [running.submit(request(PROMPTS[0], case.spec(zoo, p_min=p))).result() for p in (0.0, p_min, 1.0)]
    rates = [each.stats.accepted / max(1, each.stats.verified) for each in done]
    assert done[0].tokens == done[1].tokens == done[2].tokens
    assert done[0].stats.verified > done[1].stats.verified > 0
    assert rates[1] > rates[0]
    assert done[2].stats.drafted == 0
    assert done[2].stats.inactive_reason == "nothing-proposed"


@pytest.mark.parametrize(("case", "p_min"), [(HEADS[0], 0.9998), (BLOCKS[0], 0.9), (BLOCKS[4], 0.9)], ids=str)
def test_short_drafts_are_dropped(zoo: Zoo, case: Case, p_min: float) -> None:
    with case.engine(zoo) as (running, _):
        wanted = case.spec(zoo, n_max=6, n_min=3, p_min=p_min)
        done = running.submit(request(PROMPTS[0], wanted)).result()
        # Near the end of the budget a shorter one is all that is wanted.
        lengths = {len(ids) for history, ids in strategy_of(running, wanted).drafts if len(history) < 19 + 90}
    assert lengths <= {0, 3, 4, 5, 6}
    assert len(lengths) > 1
    assert done.stats.accepted > 0
