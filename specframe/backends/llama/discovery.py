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
from specframe.backends.llama.native_builds import NativeBuild, chosen_runtime, native_builds

#: Wheels that carry a library, best first.
WHEELS = ("xllamacpp", "llama-cpp-py-sync")


@attrs.frozen
class Candidate:
    """One place where a library was looked for."""

    source: str
    path: Path | None
    missing: str = ""
    """Why there is no path, or why it is not tried."""
    explicit: bool = False
    """Chosen by the caller: no other candidate may take its place."""
    name: str = ""
    """What ``specframe runtime use`` calls it."""


def candidates(path: str | os.PathLike[str] | None) -> Iterator[Candidate]:
    """Candidates, best first."""
    if path is not None:
        yield Candidate("explicit path", Path(path), explicit=True)
        return
    chosen = os.environ.get("SPECFRAME_LLAMA_LIB")
    if chosen:
        yield Candidate("SPECFRAME_LLAMA_LIB", Path(chosen), explicit=True)
        return
    found = runtimes()
    name = os.environ.get("SPECFRAME_RUNTIME")
    if name:
        named = [candidate for candidate in found if candidate.name == name]
        missing = f"there is no runtime of that name; there are {', '.join(c.name for c in found)}"
        yield (
            attrs.evolve(named[0], explicit=True)
            if named
            else Candidate(f"SPECFRAME_RUNTIME {name}", None, missing=missing, explicit=True)
        )
        return
    first = chosen_runtime()
    yield from sorted(found, key=lambda candidate: candidate.name != first)


def runtimes() -> list[Candidate]:
    """Every native build, newest first, then the wheels."""
    return [*map(_built, native_builds()), *(installed(pin().carriers[name]) for name in WHEELS)]


def _built(build: NativeBuild) -> Candidate:
    why = build.unusable
    return Candidate(f"native build {build.name}", None if why else build.path, missing=why, name=build.name)


def installed(carrier: Carrier) -> Candidate:
    """The library inside an installed carrier package, found without importing the package."""
    try:
        distribution = importlib.metadata.distribution(carrier.name)
    except importlib.metadata.PackageNotFoundError:
        return Candidate(carrier.name, None, missing="not installed", name=carrier.name)
    source = f"{carrier.name} {distribution.version}"
    if distribution.version != carrier.version:
        return Candidate(source, None, missing=f"the pinned version is {carrier.version}", name=carrier.name)
    path = Path(str(distribution.locate_file(carrier.library or "")))
    if not path.is_file():
        missing = f"the package has no {carrier.library} on this platform"
        return Candidate(source, None, missing=missing, name=carrier.name)
    return Candidate(source, path, name=carrier.name)


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
