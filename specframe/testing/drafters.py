"""Adversarial drafters: always right, wrong at one place, garbage, and failing on demand.

Each is an ordinary strategy; put it in a request with :meth:`StrategySpec.of`::

    request = Request(prompt=prompt, strategy=StrategySpec.of(Oracle, {"tape": prompt + tokens}))
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Literal, cast

import attrs
import numpy as np
from typing_extensions import override

from specframe.core.errors import StrategyError
from specframe.core.history import History
from specframe.core.ports import Decoded
from specframe.core.strategy import BatchStrategy, DraftRequest, Outcome, Strategy, StrategyContext


def _positive(_: object, field: attrs.Attribute[Any], value: int | None) -> None:
    if value is not None and value < 1:
        raise ValueError(f"{field.name} must be at least 1, not {value}")


@attrs.frozen(kw_only=True)
class TapeOptions:
    """A recorded run to replay."""

    tape: tuple[int, ...] = attrs.field(default=(), converter=tuple, repr=False)
    """The whole sequence: prompt and generated tokens."""
    length: int | None = attrs.field(default=None, validator=_positive)
    """Longest draft; None: as long as the budget."""


class Oracle(Strategy):
    """ORACLE: replays a recorded plain run, so every draft token is accepted."""

    name = "oracle"
    continues = True
    Options: ClassVar[type] = TapeOptions

    @property
    @override
    def max_draft(self) -> int | None:
        return cast("int | None", self.options.length)

    @override
    def draft(self, request: DraftRequest) -> Sequence[int]:
        at = len(request.tokens)
        limit = request.budget if self.max_draft is None else min(request.budget, self.max_draft)
        return cast("Sequence[int]", self.options.tape[at : at + limit])


@attrs.frozen(kw_only=True)
class PoisonOptions(TapeOptions):
    """A recorded run, and where to be wrong."""

    k: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    """Position inside each draft whose token is wrong; later ones are the oracle's again, and never reached."""


class Poison(Oracle):
    """POISON(k): the oracle with position ``k`` of every draft wrong."""

    name = "poison"
    Options: ClassVar[type] = PoisonOptions

    @override
    def draft(self, request: DraftRequest) -> Sequence[int]:
        ids = list(super().draft(request))
        if self.options.k < len(ids):
            ids[self.options.k] = (ids[self.options.k] + 1) % self.context.target.n_vocab
        return ids


@attrs.frozen(kw_only=True)
class NoisyOptions(TapeOptions):
    """A recorded run and how unreliable its replay is."""

    accuracy: float = attrs.field(default=0.7, validator=[attrs.validators.ge(0), attrs.validators.le(1)])
    seed: int = 0


class Noisy(Oracle):
    """The oracle with drafts of random length (empty ones too) and random wrong tokens."""

    name = "noisy"
    Options: ClassVar[type] = NoisyOptions

    def __init__(self, options: Any, context: StrategyContext) -> None:
        super().__init__(options, context)
        self._random = random.Random(options.seed)  # noqa: S311 -- a test needs repeatable numbers

    @override
    def draft(self, request: DraftRequest) -> Sequence[int]:
        ids = list(super().draft(request))
        del ids[self._random.randint(0, len(ids)) :]
        for i in range(len(ids)):
            if self._random.random() > self.options.accuracy:
                ids[i] = self._random.randrange(self.context.target.n_vocab)
        return ids


#: What :class:`Junk` can return instead of a draft.
JunkKind = Literal[
    "empty",
    "long",
    "outside",
    "negative",
    "special",
    "floats",
    "none",
    "text",
    "nested",
    "huge",
    "generator",
    "endless",
    "broken-generator",
    "array",
]

#: Kinds that are usable token ids although they look unusual: drafting goes on after them.
USABLE_JUNK: frozenset[JunkKind] = frozenset({"empty", "long", "special", "generator", "endless", "array"})

#: Every kind, usable ones first, so that a run over all of them reaches the last.
ALL_JUNK: tuple[JunkKind, ...] = (
    *sorted(USABLE_JUNK),
    "outside",
    "negative",
    "floats",
    "none",
    "text",
    "nested",
    "huge",
    "broken-generator",
)


def _broken(n: int) -> Iterator[int]:
    yield from range(n)
    raise RuntimeError("the draft broke off")


def make_junk(kind: JunkKind, request: DraftRequest, context: StrategyContext) -> Any:
    """One useless answer of the given kind."""
    n_vocab, last, budget = context.target.n_vocab, request.history[-1], request.budget
    special = sorted(context.vocab.eog) or [n_vocab - 1]
    made: dict[JunkKind, Callable[[], Any]] = {
        "empty": lambda: (),
        "long": lambda: [last] * (10 * budget + 100),
        "special": lambda: (special * budget)[:budget],
        "generator": lambda: (last for _ in range(budget)),
        "endless": lambda: itertools.repeat(last),
        "array": lambda: np.full(budget, last, dtype=np.int32),
        "outside": lambda: [last, n_vocab],
        "negative": lambda: [-1],
        "floats": lambda: [0.5] * budget,
        "none": lambda: None,
        "text": lambda: "abc",
        "nested": lambda: [[last]],
        "huge": lambda: [2**80],
        "broken-generator": lambda: _broken(1),
    }
    return made[kind]()


@attrs.frozen(kw_only=True)
class JunkOptions:
    """Which garbage to return."""

    kinds: tuple[JunkKind, ...] = attrs.field(default=ALL_JUNK, converter=tuple)
    """Returned in turn."""


