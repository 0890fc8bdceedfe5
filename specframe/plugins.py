"""Finding strategies and observers: built-in ones, installed plugins, classes an application registers itself.

A plugin that cannot be used never takes the others with it. What is wrong is kept in :attr:`Registry.broken`, logged
once, shown by ``specframe strategies``, and raised when a strategy of that plugin is asked for.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import logging
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import attrs
import pluggy

from specframe import hookspecs
from specframe.core.errors import ConfigError
from specframe.core.names import resembling
from specframe.core.observer import Observer
from specframe.core.strategy import AnyStrategyClass, StrategySpec, Suitability
from specframe.plugin_info import BrokenPlugin, Source, StrategyInfo, check_strategy_class, what_it_says

log = logging.getLogger(__name__)

#: Comma separated names of entry points to load; unset loads all, empty only what is built in.
LOAD_VARIABLE = "SPECFRAME_LOAD_PLUGINS"

_BUILTIN = "specframe.strategies"

_S = TypeVar("_S", bound=AnyStrategyClass)


@attrs.define
class _Offer:
    """What one plugin registered, before any of it counts."""

    source: Source
    strategies: list[AnyStrategyClass] = attrs.field(factory=list)
    observers: list[type[Observer]] = attrs.field(factory=list)


class Registry:
    """Strategies by name, and observers. A new one is empty; :meth:`discover` finds what is installed. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._offered: dict[str, list[StrategyInfo]] = {}
        self._observers: list[type[Observer]] = []
        self._broken: list[BrokenPlugin] = []

    @classmethod
    def discover(
        cls, *, load: str | None = None, entry_points: Iterable[importlib.metadata.EntryPoint] | None = None
    ) -> Registry:
        """Load the built-in strategies and the plugins of the entry-point group ``specframe``.

        Args:
            load: Comma separated names of the entry points to load; None loads all, an empty text none.
            entry_points: Instead of those installed.
        """
        found = list(importlib.metadata.entry_points(group=hookspecs.PROJECT) if entry_points is None else entry_points)
        # The built-in module has an entry point like every plugin, but cannot be left out.
        third_party = sorted((e for e in found if e.value != _BUILTIN), key=lambda e: (e.name, e.value))
        registry = cls()
        registry.load(importlib.import_module(_BUILTIN), Source.builtin(_BUILTIN))
        wanted = None if load is None else {name.strip() for name in load.split(",")} - {""}
        for entry_point in third_party:
            if wanted is None or entry_point.name in wanted:
                registry._load_entry_point(entry_point)
        for name in sorted((wanted or set()) - {e.name for e in found}):
            installed = ", ".join(sorted(e.name for e in third_party)) or "none"
            msg = f"{LOAD_VARIABLE} names {name!r}, but no such plugin is installed; installed: {installed}"
            registry._report(BrokenPlugin(Source(entry_point=name), msg))
        return registry

    # -- asking -------------------------------------------------------------------------------------------------------

    @property
    def broken(self) -> list[BrokenPlugin]:
        """Plugins that cannot be used and names that cannot be resolved, and why."""
        with self._lock:
            clashes = [
                BrokenPlugin(infos[-1].source, _collision(name, infos), (name,))
                for name, infos in self._offered.items()
                if len(infos) > 1
            ]
            return [*self._broken, *clashes]

    def strategies(self) -> list[StrategyInfo]:
        """Every usable strategy, by name. Names offered by more than one package are in :attr:`broken` instead."""
        with self._lock:
            return sorted((infos[0] for infos in self._offered.values() if len(infos) == 1), key=lambda i: i.name)

    def info(self, name: str) -> StrategyInfo:
        """Facts about the strategy ``name``. Raises ConfigError like :meth:`get`."""
        with self._lock:
            infos = self._offered.get(name, [])
            if len(infos) > 1:
                raise ConfigError(_collision(name, infos))
            if infos:
                return infos[0]
            for plugin in self._broken:
                if name in plugin.strategies:
                    raise ConfigError(plugin.message)
            raise ConfigError(self._unknown(name))

    def get(self, name: str) -> AnyStrategyClass:
        """The class of strategy ``name``.

        Raises:
            ConfigError: There is nothing of that name (the message has close matches), more than one package offers it,
                or its plugin is broken.
        """
        return self.info(name).cls

    def spec(self, name: str, options: Mapping[str, Any] | None = None, draft_path: Path | None = None) -> StrategySpec:
        """Strategy ``name`` with validated options, ready for an engine. Raises ConfigError."""
        return StrategySpec.of(self.get(name), options, draft_path)

    def suitable(self, target: Path, draft: Path | None = None) -> tuple[list[StrategyInfo], dict[str, str]]:
        """Strategies that volunteer for these files and work with them, the one that suits best first.

        A draft file decides: the strategy it was made for comes first. Without one, a strategy that cannot work, like
        one whose layers were left out of the target's file, is passed over, and so is one that fails to answer.

        Returns:
            The strategies; and the names of those that volunteered and cannot work, with the reasons.

        Raises:
            ConfigError: ``draft`` is made for no strategy, or does not work with ``target``.
        """
        passed_over: dict[str, str] = {}
        ranked = [(_suitability(info, target, draft, passed_over), info) for info in self.strategies()]
        ranked.sort(key=lambda entry: -entry[0])
        if draft is not None and (not ranked or ranked[0][0] < Suitability.DRAFT_FILE):
            msg = f"no strategy drafts with {str(draft)!r}; `specframe info` says what it is"
            raise ConfigError(msg)
        usable = []
        for suits, info in ranked:
            if suits is Suitability.UNASKED:
                continue
            try:
                info.cls.check_files(target, draft if info.uses_draft_file else None)
            except Exception as error:
                if suits is Suitability.DRAFT_FILE:
                    raise
                passed_over[info.name] = what_it_says(error)
            else:
                usable.append(info)
        for name, why in passed_over.items():
            log.info("strategy %r is passed over: %s", name, why)
        return usable, passed_over

    def observers(self) -> list[type[Observer]]:
        """Observer classes of all plugins, in the order they were offered; every engine builds its own."""
        with self._lock:
            return list(self._observers)

    # -- adding -------------------------------------------------------------------------------------------------------

    def register(self, cls: _S, *, replace: bool = False) -> _S:
        """Add a strategy class of this process, for applications and notebooks. Returns it, so it can be a decorator.

        Args:
            cls: A subclass of Strategy or BatchStrategy.
            replace: Take the place of an earlier class of that name that was registered like this one.

        Raises:
            ConfigError: The class cannot be used, or the name is taken.
        """
        info = StrategyInfo.of(cls, Source.application(cls.__module__))
        with self._lock:
            taken = self._offered.get(info.name, [])
            if [known.cls for known in taken] == [cls]:
                return cls
            if taken and not (replace and all(known.source.in_process for known in taken)):
                raise ConfigError(_collision(info.name, [*taken, info]))
            self._offered[info.name] = [info]
        return cls

    def load(self, plugin: object, source: Source) -> None:
        """Take what ``plugin`` (a module or an object with hook implementations) offers: all of it, or nothing."""
        offer = _Offer(source)
        try:
            _collect(plugin, offer)
            infos = [StrategyInfo.of(cls, source) for cls in offer.strategies]
        except (Exception, SystemExit) as error:  # noqa: BLE001 -- foreign code; whatever it raises is reported
            names = tuple(n for cls in offer.strategies if isinstance(n := getattr(cls, "name", None), str))
            self._report(BrokenPlugin.because(source, error, names))
            return
        with self._lock:
            for info in infos:
                taken = self._offered.setdefault(info.name, [])
                taken.append(info)
                if len(taken) > 1:
                    log.warning("%s", _collision(info.name, taken))
            self._observers.extend(offer.observers)

    def _load_entry_point(self, entry_point: importlib.metadata.EntryPoint) -> None:
        source = Source.of(entry_point)
        try:
            plugin = entry_point.load()
        except (Exception, SystemExit) as error:  # noqa: BLE001 -- see load
            self._report(BrokenPlugin.because(source, error))
            return
        self.load(plugin, source)

    def _report(self, broken: BrokenPlugin) -> None:
        log.warning("%s", broken.message)
        with self._lock:
            self._broken.append(broken)

    def _unknown(self, name: str) -> str:
        names = sorted(self._offered)
        hint = resembling(name, names, f"available: {', '.join(names) or 'none'}")
        lines = [f"there is no strategy {name!r}; {hint}"]
        if self._broken:
            lines.append("It may belong to a plugin that could not be loaded:")
            lines += [f"- {plugin.message}" for plugin in self._broken]
        return "\n".join(lines)


