"""Token for token on a real model, over hundreds of tokens and beyond 512 memory cells, with every draft verified."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import specframe
from specframe.backends.llama.model import Model
from specframe.backends.llama.target import LlamaTarget
from specframe.core.request import Completion, FinishReason, Request
from specframe.core.sampling import SamplingParams
from specframe.llm import LLM
from specframe.testing import Noisy, replay
from tests.support.lossless import check_stats

pytestmark = pytest.mark.slow

RECORDS = "\n".join(
    f'{{"time": "2031-05-{day:02d}T0{day % 10}:15:00Z", "level": "{level}", "service": "{service}", "code": {code}}}'
    for day, level, service, code in (
        (1, "INFO", "gateway", 200),
        (2, "ERROR", "billing", 503),
        (3, "INFO", "search", 200),
        (4, "WARN", "gateway", 429),
        (5, "ERROR", "mailer", 500),
        (6, "INFO", "billing", 200),
    )
)
CODE = """class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance += amount
        return self.balance

    def withdraw(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        if amount > self.balance:
            raise ValueError("insufficient funds")
        self.balance -= amount
        return self.balance
"""
QUESTIONS = {
    "code": f"Rewrite this class with type hints and docstrings. Give only the code.\n\n```python\n{CODE}```",
    "extraction": f"Repeat every ERROR record of this log as it is, then every INFO record.\n\n{RECORDS}",
    "prose": "Write a long story about a lighthouse keeper who finds a map in a bottle. Begin at once.",
}
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "logprobs": 0},
    "seeded": {"temperature": 0.8, "seed": 2024, "repeat_penalty": 1.05},
}
STRATEGIES: tuple[tuple[str, dict[str, int]], ...] = (
    ("ngram-k", {"n": 2, "m": 12}),
    ("ngram-k4v", {"n": 2, "m": 8}),
)
N_TOKENS = 280


@pytest.fixture(scope="module")
def llm(smollm2: Path) -> Iterator[LLM]:
    with specframe.load(smollm2, strategy="none", n_ctx=1024, threads=1) as opened:
        yield opened


@pytest.mark.parametrize(("task", "sampling"), [("code", "greedy"), ("extraction", "seeded"), ("prose", "greedy")])
def test_the_text_is_the_same_token_for_token(llm: LLM, task: str, sampling: str) -> None:
    def answer(**options: Any) -> Completion:
        return llm.chat(
            [{"role": "user", "content": QUESTIONS[task]}],
            max_tokens=N_TOKENS,
            ignore_eos=True,
            reuse_prefix=False,
            **SAMPLINGS[sampling],
            **options,
        )

    plain = answer()
    assert (plain.completion_tokens, plain.finish_reason) == (N_TOKENS, FinishReason.LENGTH)
    for name, options in STRATEGIES:
        drafted = answer(strategy=name, options=options, draft_length=8)
        at = next(
            (i for i, pair in enumerate(zip(plain.tokens, drafted.tokens, strict=True)) if len({*pair}) > 1), None
        )
        assert at is None, f"{name} {options} parts from plain decoding at token {at}"
        assert drafted.text == plain.text
        assert [p.logprob for p in drafted.logprobs] == pytest.approx([p.logprob for p in plain.logprobs], abs=1e-4)
        assert drafted.stats.accepted > 0
        check_stats(drafted.stats, drafted)


def test_memory_in_blocks_changes_no_more_with_drafts_than_without(smollm2: Path) -> None:
    """Keys and values of this model are turned before they are stored so, which has roundings of its own."""
    options: dict[str, Any] = {"max_tokens": 48, "temperature": 0.0, "logprobs": 1, "reuse_prefix": False}
    with specframe.load(smollm2, strategy="none", n_ctx=512, threads=1, type_k="q8_0", type_v="q5_1") as small:
        prompt = small.encode_chat([{"role": "user", "content": QUESTIONS["code"]}])
        plain = small.generate(prompt, **options)
        noisy = {"tape": (*prompt, *plain.tokens), "accuracy": 0.9}
        drafted = small.generate(prompt, strategy=Noisy, options=noisy, draft_length=3, **options)
    assert drafted.tokens == plain.tokens
    assert drafted.logprobs == plain.logprobs  # to the last bit
    assert drafted.stats.accepted > 24


def test_every_token_is_plain_decodings_own(llm: LLM, smollm2: Path) -> None:
    strategy, accepted = "first-of(ngram-k(n=4,m=12),ngram-k4v(n=2,m=8))", 0
    with Model(smollm2) as model, LlamaTarget(model, n_ctx=1024, n_threads=1) as target:
        for question in QUESTIONS.values():
            prompt = llm.encode_chat([{"role": "user", "content": question}])
            options: dict[str, Any] = {"max_tokens": N_TOKENS, "temperature": 0.0, "reuse_prefix": False}
            done = llm.generate(prompt, strategy=strategy, draft_length=12, **options)
            asked = Request(prompt=prompt, max_tokens=N_TOKENS, sampling=SamplingParams(temperature=0.0))
            report = replay(target, asked, done)
            report.check()
            assert report.n_tokens >= done.completion_tokens > 40
            accepted += done.stats.accepted
    assert accepted > 40


def test_different_seeds_give_different_texts_each_its_own_with_drafting(llm: LLM) -> None:
    texts = set()
    for seed in range(5):
        options: dict[str, Any] = {"max_tokens": 24, "temperature": 0.8, "seed": seed, "reuse_prefix": False}
        plain = llm.generate("one two three one two three one two", **options)
        drafted = llm.generate(
            "one two three one two three one two",
            **options,
            strategy="ngram-k",
            options={"n": 1, "m": 5},
            draft_length=5,
        )
        assert drafted.tokens == plain.tokens
        texts.add(plain.text)
    assert len(texts) > 3


def test_three_at_once_say_what_each_says_alone(smollm2: Path) -> None:
    with specframe.load(smollm2, strategy="none", n_ctx=1024, parallel=3, threads=1) as together:
        options: dict[str, Any] = {"max_tokens": 64, "temperature": 0.0, "reuse_prefix": False}
        prompts = [CODE, RECORDS, "It was a dark night, and it was a cold night, and"]
        alone = [together.generate(prompt, **options) for prompt in prompts]
        streams = [
            together.stream(prompt, **options, strategy=name, options=chosen, draft_length=8)
            for prompt, (name, chosen) in zip(prompts, (STRATEGIES * 2)[:3], strict=True)
        ]
        for stream, right in zip(streams, alone, strict=True):
            completion = stream.result()
            assert completion.tokens == right.tokens
            assert completion.finish_reason is right.finish_reason
