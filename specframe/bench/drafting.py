"""What a draft costs as the context grows: it must not grow with it."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence

import attrs

from specframe import plugins
from specframe.bench.statistics import percentile
from specframe.core.history import History
from specframe.core.ports import TargetInfo
from specframe.core.strategy import DraftRequest, Outcome, Strategy, StrategyContext, StrategySpec
from specframe.testing.vocabulary import ScriptedVocab

#: Those that look for drafts in the text itself.
STRATEGIES = ("ngram-k", "ngram-k4v")
LENGTHS = (1_000, 16_000, 64_000)
N_VOCAB = 50_000
#: Tokens that repeat while steps are measured, so that there is something to draft.
_PHRASE = 200


@attrs.frozen(kw_only=True)
class DraftCost:
    """One strategy at one length of the context."""

    strategy: str
    context: int
    median_us: float
    """Draft and feedback of one step."""
    p99_us: float
    begin_us: float
    """Reading the prompt, per token of it."""
    drafted: float
    """Tokens drafted per step."""


def measure(name: str, context: int, *, steps: int, seed: int = 0) -> DraftCost:
    """Draft ``steps`` times after ``context`` tokens of noise that end in a phrase which then repeats."""
    rng = random.Random(seed)  # noqa: S311 -- noise, not secrets
    noise = [rng.randrange(N_VOCAB) for _ in range(context - _PHRASE)]
    phrase = [rng.randrange(N_VOCAB) for _ in range(_PHRASE)]
    tokens = noise + phrase
    strategy = _build(name)
    history = History.view(tokens)
    started = time.perf_counter()
    strategy.begin(history)
    begin_s = time.perf_counter() - started
    seconds, drafted = _steps(strategy, history, tokens, phrase, steps)
    return DraftCost(
        strategy=name,
        context=context,
        median_us=statistics.median(seconds) * 1e6,
        p99_us=percentile(seconds, 0.99) * 1e6,
        begin_us=begin_s / context * 1e6,
        drafted=drafted / steps,
    )


def growth(costs: Sequence[DraftCost]) -> float:
    """Cost at the longest context over cost at the shortest, of one strategy."""
    ordered = sorted(costs, key=lambda cost: cost.context)
    return ordered[-1].median_us / ordered[0].median_us


def _build(name: str) -> Strategy:
    cls = plugins.registry().get(name)
    if not issubclass(cls, Strategy):
        raise TypeError(f"{name} does not draft for one request at a time")
    info = TargetInfo(n_vocab=N_VOCAB, n_ctx=1 << 20, n_batch=2048, n_seq=1)
    spec = StrategySpec.of(cls)
    return cls(spec.options, StrategyContext(target=info, vocab=ScriptedVocab([])))


def _steps(
    strategy: Strategy, history: History, tokens: list[int], phrase: Sequence[int], steps: int
) -> tuple[list[float], int]:
    clock, seconds, total = time.perf_counter, [], 0
    for i in range(steps):
        tokens.append(phrase[i % len(phrase)])
        started = clock()
        draft = strategy.draft(DraftRequest(0, history, 48))
        strategy.observe(Outcome(0, draft, len(draft), history, 1))
        seconds.append(clock() - started)
        total += len(draft)
    return seconds, total
