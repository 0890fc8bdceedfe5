"""Prediction heads: the text is the target's, and the drafts are what the heads predict, whatever happened before."""

from __future__ import annotations

from pathlib import Path

import attrs
import numpy as np
import pytest

from specframe.core.ports import Decoded
from specframe.strategies.drafting import HeldSequence
from specframe.testing.zoo import Nextn, Vocabulary, World, drafts, targets
from tests.support.acceptance import ERRORS, expected
from tests.support.llama import Zoo
from tests.support.mtp import CASES, PROMPTS, Case, RecordingMtp, engine, request, spec, strategy_of


def path_of(zoo: Zoo, name: str | None) -> Path | None:
    return None if name is None else zoo(name)


# -- the wiring -------------------------------------------------------------------------------------------------------


def test_shifted_hidden_states_are_noticed(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that reads nothing but the hidden state is right with the state before its token, and only with that."""
    with engine(zoo("qwen35-mtp-h"), n_rs_seq=2) as (running, _):
        right = [running.submit(request(p, spec(n_max=1))).result().stats for p in PROMPTS]
    seen = HeldSequence.seen

    def shifted(self: HeldSequence, decoded: Decoded) -> None:
        assert decoded.hidden is not None
        seen(self, attrs.evolve(decoded, hidden=np.roll(decoded.hidden, 1, axis=0)))

    monkeypatch.setattr(HeldSequence, "seen", shifted)
    with engine(zoo("qwen35-mtp-h"), n_rs_seq=2) as (running, _):
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
