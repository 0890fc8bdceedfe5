"""Mistakes that engines of this kind make, each shown to be absent here.

Costs are counted, not timed: tokens evaluated, checkpoints taken, bytes allocated, rows looked at.
"""

from __future__ import annotations

import statistics
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import attrs
import numpy as np
import numpy.typing as npt
import pytest
from typing_extensions import override

import specframe
from specframe.backends.llama import sampler as sampler_module
from specframe.backends.llama.candidates import Candidates
from specframe.backends.llama.model import Model
from specframe.core.engine import Engine
from specframe.core.errors import ConfigError
from specframe.core.history import History
from specframe.core.observer import Observer
from specframe.core.ports import BatchEntry, Rollback
from specframe.core.request import Completion, FinishReason, Request
from specframe.core.sampling import SamplingParams
from specframe.core.scheduler import Unlimited
from specframe.core.strategy import Outcome, Strategy, StrategySpec
from specframe.strategies.ngram_k import NgramK
from specframe.strategies.ngram_k4v import NgramK4V
from specframe.testing import Oracle, Output, Poison
from tests.support.exact import MEMORIES, ExactZoo, Memory, WatchedTarget, every_memory, fresh, right_tape, watched
from tests.support.lossless import drafted

GREEDY = SamplingParams(temperature=0.0)
PROMPT = tuple(b"the cat the cat the ")
NGRAMS: tuple[StrategySpec, ...] = tuple(StrategySpec.of(cls, {"n": 1, "m": 4}) for cls in (NgramK, NgramK4V))
STRATEGIES: dict[str, StrategySpec | None] = {"none": None, "ngram-k": NGRAMS[0], "ngram-k4v": NGRAMS[1]}


@attrs.frozen
class Entry:
    """One verified draft."""

    before: bytes
    """What had been said before the draft."""
    n_drafted: int
    n_accepted: int


