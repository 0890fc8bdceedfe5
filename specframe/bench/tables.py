"""Results as tables: rows of text first, so that the terminal, Markdown and HTML show the same."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import attrs

from specframe.backends.llama.audit import Audit
from specframe.bench.answers import CheckpointCost, TurnCost, Verdict
from specframe.bench.comparison import Comparison, Row
from specframe.bench.drafting import DraftCost
from specframe.bench.goals import is_near_tie
from specframe.bench.orchestration import Cost
from specframe.bench.results import Results
from specframe.bench.sides import OURS
from specframe.bench.statistics import Summary
from specframe.core.stats import PHASES

_MB = 1e6
#: Positions of drafts, and lengths of them, that a cell has room for.
_SHOWN = 8


@attrs.frozen
class Table:
    """A title, headings, rows, and remarks under them."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    remarks: tuple[str, ...] = ()

    def markdown(self) -> str:
        """As GitHub shows it."""
        lines = [f"### {self.title}", "", _line(self.headings), _line(["---"] * len(self.headings))]
        lines += [_line(row) for row in self.rows]
        lines += ["", *(f"- {remark}" for remark in self.remarks)] if self.remarks else []
        return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def tables(results: Results) -> list[Table]:
    """One table for each part that was measured, the goals last."""
    found, comparison = [_machine(results)], results.comparison
    if comparison.rows or comparison.failures:
        found += [_speed(comparison), _acceptance(comparison), _steps(comparison), _resources(comparison)]
    found += [_orchestration(model, costs) for model, costs in results.orchestration.items()]
    if results.audit is not None:
        found.append(_audit(results.audit))
    if results.drafting:
        found.append(_drafting(results.drafting))
    if results.turns:
        found.append(_turns(results.turns))
    if results.verified:
        found.append(_verified(results.verified, results.audit))
    if results.checkpoints:
        found.append(_checkpoints(results.checkpoints))
    if results.goals:
        found.append(_goals(results))
    return [table for table in found if table.rows or table.remarks]


def markdown(results: Results) -> str:
    """The whole report."""
    return "\n".join(["## Benchmark", "", *(table.markdown() for table in tables(results))])


def as_csv(results: Results) -> str:
    """The comparison, one line per side and text; lists and mappings are left to JSON."""
    lines = [_flat(row) for row in results.comparison.rows]
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def _flat(row: Row) -> dict[str, object]:
    data = row.to_dict()
    options = ",".join(f"{key}={value}" for key, value in row.side.options.items())
    flat: dict[str, object] = {name: data[name] for name in ("workload", "side", "engine", "strategy")}
    flat["options"] = options
    for name in ("tokens_per_second", "sustained_tokens_per_second", "ttft_s", "speed_up"):
        for part in ("median", "low", "high"):
            flat[f"{name}_{part}"] = None if data[name] is None else data[name][part]
    for name in ("prompt_tokens", "generated_tokens", "drafted", "accepted", "acceptance", "mean_accepted_length"):
        flat[name] = data[name]
    flat |= {f"{phase}_ms_per_step": data["ms_per_step"].get(phase) for phase in PHASES if phase != "prompt"}
    for name in ("steps", "checkpoints", "checkpoint_bytes", "peak_ram_bytes", "vram_bytes", "same_output"):
        flat[name] = data[name]
    flat["rollbacks"] = sum(data["rollbacks"].values())
    flat["diverges_at"] = None if row.divergence is None else row.divergence.at
    flat["margin"] = None if row.divergence is None else row.divergence.margin
    return flat


def spread(summary: Summary | None, digits: int = 1) -> str:
    """Median, and the range it comes from; empty for None."""
    if summary is None:
        return ""
    if summary.n == 1:
        return f"{summary.median:.{digits}f}"
    return f"{summary.median:.{digits}f} ({summary.low:.{digits}f}-{summary.high:.{digits}f})"


def _number(value: float | None, digits: int = 2, scale: float = 1.0) -> str:
    return "" if value is None else f"{value / scale:.{digits}f}"


