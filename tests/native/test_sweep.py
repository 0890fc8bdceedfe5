"""Every target of the zoo with every strategy and every draft file that suits it: drafting changes nothing at all.

The targets are bit-exact at every batch width (see ``tests.support.exact``), so whatever differs is a mistake.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from specframe.backends.llama.gguf import inspect
from specframe.backends.llama.model import Model
from specframe.backends.llama.target import LlamaTarget
from specframe.backends.llama.validation import validate_target
from specframe.compatibility import check_files
from specframe.core.engine import Engine
from specframe.core.errors import ConfigError
from specframe.core.request import Completion, FinishReason, Request
from specframe.core.sampling import SamplingParams
from specframe.core.scheduler import Unlimited
from specframe.core.strategy import StrategySpec
from specframe.plugins import Registry
from specframe.testing import Output
from specframe.testing.zoo import NAMES
from tests.support.drafting import request
from tests.support.exact import quantized
from tests.support.llama import Zoo
from tests.support.lossless import check_stats

#: Targets, and how their memory is kept: each kind of rollback.
TARGETS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen3": ("qwen3", {}),
    "window": ("gemma4", {}),
    # The ring of cells is as long as the longest text: what it does when it is full is not a matter of bits.
    "window-snapshot": ("gemma4", {"swa_full": False, "n_ubatch": 2048}),
    "hybrid-snapshot": ("qwen35", {}),
    "hybrid-bounded": ("qwen35", {"n_rs_seq": 8}),
    "heads-snapshot": ("qwen35-mtp", {"checkpoint_on_device": True}),
    "heads-bounded": ("qwen35-mtp", {"n_rs_seq": 4}),
    "chained": ("step35-mtp3", {}),
}
STRATEGIES = {info.name: info.cls for info in Registry.discover(load="").strategies()}
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0.0, logprobs=1),
    "seeded": SamplingParams(seed=11, temperature=0.9, repeat_penalty=1.05, logprobs=1),
}
PROMPTS = [list(b"the quick brown fox"), list(b"abcabcabcabcabc"), list(b"hello world, hello")]
each_target = pytest.mark.parametrize("name", TARGETS)


@attrs.frozen
class Pair:
    """A strategy and its draft file."""

    strategy: str
    draft: Path | None

    def lengths(self, most: int) -> Iterator[StrategySpec]:
        """The strategy with drafts of at most 1, 2, ... tokens; as it is when its length cannot be chosen."""
        cls = STRATEGIES[self.strategy]
        known = {field.name for field in attrs.fields(cls.Options)}
        option = next((name for name in ("n_max", "m") if name in known), None)
        for n in range(1, most + 1) if option else [None]:
            given = {} if option is None else {option: n}
            if "n" in known and option == "m":
                given["n"] = 1
            yield StrategySpec.of(cls, given, self.draft)

    def __str__(self) -> str:
        return f"{self.strategy} with {None if self.draft is None else self.draft.name}"


@pytest.fixture(scope="module")
def exact_file(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``exact_file(name)`` is a target with the same logits at every batch width."""
    directory = tmp_path_factory.mktemp("exact")
    return functools.cache(lambda name: quantized(zoo(name), directory / f"{name}.gguf"))


@pytest.fixture(scope="module")
def pairs(zoo: Zoo, exact_file: Callable[[str], Path]) -> Callable[[str], list[Pair]]:
    """``pairs(target)``: what ``specframe check`` says works with it."""
    # Any target could draft as well; one that is small will do.
    drafts = [path for name in NAMES if not _is_target(path := zoo(name)) or name == "draft-simple"]

    def suiting(target: str) -> list[Pair]:
        found = []
        for draft in [None, *drafts]:
            checks = {check.subject: check.ok for check in check_files(exact_file(target), draft=draft).checks}
            fits = draft is None or (checks["draft"] and checks["draft vocabulary"])
            takes = [name for name, cls in STRATEGIES.items() if draft is None or cls.uses_draft_file]
            found += [Pair(name, draft) for name in takes if fits and checks[f"strategy {name}"]]
        return found

    return functools.cache(suiting)


def _is_target(path: Path) -> bool:
    try:
        validate_target(inspect(path))
    except ConfigError:
        return False
    return True


@contextmanager
def opened(path: Path, *, n_ctx: int = 256, **options: Any) -> Iterator[Engine]:
    """An engine that verifies every draft, on one thread."""
    with (
        Model(path, load_mtp=inspect(path).get("{arch}.nextn_predict_layers") is not None) as model,
        LlamaTarget(model, n_ctx=n_ctx, n_threads=1, **options) as target,
        Engine(target, scheduler=Unlimited) as engine,
    ):
        yield engine


