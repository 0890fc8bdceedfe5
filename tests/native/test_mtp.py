"""Prediction heads: the drafts are what the heads predict."""

from __future__ import annotations

from pathlib import Path

import attrs
import numpy as np
import pytest

from specframe.core.ports import Decoded
from specframe.strategies.drafting import HeldSequence
from specframe.testing.zoo import Nextn, Vocabulary, World, drafts, targets
from tests.support.acceptance import ERRORS, expected
from tests.support.drafting import PROMPTS, engine, request, spec
from tests.support.llama import Zoo

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
