"""A strategy class wrapped so that everything it does is written down and everything it breaks is known."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import attrs
from typing_extensions import override

from specframe.core.combination import AnySpec, Combination
from specframe.core.history import History
from specframe.core.strategy import BatchStrategy, DraftRequest, Outcome, Strategy, StrategySpec
from specframe.testing.errors import StrategyContractError

_T = TypeVar("_T")


class CountingHistory(History):
    """A history that tells how many tokens are looked at."""

    __slots__ = ("_count",)
    _count: Callable[[int], None]

    @classmethod
    def over(cls, history: History, count: Callable[[int], None]) -> History:
        """A view of the same live tokens; ``count`` is called with the number of tokens of each look."""
        counting = cast("CountingHistory", cls.view(history._tokens))  # noqa: SLF001 -- wraps the core's own view
        counting._count = count  # noqa: SLF001 -- a second constructor
        return counting

    @override
    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self._count(len(found) if isinstance(found, list) else 1)
        return found


@attrs.frozen
class Record:
    """One draft."""

    ids: tuple[int, ...]
    n_reads: int
    """Committed tokens looked at since the draft before."""


class Probe:
    """Wraps the class of ``spec``, or those of its members; ``self.spec`` is the wrapped one."""

    def __init__(self, spec: AnySpec) -> None:
        self.records: list[Record] = []
        self.n_calls = 0
        self._broken: list[StrategyContractError] = []
        self._n_reads = 0
        self.spec = _replaced(spec, {member: self._wrapped(member) for member in spec.members})

    def raise_broken(self) -> None:
        """Raise the first broken rule, if any."""
        if self._broken:
            raise self._broken[0]

    def _blame(self, message: str, cause: BaseException | None = None) -> None:
        error = StrategyContractError(f"strategy {self.spec.name!r}: {message}")
        error.__cause__ = cause
        self._broken.append(error)

    def _call(self, where: str, call: Callable[[], _T]) -> _T:
        try:
            return call()
        except Exception as error:
            self._blame(f"{where}() raised {type(error).__name__}: {error}", error)
            raise

    def _count(self, history: History) -> History:
        return CountingHistory.over(history, self._looked_at)

    def _looked_at(self, n_tokens: int) -> None:
        self._n_reads += n_tokens

    def _watch(self, request: DraftRequest) -> DraftRequest:
        return attrs.evolve(request, history=self._count(request.history))

    def _outcome(self, outcome: Outcome) -> Outcome:
        return attrs.evolve(outcome, history=self._count(outcome.history))

    def _check(self, raw: Iterable[int], request: DraftRequest, n_vocab: int) -> tuple[int, ...]:
        """Check one draft and write it down."""
        self.n_calls += 1
        ids: tuple[int, ...] = ()
        try:
            # Bounded: a draft may be endless.
            ids = tuple(operator.index(token) for _, token in zip(range(request.budget + 1), raw, strict=False))
        except Exception as error:  # noqa: BLE001 -- whatever the iterator of a stranger raises
            self._blame(f"draft() must return token ids, not {raw!r:.80}: {error}", error)
        if len(ids) > request.budget:
            self._blame(f"draft() must return at most request.budget ({request.budget}) tokens")
        bad = [token for token in ids if not 0 <= token < n_vocab]
        if bad:
            self._blame(f"draft() returned token {bad[0]}, outside the vocabulary of {n_vocab} tokens")
        self.records.append(Record(ids, self._n_reads))
        self._n_reads = 0
        return ids

    def _wrapped(self, spec: StrategySpec) -> StrategySpec:
        cls = spec.cls
        return attrs.evolve(
            spec, cls=self._wrap_batch(cls) if issubclass(cls, BatchStrategy) else self._wrap_single(cls)
        )

    def _wrap_single(self, cls: type[Strategy]) -> type[Strategy]:
        probe = self

        class Probed(cls):  # type: ignore[misc, valid-type]
            def begin(self, history: History) -> None:
                probe._call("begin", lambda: super(Probed, self).begin(probe._count(history)))

            def draft(self, request: DraftRequest) -> Sequence[int]:
                raw = probe._call("draft", lambda: super(Probed, self).draft(probe._watch(request)))
                return probe._check(raw, request, self.context.target.n_vocab)

            def observe(self, outcome: Outcome) -> None:
                probe._call("observe", lambda: super(Probed, self).observe(probe._outcome(outcome)))

            def close(self) -> None:
                probe._call("close", super().close)

        return Probed

    def _wrap_batch(self, cls: type[BatchStrategy]) -> type[BatchStrategy]:
        probe = self

        class Probed(cls):  # type: ignore[misc, valid-type]
            def begin(self, seq: int, history: History, n_held: int) -> int:
                kept = probe._call("begin", lambda: super(Probed, self).begin(seq, probe._count(history), n_held))
                if not isinstance(kept, int) or not 0 <= kept <= n_held:
                    probe._blame(f"begin() must return a number of tokens from 0 to n_held ({n_held}), not {kept!r}")
                return cast("int", kept)

            def process(self, batch: Sequence[Any]) -> None:
                probe._call("process", lambda: super(Probed, self).process(batch))

            def draft(self, requests: Sequence[DraftRequest]) -> Sequence[Sequence[int]]:
                watched = [probe._watch(request) for request in requests]
                raws = list(probe._call("draft", lambda: super(Probed, self).draft(watched)))
                if len(raws) != len(requests):
                    probe._blame(f"draft() returned {len(raws)} drafts for {len(requests)} requests")
                n_vocab = self.context.target.n_vocab
                return [probe._check(raw, request, n_vocab) for raw, request in zip(raws, requests, strict=False)]

            def observe(self, outcomes: Sequence[Outcome]) -> None:
                seen = [probe._outcome(outcome) for outcome in outcomes]
                probe._call("observe", lambda: super(Probed, self).observe(seen))

            def end(self, seq: int) -> None:
                probe._call("end", lambda: super(Probed, self).end(seq))

            def close(self) -> None:
                probe._call("close", super().close)

        return Probed


def _replaced(spec: AnySpec, members: Mapping[StrategySpec, StrategySpec]) -> AnySpec:
    if isinstance(spec, StrategySpec):
        return members[spec]
    return Combination(spec.kind, tuple(_replaced(part, members) for part in spec.parts))
