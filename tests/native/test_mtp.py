"""Prediction heads: the text is the target's, and the drafts are what the heads predict, whatever happened before."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import takewhile
from operator import eq
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from specframe.core.engine import Engine
from specframe.core.ports import Decoded
from specframe.core.request import FinishReason, Request
from specframe.core.sampling import SamplingParams
from specframe.core.scheduler import Candidate, SchedulerStats, Unlimited
from specframe.core.strategy import StrategySpec
from specframe.strategies.drafting import HeldSequence
from specframe.testing.zoo import Nextn, Vocabulary, World, drafts, targets
from tests.support.acceptance import expected
from tests.support.llama import Zoo
from tests.support.mtp import CASES, GREEDY, PROMPTS, SEEDED, Case, RecordingMtp, engine, request, spec, strategy_of
from tests.support.server import ask

ERRORS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)


def path_of(zoo: Zoo, name: str | None) -> Path | None:
    return None if name is None else zoo(name)


# -- the text ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("n_seq", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_text_is_the_targets(zoo: Zoo, case: Case, n_seq: int, sampling: SamplingParams) -> None:
    draft = path_of(zoo, case.draft)
    with engine(zoo(case.target), draft, n_seq=n_seq, **case.options) as (running, _):
        plain = [running.submit(request(p, n=40, sampling=sampling)).result().tokens for p in PROMPTS]
        for n_max in range(1, 9):
            wanted = [request(p, spec(draft, n_max=n_max), n=40, sampling=sampling) for p in PROMPTS]
            done = [generation.result() for generation in [running.submit(each) for each in wanted]]
            assert [each.tokens for each in done] == plain
            assert all(each.stats.accepted > 0 for each in done)
            assert {each.stats.inactive_reason for each in done} == {None}


@pytest.mark.slow
@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[4], CASES[5]], ids=str)
def test_a_long_text_is_the_targets(zoo: Zoo, case: Case) -> None:
    draft = path_of(zoo, case.draft)
    sampling = SamplingParams(temperature=0.0, logprobs=2)
    with engine(zoo(case.target), draft, n_ctx=2100, **case.options) as (running, _):
        plain = running.submit(request(PROMPTS[0], n=2000, sampling=sampling)).result()
        drafted = running.submit(request(PROMPTS[0], spec(draft), n=2000, sampling=sampling)).result()
    assert drafted.stats.accepted > 500
    same = sum(takewhile(bool, map(eq, plain.tokens, drafted.tokens)))
    if same < 2000:
        # These models keep keys in 16 bits, so the width of a batch moves their logits in the third decimal place.
        (_, best), (_, second) = plain.logprobs[same].top
        assert best - second < 0.005, f"token {same} is no near tie"
        assert same > 500


@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[4], CASES[5]], ids=str)
def test_a_full_context_ends_the_same_way(zoo: Zoo, case: Case) -> None:
    draft = path_of(zoo, case.draft)
    with engine(zoo(case.target), draft, n_ctx=64, **case.options) as (running, _):
        prompt = PROMPTS[0] * 2
        plain = running.submit(request(prompt, n=200)).result()
        drafted = running.submit(request(prompt, spec(draft, n_max=8), n=200)).result()
    assert drafted.tokens == plain.tokens
    assert len(plain.tokens) == 64 + 1 - len(prompt)
    assert drafted.finish_reason is plain.finish_reason is FinishReason.LENGTH
    assert drafted.stats.accepted > 0


@pytest.mark.parametrize("case", CASES, ids=str)
def test_heads_with_a_smaller_context_stop_drafting(zoo: Zoo, case: Case) -> None:
    draft = path_of(zoo, case.draft)
    with engine(zoo(case.target), draft, **case.options) as (running, _):
        plain = running.submit(request(PROMPTS[0])).result()
        wanted = spec(draft, RecordingMtp, n_max=4, n_ctx=60, n_batch=2)
        drafted = running.submit(request(PROMPTS[0], wanted)).result()
        made = strategy_of(running, wanted).drafts
    assert drafted.tokens == plain.tokens
    assert drafted.stats.inactive_reason is None
    assert all(len(history) - 1 + len(ids) <= 60 for history, ids in made if ids)
    assert any(len(history) > 50 and ids for history, ids in made)


# -- the wiring -------------------------------------------------------------------------------------------------------


def compare_with_fresh_starts(running: Engine, wanted: StrategySpec, every: int) -> int:
    """Check every so many of the drafts made so far; returns the number of tokens compared."""
    strategy = strategy_of(running, wanted)
    made, strategy.drafts = [pair for pair in strategy.drafts if pair[1]], []
    n_compared = 0
    for history, ids in made[::every]:
        running.submit(request(history[:-1], wanted, n=len(ids) + 2)).result()
        fresh = dict(strategy.drafts).get(history, ())
        strategy.drafts = []
        n = min(len(fresh), len(ids))
        assert fresh[:n] == ids[:n]
        n_compared += n
    return n_compared


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_draft_depends_on_the_text_alone(zoo: Zoo, case: Case) -> None:
    """Not on batches, acceptance, rollbacks, other sequences or earlier requests: each equals a fresh start's."""
    draft = path_of(zoo, case.draft)
    with engine(zoo(case.target), draft, n_seq=2, **case.options) as (running, _):
        wanted = spec(draft, RecordingMtp, n_max=3)
        for prompt in PROMPTS[:2]:
            both = [running.submit(request(prompt, wanted, n=50)), running.submit(request(PROMPTS[2], wanted, n=30))]
            for generation in both:
                generation.result()
        assert compare_with_fresh_starts(running, wanted, every=3) > 20


