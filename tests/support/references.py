"""The pinned packages, fetched as the references that our declarations are checked against."""

from __future__ import annotations

from pathlib import Path

import filelock

from specframe.backends.llama.declarations import Carrier
from specframe.cache import cache_directory
from specframe.runtime import archive


def fetch(carrier: Carrier) -> Path:
    """The pinned file of ``carrier``, downloaded once; not getting it is an error, never a skip."""
    directory = cache_directory("references")
    directory.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(directory / f"{carrier.file}.lock"):
        return archive.fetch(carrier, directory, lambda *_: None)
