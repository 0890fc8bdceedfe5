"""Results as tables: rows of text first, so that the terminal and Markdown show the same."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from specframe.bench.comparison import Cell
from specframe.bench.orchestration import Cost
from specframe.bench.results import Results
from specframe.bench.statistics import Summary


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
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def tables(results: Results) -> list[Table]:
    """One table for each part that was measured, the goals last."""
    found = [_machine(results)]
    if results.comparison:
        found.append(_comparison(results.comparison))
    found += [_orchestration(model, costs) for model, costs in results.orchestration.items()]
    if results.drafting:
        found.append(_drafting(results))
    if results.turns:
        found.append(_turns(results))
    found.append(
        Table(
            "Goals",
            ("figure", "value", "goal", "met"),
            tuple(
                (g.what, f"{g.value:.4g}", f"{'>=' if g.at_least else '<='} {g.bound:g}", "met" if g.met else "not met")
                for g in results.goals
            ),
        )
    )
    return found


def markdown(results: Results) -> str:
    """The whole report."""
    return "\n".join(["## Benchmark", "", *(table.markdown() for table in tables(results))])


def _machine(results: Results) -> Table:
    facts = {**results.machine, "model": results.settings.model.rpartition("/")[2]}
    settings = results.settings
    facts["settings"] = (
        f"{settings.n_threads} threads, n_ctx {settings.n_ctx}, n_batch {settings.n_batch}, n_ubatch "
        f"{settings.n_ubatch}, flash attention, temperature 0, {settings.max_tokens} tokens, GOMP_SPINCOUNT="
        f"{settings.spin_count}"
    )
    loads = [results.load_before, results.load_after]
    facts["load average"] = " to ".join("?" if load is None else f"{load:.2f}" for load in loads)
    remarks = ("Other jobs wanted the cores: absolute figures are low, ratios of pairs hold.",) if results.busy else ()
    return Table("Machine and settings", ("", ""), tuple((k, str(v)) for k, v in facts.items()), remarks)


def spread(summary: Summary, digits: int = 1) -> str:
    """Median, and the range it comes from."""
    if summary.n == 1:
        return f"{summary.median:.{digits}f}"
    return f"{summary.median:.{digits}f} ({summary.low:.{digits}f}-{summary.high:.{digits}f})"


def _comparison(cells: Sequence[Cell]) -> Table:
    plain = {cell.workload: cell.speed[0].median for cell in cells if cell.variant.strategy == "none"}
    rows, remarks = [], []
    for cell in cells:
        ours, theirs = cell.speed
        own_plain = plain.get(cell.workload)
        rows.append(
            (
                cell.variant.label,
                cell.workload,
                spread(ours),
                spread(theirs),
                spread(cell.speed_ratio, 3),
                spread(cell.wall_ratio, 3),
                "" if own_plain is None else f"{ours.median / own_plain:.2f}",
                *(f"{side[0].accepted}/{side[0].drafted}" for side in (cell.ours, cell.theirs)),
                "equal" if cell.differs_at is None else f"differ at {cell.differs_at}",
            )
        )
        remarks += [f"{cell.variant.label} on {cell.workload}: {note}" for note in cell.notes]
    headings = (
        "strategy", "text", "specframe tokens/s", "server tokens/s", "ratio", "whole request, ratio", "x own plain",
        "accepted/drafted", "server's", "texts",
    )  # fmt: skip
    remarks.append(
        "Cold against cold: a process for each request, both sides in turn. Medians, the range in brackets; ratios are "
        "medians over pairs of neighbouring runs, above 1 specframe is faster."
    )
    return Table("Against the server of llama.cpp, same library", headings, tuple(rows), tuple(remarks))


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
    return Table(
        f"Outside native calls, {model}", ("step", "us per step", "us per emitted token", "us in native calls"),
        rows, remarks,
    )  # fmt: skip


def _drafting(results: Results) -> Table:
    rows = tuple(
        (
            c.strategy, str(c.context), f"{c.median_us:.1f}", f"{c.p99_us:.1f}", f"{c.drafted:.1f}",
            f"{c.begin_us:.2f}",
        )
        for c in results.drafting
    )  # fmt: skip
    headings = ("strategy", "context", "us per draft", "p99", "tokens per draft", "us per prompt token, once")
    return Table("Drafting as the context grows", headings, rows)


def _turns(results: Results) -> Table:
    rows = tuple(
        (
            c.strategy, f"{c.shared_tokens} + {c.new_tokens}", spread(c.first_turn_s, 3), spread(c.ttft_s, 3),
            spread(c.ratio, 2),
        )
        for c in results.turns
    )  # fmt: skip
    headings = ("strategy", "tokens shared + new", "first turn, s", "second turn, s", "x plain")
    return Table("First token of a second chat turn", headings, rows)
