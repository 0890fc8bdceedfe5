"""The contract of a draft strategy.

A strategy guesses tokens. It never holds the target, the sampler, the random state or a checkpoint, so it can change
the speed of a request and nothing else. Two shapes, told apart by the class they derive from:

* :class:`Strategy`: one object per request. Write ``draft``; the rest is optional. For drafting from tokens alone.
* :class:`BatchStrategy`: one object per engine, drafting for all sequences in one call. For model-backed strategies.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, cast

import attrs

from specframe.core.errors import ConfigError
from specframe.core.history import History, Overlay
from specframe.core.ports import Decoded, Need, TargetInfo, Vocab


@attrs.frozen
class DraftRequest:
    """Everything a strategy may know when it guesses."""

    seq: int
    history: History
    """Committed tokens of the sequence; the guess continues after the last one."""
    budget: int
    """Most tokens that can be used; at least 1. A longer guess is trimmed."""
    ahead: Sequence[int] = ()
    """Tokens another strategy guessed behind ``history``, after which this guess continues. Only strategies with
    ``continues`` get any. They may be wrong: remember nothing that depends on them.
    """

    @property
    def tokens(self) -> History:
        """``history`` and ``ahead`` as one, for this call only."""
        return Overlay(self.history, self.ahead) if self.ahead else self.history


@attrs.frozen
class Outcome:
    """What one verification did to one sequence."""

    seq: int
    drafted: Sequence[int]
    """Draft tokens that were verified; empty after a plain step. In a combination: those of this strategy, unless the
    target disagreed before it came to them.
    """
    n_accepted: int
    """Leading tokens of ``drafted`` the target agreed with."""
    history: History
    """Committed tokens, including those of this step."""
    n_committed: int
    """Tokens this step appended to ``history``."""


@attrs.frozen(kw_only=True)
class StrategyContext:
    """What a strategy is told about the target when it is built."""

    target: TargetInfo
    vocab: Vocab
    draft_path: Path | None = None
    """The file given with ``--draft``, for strategies with a model of their own."""
    services: object = None
    """``Target.services`` of the backend, for strategies written for that backend."""


@attrs.frozen(kw_only=True)
class NoOptions:
    """Options of a strategy that has none."""


class Suitability(enum.IntEnum):
    """Why a strategy suits files; ``strategy="auto"`` takes the one with the best reason."""

    UNASKED = 0
    """It does not volunteer, and is only used when it is named."""
    ANY_MODEL = 1
    """It drafts from text alone."""
    BUILT_IN = 2
    """The target's file holds what it drafts with."""
    DRAFT_FILE = 3
    """The draft file was made for it."""


