"""Over and over: hundreds of requests, many of them cancelled or interrupted, and memory stays where it is."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from specframe.backends.llama.gguf import inspect
from specframe.backends.llama.model import Model
from specframe.core.engine import Engine
from specframe.core.scheduler import Unlimited
from specframe.core.strategy import BatchStrategy, StrategySpec
from specframe.strategies.dspark import Dspark
from specframe.strategies.eagle3 import Eagle3
from specframe.strategies.mtp import Mtp
from specframe.strategies.ngram_k import NgramK
from specframe.testing import Noisy
from tests.support.drafting import PROMPTS, engine, request, spec
from tests.support.exact import WatchedTarget, once
from tests.support.llama import Zoo
from tests.support.resident import resident_bytes

#: What drafts in the i-th request, given the target's text and the draft file.
SpecOf = Callable[[int, tuple[int, ...], Path | None], StrategySpec]


@attrs.frozen
class Case:
    """A target, what drafts, and how memory is kept."""

    name: str
    target: str
    spec: SpecOf
    draft: str | None = None
    options: dict[str, Any] = attrs.field(factory=dict)

    def __str__(self) -> str:
        return self.name


def _noisy(i: int, text: tuple[int, ...], _: Path | None) -> StrategySpec:
    # Another seed is another strategy, so this many are built and thrown away.
    return StrategySpec.of(Noisy, {"tape": text, "seed": i})


def _ngram(_: int, __: tuple[int, ...], ___: Path | None) -> StrategySpec:
    return StrategySpec.of(NgramK, {"n": 1, "m": 4})


def _heads(_: int, __: tuple[int, ...], draft: Path | None) -> StrategySpec:
    return spec(draft, n_max=4)


CASES = [
    Case("dense-noisy", "llama", _noisy),
    Case("window-noisy", "gemma4", _noisy, options={"swa_full": False}),
    Case("hybrid-ngram", "qwen35", _ngram),
    Case("hybrid-ngram-on-device", "qwen35", _ngram, options={"checkpoint_on_device": True}),
    Case("hybrid-bounded-noisy", "qwen35", _noisy, options={"n_rs_seq": 4}),
    Case("heads", "qwen35-mtp", _heads),
    Case("heads-bounded", "qwen35-mtp", _heads, options={"n_rs_seq": 4}),
    Case("heads-in-a-file", "qwen35", _heads, "mtp-qwen35", {"n_rs_seq": 4}),
    Case("assistant", "gemma4", _heads, "gemma4-assistant"),
]


def grown_kib(zoo: Zoo, case: Case, n_requests: int) -> int:
    """KiB by which this process grew in the last three quarters of ``n_requests`` requests."""
    path, draft = zoo(case.target), None if case.draft is None else zoo(case.draft)
    heads = inspect(path).get("{arch}.nextn_predict_layers") is not None
    sizes = []
    with (
        Model(path, load_mtp=heads) as model,
        WatchedTarget(model, n_ctx=256, n_seq=2, n_threads=1, **case.options) as target,
        Engine(target, scheduler=Unlimited) as running,
    ):
        texts = [(*p, *running.submit(request(p, n=20)).result().tokens) for p in PROMPTS]
        for i in range(n_requests):
            which = i % len(PROMPTS)
            wanted = request(PROMPTS[which], case.spec(i, texts[which], draft), n=12, reuse_prefix=bool(i % 2))
            generation = running.submit(wanted)
            if i % 5 == 4:
                target.after_decode = once(KeyboardInterrupt(), at=3)
                with generation, pytest.raises(KeyboardInterrupt):
                    generation.result()
                target.after_decode = None
            elif i % 3 == 2:
                with generation:
                    next(generation)
                    next(generation)
            else:
                assert generation.result().tokens == texts[which][len(PROMPTS[which]) :][:12]
            target.forget()
            if i == n_requests // 4:
                gc.collect()
                sizes.append(resident_bytes())
        gc.collect()
        sizes.append(resident_bytes())
    return (sizes[1] - sizes[0]) // 1024


@pytest.mark.parametrize("case", [CASES[1], CASES[6], CASES[8]], ids=str)
def test_memory_reaches_a_plateau(zoo: Zoo, case: Case) -> None:
    # One checkpoint of the smallest model here has 2 KiB, one context 500.
    assert grown_kib(zoo, case, 160) < 120 * 2


@pytest.mark.sweep
@pytest.mark.parametrize("case", CASES, ids=str)
def test_memory_stays_on_its_plateau(zoo: Zoo, case: Case) -> None:
    assert grown_kib(zoo, case, 1000) < 750 // 2


@pytest.mark.parametrize(
    ("target", "draft", "cls", "options"),
    [
        ("qwen35-mtp", None, Mtp, {"n_rs_seq": 3}),
        ("llama", "eagle3", Eagle3, {}),
        ("llama", "dspark-anchor", Dspark, {}),
    ],
)
def test_abandoned_requests_leave_nothing(
    zoo: Zoo, target: str, draft: str | None, cls: type[BatchStrategy], options: dict[str, Any]
) -> None:
    path, sizes = None if draft is None else zoo(draft), []
    with engine(zoo(target), path, n_ctx=128, **options) as (running, _):
        wanted = spec(path, cls, n_max=3, p_min=0.5 if draft else 0.0)
        for i in range(300):
            generation = running.submit(request([1, 2, 3 + i % 7], wanted, n=12))
            if i % 3:
                generation.result()
            else:
                next(generation)
                generation.close()
            if i in {150, 299}:
                sizes.append(resident_bytes())
    assert sizes[1] - sizes[0] < 2**20