def _machine(results: Results) -> Table:
    settings = results.settings
    facts = {**results.machine, "model": settings.model.rpartition("/")[2]}
    libraries = dict.fromkeys(Path(row.first.library).name for row in results.comparison.rows)
    facts["library"] = ", ".join(libraries) or "the one found first"
    facts["settings"] = ", ".join(
        filter(
            None,
            (
                f"{settings.n_threads} threads",
                f"n_ctx {settings.n_ctx}, n_batch {settings.n_batch}, n_ubatch {settings.n_ubatch}",
                settings.memory,
                f"temperature {settings.temperature:g}, {settings.max_tokens} tokens",
                f"GOMP_SPINCOUNT={settings.spin_count}",
            ),
        )
    )
    loads = [results.load_before, results.load_after]
    facts["load average"] = " to ".join("?" if load is None else f"{load:.2f}" for load in loads)
    remarks = [*results.remarks, *(f"failed: {failure}" for failure in results.failed_parts)]
    if results.busy:
        remarks.append("Other jobs wanted the cores: absolute figures are low, ratios of pairs hold.")
    return Table("Machine and settings", ("", ""), tuple((k, str(v)) for k, v in facts.items()), tuple(remarks))


def _speed(comparison: Comparison) -> Table:
    rows, remarks = [], [f"failed: {failure.splitlines()[0]}" for failure in comparison.failures]
    for row in comparison.rows:
        gain, same = None, ""
        if row.plain and not row.side.is_plain:
            gain, same = row.speed_up, "same" if row.divergence is None else f"diverges at {row.divergence}"
        cells = (row.workload, row.side.label, spread(row.speed), spread(gain, 3), spread(row.sustained))
        rows.append((*cells, f"{row.ttft.median * 1e3:.0f}", f"{row.first.n_tokens}", same))
        remarks += [f"{row.side.label} on {row.workload}: {note}" for note in row.notes]
    headings = ("text", "side", "tokens/s", "x plain", "sustained tokens/s", "first token, ms", "tokens", "output")
    remarks.append(
        "A fresh process for each request, sides in turn. Medians, the range in brackets; ratios are medians over "
        "pairs of the same repetition."
    )
    return Table("Speed", headings, tuple(rows), tuple(remarks))


def _acceptance(comparison: Comparison) -> Table:
    rows = []
    for row in comparison.rows:
        stats = row.first.stats
        if not row.first.drafted:
            continue
        positions = " ".join(f"{share:.2f}" for share in row.acceptance_by_position[:_SHOWN])
        lengths = sorted((int(n), steps) for n, steps in stats.get("scheduler", {}).get("lengths", {}).items())
        chosen = " ".join(f"{n}:{steps}" for n, steps in lengths[:_SHOWN])
        rolled = ", ".join(f"{n} {means}" for means, n in stats.get("rollbacks", {}).items())
        rows.append(
            (
                row.workload, row.side.label, f"{row.first.accepted}/{row.first.drafted}", _number(row.acceptance),
                _number(row.mean_accepted_length), positions, chosen, rolled,
            )
        )  # fmt: skip
    headings = (
        "text",
        "side",
        "accepted/drafted",
        "rate",
        "tokens per draft",
        "by position",
        "steps by draft length",
        "rollbacks",
    )
    return Table("Acceptance", headings, tuple(rows))


def _steps(comparison: Comparison) -> Table:
    rows = []
    for row in comparison.rows:
        if row.side.engine != OURS:
            continue
        ms = row.ms_per_step
        target = ms.get("target_submit", 0.0) + ms.get("target_wait", 0.0)
        parts = (target, *(ms.get(name, 0.0) for name in ("draft", "checkpoint", "process", "accept", "rollback")))
        tokens = row.first.n_tokens / max(1, row.first.stats.get("steps", 1))
        rows.append((row.workload, row.side.label, *(f"{value:.3f}" for value in parts), f"{tokens:.2f}"))
    headings = ("text", "side", "target", "draft", "checkpoint", "process", "accept", "rollback", "tokens per step")
    return Table("Milliseconds of a step", headings, tuple(rows))


