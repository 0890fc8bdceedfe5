"""The pin and the C declarations in ``vendor/llama.cpp``, as shipped in the wheel or found in a source checkout."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs
import cffi

from specframe.core.errors import InternalError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Declaration files in the order in which C needs them.
CONCEPTS = (
    "types",
    "log",
    "library",
    "device",
    "gguf",
    "model",
    "vocab",
    "context_enums",
    "context_params",
    "context",
    "batch",
    "memory",
    "state",
    "sampler",
    "staging",
)


@attrs.frozen
class Carrier:
    """A package on PyPI that carries the pinned library or its source."""

    name: str
    version: str
    file: str
    sha256: str
    upstream: str
    """Tag or commit of llama.cpp that it was built from."""
    abi: str
    """What ``llama_version()`` of its library says."""
    library: str | None = None
    """Path of the library inside the wheel."""
    source: str | None = None
    """Path of the llama.cpp tree inside the source distribution."""


@attrs.frozen
class Recipe:
    """How a library is built from the source that a carrier holds."""

    carrier: Carrier
    target: str
    """What is built: the library and what it links to."""
    output: str
    """Directory of the build tree in which the libraries are."""
    options: Mapping[str, str]
    """CMake options of every build."""
    backends: Mapping[str, Mapping[str, str]]
    """CMake options that each backend adds."""


@attrs.frozen
class Pin:
    """The contents of ``pin.toml``."""

    tag: str
    carriers: Mapping[str, Carrier]
    recipe: Recipe
    abis: tuple[str, ...]
    """Accepted answers of ``llama_version()``, newest first."""
    defaults: Mapping[str, Mapping[str, Any]]
    """Expected default parameters: C function -> field -> value; under ``scalars`` function -> value."""


def install_command() -> str:
    """How to get the default carrier of the pinned library."""
    return f"pip install xllamacpp=={pin().carriers['xllamacpp'].version}"


def vendor_dir() -> Path:
    """The directory that holds ``pin.toml`` and ``cdef/``.

    Raises:
        InternalError: neither the wheel's copy nor a source checkout's is there.
    """
    here = Path(__file__).resolve()
    packaged = here.with_name("vendor")
    checkout = here.parents[3] / "vendor" / "llama.cpp"
    for directory in (packaged, checkout):
        if (directory / "pin.toml").is_file():
            return directory
    raise InternalError(f"the llama.cpp declarations are neither in {packaged} nor in {checkout}; reinstall specframe")


@functools.lru_cache(maxsize=1)
def pin() -> Pin:
    """The pinned llama.cpp: carriers, accepted ABIs and the values expected at load."""
    raw = tomllib.loads((vendor_dir() / "pin.toml").read_text(encoding="utf-8"))
    carriers = {name: Carrier(name=name, **fields) for name, fields in raw["carriers"].items()}
    build = raw["build"]
    return Pin(
        tag=raw["upstream"]["tag"],
        carriers=MappingProxyType(carriers),
        recipe=Recipe(
            carrier=carriers[build["carrier"]],
            target=build["target"],
            output=build["output"],
            options=MappingProxyType(build["options"]),
            backends=MappingProxyType({name: MappingProxyType(extra) for name, extra in build["backends"].items()}),
        ),
        abis=tuple(raw["abi"]),
        defaults=MappingProxyType({name: MappingProxyType(values) for name, values in raw["defaults"].items()}),
    )


def declaration(concept: str, abi: str) -> str:
    """C declarations of one concept as they are in ``abi``."""
    special = vendor_dir() / "abi" / abi / f"{concept}.h"
    common = vendor_dir() / "cdef" / f"{concept}.h"
    return (special if special.is_file() else common).read_text(encoding="utf-8")


def new_ffi(abi: str) -> Any:
    """A ``cffi.FFI`` that knows every declaration of ``abi``."""
    ffi = cffi.FFI()
    for concept in CONCEPTS:
        ffi.cdef(declaration(concept, abi))
    return ffi


def probe_ffi() -> Any:
    """A ``cffi.FFI`` for looking at a library whose struct layouts are not known yet.

    Every parameter struct is taken as one that is larger than any llama.cpp ever had. All of them are returned through
    memory that the caller provides, so a layout other than the declared one cannot write past it.
    """
    ffi = cffi.FFI()
    ffi.cdef(
        """
        struct probe { unsigned char bytes[1024]; };
        struct probe llama_model_default_params(void);
        struct probe llama_context_default_params(void);
        const char *llama_version(void);
        """
    )
    return ffi
