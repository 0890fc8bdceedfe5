"""Every native call and every hook of a strategy fails, with three requests in flight: memory is right afterwards.

The faults are put between specframe and the library, so that each single call of a step is hit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import pytest

from specframe.backends.llama.library import Library, load_library
from specframe.backends.llama.model import Model
from specframe.backends.llama.target import LlamaTarget
from specframe.core.engine import Engine
from specframe.core.generation import Generation
from specframe.core.ports import Rollback
from specframe.core.request import Request
from specframe.core.sampling import SamplingParams
from specframe.core.scheduler import Unlimited
from specframe.core.strategy import StrategySpec
from specframe.testing import Output, Poison, tape
from tests.support.drafting import PROMPTS, request, spec, strategy_of
from tests.support.exact import quantized
from tests.support.llama import Zoo

N_SEQ = 3
#: Native functions of a step, and what each answers when it refuses.
CALLS: dict[str, Any] = {
    "llama_process": -3,
    "llama_decode": -3,
    "llama_get_logits": None,
    "llama_memory_seq_pos_max": -1,
    "llama_memory_seq_rm": False,
    "llama_state_seq_get_data_ext": 0,
    "llama_state_seq_set_data_ext": 0,
}
HOOKS = ("begin", "process", "draft", "observe", "end")
#: How it goes wrong, and when.
MODES = ("refuses", "raises", "interrupted")
SAMPLING = SamplingParams(seed=5, temperature=0.8)


class FaultyLibrary:
    """The functions of a library, one of which fails once when it is told to."""

    def __init__(self, real: Any, null: Any) -> None:
        self._real, self._null = real, null
        self._armed: tuple[str, int, str] | None = None

    def arm(self, name: str, at: int, mode: str) -> None:
        """Let the ``at``-th call of ``name`` from now on fail."""
        self._armed = (name, at, mode)

    def disarm(self) -> bool:
        """Whether it failed."""
        struck, self._armed = self._armed is None, None
        return struck

    def __dir__(self) -> list[str]:
        return dir(self._real)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name not in CALLS:
            return found

        def call(*arguments: Any) -> Any:
            if self._due(name):
                return self._fail(name, lambda: found(*arguments))
            return found(*arguments)

        return call

    def _due(self, name: str) -> bool:
        if self._armed is None or self._armed[0] != name:
            return False
        _, left, mode = self._armed
        self._armed = (name, left - 1, mode)
        return left == 1

    def _fail(self, name: str, function: Callable[[], Any]) -> Any:
        assert self._armed is not None
        mode, self._armed = self._armed[2], None
        if mode == "raises":
            raise MemoryError(name)
        if mode == "interrupted":
            function()
            raise KeyboardInterrupt(name)
        answer = CALLS[name]
        return self._null if answer is None else answer


@attrs.frozen
class Case:
    """A target with three requests, what drafts for them, and how memory is kept."""

    target: str
    draft: str | None
    heads: bool
    options: dict[str, Any] = attrs.field(factory=dict)

    def __str__(self) -> str:
        return "-".join([self.target, "mtp" if self.heads else "poison", *map(str, self.options.values())])


CASES = [
    Case("llama", None, heads=False),
    Case("gemma4", None, False, {"swa_full": False}),
    Case("gemma4", "gemma4-assistant", heads=True),
    Case("gemma4", "gemma4-assistant", True, {"swa_full": False}),
    Case("qwen35", None, heads=False),
    Case("qwen35", None, False, {"n_rs_seq": 2}),
    Case("qwen35-mtp", None, heads=True),
    Case("qwen35-mtp", None, True, {"n_rs_seq": 4}),
    Case("step35-mtp3", None, heads=True),
]


class Bench:
    """An engine on a library that can fail, and what it answers when nothing does."""

    def __init__(self, case: Case, path: Path, draft: Path | None) -> None:
        self._case, self._path, self._draft = case, path, draft
        real = load_library()
        self.faults = FaultyLibrary(real.lib, real.ffi.NULL)
        self._library: Library = attrs.evolve(real, lib=self.faults)
        self._open: ExitStack | None = None
        self.engine = self._renew()
        plain = [request(prompt, n=12, sampling=SAMPLING) for prompt in PROMPTS]
        self.right = [Output.of(self.engine.submit(each).result()) for each in plain]
        self.wanted = [attrs.evolve(each, strategy=self._spec(each)) for each in plain]
        stats = [generation.result().stats for generation in self.start()]
        self.accepted = [each.accepted_per_position for each in stats]
        self.restores = any(each.restores for each in stats)
        assert all(map(sum, self.accepted))

    def _spec(self, plain: Request) -> StrategySpec:
        if self._case.heads:
            return spec(self._draft, n_max=3)
        right = tape(self.target, plain)
        return StrategySpec.of(Poison, {"tape": right, "k": 1, "length": 4})

    def _renew(self) -> Engine:
        self.close()
        with ExitStack() as stack:
            model = stack.enter_context(
                Model(self._path, library=self._library, load_mtp=self._case.heads and self._draft is None)
            )
            self.target = stack.enter_context(
                LlamaTarget(model, n_ctx=128, n_seq=N_SEQ, n_threads=1, **self._case.options)
            )
            engine = stack.enter_context(Engine(self.target, scheduler=Unlimited))
            self._open = stack.pop_all()
        return engine

    def close(self) -> None:
        """Close everything."""
        opened, self._open = self._open, None
        if opened is not None:
            opened.close()

    def start(self) -> list[Generation]:
        """The three requests, drafted."""
        return [self.engine.submit(each) for each in self.wanted]

    def survive(self, running: Sequence[Generation]) -> None:
        """Take the requests up again after an interrupt; each is right, or has the error."""
        for generation, right in zip(running, self.right, strict=True):
            for _ in range(3):
                try:
                    completion = generation.result()
                except KeyboardInterrupt:
                    continue
                except Exception:  # noqa: BLE001 -- whatever was injected
                    break
                if completion.stop_detail == "interrupted":
                    assert completion.tokens == right.tokens[: completion.completion_tokens]
                else:
                    right.check_equals(Output.of(completion), "a request that survived")
                break

    def check_next(self) -> None:
        """The next requests are as on the first day."""
        if len(self.engine._free) < N_SEQ:  # a sequence that could not even be cleared is given up
            assert self.engine._free
            self.engine = self._renew()
        for generation, right, accepted in zip(self.start(), self.right, self.accepted, strict=True):
            completion = generation.result()
            right.check_equals(Output.of(completion), "the next request")
            assert completion.stats.accepted_per_position == accepted


@pytest.fixture(scope="module")
def bench(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Case], Bench]]:
    directory = tmp_path_factory.mktemp("exact")
    opened: list[Bench] = []

    def make(case: Case) -> Bench:
        path = directory / f"{case.target}.gguf"
        if not path.exists():
            quantized(zoo(case.target), path)
        opened.append(Bench(case, path, None if case.draft is None else zoo(case.draft)))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def strike(found: Bench, places: Iterable[tuple[str, int]]) -> set[str]:
    """Every call fails in a mode at a place, for each of ``places``; returns the calls that did."""
    struck = set()
    for name, (mode, at) in itertools.product(CALLS, places):
        running = found.start()
        found.faults.arm(name, at, mode)
        found.survive(running)
        if found.faults.disarm():
            struck.add(name)
        found.check_next()
    return struck


@pytest.mark.parametrize("case", CASES, ids=str)
def test_native_calls_fail(bench: Callable[[Case], Bench], case: Case) -> None:
    found = bench(case)
    assert found.restores or found.target.info.rollback is not Rollback.SNAPSHOT
    struck = strike(found, [("refuses", 3), ("raises", 5), ("interrupted", 2)])
    expected = {"llama_process", "llama_get_logits", "llama_memory_seq_pos_max", "llama_memory_seq_rm"}
    if case.heads:
        expected.add("llama_decode")
    if found.restores:
        expected |= {"llama_state_seq_get_data_ext", "llama_state_seq_set_data_ext"}
    assert struck >= expected


@pytest.mark.sweep
@pytest.mark.parametrize("case", CASES, ids=str)
def test_native_calls_fail_at_every_place(bench: Callable[[Case], Bench], case: Case) -> None:
    strike(bench(case), [*itertools.product(MODES, range(1, 40))])


@pytest.mark.parametrize("case", [case for case in CASES if case.heads], ids=str)
def test_hooks_of_heads_fail(bench: Callable[[Case], Bench], case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    found = bench(case)
    for hook, error, at in itertools.product(HOOKS, (RuntimeError, KeyboardInterrupt), (1, 4)):
        assert isinstance(found.wanted[0].strategy, StrategySpec)
        strategy = strategy_of(found.engine, found.wanted[0].strategy)
        original, calls = getattr(strategy, hook), itertools.count(1)

        def fail(
            *arguments: Any, original: Any = original, calls: Any = calls, at: int = at, error: Any = error
        ) -> Any:
            if next(calls) == at:
                raise error
            return original(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(strategy, hook, fail)
            found.survive(found.start())
        found.check_next()
