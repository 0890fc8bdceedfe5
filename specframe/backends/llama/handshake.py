"""The ABI handshake: does this library have the struct layouts and symbols that the declarations say?

A by-value struct that is one field longer than declared corrupts memory silently, so nothing but the version string is
trusted before the default parameters, read through the declared layout, are what the pin expects.
"""

from __future__ import annotations

import platform
import sys
from typing import Any

from specframe.backends.llama.declarations import install_command, pin
from specframe.core.errors import ConfigError

_STRUCTS = {
    "llama_model_default_params": "struct llama_model_params",
    "llama_context_default_params": "struct llama_context_params",
}
_FILL = 0xA5


def recognise(ffi: Any, lib: Any) -> str:
    """The ABI a library claims to have, one of ``pin().abis``.

    Raises:
        ConfigError: it is no llama.cpp, or not a version we have declarations for.
    """
    try:
        version: str = ffi.string(lib.llama_version()).decode("utf-8", "replace")
    except AttributeError:
        raise ConfigError(f"it has no llama_version(): not llama.cpp, or an older one; {_way_out()}") from None
    if version not in pin().abis:
        raise ConfigError(
            f"it is llama.cpp {version}, and specframe is written against {', '.join(pin().abis)}; {_way_out()}"
        )
    return version


def check_symbols(lib: Any) -> None:
    """Every declared function is exported. Raises ConfigError naming the missing ones."""
    missing = [name for name in dir(lib) if name not in _constants(lib) and not hasattr(lib, name)]
    if missing:
        first, *others = missing
        more = f" and {len(others)} more symbols" if others else ""
        raise ConfigError(f"it does not export {first}{more}; {_way_out()}")


def check_layout(ffi: Any, lib: Any, probe: Any, probed: Any) -> None:
    """Default parameters, read through our declarations, are the expected ones.

    Args:
        ffi: the declarations of the ABI the library claims.
        lib: the library with them.
        probe: declarations with structs too large to overrun, see ``probe_ffi``.
        probed: the same library with those.

    Raises:
        ConfigError: a field is not what it should be; the first one is named.
    """
    for function, struct in _STRUCTS.items():
        raw, n_bytes = _returned(probe, probed, function)
        declared = ffi.sizeof(struct)
        if n_bytes is not None and not declared - ffi.alignof(struct) < n_bytes <= declared:
            raise ConfigError(
                f"{struct} has {n_bytes} bytes in this library and {declared} in our declarations; {_way_out()}"
            )
        _compare(function, ffi.cast(f"{struct} *", ffi.from_buffer(raw))[0], ffi)
    _compare("llama_sampler_chain_default_params", lib.llama_sampler_chain_default_params(), ffi)
    for function, expected in pin().defaults["scalars"].items():
        actual = getattr(lib, function)()
        if actual != expected:
            raise ConfigError(f"{function}() is {actual} and should be {expected}; {_way_out()}")


def _returned(probe: Any, probed: Any, function: str) -> tuple[bytes, int | None]:
    """Bytes of a returned struct, and how many the library wrote where the calling convention lets us see it."""
    pointer = getattr(probed, function)
    size = probe.sizeof("struct probe")
    if platform.machine() in {"x86_64", "AMD64"} and sys.platform != "win32":
        # System V: the address for a large struct is a hidden first argument, so the buffer can be ours, pre-filled.
        buffer = probe.new("unsigned char[]", bytes([_FILL]) * size)
        probe.cast("void *(*)(unsigned char *)", pointer)(buffer)
        raw = bytes(probe.buffer(buffer, size))
        return raw, len(raw.rstrip(bytes([_FILL])))
    return bytes(probe.buffer(probe.new("struct probe *", pointer()))), None


def _compare(function: str, params: Any, ffi: Any) -> None:
    expected = pin().defaults[function]
    for name, _ in ffi.typeof(params).fields:
        actual = getattr(params, name)
        if actual != (ffi.NULL if expected[name] == "null" else expected[name]):
            raise ConfigError(
                f"{function}().{name} is {actual!r} and should be {expected[name]!r}: "
                f"the struct layout is another one; {_way_out()}"
            )


def _way_out() -> str:
    return f"use a library of the pinned llama.cpp: {install_command()}"


def _constants(lib: Any) -> frozenset[str]:
    """Names in ``dir(lib)`` that are enum constants or macros, not symbols."""
    return frozenset(name for name in dir(lib) if name.startswith(("LLAMA_", "GGML_", "GGUF_")))
