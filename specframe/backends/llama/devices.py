"""Compute devices of a library: which there are, and which of them a model may use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from specframe.backends.llama.library import Library
from specframe.core.errors import ConfigError
from specframe.core.validators import elements

#: Devices that a model is put on by name; others (BLAS, AMX) help the processor by themselves.
CHOOSABLE = ("cpu", "gpu", "igpu")
NONE = "none"


@attrs.frozen(kw_only=True)
class Device:
    """A compute device as the library sees it."""

    name: str
    description: str
    kind: str
    """``cpu``, ``gpu``, ``igpu``, ``accel`` or ``meta``."""
    backend: str
    memory_free: int
    memory_total: int


def devices(library: Library) -> tuple[Device, ...]:
    """All devices, in the order of the library."""
    return tuple(_device(library, handle) for handle in _handles(library))


def device_names(given: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Names as they can be given: a sequence, or a text that separates them by commas. None: no choice was made.

    Raises:
        ConfigError: there is no name in it, or something else than names.
    """
    if given is None:
        return None
    names = given.split(",") if isinstance(given, str) else elements("devices", given)
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise ConfigError(f"devices must be names of devices or {NONE!r}, separated by commas, not {given!r}")
    return tuple(dict.fromkeys(name.strip() for name in names))


def device_array(library: Library, names: Sequence[str] | None) -> Any:
    """``llama_model_params.devices``: what to offload to, ended by NULL; NULL for every device there is.

    The processor is no entry of it: it computes what nothing else does.

    Raises:
        ConfigError: there is no such device; the message lists those there are.
    """
    ffi = library.ffi
    if names is None:
        return ffi.NULL
    known = {}
    for handle in _handles(library):
        name, kind = _name(library, handle), _kind(library, handle)
        if kind in CHOOSABLE:
            known[name.casefold()] = (name, kind, handle)
    chosen = []
    for name in names:
        if name.casefold() == NONE and len(names) == 1:
            continue
        if name.casefold() not in known:
            there = ", ".join(found for found, _, _ in known.values())
            raise ConfigError(
                f"there is no device {name!r}; the library ({library.source}) knows {there}. "
                f"Name one of them, or {NONE!r} alone for the processor only"
            )
        _, kind, handle = known[name.casefold()]
        if kind != "cpu":
            chosen.append(handle)
    return ffi.new("ggml_backend_dev_t[]", [*chosen, ffi.NULL])


def _handles(library: Library) -> list[Any]:
    lib = library.lib
    return [lib.ggml_backend_dev_get(index) for index in range(lib.ggml_backend_dev_count())]


def _name(library: Library, handle: Any) -> str:
    text: bytes = library.ffi.string(library.lib.ggml_backend_dev_name(handle))
    return text.decode("utf-8", "replace")


def _kind(library: Library, handle: Any) -> str:
    ffi = library.ffi
    kind: str = ffi.string(ffi.cast("enum ggml_backend_dev_type", library.lib.ggml_backend_dev_type(handle)))
    return kind.removeprefix("GGML_BACKEND_DEVICE_TYPE_").lower()


def _device(library: Library, handle: Any) -> Device:
    ffi, lib = library.ffi, library.lib
    free, total = ffi.new("size_t *"), ffi.new("size_t *")
    lib.ggml_backend_dev_memory(handle, free, total)
    return Device(
        name=_name(library, handle),
        description=ffi.string(lib.ggml_backend_dev_description(handle)).decode("utf-8", "replace"),
        kind=_kind(library, handle),
        backend=ffi.string(lib.ggml_backend_reg_name(lib.ggml_backend_dev_backend_reg(handle))).decode(),
        memory_free=int(free[0]),
        memory_total=int(total[0]),
    )
