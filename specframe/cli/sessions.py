"""``--session FILE``: what the model has in memory, kept from one call to the next."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from specframe.core.errors import ConfigError, SpecframeError

if TYPE_CHECKING:
    from specframe.llm import LLM


def load_session(llm: LLM, path: Path | None) -> Mapping[str, Any]:
    """Start from ``path`` if it is there; returns what was noted in it. Raises ConfigError when it does not fit."""
    from specframe.core.session import Session  # noqa: PLC0415 -- not needed for --help

    if path is None:
        return {}
    if not path.parent.is_dir():
        msg = f"the session cannot be written to {str(path)!r}: there is no directory {str(path.parent)!r}"
        raise ConfigError(msg)
    if not path.exists():
        return {}
    try:
        session = Session.read(path)
    except OSError as error:
        msg = f"cannot read the session: {error}"
        raise ConfigError(msg) from error
    llm.engine.load_session(session)
    return session.notes


def save_session(llm: LLM, path: Path | None, notes: Mapping[str, Any]) -> None:
    """Write what the latest request left in memory. Raises SpecframeError."""
    if path is None:
        return
    session = attrs.evolve(llm.engine.save_session(), notes=notes)
    try:
        session.write(path)
    except OSError as error:
        msg = f"cannot write the session: {error}"
        raise SpecframeError(msg) from error
