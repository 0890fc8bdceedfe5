"""The oracle: what it takes for plain decoding's own choice, and what it does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specframe.core.errors import ConfigError
from specframe.core.request import Completion, Request
from specframe.core.sampling import SamplingParams
from specframe.testing import ContractError, ScriptedTarget, reference, replay, tape
from specframe.testing.generators import drafters, requests, targets
from tests.support.lossless import GREEDY, ask, drafted, every_memory, oracle, poison, run


@every_memory
def test_drafted_answer_is_plain_decodings_own(memory: dict[str, Any]) -> None:
    right = tape(ScriptedTarget(), ask())
    for spec in (oracle(right), poison(right, 2)):
        completion = run(ScriptedTarget(**memory), ask(strategy=spec))
        report = replay(ScriptedTarget(**memory), ask(), completion)
        report.check()
        assert (report.n_tokens, report.divergences, report.first) == (24, (), None)


@given(data=st.data())
def test_judgement_agrees_with_the_reference(data: st.DataObject) -> None:
    """Whatever was asked greedily: an answer is right, and one with another token in it is not."""
    plan = data.draw(targets(max_seq=1))
    request = data.draw(requests(plan))
    request = attrs.evolve(request, sampling=attrs.evolve(request.sampling, temperature=0.0, mirostat=0))
    spec = data.draw(drafters(tape(plan(), request), data))
    completion = run(plan(), drafted(request, spec))
    assert reference(plan(), request).tokens == completion.tokens
    assert not replay(plan(), request, completion).divergences
    if completion.tokens:
        at = data.draw(st.integers(0, len(completion.tokens) - 1), label="wrong at")
        found = replay(plan(), request, _wrong(completion, at, plan.n_vocab)).divergences
        assert (found[0].at, found[0].expected) == (at, completion.tokens[at])


def _wrong(completion: Completion, at: int, n_vocab: int) -> Completion:
    tokens = list(completion.tokens)
    tokens[at] = (tokens[at] + 1) % n_vocab
    return attrs.evolve(completion, tokens=tuple(tokens))


def test_every_token_is_judged_behind_the_answers_own_text() -> None:
    completion = run(ScriptedTarget(), ask())
    report = replay(ScriptedTarget(), ask(), _wrong(completion, 5, 32))
    assert report.first is not None
    assert (report.first.at, report.first.emitted) == (5, (completion.tokens[5] + 1) % 32)
    assert report.first.expected == completion.tokens[5]
    assert report.first.margin > 0
    assert report.n_tokens == 24
    with pytest.raises(ContractError, match="the answer is not what plain decoding gives: token 5 is"):
        report.check()
    assert report.to_dict()["faults"] == len(report.faults)


def test_rounding_is_told_from_faults_by_the_margin() -> None:
    def rows(shift: float) -> Any:
        def row(tokens: Sequence[int]) -> Any:
            values = np.zeros(32, np.float32)
            values[len(tokens) % 32] = 1.0
            values[(len(tokens) + 1) % 32] = 1.0 + shift
            return values

        return row

    completion = run(ScriptedTarget(logits_fn=rows(-0.01)), ask(6))
    exact, close = (replay(ScriptedTarget(logits_fn=rows(0.01)), ask(6), completion, margin=m) for m in (0.0, 0.02))
    assert len(exact.faults) == len(exact.divergences) == 6
    assert (len(close.faults), len(close.divergences)) == (0, 6)
    close.check()
    assert "near tie (margin 0.01)" in str(close.first)
    assert "a fault" in str(exact.first)


def test_end_of_generation_is_judged_too() -> None:
    request = ask(None, prompt=(1,))
    target = ScriptedTarget(eog=(3, 7, 9))
    completion = run(target, request)
    assert completion.stop_detail == "eog"
    report = replay(ScriptedTarget(eog=(3, 7, 9)), request, completion)
    assert (report.n_tokens, report.divergences) == (completion.completion_tokens + 1, ())
    early = attrs.evolve(completion, tokens=completion.tokens[:-1])
    assert completion.tokens
    assert replay(ScriptedTarget(eog=(3, 7, 9)), request, early).first is not None


def test_nothing_is_judged_of_an_empty_answer() -> None:
    assert replay(ScriptedTarget(), ask(0), run(ScriptedTarget(), ask(0))).n_tokens == 0


def test_answers_without_a_single_right_token_are_refused() -> None:
    seeded = ask(sampling=SamplingParams(seed=1, temperature=0.8))
    with pytest.raises(ConfigError, match="temperature=0"):
        replay(ScriptedTarget(), seeded, run(ScriptedTarget(), seeded))
    arguments: dict[str, Any] = {"n_ctx": 24, "can_shift": True}
    shifted = Request(prompt=(1, 2), max_tokens=60, sampling=GREEDY, context_full="shift")
    with pytest.raises(ConfigError, match="shifted"):
        replay(ScriptedTarget(**arguments), shifted, run(ScriptedTarget(**arguments), shifted))