def _collect(plugin: object, offer: _Offer) -> None:
    """Run the plugin's hooks."""
    # A manager for each, so that a plugin that breaks leaves nothing behind in a shared one.
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(plugin)
    manager.check_pending()
    if not manager.get_hookcallers(plugin):
        kind = "module" if isinstance(plugin, ModuleType) else "object"
        hooks = " or ".join(name for name in vars(hookspecs) if name.startswith("specframe_"))
        msg = f"the {kind} implements no hook: decorate a function called {hooks} with @specframe.hookimpl"
        raise ConfigError(msg)

    def take_observer(cls: object) -> None:
        if not (isinstance(cls, type) and issubclass(cls, Observer)):
            msg = f"observer {cls!r} is not a subclass of specframe.Observer"
            raise ConfigError(msg)
        offer.observers.append(cls)

    def take_strategy(cls: AnyStrategyClass) -> None:
        offer.strategies.append(cls)
        check_strategy_class(cls)

    manager.hook.specframe_register_strategies(register=take_strategy)
    manager.hook.specframe_register_observers(register=take_observer)


def _suitability(info: StrategyInfo, target: Path, draft: Path | None, passed_over: dict[str, str]) -> Suitability:
    try:
        return Suitability(info.cls.suitability(target, draft))
    except Exception as error:
        if draft is not None and isinstance(error, ConfigError):
            raise  # the draft file cannot be read
        passed_over[info.name] = what_it_says(error)
        return Suitability.UNASKED


