"""Strategies made of strategies: one guesses where another did not, or goes on where another stopped.

Each member stays what it is alone: it is driven by its own contract, hears of every commit, and is credited with the
tokens it drafted and no others. One that fails leaves the others at work.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import attrs

from specframe.core.drafting import Drafter
from specframe.core.errors import ConfigError, StrategyError
from specframe.core.history import History
from specframe.core.ports import Decoded, Need
from specframe.core.proposal import Proposal
from specframe.core.strategy import DraftRequest, Outcome, StrategySpec

log = logging.getLogger(__name__)


class Join(enum.Enum):
    """How a combination drafts."""

    FIRST_OF = "first-of"
    """The members are asked in turn; the first guess that is not empty is taken."""
    EXTEND = "extend"
    """Each member continues what those before it guessed, as far as the budget goes."""


@attrs.frozen
class Combination:
    """Strategies, or combinations, that draft together. Hashable. Raises ConfigError when they cannot."""

    kind: Join
    parts: tuple[AnySpec, ...]

    def __attrs_post_init__(self) -> None:
        if len(self.parts) < 2:  # noqa: PLR2004 -- two are a combination
            msg = f"{self.kind.value} takes two strategies or more, not {len(self.parts)}"
            raise ConfigError(msg)
        if self.kind is Join.EXTEND:
            for part in self.parts[1:]:
                for member in part.members:
                    if not member.continues:
                        msg = (
                            f"strategy {member.name!r} cannot continue the draft of another one, as {self.name} asks; "
                            "it can be the first one"
                        )
                        raise ConfigError(msg)

    @property
    def name(self) -> str:
        """As ``--strategy`` takes it."""
        return f"{self.kind.value}({','.join(part.label for part in self.parts)})"

    @property
    def label(self) -> str:
        """The name."""
        return self.name

    @property
    def members(self) -> tuple[StrategySpec, ...]:
        """The strategies it is made of, each once."""
        return tuple(dict.fromkeys(member for part in self.parts for member in part.members))

    @property
    def needs(self) -> Need:
        """What its members need from the target."""
        return reduce(or_, (member.needs for member in self.members), Need.NONE)

    @property
    def continues(self) -> bool:
        """Whether all of it can continue another one's draft."""
        return all(part.continues for part in self.parts)

    @property
    def uses_draft_file(self) -> bool:
        """Whether a member has a draft model."""
        return any(member.uses_draft_file for member in self.members)

    @property
    def rollback_depth(self) -> int:
        """Longest draft a member leads to that wishes for room; 0: none does."""
        return max(member.rollback_depth for member in self.members)

    @property
    def model_options(self) -> Mapping[str, Any]:
        """How a backend has to open the target's model for all members."""
        merged: dict[str, Any] = {}
        for member in self.members:
            for key, value in member.model_options.items():
                if merged.setdefault(key, value) != value:
                    msg = f"strategy {member.name!r} wants {key}={value!r} of the model, another one {merged[key]!r}"
                    raise ConfigError(msg)
        return merged

    def check_files(self, target: Path) -> None:
        """Raise ConfigError when a member cannot work with the file of the target and its own."""
        for member in self.members:
            member.check_files(target)


AnySpec: TypeAlias = StrategySpec | Combination

#: The pieces of a guess, in order: which member, and what it proposed.
_Guess: TypeAlias = tuple[tuple[int, Proposal], ...]


class _Node(Protocol):
    """A part of a combination, ready to be asked."""

    def ask(self, drafter: _CombinedDrafter, requests: Sequence[DraftRequest]) -> Sequence[_Guess]:
        """One guess per request; an empty one has no pieces."""
        ...


@attrs.frozen
class _Member:
    index: int

    def ask(self, drafter: _CombinedDrafter, requests: Sequence[DraftRequest]) -> Sequence[_Guess]:
        return drafter.ask_member(self.index, requests)