@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_is_lost_while_drafting_pauses(zoo: Zoo, case: Case) -> None:
    """What was decoded in the meantime waits, some of it longer than the heads would keep it waiting."""

    class Pausing(Unlimited):
        """A draft after 1, 2, ... plain steps."""

        def begin(self, seq: int, strategy: str, stats: SchedulerStats) -> None:
            super().begin(seq, strategy, stats)
            self.pause, self.left = 0, 0

        def limits(self, batch: Sequence[Candidate]) -> list[int]:
            if self.left:
                self.left -= 1
                return [0] * len(batch)
            self.pause += 5
            self.left = self.pause
            return super().limits(batch)

    draft = path_of(zoo, case.draft)
    with engine(zoo(case.target), draft, scheduler=Pausing, **case.options) as (running, _):
        wanted = spec(draft, RecordingMtp, n_max=4)
        plain = running.submit(request(PROMPTS[1], n=330)).result()
        done = running.submit(request(PROMPTS[1], wanted, n=330)).result()
        assert done.tokens == plain.tokens
        assert done.stats.draft_steps < 14
        assert compare_with_fresh_starts(running, wanted, every=1) > 10


def test_shifted_hidden_states_are_noticed(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that reads nothing but the hidden state is right with the state before its token, and only with that."""
    with engine(zoo("qwen35-mtp-h")) as (running, _):
        right = [running.submit(request(p, spec(n_max=1))).result().stats for p in PROMPTS]
    seen = HeldSequence.seen

    def shifted(self: HeldSequence, decoded: Decoded) -> None:
        assert decoded.hidden is not None
        seen(self, attrs.evolve(decoded, hidden=np.roll(decoded.hidden, 1, axis=0)))

    monkeypatch.setattr(HeldSequence, "seen", shifted)
    with engine(zoo("qwen35-mtp-h")) as (running, _):
        wrong = [running.submit(request(p, spec(n_max=1))).result().stats for p in PROMPTS]
    assert sum(s.accepted for s in right) > 0.55 * sum(s.verified for s in right)
    assert sum(s.accepted for s in wrong) < 0.1 * sum(s.verified for s in wrong)


# -- acceptance -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("kind", ["builtin", "external", "chained"])
def test_acceptance_is_what_the_weights_say(tmp_path: Path, kind: str, error: float) -> None:
    head, draft, n_max = Nextn(error=error, strength=0.0), None, 4
    path = tmp_path / "target.gguf"
    if kind == "chained":
        targets.chained(path, strength=0.0, heads=[head] * 3)
        world, n_max = World(), 3
    else:
        targets.hybrid(path, strength=0.0, nextn=head if kind == "builtin" else None)
        world = World(vocabulary=Vocabulary.byte_level(pre="qwen35"))
        if kind == "external":
            draft = drafts.external_mtp(tmp_path / "draft.gguf", nextn=head)
    wrong = world.wrong(error)
    with engine(path, draft, n_rs_seq=4) as (running, _):
        for prompt in PROMPTS:
            stats = running.submit(request(prompt, spec(draft, n_max=4))).result().stats
            assert (stats.verified, stats.accepted) == expected(world, prompt, 96, wrong, n_max)


@pytest.mark.parametrize("error", ERRORS)
def test_an_assistant_errs_as_often_as_it_should(tmp_path: Path, error: float) -> None:
    target = targets.sliding_window(tmp_path / "target.gguf", strength=0.0)
    draft = drafts.assistant(tmp_path / "draft.gguf", error=error, strength=0.0)
    wrong = World().wrong(error)
    with engine(target, draft) as (running, _):
        for prompt in PROMPTS:
            stats = running.submit(request(prompt, spec(draft, n_max=4))).result().stats
            assert (stats.verified, stats.accepted) == expected(World(), prompt, 96, wrong, 4)


@pytest.mark.parametrize("case", CASES[:1] + CASES[3:6], ids=str)
@pytest.mark.parametrize("settings", [{"n_max": 4}, {"n_max": 3, "n_min": 2, "p_min": 0.9998}])
def test_llama_cpps_server_drafts_the_same(zoo: Zoo, case: Case, settings: dict[str, Any]) -> None:
    draft = path_of(zoo, case.draft)
    theirs = ask(zoo(case.target), PROMPTS[:1], kind="DRAFT_MTP", draft=draft, max_tokens=96, **settings)
    with engine(zoo(case.target), draft, **case.options) as (running, opened):
        for prompt, answer in zip(PROMPTS[:1], theirs, strict=True):
            done = running.submit(request(prompt, spec(draft, **settings))).result()
            assert opened.vocab.detokenize(done.tokens).decode() == answer["choices"][0]["text"]
            timings = answer["timings"]
            assert (done.stats.verified, done.stats.accepted) == (timings["draft_n"], timings["draft_n_accepted"])


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [CASES[0], CASES[4], CASES[5]], ids=str)
def test_choosing_on_the_host_gives_the_same_drafts(zoo: Zoo, case: Case) -> None:
    draft = path_of(zoo, case.draft)
    with engine(zoo(case.target), draft, n_seq=3, **case.options) as (running, _):
        for p_min in (0.0, 0.999):
            made = []
            for backend_sampling in (True, False):
                wanted = spec(draft, RecordingMtp, n_max=4, p_min=p_min, backend_sampling=backend_sampling)
                for generation in [running.submit(request(p, wanted)) for p in PROMPTS]:
                    generation.result()
                made.append(strategy_of(running, wanted).drafts)
            assert made[0] == made[1]
            assert any(ids for _, ids in made[0])


def test_unlikely_tokens_are_not_drafted(zoo: Zoo) -> None:
    with engine(zoo("qwen35-mtp")) as (running, _):
        done = [running.submit(request(PROMPTS[0], spec(n_max=6, p_min=p))).result() for p in (0.0, 0.9998, 1.0)]
    rates = [each.stats.accepted / max(1, each.stats.verified) for each in done]
    assert done[0].tokens == done[1].tokens == done[2].tokens
    assert done[0].stats.verified > done[1].stats.verified > 0
    assert rates[1] > rates[0]
    assert done[2].stats.drafted == 0
    assert done[2].stats.inactive_reason == "nothing-proposed"


def test_short_drafts_are_dropped(zoo: Zoo) -> None:
    with engine(zoo("qwen35-mtp")) as (running, _):
        wanted = spec(None, RecordingMtp, n_max=4, n_min=3, p_min=0.9998)
        done = running.submit(request(PROMPTS[0], wanted)).result()
        # Near the end of the budget a shorter one is all that is wanted.
        lengths = {len(ids) for history, ids in strategy_of(running, wanted).drafts if len(history) < 19 + 90}
    assert lengths <= {0, 3, 4}
    assert len(lengths) > 1
    assert done.stats.accepted > 0


# -- what happened before ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_second_turn_of_a_chat_goes_on_from_the_first(zoo: Zoo, case: Case) -> None:
    draft = path_of(zoo, case.draft)
    cached: dict[bool, int] = {}
    made: list[Any] = []
    for strategy in (None, spec(draft, RecordingMtp, n_max=3)):
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


@pytest.mark.parametrize("case", [CASES[0], CASES[5]], ids=str)
def test_a_state_of_other_heads_is_refused(zoo: Zoo, case: Case) -> None:
    draft = path_of(zoo, case.draft)
    with engine(zoo(case.target), draft, **case.options) as (running, _):
        wanted = spec(draft)
        assert running.submit(request(PROMPTS[0], wanted, n=5)).result().stats.emitted == 5
        strategy = strategy_of(running, wanted)
        data = strategy.save(0)
        narrow = HeldSequence(32, 4)
        with np.load(io.BytesIO(data)) as saved, pytest.raises(ValueError, match=r"64,.* values wide"):
            narrow.load(saved)
        assert not narrow.usable
        strategy._held[0] = HeldSequence(64, 4)
        assert strategy.save(0) is None
        strategy.load(0, data)
        assert strategy._held[0].usable


@pytest.mark.parametrize("case", CASES[5:], ids=str)
def test_heads_that_come_late_leave_running_requests_alone(zoo: Zoo, case: Case) -> None:
    """llama.cpp empties a memory when a context that will share it is made."""
    draft = path_of(zoo, case.draft)
    with engine(zoo(case.target), draft, n_seq=3, **case.options) as (running, _):
        plain = [running.submit(request(p, n=60)).result().tokens for p in PROMPTS]
        early = running.submit(request(PROMPTS[0], n=60))
        first = [next(early).tokens for _ in range(9)]
        late = [running.submit(request(p, spec(draft, n_max=n), n=60)) for n, p in enumerate(PROMPTS[1:], start=2)]
        assert [generation.result().tokens for generation in late] == plain[1:]
        done = early.result()
        assert done.tokens == plain[0]
        assert done.tokens[:9] == tuple(token for part in first for token in part)
        assert done.stats.rollbacks == {}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_cancelled_request_leaves_nothing_behind(zoo: Zoo, case: Case) -> None:
    draft = path_of(zoo, case.draft)
    with engine(zoo(case.target), draft, **case.options) as (running, _):
        wanted = spec(draft, n_max=4)
        reference = running.submit(request(PROMPTS[0], wanted)).result()
        for n_chunks in (1, 2, 5):
            generation = running.submit(request(PROMPTS[1], wanted))
            for _ in range(n_chunks):
                next(generation)
            generation.close()
            again = running.submit(Request(prompt=PROMPTS[0], max_tokens=96, sampling=GREEDY, strategy=wanted)).result()
            assert again.tokens == reference.tokens
            assert again.stats.accepted_per_position == reference.stats.accepted_per_position


@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[4], CASES[5]], ids=str)
@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("where", ["decode", "choices", "truncate"])
def test_failing_heads_cost_speed_only(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch, case: Case, where: str, error: BaseException
) -> None:
    draft = path_of(zoo, case.draft)
    with engine(zoo(case.target), draft, **case.options) as (running, _):
        wanted = spec(draft, n_max=3)
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
@pytest.mark.parametrize("case", [CASES[0], CASES[3], CASES[5]], ids=str)
def test_things_may_be_closed_in_any_order(zoo: Zoo, case: Case, order: str) -> None:
    draft = path_of(zoo, case.draft)
    with engine(zoo(case.target), draft, **case.options) as (running, opened):
        wanted = spec(draft, n_max=3)
        running.submit(request(PROMPTS[0], wanted, n=10)).result()
        context = strategy_of(running, wanted)._context
        {"model": opened.model, "target": opened, "engine": running}[order].close()  # type: ignore[attr-defined]
        assert context.closed