def check(engine: Engine, wanted: Sequence[Request], right: Sequence[Output], spec: StrategySpec) -> list[Completion]:
    """Run ``wanted`` together with a strategy and compare."""
    running = [engine.submit(attrs.evolve(each, strategy=spec)) for each in wanted]
    done = [generation.result() for generation in running]
    for completion, expected in zip(done, right, strict=True):
        expected.check_equals(Output.of(completion), str(spec))
        check_stats(completion.stats, completion)
        assert not (completion.stats.inactive_reason or "").startswith("strategy-error")
    return done


def alone(engine: Engine, wanted: Sequence[Request]) -> list[Output]:
    """What plain decoding answers, one request after another."""
    return [Output.of(engine.submit(each).result()) for each in wanted]


def sweep(engine: Engine, found: Sequence[Pair], *, most: int, n_tokens: int) -> dict[str, int]:
    """Every pair in every length, greedy and seeded; returns accepted tokens by strategy."""
    accepted: dict[str, int] = dict.fromkeys((pair.strategy for pair in found), 0)
    for sampling in SAMPLINGS.values():
        wanted = [request(prompt, n=n_tokens, sampling=sampling) for prompt in PROMPTS]
        right = alone(engine, wanted)
        for pair in found:
            for spec in pair.lengths(most):
                accepted[pair.strategy] += sum(c.stats.accepted for c in check(engine, wanted, right, spec))
    return accepted


def test_every_strategy_is_swept(pairs: Callable[[str], list[Pair]]) -> None:
    assert {pair.strategy for name, _ in TARGETS.values() for pair in pairs(name)} == {*STRATEGIES}


@each_target
def test_short_texts(name: str, exact_file: Callable[[str], Path], pairs: Callable[[str], list[Pair]]) -> None:
    target, options = TARGETS[name]
    with opened(exact_file(target), n_seq=3, **options) as engine:
        accepted = sweep(engine, [*{p.strategy: p for p in pairs(target)}.values()], most=2, n_tokens=20)
    assert min(accepted.values()) > 0, accepted


@pytest.mark.sweep
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("n_seq", [1, 3])
@each_target
def test_every_length(
    name: str, n_seq: int, exact_file: Callable[[str], Path], pairs: Callable[[str], list[Pair]]
) -> None:
    target, options = TARGETS[name]
    with opened(exact_file(target), n_seq=n_seq, **options) as engine:
        accepted = sweep(engine, pairs(target), most=8, n_tokens=40)
    assert min(accepted.values()) > 0, accepted


@pytest.mark.sweep
@pytest.mark.timeout(1800)
@each_target
def test_two_turns_and_a_full_context(
    name: str, exact_file: Callable[[str], Path], pairs: Callable[[str], list[Pair]]
) -> None:
    target, options = TARGETS[name]
    prompt = PROMPTS[2]
    for pair in pairs(target):
        *_, spec = pair.lengths(8)
        with opened(exact_file(target), n_ctx=58, **options) as engine:
            plain = engine.submit(request(prompt, n=14)).result()
            following = [*prompt, *plain.tokens, *b" and "]
            right = alone(engine, [request(following, n=200)])
            for first in (None, spec):
                turn = request(prompt, first, n=14, reuse_prefix=True)
                assert engine.submit(turn).result().tokens == plain.tokens, pair
                [second] = check(engine, [request(following, n=200, reuse_prefix=True)], right, spec)
                assert second.finish_reason is FinishReason.LENGTH
                assert len(following) + second.completion_tokens == 58 + 1


@pytest.mark.sweep
@pytest.mark.timeout(1800)
@each_target
def test_long_texts(name: str, exact_file: Callable[[str], Path], pairs: Callable[[str], list[Pair]]) -> None:
    """2,000 tokens, across hundreds of rollbacks."""
    target, options = TARGETS[name]
    for sampling in SAMPLINGS.values():
        with opened(exact_file(target), n_ctx=2100, **options) as engine:
            wanted = [request(PROMPTS[0], n=2000, sampling=sampling)]
            right = alone(engine, wanted)
            rollbacks: dict[str, int] = {}
            for pair in {p.strategy: p for p in pairs(target)}.values():
                *_, spec = pair.lengths(5)
                [done] = check(engine, wanted, right, spec)
                rollbacks[pair.strategy] = sum(done.stats.rollbacks.values())
            # Some strategies are right about nearly all of a text that repeats itself.
            assert min(rollbacks.values()) > 0, rollbacks
            assert sum(rollbacks.values()) > 200, rollbacks