@attrs.frozen
class _FirstOf:
    nodes: tuple[_Node, ...]

    def ask(self, drafter: _CombinedDrafter, requests: Sequence[DraftRequest]) -> Sequence[_Guess]:
        guesses: list[_Guess] = [()] * len(requests)
        for node in self.nodes:
            asking = [i for i, guess in enumerate(guesses) if not guess]
            if asking:
                for i, guess in zip(asking, node.ask(drafter, [requests[i] for i in asking]), strict=True):
                    guesses[i] = guess
        return guesses


@attrs.frozen
class _Extend:
    nodes: tuple[_Node, ...]

    def ask(self, drafter: _CombinedDrafter, requests: Sequence[DraftRequest]) -> Sequence[_Guess]:
        guesses: list[_Guess] = [()] * len(requests)
        for node in self.nodes:
            asking = []
            for i, request in enumerate(requests):
                ids = _ids(guesses[i])
                if len(ids) < request.budget:
                    asking.append(
                        (i, attrs.evolve(request, budget=request.budget - len(ids), ahead=(*request.ahead, *ids)))
                    )
            if asking:
                for (i, _), guess in zip(asking, node.ask(drafter, [r for _, r in asking]), strict=True):
                    guesses[i] = (*guesses[i], *guess)
        return guesses


def _ids(guess: _Guess) -> tuple[int, ...]:
    return tuple(token for _, proposal in guess for token in proposal.ids)


def _compile(spec: AnySpec, members: Sequence[StrategySpec]) -> _Node:
    if isinstance(spec, StrategySpec):
        return _Member(members.index(spec))
    nodes = tuple(_compile(part, members) for part in spec.parts)
    return _FirstOf(nodes) if spec.kind is Join.FIRST_OF else _Extend(nodes)


def combined_drafter(spec: Combination, drafters: Sequence[Drafter | str]) -> Drafter:
    """Drives the members of a combination with the drafters of each, which it does not close.

    Args:
        spec: The combination.
        drafters: Those of ``spec.members``, in order; the reason, as statistics have it, where there is none.
    """
    return _CombinedDrafter(spec, drafters)


