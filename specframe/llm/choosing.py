"""Which strategy drafts for a request: named, combined, or chosen by what the files are."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from specframe import plugins
from specframe.core.combination import AnySpec, Combination, Join
from specframe.core.errors import ConfigError
from specframe.core.strategy import AnyStrategyClass, StrategySpec
from specframe.llm.unset import UNSET, Unset
from specframe.plugin_info import StrategyInfo, check_strategy_class


@attrs.frozen
class Named:
    """A strategy by its name, with options."""

    name: str
    options: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen
class Combined:
    """Strategies to combine; made by :func:`first_of` and :func:`extend`."""

    kind: Join
    parts: tuple[StrategyChoice, ...]


#: A name or a combination as the command line takes it ("none": plain decoding, "auto": what suits the files), a class,
#: a ready spec, or None for plain decoding.
StrategyChoice: TypeAlias = str | AnyStrategyClass | StrategySpec | Combination | Named | Combined | None


def first_of(*strategies: StrategyChoice) -> Combined:
    """Ask ``strategies`` in turn and take the first guess that is not empty, as ``"first-of(a,b)"`` does.

    ::

        specframe.load(model, strategy=specframe.first_of("ngram-k(n=8,m=16)", "mtp"))
    """
    return Combined(Join.FIRST_OF, strategies)


def extend(*strategies: StrategyChoice) -> Combined:
    """Let each of ``strategies`` continue what those before it guessed, as ``"extend(a,b)"`` does.

    All but the first must be able to: those that draft from text are.
    """
    return Combined(Join.EXTEND, strategies)


@attrs.frozen
class Choice:
    """The strategy of a request."""

    spec: AnySpec | None
    """None: plain decoding."""
    reason: str
    """Why this one."""
    required: bool = True
    """False: nobody asked for it by name, so what cannot be set up is done without."""

    @property
    def label(self) -> str:
        """As ``--strategy`` takes it."""
        return "none" if self.spec is None else self.spec.label


def _checked(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Options as a dict of names. Raises ConfigError."""
    if options is None:
        return {}
    if isinstance(options, Mapping) and all(isinstance(name, str) for name in options):
        return dict(options)
    msg = f"options of a strategy must be a mapping from their names to values, not {options!r:.80}"
    raise ConfigError(msg)


def _names(options: Mapping[str, Any]) -> str:
    return ", ".join(sorted(options))