def _collision(name: str, infos: list[StrategyInfo]) -> str:
    who = " and ".join(str(info.source) for info in infos)
    removable = sorted({i.source.entry_point for i in infos if i.source.entry_point and not i.source.is_builtin})
    way_out = (
        f"uninstall one, or set {LOAD_VARIABLE} to the plugins you want, without {' or '.join(map(repr, removable))}"
        if removable
        else "choose another name"
    )
    return f"strategy {name!r} is offered by {who}: {way_out}"


_shared: Registry | None = None
_shared_lock = threading.RLock()
_discovering = False


def registry() -> Registry:
    """The registry of this process: discovered at the first call, with ``SPECFRAME_LOAD_PLUGINS`` as it is then.

    Raises:
        ConfigError: A plugin asks for it while it is being loaded.
    """
    global _shared, _discovering  # noqa: PLW0603 -- one per process is the point
    with _shared_lock:
        if _discovering:
            msg = (
                "plugins are being loaded, so there is no registry yet: a plugin offers its strategies with the hook "
                "specframe_register_strategies; specframe.register is for applications"
            )
            raise ConfigError(msg)
        if _shared is None:
            _discovering = True
            try:
                _shared = Registry.discover(load=os.environ.get(LOAD_VARIABLE))
            finally:
                _discovering = False
        return _shared


def register(cls: _S, *, replace: bool = False) -> _S:
    """Add a strategy class to the registry of this process; see :meth:`Registry.register`."""
    return registry().register(cls, replace=replace)


def parse_options(pairs: Iterable[str]) -> dict[str, Any]:
    """``["n=8", "min-hits=2", "mode=fast"]`` to ``{"n": 8, "min_hits": 2, "mode": "fast"}``.

    Values that are JSON numbers, booleans, strings or null become that; everything else stays text.

    Raises:
        ConfigError: No "=", no name before it, or the same name twice.
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            msg = f"strategy option {pair!r} is not of the form name=value"
            raise ConfigError(msg)
        if key in options:
            msg = f"strategy option {key!r} is given twice: {options[key]!r} and {text!r}"
            raise ConfigError(msg)
        options[key] = _scalar(text.strip())
    return options


def _scalar(text: str) -> Any:
    try:
        # NaN and Infinity are not JSON, although Python's parser would take them.
        value = json.loads(text, parse_constant=str)
    except ValueError:
        return text
    return text if isinstance(value, (dict, list)) else value