class _Base:
    """Declarations shared by both shapes."""

    name: ClassVar[str]
    """The name users select it by: lower case, digits and dashes."""
    needs: ClassVar[Need] = Need.NONE
    uses_draft_file: ClassVar[bool] = False
    """True when ``--draft FILE`` is meaningful."""
    continues: ClassVar[bool] = False
    """True when ``draft`` takes ``DraftRequest.ahead`` into account, so that it can continue another one's draft."""
    Options: ClassVar[type] = NoOptions
    """An attrs class with keyword-only, validated, defaulted fields."""
    auto_options: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Options it runs with when ``strategy="auto"`` chose it."""

    def __init__(self, options: Any, context: StrategyContext) -> None:
        self.options = options
        self.context = context

    @classmethod
    def rollback_depth(cls, options: Any) -> int:
        """Longest draft these options lead to, for targets that must reserve room for rollbacks when they are set up.

        0: no wish; only called before the target exists.
        """
        del options
        return 0

    @classmethod
    def model_options(cls, options: Any, draft_path: Path | None) -> Mapping[str, Any]:
        """How a backend has to open the target's model for this strategy, in that backend's own words.

        Only called before the target exists.
        """
        del options, draft_path
        return {}

    @classmethod
    def check_files(cls, target: Path, draft: Path | None) -> None:
        """Look at the files, before anything is loaded, and raise ConfigError when they cannot work together."""
        del target, draft

    @classmethod
    def suitability(cls, target: Path, draft: Path | None) -> Suitability:
        """Look at what the files are, before anything is loaded: would this strategy volunteer for them?

        Whether they work together is for :meth:`check_files` to say.
        """
        del target, draft
        return Suitability.UNASKED

    @property
    def max_draft(self) -> int | None:
        """Longest useful draft, or None for no limit of its own."""
        return None

    def close(self) -> None:
        """Release what the strategy holds. Called once."""


class Strategy(_Base, abc.ABC):
    """One object per request. Only :meth:`draft` must be written."""

    def begin(self, history: History) -> None:
        """The request was admitted; ``history`` holds its prompt, a live view that grows with the request."""

    @abc.abstractmethod
    def draft(self, request: DraftRequest) -> Sequence[int]:
        """Guess up to ``request.budget`` tokens that follow ``request.history``; an empty guess is a plain step."""

    def observe(self, outcome: Outcome) -> None:
        """One step was verified and committed."""


class BatchStrategy(_Base, abc.ABC):
    """One object per engine, drafting for every sequence that selected it in one call; closed when unused for long.

    For each request on a sequence: ``begin``, then ``process`` after every target decode of it (prompt chunks first),
    with ``draft`` before and ``observe`` after each verification, and ``end`` however it ends. After ``observe`` the
    sequence continues behind the last committed token; what a draft or a rejected token left in the strategy's own
    memory is the strategy's to drop.
    """

    @property
    def layers(self) -> Sequence[int]:
        """Layers whose inputs are needed; read once, after construction. With Need.LAYER_INPUTS."""
        return ()

    def begin(self, seq: int, history: History, n_held: int) -> int:  # noqa: ARG002 -- for overriding
        """A request starts on ``seq``; ``history`` holds its prompt, the rest of which is evaluated next.

        The target's memory still holds the first ``n_held`` tokens of it, evaluated for earlier requests on ``seq``.
        Return how many of them this strategy's own memory of ``seq`` covers too: the target evaluates the rest again,
        so that ``process`` sees it. A strategy without memory returns ``n_held``.
        """
        return n_held

    def process(self, batch: Sequence[Decoded]) -> None:
        """The target decoded ``batch`` (prompt chunks and verifications), restricted to sequences of this strategy.

        Positions never leave a gap, but may start lower than expected: rejected tokens are replaced by committed ones,
        and after a failure committed tokens are evaluated again, from any position on. What was known of later
        positions is void then. ``draft`` may be called again for the same history when a step was given up.
        """

    @abc.abstractmethod
    def draft(self, requests: Sequence[DraftRequest]) -> Sequence[Sequence[int]]:
        """One guess per request, in order."""

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """One target step was verified and committed."""

    def shift(self, seq: int, history: History, n_keep: int, n_drop: int) -> bool:  # noqa: ARG002 -- for overriding
        """The context was full: ``n_drop`` tokens behind the first ``n_keep`` are gone, the rest moved down.

        ``history`` and the target's memory are so already. Return False when your own memory cannot follow: then
        drafting ends for this request. Unless overridden, a strategy without needs begins anew and others give up.
        """
        if self.needs:
            return False
        self.end(seq)
        n_held = len(history) - 1
        return self.begin(seq, history, n_held) == n_held

    def end(self, seq: int) -> None:
        """The request on ``seq`` is over, whatever way it ended; forget it."""

    def save(self, seq: int) -> bytes | None:  # noqa: ARG002 -- for overriding
        """This strategy's own memory of ``seq`` between two requests, for a session on disk; None: there is none."""
        return None

    def load(self, seq: int, data: bytes) -> None:
        """Take over what :meth:`save` returned; called before the ``begin`` of the request that continues from it."""


