"""Shifting real memory: refused where llama.cpp would abort, and the same with and without drafting elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from specframe.backends.llama.target import LlamaTarget
from specframe.core.engine import Engine
from specframe.core.errors import BackendError, ConfigError
from specframe.core.request import Request
from specframe.core.sampling import SamplingParams
from specframe.core.scheduler import Unlimited
from specframe.core.strategy import StrategySpec
from specframe.strategies.ngram_k import NgramK
from specframe.testing import Output
from tests.support.exact import ExactZoo
from tests.support.llama import Zoo, feed, target, tokens

PROMPT = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]


@pytest.mark.parametrize("name", ["llama", "gemma4"])
@pytest.mark.parametrize("n_seq", [1, 2])
def test_drafting_changes_nothing(zoo: Zoo, name: str, n_seq: int) -> None:
    with target(zoo(name), n_ctx=64, n_seq=n_seq) as opened, Engine(opened, scheduler=Unlimited) as engine:
        assert opened.info.can_shift
        request: dict[str, Any] = {
            "prompt": PROMPT,
            "max_tokens": 200,
            "sampling": SamplingParams(seed=4, temperature=0.4, repeat_penalty=1.05),
            "context_full": "shift",
        }
        plain = engine.submit(Request(**request)).result()
        spec = StrategySpec.of(NgramK, {"n": 1, "m": 5})
        for generation in [engine.submit(Request(**request, strategy=spec)) for _ in range(n_seq)]:
            drafted = generation.result()
            assert drafted.tokens == plain.tokens
            assert drafted.stats.accepted > 0
            assert drafted.stats.shifts == plain.stats.shifts > 3
        assert plain.completion_tokens == 200


@pytest.mark.parametrize("name", ["llama", "gemma4"])
@pytest.mark.parametrize("n_keep", [0, 100, 200, 254])
def test_what_a_shifted_context_left_is_reused_only_if_it_is_all_there(
    exact_zoo: ExactZoo, name: str, n_keep: int
) -> None:
    """Sliding-window layers give away cells of the first tokens, which a later prompt may begin with."""
    model = exact_zoo(name)
    prompt = tokens(255)
    following = Request(
        prompt=[*prompt[:60], *PROMPT], max_tokens=4, reuse_prefix=True, sampling=SamplingParams(temperature=0.0)
    )
    with LlamaTarget(model, n_ctx=256, n_batch=8, n_threads=1) as opened, Engine(opened) as engine:
        right = Output.of(engine.submit(following).result())
        full = Request(prompt=prompt, max_tokens=150, context_full="shift", n_keep=n_keep)
        assert engine.submit(full).result().stats.shifts > 0
        reused = engine.submit(following).result()
        right.check_equals(Output.of(reused), "a prompt behind a shifted context")
        assert reused.stats.cached_tokens == (min(60, n_keep) if name == "llama" else 0)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("qwen35", {}),
        ("qwen35", {"n_rs_seq": 4}),
        ("gemma4", {"swa_full": False}),
        ("llama", {"type_k": "bf16"}),
    ],
)
def test_memory_that_cannot_shift_refuses(zoo: Zoo, name: str, options: dict[str, Any]) -> None:
    with target(zoo(name), n_ctx=64, **options) as opened, Engine(opened, scheduler=Unlimited) as engine:
        with pytest.raises(ConfigError, match="context_full='shift' does not work with this model"):
            engine.submit(Request(prompt=PROMPT, max_tokens=9, context_full="shift"))
        feed(opened, PROMPT, rows=0)
        with pytest.raises(BackendError, match="cannot be dropped"):
            opened.shift(0, 1, 2)
        assert opened.n_past(0) == len(PROMPT)


def test_impossible_shifts_change_nothing(zoo: Zoo) -> None:
    with target(zoo("llama")) as opened:
        feed(opened, PROMPT, rows=0)
        for n_keep, n_drop in ((0, 0), (-1, 2), (0, 11), (9, 2), (11, 1)):
            with pytest.raises(BackendError, match="cannot be dropped"):
                opened.shift(0, n_keep, n_drop)
            assert opened.n_past(0) == len(PROMPT)


def test_what_moved_keeps_its_content_and_gets_its_position(zoo: Zoo) -> None:
    """Dropping from the front is the same as never having had it, but for what the others took from it."""
    with target(zoo("llama"), n_seq=2) as opened:
        text = tokens(30)
        feed(opened, text, rows=0)
        opened.shift(0, 4, 10)
        assert opened.n_past(0) == 20
        feed(opened, [*text[:4], *text[14:]], seq=1, rows=0)
        moved, fresh = feed(opened, [7, 8]), feed(opened, [7, 8], seq=1)
        assert opened.n_past(0) == opened.n_past(1) == 22
        assert moved.shape == fresh.shape
        # Not a single bit would agree if positions were off; how much context matters depends on the weights.
        assert float(abs(moved - fresh).max()) < float(abs(fresh).max())
