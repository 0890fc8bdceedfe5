"""Running strategies without trusting them: whatever one does, the request goes on.

Both shapes of strategy are driven through one interface, :class:`Drafter`. An exception ends the drafting of the
sequences concerned and of no others.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from specframe.core.errors import ConfigError, StrategyError
from specframe.core.history import History
from specframe.core.ports import Decoded
from specframe.core.proposal import Proposal
from specframe.core.session import strategy_key
from specframe.core.strategy import (
    BatchStrategy,
    DraftRequest,
    Outcome,
    Strategy,
    StrategyContext,
    StrategySpec,
)

log = logging.getLogger(__name__)


class Drafter(Protocol):
    """A strategy as the engine drives it. No method but ``close`` of a built drafter raises an Exception."""

    layers: Sequence[int]
    """Layers whose inputs ``process`` needs."""
    processes: bool
    """``process`` wants to be called at all."""

    def begin(self, seq: int, history: History, n_held: int) -> int | StrategyError:
        """A request starts on ``seq``; answers how many of the ``n_held`` tokens need not be evaluated again."""
        ...

    def process(self, batch: Sequence[Decoded]) -> StrategyError | None:
        """The target decoded ``batch``."""
        ...

    def draft(self, requests: Sequence[DraftRequest]) -> Sequence[Proposal | StrategyError]:
        """One checked proposal per request, or what went wrong with it."""
        ...

    def observe(self, outcomes: Sequence[Outcome]) -> Sequence[StrategyError | None]:
        """What was committed; one answer per outcome."""
        ...

    def shift(self, seq: int, history: History, n_keep: int, n_drop: int) -> bool | StrategyError:
        """The context was full and lost tokens; False: the strategy cannot follow."""
        ...

    def end(self, seq: int) -> Mapping[str, str]:
        """The request on ``seq`` is over; answers which members of a combination left it before, and why."""
        ...

    def save(self, seq: int) -> Mapping[str, bytes]:
        """The strategy's own memory of ``seq``, which no request uses, by ``strategy_key``; empty: it has none."""
        ...

    def load(self, seq: int, states: Mapping[str, bytes]) -> None:
        """Take over what ``save`` returned, if it is there."""
        ...

    def close(self) -> None:
        """Release the strategy."""
        ...


def build_drafter(spec: StrategySpec, context: StrategyContext) -> Drafter:
    """Make the drafter of ``spec``. Raises ConfigError or StrategyError when it cannot be set up."""
    if issubclass(spec.cls, BatchStrategy):
        try:
            return _BatchDrafter(spec.cls(spec.options, context), spec, context.target.n_vocab)
        except ConfigError:
            raise
        except Exception as error:
            raise _blame(spec.name, "set-up", error) from error
    return _RequestDrafter(spec.cls, spec, context)


def _blame(strategy: str, where: str, error: Exception) -> StrategyError:
    if isinstance(error, StrategyError):
        return error
    blamed = StrategyError(strategy, f"{where}() raised {type(error).__name__}: {error}")
    blamed.__cause__ = error
    return blamed


def _guard(strategy: str, where: str, call: Callable[[], object]) -> StrategyError | None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 -- foreign code: what it raises is reported, never fatal
        return _blame(strategy, where, error)
    return None


class _RequestDrafter:
    """Drives :class:`Strategy`: a fresh object per request, so nothing leaks from one to the next."""

    def __init__(self, cls: type[Strategy], spec: StrategySpec, context: StrategyContext) -> None:
        self._cls, self._spec, self._context = cls, spec, context
        self._name, self._label, self._n_vocab = spec.name, spec.label, context.target.n_vocab
        self._live: dict[int, Strategy] = {}
        self.layers: Sequence[int] = ()
        self.processes = False

    def begin(self, seq: int, history: History, n_held: int) -> int | StrategyError:
        def start() -> None:
            strategy = self._cls(self._spec.options, self._context)
            self._live[seq] = strategy
            strategy.begin(history)

        return _guard(self._name, "begin", start) or n_held

    def process(self, batch: Sequence[Decoded]) -> None:
        """Strategies that draft from tokens alone have nothing to process."""

    def draft(self, requests: Sequence[DraftRequest]) -> list[Proposal | StrategyError]:
        results: list[Proposal | StrategyError] = []
        for request in requests:
            try:
                strategy = self._live[request.seq]
                limit = strategy.max_draft
                budget = request.budget if limit is None else min(request.budget, limit)
                raw = strategy.draft(request)
                results.append(
                    Proposal.of(raw, budget=budget, n_vocab=self._n_vocab, strategy=self._name, label=self._label)
                )
            except Exception as error:  # noqa: BLE001 -- see _guard
                results.append(_blame(self._name, "draft", error))
        return results

    def observe(self, outcomes: Sequence[Outcome]) -> list[StrategyError | None]:
        errors: list[StrategyError | None] = []
        for outcome in outcomes:
            try:
                self._live[outcome.seq].observe(outcome)
            except Exception as error:  # noqa: BLE001 -- see _guard
                errors.append(_blame(self._name, "observe", error))
            else:
                errors.append(None)
        return errors

    def shift(self, seq: int, history: History, n_keep: int, n_drop: int) -> bool | StrategyError:  # noqa: ARG002 -- it starts over
        self.end(seq)
        begun = self.begin(seq, history, len(history))
        return begun if isinstance(begun, StrategyError) else True

    def end(self, seq: int) -> Mapping[str, str]:
        strategy = self._live.pop(seq, None)
        if strategy is not None and (error := _guard(self._name, "close", strategy.close)):
            log.warning("%s", error)
        return {}

    def save(self, seq: int) -> Mapping[str, bytes]:  # noqa: ARG002 -- strategies of one request keep nothing
        return {}

    def load(self, seq: int, states: Mapping[str, bytes]) -> None:
        """Strategies of one request keep nothing between two."""

    def close(self) -> None:
        for seq in list(self._live):
            self.end(seq)


