"""The state of an installation: runtime, machine, models, plugins."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from typing import Any

import attrs

from specframe import catalogue, plugins
from specframe.backends.llama import discovery
from specframe.backends.llama.facts import RuntimeFacts, runtime_facts
from specframe.backends.llama.library import Library, load_library
from specframe.backends.llama.processor import machine_features
from specframe.backends.llama.threads import default_threads
from specframe.core.errors import ConfigError
from specframe.runtime.toolchain import find_compiler


@attrs.frozen
class RuntimeReport:
    """Which library is in use, and what became of the others."""

    facts: RuntimeFacts | None
    """Of the one in use; None: there is none."""
    problem: str | None
    """Why there is none."""
    candidates: list[dict[str, Any]]
    """Every place where a library may be, in order: ``name``, ``source``, ``path``, ``state`` and ``why``."""

    @property
    def advice(self) -> list[str]:
        """What could be better, and how."""
        if self.facts is None:
            return [self.problem or "no runtime"]
        missed = [name for name in machine_features() if name not in self.facts.cpu_features]
        if not missed:
            return []
        way = "specframe runtime build"
        if find_compiler() is None:
            way += " (needs a C++ compiler, and there is none)"
        advice = (
            f"this build of llama.cpp makes no use of {', '.join(missed)}; one made for this machine is as fast "
            f"or faster, depending on the weights, for prompts and wide batches above all: {way}"
        )
        return [advice]


def diagnose() -> dict[str, Any]:
    """Everything ``specframe doctor`` tells, JSON-ready. A broken installation is its subject, not an error."""
    runtime = diagnose_runtime()
    registry = plugins.registry()
    return {
        "specframe": version("specframe"),
        "machine": {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "libc": " ".join(platform.libc_ver()).strip(),
            "cpus": os.cpu_count(),
            "threads": default_threads(),
            "cpu_features": machine_features(),
        },
        "runtime": None if runtime.facts is None else attrs.asdict(runtime.facts),
        "runtime_problem": runtime.problem,
        "candidates": runtime.candidates,
        "models": [
            {"name": m.entry.name, "path": str(m.path), "n_bytes": m.n_bytes, "complete": m.complete}
            for m in catalogue.cached()
        ],
        "strategies": [{"name": info.name, "source": str(info.source)} for info in registry.strategies()],
        "plugin_problems": [broken.message for broken in registry.broken],
        "advice": runtime.advice,
    }


def diagnose_runtime() -> RuntimeReport:
    """Look for a library as a load would, and keep what happened."""
    library, problem = _library()
    facts = None if library is None else runtime_facts(library)
    return RuntimeReport(facts, problem, _candidates(library))


def _library() -> tuple[Library | None, str | None]:
    try:
        return load_library(), None
    except ConfigError as error:
        return None, str(error)


def _candidates(library: Library | None) -> list[dict[str, Any]]:
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
        rows.append({"name": candidate.name, "source": candidate.source, "path": path, "state": state, "why": why})
    return rows


def _refusal(candidate: discovery.Candidate) -> str:
    try:
        load_library(candidate.path)
    except ConfigError as error:
        return str(error)
    return ""
