"""Where a native library may be: nothing is loaded and no package is imported here."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

import attrs

from specframe.backends.llama.declarations import Carrier, pin
from specframe.cache import cache_directory

#: Names a shared libllama has, by platform.
LIBRARY_NAMES = ("libllama.so", "libllama.dylib", "llama.dll")


@attrs.frozen
class Candidate:
    """One place where a library was looked for."""

    source: str
    path: Path | None
    missing: str = ""
    """Why there is no path."""
    explicit: bool = False
    """Chosen by the caller: no other candidate may take its place."""


def candidates(path: str | os.PathLike[str] | None) -> Iterator[Candidate]:
    """Candidates, best first."""
    if path is not None:
        yield Candidate("explicit path", Path(path), explicit=True)
        return
    chosen = os.environ.get("SPECFRAME_LLAMA_LIB")
    if chosen:
        yield Candidate("SPECFRAME_LLAMA_LIB", Path(chosen), explicit=True)
        return
    yield from native_builds()
    for name in ("xllamacpp", "llama-cpp-py-sync"):
        yield installed(pin().carriers[name])


def runtimes_dir() -> Path:
    """Where native builds of the pinned source live, one directory per build."""
    return cache_directory("runtimes")


def native_builds() -> Iterator[Candidate]:
    """Libraries built on this machine, newest first; nothing when there are none."""
    found = [path for name in LIBRARY_NAMES for path in runtimes_dir().glob(f"*/{name}")]
    for path in sorted(found, key=lambda item: item.stat().st_mtime, reverse=True):
        yield Candidate(f"native build {path.parent.name}", path)


def installed(carrier: Carrier) -> Candidate:
    """The library inside an installed carrier package, found without importing the package."""
    try:
        distribution = importlib.metadata.distribution(carrier.name)
    except importlib.metadata.PackageNotFoundError:
        return Candidate(carrier.name, None, missing="not installed")
    source = f"{carrier.name} {distribution.version}"
    if distribution.version != carrier.version:
        return Candidate(source, None, missing=f"the pinned version is {carrier.version}")
    path = Path(str(distribution.locate_file(carrier.library or "")))
    if not path.is_file():
        return Candidate(source, None, missing=f"the package has no {carrier.library} on this platform")
    return Candidate(source, path)


def prefer_short_spins() -> None:
    """Let idle OpenMP threads spin only briefly, unless the user set a policy.

    GNU OpenMP spins for milliseconds between parallel regions. Alone on a machine that changes nothing; as soon as
    another job wants the cores it costs most of the throughput (170 tokens/s became less than 3, and stayed 165 with
    2000 spins). libgomp reads the variable once, when it is loaded, so it must be set before.
    """
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "2000"


def explain_dlopen(message: str) -> str:
    """What the dynamic linker said, with the way out where the cause is a known one."""
    glibc = re.search(r"version `GLIBC_([\d.]+)' not found", message)
    if glibc:
        have = platform.libc_ver()[1] or "an older one"
        return f"it needs glibc {glibc.group(1)} or newer, this system has {have}; use the xllamacpp wheel instead"
    missing = re.search(r"(\S+\.so[.\d]*): cannot open shared object file", message)
    if missing:
        return f"a library it depends on is missing: {missing.group(1)}"
    return f"the dynamic linker refuses it: {message.partition('.  Additionally, ctypes')[0]}"
