"""Drafting changes nothing on llama.cpp's own memory: every kind of rollback, any drafter, any sampling, any company.

The models are bit-exact at every batch width, so whatever differs is a mistake of bookkeeping.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specframe.core.engine import Engine
from specframe.core.ports import Rollback
from specframe.core.request import Request
from specframe.core.sampling import SamplingParams
from specframe.core.scheduler import DraftScheduler, Unlimited
from specframe.core.strategy import StrategySpec
from specframe.strategies.ngram_k import NgramK
from specframe.strategies.ngram_k4v import NgramK4V
from specframe.testing import ALL_JUNK, AsBatch, Crash, Junk, Oracle, Output, Poison, reference
from specframe.testing.generators import drafters
from tests.support.exact import A_LETTER, ExactZoo, Memory, WatchedTarget, every_memory, fresh, right_tape, watched
from tests.support.lossless import SCHEDULERS, OnSteadyMachine, check_stats, drafted

#: From this many tokens on a prompt is evaluated by another kernel than the same tokens one by one.
NARROW = 60


#: A part of what the profile asks for: each example runs several requests on a model.
modestly = settings(
    max_examples=max(10, settings().max_examples // 15),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

GRAMMARS = (
    "root ::= [a-w ]+",
    'root ::= ([a-w ] [a-w ]? [a-w ]?) ("." | [a-w ]) [a-w ]*',
    r'root ::= "{" ([a-f] | [g-m]+ | " " [n-w])* "}"',
    'root ::= "abc"',
)


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    # Broken drafters are reported once per request, hundreds of times here.
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


seeds = st.integers(0, 2**32 - 1)
biases = st.dictionaries(st.integers(97, 120), st.sampled_from([-40.0, -1.0, 2.0]), max_size=2)
common: dict[str, st.SearchStrategy[Any]] = {
    "seed": seeds,
    "logit_bias": biases,
    "ignore_eos": st.booleans(),
    "min_tokens": st.sampled_from([0, 0, 5, 20]),
    "logprobs": st.sampled_from([None, 0, 3]),
}
penalties: dict[str, st.SearchStrategy[Any]] = {
    "penalty_last_n": st.sampled_from([-1, 0, 4, 64]),
    "repeat_penalty": st.sampled_from([1.0, 1.15]),
    "frequency_penalty": st.sampled_from([0.0, 0.3]),
    "presence_penalty": st.sampled_from([0.0, 0.5]),
    "dry_multiplier": st.sampled_from([0.0, 0.8]),
    "dry_penalty_last_n": st.sampled_from([-1, 0, 64]),
    "grammar": st.sampled_from([None, None, *GRAMMARS]),
}
samplings = st.one_of(
    st.builds(SamplingParams, temperature=st.just(0.0), **common),
    st.builds(SamplingParams, temperature=st.just(0.0), **common, **penalties),
    st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.8, 1.5, 4.0]),
        top_k=st.sampled_from([0, 5, 40]),
        top_p=st.sampled_from([0.6, 0.95, 1.0]),
        min_p=st.sampled_from([0.0, 0.05]),
        typical_p=st.sampled_from([0.9, 1.0]),
        top_n_sigma=st.sampled_from([-1.0, 2.0]),
        xtc_probability=st.sampled_from([0.0, 0.5]),
        dynatemp_range=st.sampled_from([0.0, 0.4]),
        **common,
        **penalties,
    ),
    st.builds(SamplingParams, mirostat=st.sampled_from([1, 2]), mirostat_tau=st.sampled_from([2.0, 5.0]), **common),
)
letters = st.integers(97, 119)
prompts = st.one_of(
    st.lists(st.integers(0, 255), min_size=1, max_size=NARROW),
    st.builds(lambda unit, n: (unit * n)[:NARROW], st.lists(letters, min_size=1, max_size=9), st.integers(2, 8)),
)
stops = st.lists(st.text("abcdefghijklmnopqrstuvw ", min_size=1, max_size=3), max_size=2).map(tuple)


@st.composite
def requests(draw: st.DrawFn, n_ctx: int) -> Request:
    """Requests that fit; a prompt too long to be evaluated as exactly in parts is never taken from memory."""
    prompt = draw(prompts)
    if n_ctx > 2 * NARROW and draw(st.integers(0, 4), label="long prompt") == 0:
        prompt = (prompt * (2 * NARROW))[: 2 * NARROW]
    return Request(
        prompt=tuple(prompt),
        max_tokens=draw(st.one_of(st.none(), st.integers(0, 40))),
        sampling=draw(samplings),
        stop=draw(stops),
        reuse_prefix=len(prompt) <= NARROW and draw(st.booleans()),
    )


def ngrams() -> st.SearchStrategy[StrategySpec]:
    return st.builds(
        lambda cls, n, m: StrategySpec.of(cls, {"n": n, "m": m}),
        st.sampled_from([NgramK, NgramK4V]),
        st.integers(1, 3),
        st.integers(1, 9),
    )


@every_memory
@modestly
@given(data=st.data())
def test_any_drafter_in_any_company_equals_fresh_plain_runs(
    exact_zoo: ExactZoo, memory: Memory, data: st.DataObject
) -> None:
    model = exact_zoo(memory.model, eos=data.draw(st.sampled_from([None, A_LETTER]), label="declared EOS"))
    n_ctx = data.draw(st.sampled_from([64, 160]), label="n_ctx")
    n_batch = data.draw(st.sampled_from([12, 64, 256]), label="n_batch")
    options = {**memory.options, "n_ctx": n_ctx, "n_batch": n_batch}
    wanted = data.draw(st.lists(requests(n_ctx), min_size=1, max_size=3), label="requests")
    expected = [fresh(model, request, **options) for request in wanted]
    specs = [
        data.draw(st.one_of(st.none(), ngrams(), drafters(right_tape(model, request, **options), data)))
        for request in wanted
    ]
    n_seq = data.draw(st.sampled_from([1, 3]), label="n_seq")
    scheduler = data.draw(st.sampled_from(SCHEDULERS), label="scheduler")
    with watched(model, n_seq=n_seq, **options) as target, Engine(target, scheduler=scheduler) as engine:
        assert target.info.rollback is memory.kind
        for request, right in zip(wanted, expected, strict=True):
            right.check_equals(Output.of(engine.submit(request).result()), "plain output of a used engine")
        running = [engine.submit(drafted(r, spec)) for r, spec in zip(wanted, specs, strict=True)]
        for generation, right in zip(running, expected, strict=True):
            completion = generation.result()
            right.check_equals(Output.of(completion))
            check_stats(completion.stats, completion)


@every_memory
@modestly
@given(data=st.data())
def test_plain_output_equals_decoding_token_by_token(exact_zoo: ExactZoo, memory: Memory, data: st.DataObject) -> None:
    """Against a reference that shares no code with the engine."""
    model = exact_zoo(memory.model, eos=A_LETTER)
    request = data.draw(requests(NARROW))
    options = {**memory.options, "n_ctx": 64}
    with watched(model, **options) as target:
        right = reference(target, request)
    right.check_equals(fresh(model, request, **options), "plain output of the engine")


# -- the sweep --------------------------------------------------------------------------------------------------------

SAMPLINGS: dict[str, SamplingParams] = {
    "greedy": SamplingParams(temperature=0.0, logprobs=2),
    "greedy-penalties": SamplingParams(temperature=0.0, repeat_penalty=1.1, penalty_last_n=-1, dry_multiplier=0.5),
    "warm": SamplingParams(seed=11, temperature=0.8, logprobs=1),
    "hot": SamplingParams(seed=12, temperature=4.0, top_k=0, top_p=1.0, min_p=0.0, logprobs=1),
    "penalties": SamplingParams(
        seed=13, repeat_penalty=1.1, frequency_penalty=0.4, presence_penalty=0.4, dry_multiplier=0.8
    ),
    "cuts": SamplingParams(seed=14, temperature=2.0, typical_p=0.9, top_n_sigma=2.0, xtc_probability=0.5, min_p=0.1),
    "mirostat-1": SamplingParams(seed=15, mirostat=1),
    "mirostat-2": SamplingParams(seed=16, mirostat=2, mirostat_tau=3.0),
    "grammar": SamplingParams(seed=17, temperature=1.5, grammar=GRAMMARS[2]),
    "late-end": SamplingParams(seed=18, min_tokens=30, logit_bias={A_LETTER: 3.0}),
}
PROMPTS = ([*b"the cat the cat the "], [*b"abcdefgh abcdefgh ab"], [*b"wvutsrqponmlkjihgfed"])


def sweep_specs(right: Sequence[int]) -> Iterator[tuple[str, StrategySpec]]:
    """Every kind of strategy and every place where one can fail."""
    for cls, n, m in itertools.product((NgramK, NgramK4V), (1, 3), (2, 8)):
        yield f"{cls.name}-{n}-{m}", StrategySpec.of(cls, {"n": n, "m": m})
    for length in (1, 3, None):
        yield f"oracle-{length}", StrategySpec.of(Oracle, {"tape": right, "length": length})
    for k in (0, 1, 2, 5):
        yield f"poison-{k}", StrategySpec.of(Poison, {"tape": right, "k": k, "length": 6})
    for kind in ALL_JUNK:
        yield f"junk-{kind}", StrategySpec.of(Junk, {"kinds": [kind]})
    for where in ("begin", "max_draft", "draft", "observe", "close"):
        yield f"crash-{where}", StrategySpec.of(Crash, {"tape": right, "where": where, "at": 1})
    yield "crash-init", StrategySpec.of(Crash, {"tape": right, "where": "init"})
    for where in ("begin", "process", "draft", "observe", "end"):
        inner = StrategySpec.of(Crash, {"tape": right, "where": where})
        yield f"batch-crash-{where}", StrategySpec.of(AsBatch, {"cls": inner.cls, "options": inner.options})


@every_memory
@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=["unlimited", "cost-aware"])
@pytest.mark.parametrize("n_seq", [1, 3])
@pytest.mark.parametrize(
    "stride", [pytest.param(6, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.sweep)], ids=["some", "all"]
)
def test_every_sampling_with_every_drafter(
    exact_zoo: ExactZoo, memory: Memory, scheduler: Callable[[], DraftScheduler], n_seq: int, stride: int
) -> None:
    """Or with every ``stride``-th by turns, so that each sampling and each drafter is there."""
    model = exact_zoo(memory.model, eos=A_LETTER)
    for i, (name, sampling) in enumerate(SAMPLINGS.items()):
        wanted = [Request(prompt=prompt, max_tokens=36, sampling=sampling) for prompt in PROMPTS[:n_seq]]
        expected = [fresh(model, request, **memory.options) for request in wanted]
        tapes = [right_tape(model, request, **memory.options) for request in wanted]
        every = [list(sweep_specs(right)) for right in tapes]
        with watched(model, n_seq=n_seq, **memory.options) as target, Engine(target, scheduler=scheduler) as engine:
            for column in list(zip(*every, strict=True))[i % stride :: stride]:
                running = [engine.submit(drafted(r, spec)) for r, (_, spec) in zip(wanted, column, strict=True)]
                for generation, right in zip(running, expected, strict=True):
                    right.check_equals(Output.of(generation.result()), f"{name} sampling with {column[0][0]}")


@every_memory
def test_drafts_are_really_verified_and_rolled_back(exact_zoo: ExactZoo, memory: Memory) -> None:
    """Without this the equalities above could hold because nothing was ever drafted."""
    model = exact_zoo(memory.model)
    request = Request(prompt=PROMPTS[0], max_tokens=48, sampling=SAMPLINGS["greedy"])
    right = right_tape(model, request, **memory.options)
    seen: dict[str, WatchedTarget] = {}
    for name, spec in (
        ("oracle", StrategySpec.of(Oracle, {"tape": right, "length": 4})),
        ("poison", StrategySpec.of(Poison, {"tape": right, "length": 4, "k": 2})),
    ):
        with watched(model, **memory.options) as target, Engine(target, scheduler=Unlimited) as engine:
            stats = engine.submit(drafted(request, spec)).result().stats
            seen[name] = target
            if name == "oracle":
                assert stats.accepted == stats.verified > 30
                assert sum(stats.rollbacks.values()) <= 1  # the last token of the last block was not evaluated plainly
            else:
                # The last draft is cut by the budget, before the wrong token.
                assert stats.accepted_per_position[1] >= stats.verified_per_position[0] - 1 > 10
                assert sum(stats.accepted_per_position[2:]) == 0
                assert stats.draft_steps - 1 <= stats.rollbacks[memory.kind.value] <= stats.draft_steps
    assert max(seen["oracle"].widths[1:]) == 5
    assert (seen["poison"].n_checkpoints > 0) == (memory.kind is Rollback.SNAPSHOT)


def test_both_schedulers_are_tested() -> None:
    assert {*SCHEDULERS} == {Unlimited, OnSteadyMachine}