class _CombinedDrafter:
    def __init__(self, spec: Combination, drafters: Sequence[Drafter | str]) -> None:
        self._name = spec.name
        self._labels = [member.label for member in spec.members]
        self._plan = _compile(spec, spec.members)
        self._missing = {i: why for i, why in enumerate(drafters) if isinstance(why, str)}
        self._drafters = {i: drafter for i, drafter in enumerate(drafters) if not isinstance(drafter, str)}
        self.layers: Sequence[int] = tuple(sorted({n for drafter in self._drafters.values() for n in drafter.layers}))
        self.processes = any(drafter.processes for drafter in self._drafters.values())
        self._live: dict[int, set[int]] = {}
        self._left: dict[int, dict[int, StrategyError | str]] = {}
        self._guesses: dict[int, _Guess] = {}
        """What is being verified."""

    def begin(self, seq: int, history: History, n_held: int) -> int | StrategyError:
        live = self._live[seq] = set[int]()
        self._left[seq] = dict(self._missing)
        keep = n_held
        for i, drafter in self._drafters.items():
            live.add(i)
            answer = drafter.begin(seq, history, n_held)
            if isinstance(answer, StrategyError):
                self._leave(seq, i, answer)
            else:
                keep = min(keep, answer)
        return keep if live else self._last_error(seq)

    def process(self, batch: Sequence[Decoded]) -> None:
        """Members that fail are missed at the next draft, not before."""
        for i, drafter in self._drafters.items():
            own = [decoded for decoded in batch if i in self._live[decoded.seq]] if drafter.processes else []
            if own and (error := drafter.process(own)) is not None:
                for decoded in own:
                    self._leave(decoded.seq, i, error)

    def draft(self, requests: Sequence[DraftRequest]) -> list[Proposal | StrategyError]:
        results: list[Proposal | StrategyError] = []
        for request, guess in zip(requests, self._plan.ask(self, requests), strict=True):
            self._guesses[request.seq] = guess
            parts = tuple(part for _, proposal in guess for part in proposal.parts)
            results.append(Proposal(_ids(guess), parts) if self._live[request.seq] else self._last_error(request.seq))
        return results

    def ask_member(self, index: int, requests: Sequence[DraftRequest]) -> Sequence[_Guess]:
        """What one member guesses; empty where it left."""
        guesses: list[_Guess] = [()] * len(requests)
        asking = [i for i, request in enumerate(requests) if index in self._live[request.seq]]
        if asking:
            answers = self._drafters[index].draft([requests[i] for i in asking])
            for i, answer in zip(asking, answers, strict=True):
                if isinstance(answer, StrategyError):
                    self._leave(requests[i].seq, index, answer)
                elif answer.ids:
                    guesses[i] = ((index, answer),)
        return guesses

    def observe(self, outcomes: Sequence[Outcome]) -> Sequence[StrategyError | None]:
        """Everyone hears of every commit; what was drafted is told to the one that drafted it."""
        shares = [_shares(outcome, self._guesses.pop(outcome.seq, ())) for outcome in outcomes]
        for i, drafter in self._drafters.items():
            own = [
                share.get(i) or attrs.evolve(outcome, drafted=(), n_accepted=0)
                for outcome, share in zip(outcomes, shares, strict=True)
                if i in self._live[outcome.seq]
            ]
            for outcome, error in zip(own, drafter.observe(own) if own else (), strict=True):
                if error is not None:
                    self._leave(outcome.seq, i, error)
        return [None] * len(outcomes)

    def shift(self, seq: int, history: History, n_keep: int, n_drop: int) -> bool | StrategyError:
        for i in sorted(self._live[seq]):
            followed = self._drafters[i].shift(seq, history, n_keep, n_drop)
            if isinstance(followed, StrategyError):
                self._leave(seq, i, followed)
            elif not followed:
                self._leave(seq, i, "context-shifted")
        return bool(self._live[seq])

    def end(self, seq: int) -> Mapping[str, str]:
        for i in sorted(self._live.pop(seq, ())):
            self._drafters[i].end(seq)
        self._guesses.pop(seq, None)
        return {self._labels[i]: _reason(why) for i, why in self._left.pop(seq, {}).items()}

    def load(self, seq: int, states: Mapping[str, bytes]) -> None:
        for drafter in self._drafters.values():
            drafter.load(seq, states)

    def save(self, seq: int) -> Mapping[str, bytes]:  # noqa: ARG002 -- members are saved by themselves
        return {}

    def close(self) -> None:
        """Members belong to the engine, which closes them."""

    def _leave(self, seq: int, index: int, why: StrategyError | str) -> None:
        """One member drafts no more for ``seq``."""
        if index in self._live[seq]:
            self._live[seq].discard(index)
            self._left[seq][index] = why
            rest = ", ".join(self._labels[i] for i in sorted(self._live[seq])) or "nobody"
            log.warning(
                "%s drafts without %s for this request: %s; left: %s", self._name, self._labels[index], why, rest
            )
            self._drafters[index].end(seq)

    def _last_error(self, seq: int) -> StrategyError:
        why = list(self._left[seq].values())[-1]
        return why if isinstance(why, StrategyError) else StrategyError(self._name, why)


def _reason(why: StrategyError | str) -> str:
    return f"strategy-error: {why}" if isinstance(why, StrategyError) else why


def _shares(outcome: Outcome, guess: _Guess) -> dict[int, Outcome]:
    """The outcome as the members see it that drafted; of several pieces of one member the last that was reached."""
    shares: dict[int, Outcome] = {}
    for i, start, end in _spans(guess):
        drafted = outcome.drafted[start:end]
        if start <= outcome.n_accepted and drafted:
            n_accepted = min(outcome.n_accepted - start, len(drafted))
            shares[i] = attrs.evolve(outcome, drafted=drafted, n_accepted=n_accepted)
        else:
            shares.pop(i, None)
    return shares


def _spans(guess: _Guess) -> Iterator[tuple[int, int, int]]:
    start = 0
    for i, proposal in guess:
        yield i, start, start + len(proposal.ids)
        start += len(proposal.ids)
