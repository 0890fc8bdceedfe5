"""What specframe costs besides llama.cpp: time inside steps that is not spent in native calls.

Every native function is wrapped in one that adds up its time; what is left of a step is Python. What the wrappers
themselves cost is measured once and taken off. The figure of a run is the median of its steps, so a step in which
another process had the core does not count; what happens once per request (submission, prompt, first token, end) is
left out.
"""

from __future__ import annotations

import cProfile
import math
import pstats
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from specframe.backends.llama.library import load_library
from specframe.backends.llama.model import Model
from specframe.backends.llama.target import LlamaTarget
from specframe.bench.statistics import Summary
from specframe.core.engine import Engine
from specframe.core.errors import ConfigError
from specframe.core.request import Request
from specframe.core.sampling import SamplingParams
from specframe.core.scheduler import Unlimited
from specframe.core.strategy import StrategySpec
from specframe.testing.drafters import Oracle, Poison

GREEDY = SamplingParams(temperature=0.0)


class NativeClock:
    """Stands in for the library of cffi and adds up the time spent inside its functions."""

    def __init__(self, lib: Any) -> None:
        self._lib = lib
        self.seconds = 0.0
        self.calls = 0
        self.overhead_s = 0.0
        """What one call of a wrapper takes beyond the native function."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._lib, name)
        if callable(value):
            value = self._timed(value)
        setattr(self, name, value)
        return value

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        clock = time.perf_counter

        def call(*arguments: Any) -> Any:
            started = clock()
            try:
                return function(*arguments)
            finally:
                self.seconds += clock() - started
                self.calls += 1

        return call

    def calibrate(self, n: int = 20_000) -> None:
        """Measure the wrapper on a function that does nothing."""
        call, before = self._timed(int), self.seconds
        # The least of each: what interrupts an empty loop must not count as a gain of the other.
        empty = outside = math.inf
        for _ in range(5):
            started = time.perf_counter()
            for _ in range(n):
                pass
            empty = min(empty, time.perf_counter() - started)
            inside, started = self.seconds, time.perf_counter()
            for _ in range(n):
                call()
            outside = min(outside, time.perf_counter() - started - (self.seconds - inside))
        self.overhead_s, self.seconds = (outside - empty) / n, before

    def read(self) -> tuple[float, float]:
        """Now, and the native seconds until now with the cost of the wrappers added."""
        return time.perf_counter(), self.seconds + self.calls * self.overhead_s


@attrs.frozen(kw_only=True)
class Case:
    """One kind of step."""

    name: str
    draft: int = 0
    """Tokens drafted per step."""
    wrong_at: int | None = None
    """Position of the first wrong token of every draft; None: all are accepted."""
    goal_us: float | None = None

    @property
    def emitted(self) -> int:
        """Tokens of such a step."""
        return 1 + (self.draft if self.wrong_at is None else self.wrong_at)

    def strategy(self, tape: tuple[int, ...]) -> StrategySpec | None:
        """A drafter that knows what will be generated, and is wrong where it is told to be."""
        if not self.draft:
            return None
        if self.wrong_at is None:
            return StrategySpec.of(Oracle, {"tape": tape, "length": self.draft})
        return StrategySpec.of(Poison, {"tape": tape, "length": self.draft, "k": self.wrong_at})


#: Three tokens is what most servers draft; eight and sixteen are what n-gram strategies reach.
CASES = (
    Case(name="plain token", goal_us=25.0),
    Case(name="verify 3, all accepted", draft=3, goal_us=80.0),
    Case(name="verify 8, all accepted", draft=8, goal_us=80.0),
    Case(name="verify 8, wrong at 4", draft=8, wrong_at=4, goal_us=80.0),
    Case(name="verify 16, all accepted", draft=16),
    Case(name="verify 48, wrong at 0", draft=48, wrong_at=0),
)

#: Without goals: with a real vocabulary and cold caches after each decode the figures are the machine's as well.
REAL_CASES = (Case(name="plain token"), Case(name="verify 8, all accepted", draft=8))


@attrs.frozen
class Step:
    """Where the time of one step went."""

    python_s: float
    native_s: float
    tokens: int


@attrs.frozen(kw_only=True)
class Cost:
    """What one kind of step costs outside native calls."""

    case: Case
    per_step_us: Summary
    per_token_us: float
    native_us: float
    """Inside native calls, per step."""
    n_steps: int
    profile: tuple[tuple[str, float], ...] = ()
    """Python functions that take longest, in microseconds per step under the profiler, which slows them down."""


class Bench:
    """A model with an engine whose native calls are timed."""

    def __init__(self, model: Path, *, library: str | None, n_threads: int, n_ctx: int) -> None:
        native = load_library(library)
        self._clock = NativeClock(native.lib)
        self._clock.calibrate()
        self._model = Model(model, library=attrs.evolve(native, lib=self._clock))
        self._target = LlamaTarget(self._model, n_ctx=n_ctx, n_batch=512, n_ubatch=512, n_threads=n_threads)
        self._engine = Engine(self._target, scheduler=Unlimited)
        self.prompt = self._prompt()

    def _prompt(self) -> tuple[int, ...]:
        text = "The quick brown fox jumps over the lazy dog."
        return tuple(self._model.vocab.tokenize_prompt(text))

    def close(self) -> None:
        """Close engine, context and model."""
        self._engine.close()
        self._target.close()
        self._model.close()

    def tape(self, n_tokens: int) -> tuple[int, ...]:
        """Prompt and what follows it: what an oracle knows."""
        run = self._engine.submit(self._request(n_tokens + 64, None)).result()
        return self.prompt + run.tokens

    def _request(self, n_tokens: int, strategy: StrategySpec | None) -> Request:
        return Request(prompt=self.prompt, max_tokens=n_tokens, sampling=GREEDY, strategy=strategy)

    def run(self, case: Case, tape: tuple[int, ...], n_tokens: int) -> list[Step]:
        """One request, streamed; its steps that count: after the first, before the last."""
        steps: list[Step] = []
        with self._engine.submit(self._request(n_tokens, case.strategy(tape))) as generation:
            next(generation, None)
            while True:
                started, native = self._clock.read()
                chunk = next(generation, None)
                ended, native_after = self._clock.read()
                if chunk is None:
                    return steps
                if not generation.done and len(chunk.tokens) == case.emitted:
                    inside = native_after - native
                    steps.append(Step(ended - started - inside, inside, len(chunk.tokens)))

    def cost(self, case: Case, *, n_tokens: int, repeat: int, top: int = 0) -> Cost:
        """Measure one kind of step in ``repeat`` requests; ``top`` functions are named when it is not 0."""
        tape = self.tape(n_tokens)
        runs = [self.run(case, tape, n_tokens) for _ in range(repeat + 1)][1:]
        if not all(runs):
            raise ConfigError(f"{case.name}: the model ended its text before a step emitted {case.emitted} tokens")
        steps = [step for run in runs for step in run]
        return Cost(
            case=case,
            per_step_us=Summary.of([statistics.median(step.python_s for step in run) * 1e6 for run in runs]),
            per_token_us=statistics.median(step.python_s / step.tokens for step in steps) * 1e6,
            native_us=statistics.median(step.native_s for step in steps) * 1e6,
            n_steps=len(steps),
            profile=self._profile(case, tape, n_tokens, top) if top else (),
        )

    def _profile(self, case: Case, tape: tuple[int, ...], n_tokens: int, top: int) -> tuple[tuple[str, float], ...]:
        profiler = cProfile.Profile()
        with self._engine.submit(self._request(n_tokens, case.strategy(tape))) as generation:
            next(generation, None)
            profiler.enable()
            completion = generation.result()
            profiler.disable()
        return hottest(pstats.Stats(profiler), max(1, completion.stats.steps - 1), top)


def hottest(stats: pstats.Stats, steps: int, top: int) -> tuple[tuple[str, float], ...]:
    """Functions by their own time, in microseconds per step; native ones and their wrappers left out."""
    rows: dict[str, float] = {}
    entries: dict[tuple[str, int, str], tuple[Any, ...]] = getattr(stats, "stats")  # noqa: B009 -- typeshed lacks it
    for (file, line, function), (_, _, own, *_) in entries.items():
        if Path(file).name == Path(__file__).name or "_cffi_backend" in function or "llama_" in function:
            continue
        where = function if file == "~" else f"{Path(file).stem}.{function}:{line}"
        rows[where] = rows.get(where, 0.0) + own / steps * 1e6
    return tuple(sorted(rows.items(), key=lambda row: -row[1])[:top])


@contextmanager
def opened(model: Path, *, library: str | None, n_threads: int, n_ctx: int = 1024) -> Iterator[Bench]:
    """A :class:`Bench` that is closed at the end."""
    bench = Bench(model, library=library, n_threads=n_threads, n_ctx=n_ctx)
    try:
        yield bench
    finally:
        bench.close()