class Junk(Strategy):
    """JUNK: empty, over-long, out of the vocabulary, of the wrong type, endless."""

    name = "junk"
    continues = True
    Options: ClassVar[type] = JunkOptions

    def __init__(self, options: Any, context: StrategyContext) -> None:
        super().__init__(options, context)
        self._kinds = itertools.cycle(options.kinds)

    @override
    def draft(self, request: DraftRequest) -> Sequence[int]:
        return cast("Sequence[int]", make_junk(next(self._kinds), request, self.context))


#: Where :class:`Crash` raises; ``process`` and ``end`` exist in :class:`AsBatch` only.
CrashPlace = Literal["init", "begin", "max_draft", "draft", "observe", "close", "process", "end"]


@attrs.frozen(kw_only=True)
class CrashOptions(TapeOptions):
    """When to raise what."""

    where: CrashPlace = "draft"
    at: int = attrs.field(default=1, validator=_positive)
    """The call of ``where`` that raises; the ones before it replay ``tape``."""
    error: type[BaseException] = RuntimeError


class Crash(Oracle):
    """CRASH: an oracle that raises."""

    name = "crash"
    Options: ClassVar[type] = CrashOptions

    def __init__(self, options: Any, context: StrategyContext) -> None:
        super().__init__(options, context)
        self._n_calls = 0
        self._reach("init")

    @property
    @override
    def max_draft(self) -> int | None:
        self._reach("max_draft")
        return super().max_draft

    @override
    def begin(self, history: History) -> None:
        self._reach("begin")

    @override
    def draft(self, request: DraftRequest) -> Sequence[int]:
        self._reach("draft")
        at = len(request.tokens)
        return cast("Sequence[int]", self.options.tape[at : at + request.budget])

    @override
    def observe(self, outcome: Outcome) -> None:
        self._reach("observe")

    @override
    def close(self) -> None:
        self._reach("close")

    def _reach(self, place: str) -> None:
        if place != self.options.where:
            return
        self._n_calls += 1
        if self._n_calls == self.options.at:
            raise self.options.error(f"crash in {place}")


@attrs.frozen(kw_only=True)
class ArbitraryOptions:
    """Who chooses the drafts."""

    choose: Callable[[DraftRequest], Any] = attrs.field(default=lambda _: ())


class Arbitrary(Strategy):
    """ARBITRARY: returns whatever a function answers, for instance one that draws from hypothesis data."""

    name = "arbitrary"
    continues = True
    Options: ClassVar[type] = ArbitraryOptions

    @override
    def draft(self, request: DraftRequest) -> Sequence[int]:
        return cast("Sequence[int]", self.options.choose(request))


@attrs.frozen(kw_only=True)
class AsBatchOptions:
    """The strategy to wrap, with its options."""

    cls: type[Strategy] = Oracle
    options: Any = attrs.field(factory=TapeOptions)
    forgets: int = 0
    """Tokens at the end of what memory holds at the begin of a request that it wants to see evaluated again."""


class AsBatch(BatchStrategy):
    """A per-request strategy in the shape of a batched one, which checks that the engine keeps the batched contract.

    It fails (and every request it drafts for stops drafting) when a sequence is begun twice, drafted for or observed
    without being begun, or when :meth:`process` does not see every position from the one asked for in :meth:`begin` on.
    """

    name = "as-batch"
    continues = True
    Options: ClassVar[type] = AsBatchOptions

    def __init__(self, options: Any, context: StrategyContext) -> None:
        super().__init__(options, context)
        self._live: dict[int, Strategy] = {}
        self._seen: dict[int, int] = {}
        self.broken: list[str] = []
        """Rules the engine broke."""
        if isinstance(options.options, CrashOptions) and options.options.where == "init":
            raise options.options.error("crash in init")

    @override
    def begin(self, seq: int, history: History, n_held: int) -> int:
        if seq in self._live:
            self._blame(f"begin({seq}) twice without end({seq})")
        self._live[seq] = self.options.cls(self.options.options, self.context)
        self._seen[seq] = max(0, n_held - self.options.forgets)
        self._live[seq].begin(history)
        return self._seen[seq]

    @override
    def process(self, batch: Sequence[Decoded]) -> None:
        for entry in batch:
            if entry.seq not in self._live:
                self._blame(f"process() of sequence {entry.seq}, which was not begun")
            at = self._seen.get(entry.seq, 0)
            if entry.pos > at:
                self._blame(f"process() of sequence {entry.seq} at {entry.pos}, but only {at} positions were seen")
            self._seen[entry.seq] = entry.pos + len(entry.tokens)
            self._crash(entry.seq, "process")

    @override
    def draft(self, requests: Sequence[DraftRequest]) -> Sequence[Sequence[int]]:
        for request in requests:
            if request.seq not in self._live:
                self._blame(f"draft() for sequence {request.seq}, which was not begun")
        return [self._live[request.seq].draft(request) for request in requests]

    @override
    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.seq not in self._live:
                self._blame(f"observe() of sequence {outcome.seq}, which was not begun")
            self._live[outcome.seq].observe(outcome)

    @override
    def end(self, seq: int) -> None:
        strategy = self._live.pop(seq, None)
        self._seen.pop(seq, None)
        if strategy is None:
            self._blame(f"end({seq}) without begin({seq})")
            return
        strategy.close()

    @override
    def close(self) -> None:
        if self._live:
            self._blame(f"close() while sequences {sorted(self._live)} were not ended")

    def _crash(self, seq: int, place: str) -> None:
        strategy = self._live[seq]
        if isinstance(strategy, Crash):
            strategy._reach(place)  # noqa: SLF001 -- one test double driving another

    def _blame(self, rule: str) -> None:
        self.broken.append(rule)
        raise StrategyError(self.name, rule)