class StrategyChooser:
    """Resolves the strategy of a request against the one chosen when the model was loaded."""

    def __init__(
        self,
        strategy: StrategyChoice = None,
        options: Mapping[str, Any] | None = None,
        draft: Path | None = None,
        target: Path | None = None,
        looking: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Validate the default; ``looking`` is around every look at the files. Raises ConfigError."""
        self._draft, self._target, self._looking = draft, target, looking
        self._options = _checked(options)
        self._strategy = strategy
        self._loaded: Mapping[str, Any] | None = None
        self.default_choice = self._choose(strategy, self._options)
        """For requests that choose none."""
        self._loaded = self.model_options

    @property
    def default(self) -> AnySpec | None:
        """The strategy of requests that choose none."""
        return self.default_choice.spec

    @property
    def model_options(self) -> Mapping[str, Any]:
        """How a backend has to open the target's model for it."""
        return {} if self.default is None else self.default.model_options

    def choose(self, strategy: StrategyChoice | Unset = UNSET, options: Mapping[str, Any] | None = None) -> Choice:
        """The strategy of one request. Raises ConfigError."""
        given = _checked(options)
        if strategy is UNSET or (strategy == "auto" and self._strategy == "auto"):
            return self._choose(self._strategy, {**self._options, **given}) if given else self.default_choice
        return self._choose(strategy, given)

    def _choose(self, strategy: StrategyChoice, options: dict[str, Any]) -> Choice:
        if strategy == "auto":
            if options:
                msg = f"options were given ({_names(options)}), but 'auto' has none; name the strategy they are for"
                raise ConfigError(msg)
            return self._auto()
        if strategy is None or strategy == "none":
            if options:
                msg = f"options were given ({_names(options)}), but 'none' is plain decoding; leave one out"
                raise ConfigError(msg)
            return Choice(None, "asked for")
        return Choice(self._resolve(strategy, options), "asked for")

    def _resolve(self, strategy: StrategyChoice, options: Mapping[str, Any]) -> AnySpec:
        if isinstance(strategy, str):
            strategy = parse(strategy)
        if isinstance(strategy, Named):
            if strategy.name in ("none", "auto"):
                msg = f"{strategy.name!r} cannot be combined with strategies"
                raise ConfigError(msg)
            options = {**strategy.options, **options}
            strategy = plugins.registry().get(strategy.name)
        if isinstance(strategy, Combined | Combination):
            if options:
                msg = (
                    f"options were given ({_names(options)}), but {strategy.kind.value} has several strategies; put "
                    "them behind the one they are for, as in first-of(ngram-k(n=8),mtp)"
                )
                raise ConfigError(msg)
            return Combination(strategy.kind, tuple(self._resolve(part, {}) for part in strategy.parts))
        if isinstance(strategy, StrategySpec):
            if not options:
                return strategy
            return StrategySpec.of(strategy.cls, {**attrs.asdict(strategy.options), **options}, strategy.draft_path)
        if strategy is None:
            msg = "None cannot be combined with strategies"
            raise ConfigError(msg)
        check_strategy_class(strategy)
        return StrategySpec.of(strategy, options, self._draft if strategy.uses_draft_file else None)

    def _auto(self) -> Choice:
        """What suits the files: the best that drafts with a model, behind the first that drafts from the text."""
        if self._target is None:
            msg = "strategy 'auto' looks at the file of the model, and there is none; name a strategy"
            raise ConfigError(msg)
        with self._looking():
            suitable, passed_over = plugins.registry().suitable(self._target, self._draft)
        from_text = [info for info in suitable if not info.needs and not info.uses_draft_file]
        with_model = [info for info in suitable if info not in from_text and self._is_open_for(info)][:1]
        chosen = [*from_text[:1], *with_model] if with_model else from_text
        specs = [self._spec(info) for info in chosen]
        but = "".join(f"; not {name}: {why}" for name, why in passed_over.items())
        if not specs:
            return Choice(None, f"auto: no strategy suits these files{but}")
        why = "which the draft file is for" if self._draft else "whose layers are in the model's file"
        reasons = [f"{info.name}{f', {why}' if info in with_model else ' from the text'}" for info in chosen]
        spec = specs[0] if len(specs) == 1 else Combination(Join.FIRST_OF, tuple(specs))
        return Choice(spec, f"auto: {' before '.join(reasons)}{but}", required=self._draft is not None)

    def _spec(self, info: StrategyInfo) -> StrategySpec:
        return StrategySpec.of(info.cls, info.cls.auto_options, self._draft if info.uses_draft_file else None)

    def _is_open_for(self, info: StrategyInfo) -> bool:
        """Whether the model was, or is about to be, opened as the strategy wants it."""
        wanted = self._spec(info).model_options
        return self._loaded is None or wanted.items() <= self._loaded.items()


_NAME = re.compile(r"[^\s(),=]+")
#: An option up to the next comma or parenthesis outside of double quotes.
_OPTION = re.compile(r'(?:[^,()"]|"(?:[^"\\]|\\.)*")*')


def parse(text: str) -> Named | Combined:
    """Read ``name``, ``name(key=value,...)`` or ``first-of(...)`` and ``extend(...)`` of these. Raises ConfigError."""
    reader = _Reader(text)
    strategy = reader.strategy()
    if not reader.at_end:
        raise reader.error("nothing more")
    return strategy


class _Reader:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._skip()

    @property
    def at_end(self) -> bool:
        return self._at == len(self._text)

    def error(self, wanted: str) -> ConfigError:
        rest = self._text[self._at :]
        return ConfigError(f"cannot read the strategy {self._text!r}: {wanted} expected where {rest!r} stands")

    def strategy(self) -> Named | Combined:
        name = self._match(_NAME)
        if not name:
            raise self.error("the name of a strategy")
        # As Python spells it, too.
        kind = next((kind for kind in Join if kind.value == name.replace("_", "-")), None)
        if kind is not None and not self._text.startswith("(", self._at):
            raise self.error(f"the strategies of {name} in parentheses")
        if not self._take("("):
            return Named(name)
        parts: list[Named | Combined] = []
        options: list[str] = []
        while not self._take(")"):
            if (parts or options) and not self._take(","):
                raise self.error("a comma or a closing parenthesis")
            if kind is not None:
                parts.append(self.strategy())
            elif option := self._match(_OPTION):
                options.append(option)
            else:
                raise self.error("an option name=value")
        return Named(name, plugins.parse_options(options)) if kind is None else Combined(kind, tuple(parts))

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found else self._at
        self._skip()
        return found.group().strip() if found else ""

    def _take(self, character: str) -> bool:
        if not self._text.startswith(character, self._at):
            return False
        self._at += 1
        self._skip()
        return True

    def _skip(self) -> None:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1