def _resources(comparison: Comparison) -> Table:
    rows = []
    for row in comparison.rows:
        stats = row.first.stats
        seconds = stats.get("seconds", {}).get("checkpoint")
        rows.append(
            (
                row.workload, row.side.label, _number(row.peak_ram_bytes, 0, _MB), _number(row.vram_bytes, 0, _MB),
                str(stats.get("checkpoints", "")), _number(None if seconds is None else seconds * 1e3),
                _number(stats.get("checkpoint_bytes"), 2, _MB),
            )
        )  # fmt: skip
    headings = ("text", "side", "peak RAM, MB", "VRAM, MB", "checkpoints", "their ms", "largest, MB")
    return Table("Memory and checkpoints", headings, tuple(rows))


def _orchestration(model: str, costs: Sequence[Cost]) -> Table:
    rows = tuple(
        (cost.case.name, spread(cost.per_step_us), f"{cost.per_token_us:.1f}", f"{cost.native_us:.0f}")
        for cost in costs
    )
    remarks = tuple(
        f"{cost.case.name}, by function, us per step under a profiler: "
        + ", ".join(f"{name} {us:.1f}" for name, us in cost.profile)
        for cost in costs
        if cost.profile
    )
    headings = ("step", "us per step", "us per emitted token", "us in native calls")
    return Table(f"Outside native calls, {model}", headings, rows, remarks)


def _drafting(costs: Sequence[DraftCost]) -> Table:
    rows = tuple(
        (
            c.strategy, str(c.context), f"{c.median_us:.1f}", f"{c.p99_us:.1f}", f"{c.drafted:.1f}",
            f"{c.begin_us:.2f}",
        )
        for c in costs
    )  # fmt: skip
    headings = ("strategy", "context", "us per draft", "p99", "tokens per draft", "us per prompt token, once")
    return Table("Drafting as the context grows", headings, rows)


def _turns(costs: Sequence[TurnCost]) -> Table:
    rows = tuple(
        (
            c.side,
            f"{c.shared_tokens} + {c.new_tokens}",
            spread(c.first_turn_s, 3),
            spread(c.ttft_s, 3),
            spread(c.ratio, 2),
        )
        for c in costs
    )
    headings = ("side", "tokens shared + new", "first turn, s", "second turn, s", "x plain")
    return Table("First token of a second chat turn", headings, rows)


def _verified(judged: Sequence[Verdict], audit: Audit | None) -> Table:
    rows = tuple(
        (
            each.side, each.workload, str(each.n_tokens), str(sum(is_near_tie(m, audit) for _, m in each.margins)),
            str(sum(not is_near_tie(m, audit) for _, m in each.margins)),
            "-" if not each.margins else f"token {each.margins[0][0]} (margin {each.margins[0][1]:.3g})",
        )
        for each in judged
    )  # fmt: skip
    headings = ("side", "text", "tokens", "near ties", "faults", "first difference")
    return Table("Tokens judged by plain decoding", headings, rows)


def _audit(audit: Audit) -> Table:
    rows = tuple(
        (
            str(row.context), str(row.width), f"{row.cost_s * 1e3:.2f}", f"{audit.relative_cost(row):.2f}",
            "yes" if row.exact else f"no, {row.max_difference:.2g}",
        )
        for row in audit.rows
    )  # fmt: skip
    headings = ("tokens held", "rows", "ms", "x one row", "equal to one row")
    return Table("A batch of the target by its width", headings, rows, (audit.recommendation,))


def _checkpoints(costs: Sequence[CheckpointCost]) -> Table:
    rows = tuple(
        (c.place, str(c.length), f"{c.n_bytes / _MB:.3f}", spread(c.capture_ms, 3), spread(c.restore_ms, 3))
        for c in costs
    )
    headings = ("kept on the", "tokens held", "MB", "capture, ms", "restore, ms")
    return Table("Checkpoints", headings, rows)


def _goals(results: Results) -> Table:
    rows = tuple(
        (g.what, f"{g.value:.4g}", f"{'>=' if g.at_least else '<='} {g.bound:g}", "met" if g.met else "not met")
        for g in results.goals
    )
    return Table("Goals", ("figure", "value", "goal", "met"), rows)