class _BatchDrafter:
    """Drives :class:`BatchStrategy`. A call that raises takes the sequences of that call with it.

    Strategies get tuples: what they do to a list would be done to that of the engine.
    """

    def __init__(self, strategy: BatchStrategy, spec: StrategySpec, n_vocab: int) -> None:
        self._strategy, self._spec, self._n_vocab = strategy, spec, n_vocab
        self._name = spec.name
        self.layers: Sequence[int] = tuple(strategy.layers)
        self.processes = True

    def begin(self, seq: int, history: History, n_held: int) -> int | StrategyError:
        try:
            keep = operator.index(self._strategy.begin(seq, history, n_held))
            if not 0 <= keep <= n_held:
                raise StrategyError(self._name, f"begin() answered {keep}, which is not between 0 and {n_held}")  # noqa: TRY301 -- one place blames
        except Exception as error:  # noqa: BLE001 -- see _guard
            return _blame(self._name, "begin", error)
        return keep

    def process(self, batch: Sequence[Decoded]) -> StrategyError | None:
        return _guard(self._name, "process", lambda: self._strategy.process(tuple(batch)))

    def draft(self, requests: Sequence[DraftRequest]) -> list[Proposal | StrategyError]:
        try:
            raws = list(self._strategy.draft(tuple(requests)))
            if len(raws) != len(requests):
                msg = f"draft() returned {len(raws)} proposals for {len(requests)} sequences"
                raise StrategyError(self._name, msg)  # noqa: TRY301 -- one place blames
        except Exception as error:  # noqa: BLE001 -- see _guard
            return [_blame(self._name, "draft", error)] * len(requests)
        return [self._check(raw, request) for raw, request in zip(raws, requests, strict=True)]

    def _check(self, raw: Sequence[int], request: DraftRequest) -> Proposal | StrategyError:
        try:
            limit = self._strategy.max_draft
            budget = request.budget if limit is None else min(request.budget, limit)
            return Proposal.of(raw, budget=budget, n_vocab=self._n_vocab, strategy=self._name, label=self._spec.label)
        except Exception as error:  # noqa: BLE001 -- see _guard
            return _blame(self._name, "draft", error)

    def observe(self, outcomes: Sequence[Outcome]) -> list[StrategyError | None]:
        error = _guard(self._name, "observe", lambda: self._strategy.observe(tuple(outcomes)))
        return [error] * len(outcomes)

    def shift(self, seq: int, history: History, n_keep: int, n_drop: int) -> bool | StrategyError:
        try:
            return bool(self._strategy.shift(seq, history, n_keep, n_drop))
        except Exception as error:  # noqa: BLE001 -- see _guard
            return _blame(self._name, "shift", error)

    def end(self, seq: int) -> Mapping[str, str]:
        if error := _guard(self._name, "end", lambda: self._strategy.end(seq)):
            log.warning("%s", error)
        return {}

    def save(self, seq: int) -> Mapping[str, bytes]:
        try:
            data = self._strategy.save(seq)
            return {} if data is None else {strategy_key(self._spec): bytes(data)}
        except Exception as error:  # noqa: BLE001 -- see _guard
            log.warning("the session goes without it: %s", _blame(self._name, "save", error))
            return {}

    def load(self, seq: int, states: Mapping[str, bytes]) -> None:
        def take_over() -> None:
            if (data := states.get(strategy_key(self._spec))) is not None:
                self._strategy.load(seq, data)

        if states and (error := _guard(self._name, "load", take_over)):
            log.warning("%s", error)

    def close(self) -> None:
        if error := _guard(self._name, "close", self._strategy.close):
            log.warning("%s", error)
