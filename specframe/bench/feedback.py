"""The community's feedback form, filled in from a comparison of plain decoding with one strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specframe.backends.llama.facts import RuntimeFacts
from specframe.bench.comparison import Row
from specframe.bench.results import Results
from specframe.bench.sides import Side
from specframe.bench.statistics import Summary
from specframe.bench.tables import spread
from specframe.core.strategy import StrategySpec

_MB = 1e6


def form(
    results: Results,
    side: Side,
    *,
    members: Sequence[StrategySpec],
    runtime: RuntimeFacts,
    target: Mapping[str, Any],
    draft: Mapping[str, Any] | None,
    observations: str = "",
) -> dict[str, Any]:
    """Every field of the form, in its order; not yet redacted.

    Args:
        results: of a run of plain decoding and ``side``.
        side: the strategy.
        members: what it is made of.
        runtime: what ran it.
        target: the target's file, from :func:`specframe.compatibility.describe`.
        draft: the draft's file, if there is one.
        observations: of the user.
    """
    settings, machine = results.settings, results.machine
    rows = [row for row in results.comparison.rows if row.side.label == side.label]
    gpus = [device for device in runtime.devices if device.kind != "cpu"]
    return {
        "specframe": machine["specframe"],
        "llama.cpp": f"{machine['llama.cpp']} (reports {runtime.version}, ggml {runtime.ggml_version})",
        "OS": machine["system"],
        "Python": machine["python"],
        "CPU": f"{machine['cpu']}, {machine['cores']} processors",
        "GPU": ", ".join(f"{d.description} ({d.memory_total / _MB:.0f} MB)" for d in gpus) or "none",
        "backend and build options": f"{runtime.source}: {runtime.system_info or ', '.join(runtime.cpu_features)}",
        "target model": _file(target),
        "MTP mode": _mtp_mode(members),
        "external model": "none" if draft is None else _file(draft),
        "strategy": f"auto: {', '.join(member.label for member in members)}" if side.strategy == "auto" else side.label,
        "draft_n_max": _option(members, "n_max", "m"),
        "draft_p_min": _option(members, "p_min"),
        "n_ctx": f"{settings.n_ctx}, {settings.memory}" if settings.memory else settings.n_ctx,
        "n_batch": settings.n_batch,
        "GPU layers": "all that fit" if settings.n_gpu_layers is None else settings.n_gpu_layers,
        "sampling": "greedy" if settings.temperature <= 0 else f"temperature {settings.temperature:g}",
        **_measured(rows),
        "warnings": _warnings(results, rows),
        "observations": observations or "none",
    }


def _file(facts: Mapping[str, Any]) -> str:
    parts = (Path(facts["path"]).name, facts["architecture"], facts["quantization"])
    return ", ".join(str(part) for part in parts if part)


def _mtp_mode(members: Sequence[StrategySpec]) -> str:
    drafts = [member.draft_path for member in members if member.name == "mtp"]
    return "not used" if not drafts else "built-in" if drafts[0] is None else "external"


def _option(members: Sequence[StrategySpec], *names: str) -> Any:
    """What the strategies have for the first of these options that they have, as it was set."""
    for name in names:
        for member in members:
            if hasattr(member.options, name):
                return getattr(member.options, name)
    return "-"


def _measured(rows: list[Row]) -> dict[str, Any]:
    """The fields that were measured, one line for each text."""

    def each(value: Any) -> Any:
        return {row.workload: value(row) for row in rows} or "not measured"

    def stats(name: str) -> Any:
        return each(lambda row: row.first.stats.get(name))

    return {
        "ordinary speed, tokens/s": each(lambda row: _speed(row.plain_speed)),
        "drafted speed, tokens/s": each(lambda row: _speed(row.speed)),
        "speed-up": each(lambda row: spread(row.speed_up, 2) or "not measured"),
        "TTFT, ms": each(lambda row: round(row.ttft.median * 1e3)),
        "proposed": stats("drafted"),
        "verified": stats("verified"),
        "accepted": each(lambda row: row.first.accepted),
        "acceptance rate": each(lambda row: _drafted(row.acceptance, 3)),
        "mean accepted length": each(lambda row: _drafted(row.mean_accepted_length, 2)),
        "rollbacks": stats("rollbacks"),
        "checkpoint mode and timing": each(_checkpoints),
        "output": each(lambda row: "the same" if row.divergence is None else f"diverges at {row.divergence}"),
        "peak RAM, MB": each(lambda row: _mb(row.peak_ram_bytes)),
        "peak VRAM, MB": each(lambda row: _mb(row.vram_bytes)),
    }


def _checkpoints(row: Row) -> str:
    stats = row.first.stats
    seconds = stats.get("seconds", {}).get("checkpoint", 0.0)
    return f"{row.first.rollback or 'unknown'}; {stats.get('checkpoints', 0)} taken in {seconds * 1e3:.1f} ms"


def _speed(speed: Summary | None) -> str:
    if speed is None:
        return "not measured"
    return spread(speed) if speed.median else "none, with an answer of one token"


def _drafted(value: float | None, digits: int) -> float | str:
    return "nothing was drafted" if value is None else round(value, digits)


def _mb(n_bytes: int | None) -> int | None:
    return None if n_bytes is None else round(n_bytes / _MB)


def _warnings(results: Results, rows: list[Row]) -> list[str]:
    found = [*results.remarks, *(failure.splitlines()[0] for failure in results.failures)]
    for row in rows:
        found += [f"{row.workload}: {note}" for note in row.notes]
        if reason := row.first.stats.get("inactive_reason"):
            found.append(f"{row.workload}: not drafting: {reason}")
    if results.busy:
        found.append("other jobs wanted the cores: absolute figures are low")
    return found or ["none"]


def markdown(fields: Mapping[str, Any]) -> str:
    """The form as Markdown."""
    lines = ["## specframe feedback", ""]
    for name, value in fields.items():
        lines.append(f"- **{name}**: {_shown(value)}")
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    """A field; the names of texts only where there are several."""
    if not isinstance(value, Mapping):
        return _cell(value)
    if len(value) == 1:
        return _cell(*value.values())
    return "; ".join(f"{workload}: {_cell(inner)}" for workload, inner in value.items()) or "none"


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{n} by {means}" for means, n in value.items()) or "none"
    if isinstance(value, list):
        return "; ".join(map(str, value))
    return "unknown" if value is None else str(value)
