"""The state of an installation: runtime, machine, models, plugins."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import attrs

from specframe import catalogue, plugins
from specframe.backends.llama import discovery
from specframe.backends.llama.facts import runtime_facts
from specframe.backends.llama.library import Library, load_library
from specframe.backends.llama.threads import default_threads
from specframe.core.errors import ConfigError

#: ``/proc/cpuinfo`` flag -> name of the kernel family in ggml, where it makes a difference for speed.
_FEATURES = {
    "avx": "avx",
    "avx2": "avx2",
    "fma": "fma",
    "f16c": "f16c",
    "bmi2": "bmi2",
    "avx_vnni": "avx_vnni",
    "avx512f": "avx512",
    "avx512_vnni": "avx512_vnni",
    "avx512_bf16": "avx512_bf16",
    "amx_int8": "amx_int8",
    "asimd": "neon",
    "asimddp": "dotprod",
    "i8mm": "matmul_int8",
    "sve": "sve",
}


def diagnose() -> dict[str, Any]:
    """Everything ``specframe doctor`` tells, JSON-ready. A broken installation is its subject, not an error."""
    library, problem = _library()
    registry = plugins.registry()
    features = machine_features()
    runtime = None if library is None else attrs.asdict(runtime_facts(library))
    return {
        "specframe": version("specframe"),
        "machine": {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "libc": " ".join(platform.libc_ver()).strip(),
            "cpus": os.cpu_count(),
            "threads": default_threads(),
            "cpu_features": features,
        },
        "runtime": runtime,
        "runtime_problem": problem,
        "candidates": _candidates(library),
        "models": [
            {"name": m.entry.name, "path": str(m.path), "n_bytes": m.n_bytes, "complete": m.complete}
            for m in catalogue.cached()
        ],
        "strategies": [{"name": info.name, "source": str(info.source)} for info in registry.strategies()],
        "plugin_problems": [broken.message for broken in registry.broken],
        "advice": _advice(features, runtime, problem),
    }


def machine_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Instruction sets of this machine that llama.cpp has kernels for; empty where the system does not tell."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    flags = {flag for line in lines if line.lower().startswith(("flags", "features")) for flag in line.split()}
    return [name for flag, name in _FEATURES.items() if flag in flags]


def _library() -> tuple[Library | None, str | None]:
    try:
        return load_library(), None
    except ConfigError as error:
        return None, str(error)


def _candidates(library: Library | None) -> list[dict[str, Any]]:
    """Every place where a library may be, in order, and what became of it."""
    reasons = dict(library.refused) if library is not None else {}
    rows: list[dict[str, Any]] = []
    used = False
    for candidate in discovery.candidates(None):
        where = str(candidate.path or candidate.source)
        why = reasons.get(where, candidate.missing)
        if library is not None and candidate.path is not None and candidate.path.resolve() == library.path:
            state, used = "in use", True
        elif used:
            state, why = "not tried", why or "an earlier one is in use"
        elif library is None and not why:
            state, why = "refused", _refusal(candidate)
        else:
            state = "refused"
        path = None if candidate.path is None else str(candidate.path)
        rows.append({"source": candidate.source, "path": path, "state": state, "why": why})
    return rows


def _refusal(candidate: discovery.Candidate) -> str:
    try:
        load_library(candidate.path)
    except ConfigError as error:
        return str(error)
    return ""


def _advice(features: list[str], runtime: dict[str, Any] | None, problem: str | None) -> list[str]:
    if runtime is None:
        return [problem or "no runtime"]
    unused = [name for name in features if name not in runtime["cpu_features"]]
    if not unused:
        return []
    return [f"this build of llama.cpp makes no use of {', '.join(unused)}; one made for this machine is faster"]
