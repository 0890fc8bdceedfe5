"""Every sampling parameter, processor and grammar applies to drafted tokens as to any other."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest

from specframe.core.engine import Engine
from specframe.core.history import History
from specframe.core.ports import Logits
from specframe.core.request import Request
from specframe.core.sampling import SamplingParams
from specframe.core.scheduler import Unlimited
from specframe.core.strategy import StrategySpec
from specframe.testing import (
    Arbitrary,
    Junk,
    ScriptedTarget,
    reference,
    tape,
)
from specframe.testing.drafters import USABLE_JUNK
from tests.support.lossless import (
    ask,
    assert_plain,
    drafted,
    oracle,
    poison,
    run,
)


@pytest.mark.parametrize(
    ("temperature", "parameters"),
    [
        *itertools.product(
            [0.0, 0.8],
            [
                {"frequency_penalty": 0.7},
                {"presence_penalty": 0.9},
                {"repeat_penalty": 1.3},
                {"repeat_penalty": 1.3, "penalty_last_n": 3},
                {"logit_bias": {3: 4.0, 5: -9.0}},
                {"min_tokens": 9},
                {"ignore_eos": True},
            ],
        ),
        (0.8, {"min_p": 0.9}),
        (0.8, {"top_k": 2}),
        (0.8, {"top_p": 0.3}),
    ],
    ids=str,
)
def test_sampling_parameters_apply_to_every_drafted_token(temperature: float, parameters: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"n_vocab": 8, "spread": 2.0}
    if "min_tokens" in parameters or "ignore_eos" in parameters:
        arguments["eog"] = (1, 6)
    request = ask(40, SamplingParams(seed=4, temperature=temperature, **parameters), prompt=(1, 2))
    right = tape(ScriptedTarget(**arguments), request)
    completion = run(ScriptedTarget(**arguments), drafted(request, oracle(right, 8)))
    assert completion.stats.accepted_emitted > 0
    assert_plain(ScriptedTarget(**arguments), request, completion)
    without = ask(40, SamplingParams(seed=4, temperature=temperature), prompt=(1, 2))
    assert reference(ScriptedTarget(**arguments), without).tokens != completion.tokens, "the parameter had no effect"


def test_logprobs_of_accepted_tokens_are_those_of_the_target() -> None:
    request = ask(sampling=SamplingParams(temperature=0.0, logprobs=3))
    right = tape(ScriptedTarget(), request)
    completion = run(ScriptedTarget(), drafted(request, oracle(right, 8)))
    assert completion.stats.accepted_emitted > 0
    assert len(completion.logprobs) == 24
    assert all(p.logprob < 0 for p in completion.logprobs)
    assert_plain(ScriptedTarget(), request, completion)


def test_a_seed_gives_one_text_and_other_seeds_give_others() -> None:
    texts = set()
    for seed in range(10):
        request = ask(sampling=SamplingParams(seed=seed, temperature=0.8))
        right = tape(ScriptedTarget(), request)
        completion = run(ScriptedTarget(), drafted(request, poison(right, 2, 6)))
        assert_plain(ScriptedTarget(), request, completion)
        assert completion.stats.seed == seed
        texts.add(completion.text)
    assert len(texts) == 10


def test_a_request_without_a_seed_reports_the_one_it_got() -> None:
    request = ask(sampling=SamplingParams(temperature=1.0))
    completion = run(ScriptedTarget(), request)
    again = ask(sampling=SamplingParams(temperature=1.0, seed=completion.stats.seed))
    assert run(ScriptedTarget(), again).tokens == completion.tokens


@pytest.mark.parametrize("kind", ["oracle-ish", "constant", "plain"])
def test_sampled_tokens_have_the_distribution_of_the_target(kind: str) -> None:
    """Chi-square over 20,000 draws from one distribution of eight tokens, whatever is proposed."""
    logits = np.array([0.0, 1.0, 2.0, 0.5, -1.0, 1.5, 0.2, -0.5], dtype=np.float32)
    cycle = itertools.cycle([2, 5, 1])
    choose = {"oracle-ish": lambda r: [next(cycle)] * min(3, r.budget), "constant": lambda r: [2] * min(4, r.budget)}
    spec = StrategySpec.of(Arbitrary, {"choose": choose[kind]}) if kind in choose else None
    counts: Counter[int] = Counter()
    target = ScriptedTarget(n_vocab=8, n_ctx=300, n_batch=32, logits_fn=lambda _: logits)
    with Engine(target, scheduler=Unlimited) as engine:
        for seed in range(100):
            neutral = SamplingParams(seed=seed, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
            request = Request(prompt=(0,), max_tokens=200, sampling=neutral, strategy=spec)
            counts.update(engine.submit(request).result().tokens)
    p = np.exp(logits) / np.exp(logits).sum()
    chi_square = sum((counts[t] - 20_000 * p[t]) ** 2 / (20_000 * p[t]) for t in range(8))
    assert chi_square < 24.3  # 7 degrees of freedom, p = 0.001


def test_one_random_number_is_drawn_per_emitted_token() -> None:
    request = ask(sampling=SamplingParams(seed=4, temperature=1.0))
    right = tape(ScriptedTarget(), request)
    target = ScriptedTarget()
    run(target, drafted(request, poison(right, 3, 6)))
    assert target.samplers[0].n_draws == 24


def test_logits_processors_see_the_row_and_history_of_their_own_token() -> None:
    seen: list[tuple[int, float]] = []

    def process(history: History, logits: Any) -> Logits:
        seen.append((len(history), float(logits.sum())))
        logits[history[-1]] = -50.0
        return logits  # type: ignore[no-any-return]

    def criterion(history: History, row: Logits) -> bool:
        return len(history) == 20 and row.shape == (32,)

    request = ask(logits_processors=(process,), stopping_criteria=(criterion,))
    right = tape(ScriptedTarget(), request)
    seen.clear()
    plain = reference(ScriptedTarget(), request)
    expected = list(seen)
    seen.clear()
    completion = run(ScriptedTarget(), drafted(request, oracle(right, 6)))
    assert seen == expected
    assert completion.stats.accepted_emitted > 0
    assert completion.tokens == plain.tokens
    assert completion.stop_detail == "criterion"
    assert_plain(ScriptedTarget(), request, completion)


def _only(token: int) -> dict[str, Any]:
    return {"grammars": {'root ::= "a"': lambda generated: () if generated else (token,)}}


def test_grammar_that_is_complete_ends_the_request_inside_a_draft() -> None:
    request = ask(sampling=SamplingParams(temperature=0.0, grammar='root ::= "a"'))
    spec = StrategySpec.of(Arbitrary, {"choose": lambda r: [0, 1, 2, 3]})
    completion = run(ScriptedTarget(**_only(0)), drafted(request, spec))
    assert (completion.text, completion.stop_detail) == ("a", "grammar")
    assert_plain(ScriptedTarget(**_only(0)), request, completion)


def test_junk_under_a_grammar_changes_nothing() -> None:
    grammar: dict[str, Any] = {"grammars": {"pairs": lambda generated: (2, 4) if len(generated) % 2 else (1, 3)}}
    request = ask(sampling=SamplingParams(seed=1, temperature=1.0, grammar="pairs"))
    for kind in sorted(USABLE_JUNK):
        completion = run(ScriptedTarget(**grammar), drafted(request, StrategySpec.of(Junk, {"kinds": (kind,)})))
        assert_plain(ScriptedTarget(**grammar), request, completion)


def test_draft_the_grammar_forbids_is_not_verified() -> None:
    request = ask(sampling=SamplingParams(temperature=0.0, grammar="ones"))
    grammar: dict[str, Any] = {"grammars": {"ones": lambda _: (1,)}}
    spec = StrategySpec.of(Arbitrary, {"choose": lambda r: [2] * r.budget})
    completion = run(ScriptedTarget(**grammar), drafted(request, spec))
    assert completion.stats.drafted > 0
    assert completion.stats.verified == 0
