"""Hooks a plugin package may implement; see docs/plugins.md.

pluggy is used while an engine is set up only: strategies and observers are then called directly.
"""

from __future__ import annotations

from collections.abc import Callable

import pluggy

from specframe.core.observer import Observer
from specframe.core.strategy import AnyStrategyClass

#: Name of the pluggy project and of the entry-point group.
PROJECT = "specframe"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def specframe_register_strategies(register: Callable[[AnyStrategyClass], None]) -> None:
    """Offer strategies: call ``register(StrategyClass)`` once for each. A name that is already taken is an error."""


@hookspec
def specframe_register_observers(register: Callable[[type[Observer]], None]) -> None:
    """Offer observers: call ``register(ObserverClass)`` once for each; every engine builds its own instance."""
