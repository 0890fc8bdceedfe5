"""Finding and loading the one native library: the only ``dlopen`` of the project.

Candidates in order: an explicit path, ``SPECFRAME_LLAMA_LIB``, a native build in the user's cache directory, the
``xllamacpp`` wheel, the ``llama-cpp-py-sync`` wheel. An explicit choice is final: when it cannot be used nothing else
is tried. Everything tried and the reason for which it was refused is kept.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import attrs

from specframe.backends.llama import discovery, log, openmp
from specframe.backends.llama.declarations import install_command, new_ffi, probe_ffi
from specframe.backends.llama.discovery import Candidate
from specframe.backends.llama.handshake import check_layout, check_symbols, recognise
from specframe.core.errors import ConfigError


@attrs.frozen(eq=False)
class Library:
    """A loaded llama.cpp. It stays loaded until the process ends; nothing needs closing."""

    ffi: Any = attrs.field(repr=False)
    lib: Any = attrs.field(repr=False)
    path: Path
    source: str
    """Where it was found, for people: ``xllamacpp 2026.10.11549``."""
    version: str
    """What ``llama_version()`` says; selects the declarations."""
    refused: tuple[tuple[str, str], ...] = ()
    """Candidates that came first and could not be used: (where, why)."""
    _keep: Any = attrs.field(default=None, repr=False)


_lock = threading.Lock()
_loaded: dict[Path, Library] = {}
_openmp: list[Any] = []  # kept: unloading it would pull the threads from under the library


def load_library(path: str | os.PathLike[str] | None = None) -> Library:
    """The native library, loaded at the first call and shared by all later ones.

    Args:
        path: a shared library to use, and no other.

    Raises:
        ConfigError: no candidate can be used; the message lists each with its reason.
    """
    refused: list[tuple[str, str]] = []
    with _lock:
        for candidate in discovery.candidates(path):
            where = str(candidate.path or candidate.source)
            if candidate.path is None:
                refused.append((where, candidate.missing))
                continue
            try:
                return _load(candidate, candidate.path, tuple(refused))
            except ConfigError as error:
                refused.append((where, str(error)))
                if candidate.explicit:
                    break
    listing = "".join(f"\n  - {where}: {why}" for where, why in refused)
    raise ConfigError(
        f"no usable llama.cpp library; tried:{listing}\n"
        f"Install the pinned wheel ({install_command()}), or point SPECFRAME_LLAMA_LIB at a library of that version."
    )


def _load(candidate: Candidate, path: Path, refused: tuple[tuple[str, str], ...]) -> Library:
    path = path.resolve()
    if path in _loaded:
        return attrs.evolve(_loaded[path], source=candidate.source, refused=refused)
    if not path.is_file():
        raise ConfigError("there is no such file")
    discovery.prefer_short_spins()
    probe = probe_ffi()
    probed = _dlopen(probe, path)
    abi = recognise(probe, probed)
    ffi = new_ffi(abi)
    lib = _dlopen(ffi, path)
    check_symbols(lib)
    check_layout(ffi, lib, probe, probed)
    callback = log.install(ffi, lib)
    lib.llama_backend_init()
    library = Library(
        ffi=ffi, lib=lib, path=path, source=candidate.source, version=abi, refused=refused, keep=(callback, probed)
    )
    _loaded[path] = library
    return library


def _dlopen(ffi: Any, path: Path) -> Any:
    try:
        try:
            return ffi.dlopen(str(path))
        except OSError as error:
            if not openmp.is_missing(str(error)):
                raise
        _openmp.append(ffi.dlopen(str(openmp.supply())))
        return ffi.dlopen(str(path))
    except OSError as error:
        raise ConfigError(discovery.explain_dlopen(str(error))) from error
