"""What a loaded library can use on this machine, for ``specframe doctor``."""

from __future__ import annotations

import attrs

from specframe.backends.llama.devices import Device, devices
from specframe.backends.llama.library import Library


@attrs.frozen(kw_only=True)
class RuntimeFacts:
    """What a library is and what it makes use of."""

    source: str
    path: str
    version: str
    ggml_version: str
    cpu_features: tuple[str, ...]
    """Instruction sets its CPU kernels use; fewer than the machine has means a slower, generic build."""
    devices: tuple[Device, ...]
    gpu_offload: bool
    mmap: bool
    mlock: bool
    rpc: bool
    system_info: str
    refused: tuple[tuple[str, str], ...]
    """Candidates that came first and could not be used: (where, why)."""


def runtime_facts(library: Library) -> RuntimeFacts:
    """Ask ``library`` for everything worth telling about it."""
    ffi, lib = library.ffi, library.lib
    return RuntimeFacts(
        source=library.source,
        path=str(library.path),
        version=library.version,
        ggml_version=ffi.string(lib.ggml_version()).decode(),
        cpu_features=cpu_features(library),
        devices=devices(library),
        gpu_offload=bool(lib.llama_supports_gpu_offload()),
        mmap=bool(lib.llama_supports_mmap()),
        mlock=bool(lib.llama_supports_mlock()),
        rpc=bool(lib.llama_supports_rpc()),
        system_info=ffi.string(lib.llama_print_system_info()).decode("utf-8", "replace").strip(),
        refused=library.refused,
    )


def cpu_features(library: Library) -> tuple[str, ...]:
    """Instruction sets and kernel families that the CPU backend of ``library`` was compiled with."""
    prefix = "ggml_cpu_has_"
    names = sorted(name for name in dir(library.lib) if name.startswith(prefix))
    return tuple(name.removeprefix(prefix) for name in names if getattr(library.lib, name)())
