"""What is known about a plugin and its strategies, and what makes a strategy class usable."""

from __future__ import annotations

import importlib.metadata
import inspect
import re
import typing
from typing import Any

import attrs

from specframe.core.combination import Join
from specframe.core.errors import ConfigError
from specframe.core.ports import Need
from specframe.core.strategy import AnyStrategyClass, BatchStrategy, Strategy

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_RESERVED = frozenset({"none", "auto", *(kind.value for kind in Join)})  # plain decoding, a choice, combinations


@attrs.frozen(kw_only=True)
class Source:
    """Where a strategy comes from."""

    package: str | None = None
    """Name of the distribution; None for classes of an application."""
    version: str | None = None
    module: str | None = None
    entry_point: str | None = None
    """Name of the entry point, as ``SPECFRAME_LOAD_PLUGINS`` takes it."""
    is_builtin: bool = False
    in_process: bool = False
    """True when an application registered the class itself."""

    @classmethod
    def builtin(cls, module: str) -> Source:
        """The strategies specframe comes with."""
        try:
            version = importlib.metadata.version("specframe")
        except importlib.metadata.PackageNotFoundError:  # run from a source tree that is not installed
            version = None
        return cls(package="specframe", version=version, module=module, entry_point="builtin", is_builtin=True)

    @classmethod
    def application(cls, module: str) -> Source:
        """A class registered by the running program."""
        return cls(module=module, in_process=True)

    @classmethod
    def of(cls, entry_point: importlib.metadata.EntryPoint) -> Source:
        """An installed plugin."""
        dist = entry_point.dist
        return cls(
            package=dist.name if dist else None,
            version=dist.version if dist else None,
            module=entry_point.module,
            entry_point=entry_point.name,
        )

    def __str__(self) -> str:
        if self.in_process:
            return f"this process (module {self.module})"
        if self.package is None:
            return f"plugin {self.entry_point!r}"
        return f"package {self.package} {self.version or ''}".rstrip()


@attrs.frozen
class BrokenPlugin:
    """A plugin that cannot be used."""

    source: Source
    message: str
    """What is wrong, whose fault it is and how to go on without it."""
    strategies: tuple[str, ...] = ()
    """Names it offered before it failed; asking for one raises ``message``."""

    @classmethod
    def because(cls, source: Source, error: BaseException, strategies: tuple[str, ...] = ()) -> BrokenPlugin:
        """From what it raised."""
        message = (
            f"plugin {source.entry_point!r} of {source} cannot be used: {what_it_says(error)}. Uninstall it, "
            f"or leave it out by setting SPECFRAME_LOAD_PLUGINS to the plugins you want (empty: built-in ones only)"
        )
        return cls(source, message, strategies)


def what_it_says(error: BaseException) -> str:
    """An exception of foreign code for a message: with its type, unless it is one of ours."""
    return str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"


@attrs.frozen
class OptionInfo:
    """One option of a strategy."""

    name: str
    type: str
    default: Any
    doc: str
    """From the field's ``metadata={"doc": ...}``; empty when there is none."""


@attrs.frozen
class StrategyInfo:
    """Facts about a strategy, for listings."""

    name: str
    cls: AnyStrategyClass
    source: Source
    summary: str
    """First line of the class docstring."""
    needs: tuple[str, ...]
    """What it needs from the target beyond tokens: see ``Need.names``."""
    uses_draft_file: bool
    options: tuple[OptionInfo, ...]

    @classmethod
    def of(cls, strategy: AnyStrategyClass, source: Source) -> StrategyInfo:
        """Raises ConfigError when the class cannot be used."""
        check_strategy_class(strategy)
        doc = inspect.cleandoc(strategy.__doc__ or "")
        return cls(
            name=strategy.name,
            cls=strategy,
            source=source,
            summary=doc.partition("\n")[0],
            needs=strategy.needs.names,
            uses_draft_file=strategy.uses_draft_file,
            options=_options(strategy.Options),
        )


def check_strategy_class(cls: object) -> None:
    """Raise ConfigError, saying what to change, when ``cls`` cannot be a strategy."""
    if not (inspect.isclass(cls) and issubclass(cls, (Strategy, BatchStrategy))):
        msg = f"{cls!r:.80} is not a subclass of specframe.Strategy or specframe.BatchStrategy"
        if isinstance(cls, Strategy | BatchStrategy):
            msg += f"; give the class {type(cls).__name__}, objects are made of it when they are needed"
        elif isinstance(cls, list | tuple):
            msg += "; several are combined with specframe.first_of(...) or extend(...)"
        raise ConfigError(msg)
    where = f"strategy class {cls.__module__}.{cls.__qualname__}"
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _RESERVED:
        got = "has no name" if name is None else f"has the name {name!r}"
        taken = ", ".join(sorted(_RESERVED))
        msg = f"{where} {got}: set `name` to lower case letters, digits and single dashes, other than {taken}"
        raise ConfigError(msg)
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        msg = f"{where} does not implement {', '.join(missing)}()"
        raise ConfigError(msg)
    if not isinstance(cls.needs, Need):
        msg = f"{where} has needs={cls.needs!r}: use specframe.Need members, combined with |"
        raise ConfigError(msg)
    _check_options(where, cls.Options)


def _check_options(where: str, options: object) -> None:
    if not (inspect.isclass(options) and attrs.has(options)):
        msg = f"{where} has Options={options!r}: decorate an options class with @attrs.frozen(kw_only=True)"
        raise ConfigError(msg)
    for field in attrs.fields(options):
        if field.init and not (field.kw_only and field.default is not attrs.NOTHING):
            msg = (
                f"{where}: option {field.name!r} must be keyword-only (@attrs.frozen(kw_only=True)) and have a default"
            )
            raise ConfigError(msg)
    try:
        hash(options())
    except TypeError as error:
        msg = f"{where}: its Options are not hashable ({error}): use @attrs.frozen and defaults that cannot be changed"
        raise ConfigError(msg) from error
    except Exception as error:
        msg = f"{where}: its default Options are invalid: {error}"
        raise ConfigError(msg) from error


def _options(options: type) -> tuple[OptionInfo, ...]:
    try:
        hints = typing.get_type_hints(options)
    except (NameError, TypeError):  # names only imported for the type checker: show what was written
        hints = {}
    defaults = options()
    return tuple(
        OptionInfo(
            name=field.alias or field.name,
            type=_type_name(hints.get(field.name, field.type)),
            default=getattr(defaults, field.name),
            doc=str(field.metadata.get("doc", "")),
        )
        for field in attrs.fields(options)
        if field.init
    )


def _type_name(kind: object) -> str:
    if kind is None:
        return "any"
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