class Diary(Observer):
    """Writes every verified draft down; a history goes on growing."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    @override
    def step_finished(self, outcome: Outcome) -> None:
        if outcome.drafted:
            before = bytes(outcome.history[: len(outcome.history) - outcome.n_committed])
            self.entries.append(Entry(before, len(outcome.drafted), outcome.n_accepted))


def observed(model: Model, request: Request, **options: Any) -> tuple[Completion, list[Entry]]:
    """The answer, and every verified draft on the way to it."""
    diary = Diary()
    with watched(model, **options) as target, Engine(target, scheduler=Unlimited, observers=[diary]) as engine:
        return engine.submit(request).result(), diary.entries


def say(script: Sequence[int]) -> Callable[[History, npt.NDArray[np.float32]], npt.NDArray[np.float32]]:
    """A logits processor that makes the model say ``script`` after its prompt."""

    def process(history: History, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        logits[script[len(history) - len(PROMPT)]] = 99.0
        return logits

    return process


# -- what a step costs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [NgramK, NgramK4V])
def test_a_step_allocates_no_more_in_a_long_context(
    exact_zoo: ExactZoo, cls: type[NgramK | NgramK4V], caplog: pytest.LogCaptureFixture
) -> None:
    """A copy of the history would show as 8 bytes per token."""

    def repeat(history: History, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        logits[PROMPT[len(history) % len(PROMPT)]] = 99.0
        return logits

    def peak(n_prompt: int) -> float:
        request = Request(
            prompt=(PROMPT * n_prompt)[:n_prompt], max_tokens=90, sampling=GREEDY, logits_processors=(repeat,),
            strategy=StrategySpec.of(cls, {"n": 3, "m": 4}),
        )  # fmt: skip
        peaks = []
        with watched(exact_zoo("llama"), n_ctx=4096) as target, Engine(target, scheduler=Unlimited) as engine:
            generation = engine.submit(request)
            next(generation)
            tracemalloc.start()
            try:
                for _ in range(12):
                    before = tracemalloc.get_traced_memory()[0]
                    tracemalloc.reset_peak()
                    assert engine.step()
                    peaks.append(tracemalloc.get_traced_memory()[1] - before)
            finally:
                tracemalloc.stop()
            assert generation.result().stats.accepted > 60
        return statistics.median(peaks)

    short, long = peak(250), peak(4000)
    assert long < short + 3750 * 8 / 4
    assert not caplog.records


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_greedy_choices_build_no_array_of_candidates(
    exact_zoo: ExactZoo, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    made = []

    class Counted(Candidates):
        def __init__(self, *args: Any) -> None:
            made.append(args)
            super().__init__(*args)

    monkeypatch.setattr(sampler_module, "Candidates", Counted)
    with watched(exact_zoo("llama")) as target, Engine(target, scheduler=Unlimited) as engine:
        request = Request(prompt=PROMPT, max_tokens=20, sampling=GREEDY, strategy=STRATEGIES[strategy])
        adjusted = attrs.evolve(GREEDY, logit_bias={97: 1.0}, ignore_eos=True, min_tokens=4)
        for each in (request, attrs.evolve(request, sampling=adjusted)):
            engine.submit(each).result()
        assert not made
        engine.submit(attrs.evolve(request, sampling=SamplingParams(seed=1))).result()
        assert len(made) == 1


@pytest.mark.parametrize("name", [name for name, m in MEMORIES.items() if m.kind is not Rollback.SNAPSHOT])
def test_memory_that_can_be_cut_is_never_copied_for_a_draft(exact_zoo: ExactZoo, name: str) -> None:
    memory = MEMORIES[name]
    request = Request(prompt=PROMPT, max_tokens=30, sampling=GREEDY)
    right = right_tape(exact_zoo(memory.model), request, **memory.options)
    spec = StrategySpec.of(Poison, {"tape": right, "length": 4, "k": 1})
    with watched(exact_zoo(memory.model), **memory.options) as target, Engine(target, scheduler=Unlimited) as engine:
        stats = engine.submit(drafted(request, spec)).result().stats
        assert sum(stats.rollbacks.values()) > 5
        assert target.n_checkpoints == target.n_restores == 0
        # Memory whose cuts are bounded keeps one of the prompt.
        assert stats.checkpoints == int(memory.kind is Rollback.BOUNDED)


def test_sliding_window_models_are_opened_so_that_they_can_be_cut(zoo: Callable[[str], Path]) -> None:
    with specframe.load(zoo("gemma4"), n_ctx=256) as llm:
        assert llm.info.rollback == "truncate"


# -- what is evaluated, and how ---------------------------------------------------------------------------------------


@every_memory
def test_prompts_are_cut_at_the_same_places_with_and_without_a_strategy(exact_zoo: ExactZoo, memory: Memory) -> None:
    request = Request(prompt=(PROMPT * 6)[:103], max_tokens=24, sampling=GREEDY)
    right = right_tape(exact_zoo(memory.model), request, **memory.options)
    seen: list[tuple[tuple[BatchEntry, ...], ...]] = []
    for spec in (None, *NGRAMS, StrategySpec.of(Oracle, {"tape": right})):
        with (
            watched(exact_zoo(memory.model), **memory.options, n_batch=32) as target,
            Engine(target, scheduler=Unlimited) as engine,
        ):
            for turn in (request, attrs.evolve(request, prompt=(*right[: len(request.prompt) + 24], *b"and a dog"))):
                target.forget()
                completion = engine.submit(drafted(turn, spec)).result()
                n_new = len(turn.prompt) - completion.stats.cached_tokens
                n_pieces = next(i for i in range(1, n_new + 1) if sum(target.widths[:i]) >= n_new)
                seen.append(tuple(target.batches[:n_pieces]))
                if turn is request:
                    # Where cutting is limited the prompt is saved shortly before its end.
                    last = [7] if memory.kind is Rollback.TRUNCATE else [3, 4]
                    assert target.widths[:n_pieces] == [32, 32, 32, *last]
                assert [batch[0].n_outputs for batch in seen[-1]] == [0] * (len(seen[-1]) - 1) + [1]
    firsts, seconds = seen[::2], seen[1::2]
    assert firsts == [firsts[0]] * len(firsts)
    if memory.kind is not Rollback.SNAPSHOT:  # where the tail of the last block is evaluated together with the new turn
        assert seconds == [seconds[0]] * len(seconds)


@every_memory
def test_a_second_turn_evaluates_only_what_is_new_with_any_strategy(exact_zoo: ExactZoo, memory: Memory) -> None:
    request = Request(prompt=(PROMPT * 8)[:150], max_tokens=20, sampling=GREEDY)
    right = right_tape(exact_zoo(memory.model), request, **memory.options)
    for spec in (None, *NGRAMS, StrategySpec.of(Oracle, {"tape": right, "length": 4})):
        with (
            watched(exact_zoo(memory.model), **memory.options) as target,
            Engine(target, scheduler=Unlimited) as engine,
        ):
            first = engine.submit(drafted(request, spec)).result()
            target.forget()
            turn = attrs.evolve(
                request, prompt=(*request.prompt, *first.tokens, *b" and then "), max_tokens=1, strategy=spec
            )
            second = engine.submit(turn).result()
            held = len(request.prompt) + len(first.tokens) - 1
            if memory.kind is Rollback.SNAPSHOT:
                # The block the first turn ended in may have to be evaluated again.
                assert held - 5 <= second.stats.cached_tokens <= held
            else:
                assert second.stats.cached_tokens == held
            assert target.n_decoded == len(turn.prompt) - second.stats.cached_tokens
            assert target.n_clears == 0


@every_memory
def test_a_prompt_that_continues_what_is_cached_does_not_enter_memory_twice(
    exact_zoo: ExactZoo, memory: Memory
) -> None:
    model = exact_zoo(memory.model)
    request = Request(prompt=PROMPT, max_tokens=1, sampling=GREEDY)
    with watched(model, **memory.options) as target, Engine(target) as engine:
        for extra in (0, 0, 1, 5, 5):
            turn = attrs.evolve(request, prompt=(*PROMPT, *b"hello"[:extra]))
            completion = engine.submit(turn).result()
            assert target.n_past(0) == len(turn.prompt)
            assert target.batches[-1][-1].pos + len(target.batches[-1][-1].tokens) == len(turn.prompt)
            fresh(model, turn, **memory.options).check_equals(Output.of(completion))


@every_memory
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_unlimited_generator_ends_with_the_context(exact_zoo: ExactZoo, memory: Memory, strategy: str) -> None:
    request = Request(prompt=PROMPT, sampling=GREEDY, strategy=STRATEGIES[strategy])
    with (
        watched(exact_zoo(memory.model), **memory.options, n_ctx=100) as target,
        Engine(target, scheduler=Unlimited) as engine,
    ):
        generation = engine.submit(request)
        tokens = [token for chunk in generation for token in chunk.tokens]
        completion = generation.result()
        assert (completion.finish_reason, completion.stop_detail) == (FinishReason.LENGTH, "context-full")
        assert len(tokens) == 101 - len(PROMPT)
        assert target.n_past(0) <= 100


def test_checkpoints_of_a_long_sliding_window_prompt(exact_zoo: ExactZoo) -> None:
    """Many windows long, many chunks long; every block is rolled back."""
    memory = MEMORIES["window-snapshot"]
    options = {**memory.options, "n_ctx": 1024, "n_batch": 128}
    model = exact_zoo(memory.model)
    request = Request(prompt=(PROMPT * 50)[:900], max_tokens=40, sampling=GREEDY)
    expected = fresh(model, request, **options)
    spec = StrategySpec.of(Poison, {"tape": (*request.prompt, *expected.tokens), "length": 6, "k": 3})
    with watched(model, **options) as target, Engine(target, scheduler=Unlimited) as engine:
        completion = engine.submit(drafted(request, spec)).result()
        expected.check_equals(Output.of(completion))
        assert completion.stats.rollbacks["snapshot"] == target.n_restores > 5


# -- feedback ---------------------------------------------------------------------------------------------------------


class Listener(Poison):
    """Keeps what it is told."""

    name = "listener"
    told: ClassVar[list[tuple[int, int, int]]] = []

    @override
    def observe(self, outcome: Outcome) -> None:
        self.told.append((len(outcome.drafted), outcome.n_accepted, outcome.n_committed))


@every_memory
def test_every_rejection_reaches_the_strategy(exact_zoo: ExactZoo, memory: Memory) -> None:
    request = Request(prompt=PROMPT, max_tokens=31, sampling=GREEDY)
    right = right_tape(exact_zoo(memory.model), request, **memory.options)
    Listener.told.clear()
    spec = StrategySpec.of(Listener, {"tape": right, "length": 4, "k": 2})
    with watched(exact_zoo(memory.model), **memory.options) as target, Engine(target, scheduler=Unlimited) as engine:
        stats = engine.submit(drafted(request, spec)).result().stats
    if memory.kind is Rollback.SNAPSHOT:  # a plain step when more than eight tokens would ride along
        plain = (0, 0, 1)
        assert Listener.told == [plain, *[(4, 2, 3)] * 3] * 2 + [plain, *[(4, 2, 3)] * 2, (3, 2, 3), plain]
        assert (stats.draft_steps, stats.accepted) == (9, 18)
    else:
        assert Listener.told == [(0, 0, 1)] + [(4, 2, 3)] * 9 + [(2, 2, 3)]
        assert (stats.draft_steps, stats.accepted) == (10, 20)


@every_memory
def test_a_rejected_key_drafts_again_once_its_text_repeats(exact_zoo: ExactZoo, memory: Memory) -> None:
    """First "x" is followed by something else each time, then always by "yz"."""
    script = b"xaxbxcxdxe" + b"".join(b"xyz%d" % i for i in range(8))
    request = Request(
        prompt=PROMPT, max_tokens=len(script), sampling=GREEDY, logits_processors=(say(script),),
        strategy=StrategySpec.of(NgramK, {"n": 1, "m": 4}),
    )  # fmt: skip
    completion, entries = observed(exact_zoo(memory.model), request, **memory.options)
    assert completion.tokens == tuple(script)
    after_x = [entry for entry in entries if entry.before.endswith(b"x")]
    assert len(after_x) > 4
    assert after_x[0].n_accepted == 0
    assert after_x[-1].n_accepted == after_x[-1].n_drafted > 1


@every_memory
def test_a_draft_after_a_rejection_is_as_long_as_what_was_accepted(exact_zoo: ExactZoo, memory: Memory) -> None:
    """On memory that restores checkpoints, too, where the accepted tokens wait for the next batch."""
    script = b"1xyabcd2xyafgh3xyalmn"
    request = Request(
        prompt=PROMPT, max_tokens=len(script), sampling=GREEDY, logits_processors=(say(script),),
        strategy=StrategySpec.of(NgramK, {"n": 2, "m": 5}),
    )  # fmt: skip
    _, entries = observed(exact_zoo(memory.model), request, **memory.options)
    assert [(e.n_drafted, e.n_accepted) for e in entries if e.before.endswith(b"xy")] == [(5, 1), (1, 1)]


# -- refused in time --------------------------------------------------------------------------------------------------


class Unfinished(Strategy):
    """Declared, never written."""

    name = "unfinished"


@pytest.mark.parametrize(
    "choice",
    [
        {"strategy": "no-such-strategy"},
        {"strategy": "ngram-simple"},
        {"strategy": "ngram-k", "options": {"size_n": 3}},
        {"strategy": "ngram-k", "options": {"n": 0}},
        {"strategy": "none", "options": {"n": 3}},
        {"strategy": "ngram-k", "draft": __file__},
        {"options": {"n": 3}},
    ],
    ids=str,
)
def test_a_strategy_that_cannot_work_is_refused_before_the_model_is_loaded(
    zoo: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, choice: dict[str, Any]
) -> None:
    loads = []

    def load(*args: object, **options: object) -> NoReturn:
        loads.append((args, options))
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("specframe.llm.opening.Model", load)  # where it is used, whatever ran before
    with pytest.raises(ConfigError):
        specframe.load(zoo("llama"), **choice)
    assert not loads
    with pytest.raises(AssertionError, match="was loaded"):
        specframe.load(zoo("llama"), strategy="ngram-k")


def test_a_strategy_without_a_draft_method_costs_its_drafts_and_says_so(exact_zoo: ExactZoo) -> None:
    request = Request(prompt=PROMPT, max_tokens=12, sampling=GREEDY)
    expected = fresh(exact_zoo("llama"), request)
    with watched(exact_zoo("llama")) as target, Engine(target) as engine:
        completion = engine.submit(drafted(request, StrategySpec.of(Unfinished))).result()
    expected.check_equals(Output.of(completion))
    assert completion.stats.inactive_reason is not None
    assert "unfinished" in completion.stats.inactive_reason


# -- left early -------------------------------------------------------------------------------------------------------


@every_memory
def test_a_closed_generator_leaves_no_unverified_tokens(exact_zoo: ExactZoo, memory: Memory) -> None:
    """The next turn builds on what was handed out, and finds all of it in memory."""
    request = Request(prompt=PROMPT, max_tokens=60, sampling=GREEDY)
    right = right_tape(exact_zoo(memory.model), request, **memory.options)
    for spec in (StrategySpec.of(Oracle, {"tape": right, "length": 5}), *NGRAMS):
        with (
            watched(exact_zoo(memory.model), **memory.options) as target,
            Engine(target, scheduler=Unlimited) as engine,
        ):
            given: list[int] = []
            with engine.submit(drafted(request, spec)) as generation:
                for chunk in generation:
                    given += chunk.tokens
                    if len(given) >= 9:
                        break
            assert right[: len(PROMPT) + len(given)] == (*PROMPT, *given)
            turn = attrs.evolve(request, prompt=(*PROMPT, *given, *b"then "), max_tokens=10)
            _check_memory_is_a_prefix(target, turn.prompt)
            second = engine.submit(turn).result()
            assert second.stats.cached_tokens >= len(PROMPT) + len(given) - 1 - 5
            fresh(exact_zoo(memory.model), turn, **memory.options).check_equals(Output.of(second))


def _check_memory_is_a_prefix(target: WatchedTarget, tokens: Sequence[int]) -> None:
    """Replay what was decoded and cut: memory is what the batches put at each position, up to ``n_past``."""
    held: dict[int, int] = {}
    for batch in target.batches:
        for entry in batch:
            held.update(enumerate(entry.tokens, entry.pos))
    n = target.n_past(0)
    assert n < len(tokens)
    assert [held[i] for i in range(n)] == list(tokens[:n])