AnyStrategyClass = type[Strategy] | type[BatchStrategy]


@attrs.frozen
class StrategySpec:
    """A strategy class with its options and draft file, ready to be built by an engine. Hashable."""

    cls: AnyStrategyClass
    options: Any
    draft_path: Path | None = None

    @cached_property
    def label(self) -> str:
        """The name with the options that are not at their default, as ``--strategy`` takes it."""
        defaults = self.cls.Options()
        changed = [
            f"{field.alias}={getattr(self.options, field.name)}"
            for field in attrs.fields(self.cls.Options)
            if field.repr and getattr(self.options, field.name) != getattr(defaults, field.name)
        ]
        return f"{self.name}({','.join(changed)})" if changed else self.name

    @property
    def name(self) -> str:
        """Name of the strategy."""
        return self.cls.name

    @property
    def members(self) -> tuple[StrategySpec, ...]:
        """Itself: what a combination has several of."""
        return (self,)

    @property
    def needs(self) -> Need:
        """What it needs from the target beyond tokens."""
        return self.cls.needs

    @property
    def uses_draft_file(self) -> bool:
        """Whether it has a draft model."""
        return self.cls.uses_draft_file

    @property
    def continues(self) -> bool:
        """Whether it can continue another one's draft."""
        return self.cls.continues

    @property
    def rollback_depth(self) -> int:
        """Longest draft it leads to; 0: no wish."""
        return self.cls.rollback_depth(self.options)

    @property
    def model_options(self) -> Mapping[str, Any]:
        """How a backend has to open the target's model for it."""
        return self.cls.model_options(self.options, self.draft_path)

    def check_files(self, target: Path) -> None:
        """Raise ConfigError when it cannot work with the file of the target and its own."""
        self.cls.check_files(target, self.draft_path)

    @classmethod
    def of(
        cls, strategy: AnyStrategyClass, options: Mapping[str, Any] | None = None, draft_path: Path | None = None
    ) -> StrategySpec:
        """Validate ``options`` against the strategy's own options class. Raises ConfigError naming the bad key."""
        given = dict(options or {})
        fields = {field.alias for field in attrs.fields(strategy.Options)}
        for key in given:
            if key not in fields:
                known = ", ".join(sorted(f for f in fields if f)) or "none"
                msg = f"strategy {strategy.name!r} has no option {key!r}; it has: {known}"
                raise ConfigError(msg)
        if draft_path is not None and not strategy.uses_draft_file:
            raise unused_draft(strategy.name, draft_path)
        try:
            spec = cls(strategy, strategy.Options(**given), draft_path)
            hash(spec)  # engines keep one drafter per spec
        except (TypeError, ValueError) as error:
            # attrs' own validators put more into args than the message.
            msg = f"strategy {strategy.name!r}: {error.args[0] if error.args else error}"
            raise ConfigError(msg) from error
        return spec


def unused_draft(strategy: str, path: Path) -> ConfigError:
    """What to raise when a draft file was given to ``strategy``, which has no use for it."""
    return ConfigError(f"strategy {strategy!r} does not use a draft file, but {str(path)!r} was given")


def draft_strategy(name: str) -> Callable[[Callable[[DraftRequest], Sequence[int]]], type[Strategy]]:
    """Turn a plain function ``(DraftRequest) -> token ids`` into a strategy class called ``name``.

    ::

        @specframe.draft_strategy("repeat-last")
        def repeat_last(request):
            return [request.history[-1]] * request.budget
    """

    def decorate(function: Callable[[DraftRequest], Sequence[int]]) -> type[Strategy]:
        def draft(self: Strategy, request: DraftRequest) -> Sequence[int]:  # noqa: ARG001 -- becomes a method
            return function(request)

        body = {"name": name, "draft": draft, "__doc__": function.__doc__, "__module__": function.__module__}
        return cast("type[Strategy]", type(function.__name__, (Strategy,), body))

    return decorate
