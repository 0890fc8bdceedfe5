"""The engine on real memory: whatever the kind of rollback, drafting changes nothing but the speed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from specframe.core.engine import Engine
from specframe.core.request import Request
from specframe.core.sampling import SamplingParams
from specframe.core.scheduler import Unlimited
from specframe.core.strategy import StrategySpec
from specframe.strategies.ngram_k import NgramK
from tests.support.llama import Zoo, target, tokens

PROMPT = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]
# As long as the first: llama.cpp cuts batches of several sequences into pieces of equal length, and flash attention
# rounds long pieces differently from short ones.
OTHER = tokens(len(PROMPT))
#: Choices with room around them: a tiny model's weights are floats, so the width of a batch moves its logits by 1e-6.
SAMPLING: dict[str, SamplingParams] = {
    "greedy": SamplingParams(temperature=0.0),
    "penalties": SamplingParams(seed=3, repeat_penalty=1.1, penalty_last_n=-1, frequency_penalty=0.1),
    "grammar": SamplingParams(seed=5, grammar="root ::= [ -~]+"),
}
#: Choices that depend on the last bit, for a model whose logits do not depend on the width.
DELICATE: dict[str, SamplingParams] = {
    "mirostat": SamplingParams(seed=6, mirostat=2),
    "everything": SamplingParams(
        seed=7, dry_multiplier=0.5, xtc_probability=0.3, typical_p=0.95, min_tokens=20, logit_bias={9: 1.0}
    ),
    "open": SamplingParams(seed=8, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.05),
}


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize(
    ("name", "options", "rollback"),
    [
        ("llama", {}, "truncate"),
        ("gemma4", {}, "truncate"),
        ("gemma4", {"swa_full": False}, "snapshot"),
        ("qwen35", {}, "snapshot"),
        ("qwen35", {"n_rs_seq": 8}, "bounded"),
    ],
)
def test_drafting_changes_nothing(zoo: Zoo, name: str, options: dict[str, Any], rollback: str, sampling: str) -> None:
    spec = StrategySpec.of(NgramK, {"n": 2, "m": 6})
    with target(zoo(name), n_seq=2, **options) as opened, Engine(opened, scheduler=Unlimited) as engine:
        requests = [
            Request(prompt=prompt, max_tokens=100, sampling=SAMPLING[sampling], strategy=strategy)
            for prompt in (PROMPT, OTHER)
            for strategy in (None, spec)
        ]
        plain, drafted, other, other_drafted = [engine.submit(request).result() for request in requests]
        assert plain.tokens == drafted.tokens
        assert other.tokens == other_drafted.tokens
        assert drafted.stats.accepted > 0
        assert set(drafted.stats.rollbacks) <= {rollback}
        # Both at once, in one batch.
        together = [engine.submit(requests[1]), engine.submit(requests[3])]
        assert [generation.result().tokens for generation in together] == [plain.tokens, other.tokens]


@pytest.mark.slow
@pytest.mark.parametrize("sampling", DELICATE)
def test_drafting_changes_no_bit_of_the_real_model(smollm2: Path, sampling: str) -> None:
    spec = StrategySpec.of(NgramK, {"n": 1, "m": 6})
    with target(smollm2, n_threads=2) as opened, Engine(opened, scheduler=Unlimited) as engine:
        prompt = opened.vocab.tokenize("one two three four one two three four one two", add_special=False)
        request = Request(prompt=prompt, max_tokens=40, sampling=DELICATE[sampling])
        plain = engine.submit(request).result()
        drafted = engine.submit(attrs.evolve(request, strategy=spec)).result()
    assert drafted.tokens == plain.tokens
    assert drafted.stats.drafted > 0
