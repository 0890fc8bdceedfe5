"""What the processor of this machine can do."""

from __future__ import annotations

from pathlib import Path

#: ``/proc/cpuinfo`` flag -> name of the kernel family in ggml, where it makes a difference for speed.
_FEATURES = {
    "avx": "avx",
    "avx2": "avx2",
    "fma": "fma",
    "f16c": "f16c",
    "bmi2": "bmi2",
    "avx_vnni": "avx_vnni",
    "avx512f": "avx512",
    "avx512vbmi": "avx512_vbmi",
    "avx512_vnni": "avx512_vnni",
    "avx512_bf16": "avx512_bf16",
    "amx_int8": "amx_int8",
    "asimd": "neon",
    "asimddp": "dotprod",
    "i8mm": "matmul_int8",
    "sve": "sve",
}


def machine_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Instruction sets of this machine that llama.cpp has kernels for; empty where the system does not tell."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    flags = {flag for line in lines if line.lower().startswith(("flags", "features")) for flag in line.split()}
    return [name for flag, name in _FEATURES.items() if flag in flags]
