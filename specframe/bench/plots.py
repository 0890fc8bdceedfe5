"""The figures of a report, as SVG. Needs matplotlib: ``pip install specframe[bench]``."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from specframe.backends.llama.audit import Audit
from specframe.bench.comparison import Comparison, Row
from specframe.bench.sides import OURS
from specframe.core.stats import PHASES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PHASES = tuple(phase for phase in PHASES if phase != "prompt")
_POSITIONS = 16


def available() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def figures(comparison: Comparison, audit: Audit | None = None) -> dict[str, str]:
    """Caption -> SVG, of everything that was measured."""
    import matplotlib as mpl  # noqa: PLC0415 -- an extra

    rows = shown(comparison)
    with mpl.rc_context({"text.parse_math": False}):  # what a user called $a_b$ is no formula
        found = {
            "Speed over plain decoding, by text": _speed_up(comparison, rows),
            "Share of drafts accepted, by position": _acceptance(rows),
            "Where the time of a token goes, milliseconds": _breakdown(rows),
            "Cost of a batch of the target by its width, t(w)": _widths(audit),
        }
    return {caption: svg for caption, svg in found.items() if svg}


def shown(comparison: Comparison) -> list[Row]:
    """Of the settings of a grid only the best one for each text and family."""
    best: dict[tuple[str, str], Row] = {}
    for row in comparison.rows:
        key = (row.workload, row.side.family)
        if row.side.from_grid and (key not in best or row.speed.median > best[key].speed.median):
            best[key] = row
    return [row for row in comparison.rows if not row.side.from_grid or row is best[row.workload, row.side.family]]


def _name(row: Row) -> str:
    return f"{row.side.family}, best" if row.side.from_grid else row.side.label


def _speed_up(comparison: Comparison, rows: Sequence[Row]) -> str:
    ratios: dict[str, dict[str, tuple[float, float, float]]] = {}
    for row in rows:
        ratio = row.speed_up
        if ratio is not None and not row.side.is_plain:
            ratios.setdefault(_name(row), {})[row.workload] = (ratio.median, ratio.low, ratio.high)
    if not ratios:
        return ""
    workloads = comparison.workloads
    axes = _axes(width=max(6.0, 0.35 * len(ratios) * len(workloads) + 2.5), height=4.0)
    bar = 0.8 / len(ratios)
    for i, (name, values) in enumerate(ratios.items()):
        at = [w + (i - (len(ratios) - 1) / 2) * bar for w, workload in enumerate(workloads) if workload in values]
        medians = [values[w][0] for w in workloads if w in values]
        below = [values[w][0] - values[w][1] for w in workloads if w in values]
        above = [values[w][2] - values[w][0] for w in workloads if w in values]
        axes.bar(at, medians, bar, yerr=(below, above), label=name, error_kw={"elinewidth": 0.8})
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(workloads)), workloads, rotation=20, ha="right")
    axes.set_ylabel("times plain")
    axes.legend(fontsize="small", ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return _svg(axes)


def _acceptance(rows: Sequence[Row]) -> str:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 -- an extra

    counts: dict[str, tuple[list[int], list[int]]] = {}
    for row in rows:
        verified, accepted = counts.setdefault(_name(row), ([0] * _POSITIONS, [0] * _POSITIONS))
        for total, name in ((verified, "verified_per_position"), (accepted, "accepted_per_position")):
            for i, n in enumerate(list(row.first.stats.get(name, ()))[:_POSITIONS]):
                total[i] += n
    counts = {name: both for name, both in counts.items() if both[0][0]}
    if not counts:
        return ""
    axes = _axes(width=6.0, height=3.5)
    for name, (verified, accepted) in counts.items():
        shares = [a / v for a, v in zip(accepted, verified, strict=True) if v]
        axes.plot(range(1, len(shares) + 1), shares, marker="o", markersize=3, label=name)
    axes.set_xlabel("position in the draft")
    axes.set_ylabel("accepted")
    axes.set_ylim(0, 1.05)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(fontsize="small")
    return _svg(axes)


def _breakdown(rows: Sequence[Row]) -> str:
    sums: dict[str, dict[str, float]] = {}
    tokens: dict[str, int] = {}
    for row in rows:
        if row.side.engine == OURS:
            seconds: Mapping[str, float] = row.first.stats.get("seconds", {})
            own = sums.setdefault(_name(row), dict.fromkeys(_PHASES, 0.0))
            tokens[_name(row)] = tokens.get(_name(row), 0) + row.first.n_tokens
            for phase in _PHASES:
                own[phase] += seconds.get(phase, 0.0)
    if not sums:
        return ""
    axes = _axes(width=7.0, height=1.2 + 0.4 * len(sums))
    names, left = list(sums), [0.0] * len(sums)
    for phase in _PHASES:
        values = [sums[name][phase] / max(1, tokens[name]) * 1e3 for name in names]
        axes.barh(names, values, left=left, label=phase)
        left = [a + b for a, b in zip(left, values, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds per token")
    axes.legend(fontsize="x-small", ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return _svg(axes)


def _widths(audit: Audit | None) -> str:
    if audit is None:
        return ""
    axes = _axes(width=6.0, height=3.5)
    for context in dict.fromkeys(row.context for row in audit.rows):
        rows = sorted((row.width, row.cost_s * 1e3) for row in audit.rows if row.context == context)
        axes.plot(*zip(*rows, strict=True), marker="o", markersize=3, label=f"{context} tokens held")
    single = [row.cost_s * 1e3 for row in audit.rows if row.width == 1]
    widest, costliest = max(row.width for row in audit.rows), max(row.cost_s for row in audit.rows) * 1e3
    axes.plot((1, widest), (single[0], single[0] * widest), linestyle=":", color="gray", label="one row at a time")
    axes.set_xlabel("rows")
    axes.set_ylabel("milliseconds")
    axes.set_ylim(0, 1.1 * costliest)
    axes.legend(fontsize="small")
    return _svg(axes)


def _axes(*, width: float, height: float) -> Axes:
    from matplotlib.figure import Figure  # noqa: PLC0415 -- an extra

    return Figure(figsize=(width, height), layout="constrained").add_subplot()


def _svg(axes: Axes) -> str:
    """The figure as an ``<svg>`` element: the same bytes each time, text as text, no reference to anything outside."""
    import matplotlib as mpl  # noqa: PLC0415 -- an extra

    figure = axes.get_figure(root=True)
    if figure is None:
        return ""
    out = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "specframe"}):
        figure.savefig(out, format="svg", metadata=nothing)
    text = out.getvalue()
    return text[text.index("<svg") :]
