"""What the cases of a run say: speed, ratios of pairs, acceptance, phases, and whether the output is the same."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from specframe.bench.runner import Case
from specframe.bench.settings import Margins, Measurement
from specframe.bench.sides import OURS, SERVER, Side
from specframe.bench.statistics import Summary, paired


@attrs.frozen
class Divergence:
    """Where the output of a side parts from plain decoding."""

    at: int
    """Index of the first different token; of the first different character for a side that does not tell tokens."""
    unit: str
    margin: float | None = None
    """Log probability of the best token there minus that of the other side's, in plain decoding; at least that, when
    it is none of the most probable ones. Near 0 it is a near tie, which other rounding decides otherwise; a large one
    is a fault. None: unknown.
    """

    def __str__(self) -> str:
        margin = "" if self.margin is None else f" (margin {self.margin:.3g})"
        return f"{self.unit} {self.at}{margin}"


def first_difference(one: Sequence[object], other: Sequence[object]) -> int | None:
    """Index of the first difference; None when there is none."""
    if one == other:
        return None
    shorter = min(len(one), len(other))
    return next((i for i in range(shorter) if one[i] != other[i]), shorter)


@attrs.frozen(kw_only=True)
class Row:
    """One side on one text."""

    side: Side
    workload: str
    runs: Mapping[int, Measurement]
    """By repetition; at least one."""
    errors: tuple[str, ...] = ()
    plain: Mapping[int, Measurement] = attrs.field(factory=dict)
    """Of plain decoding on the same text."""
    divergence: Divergence | None = None
    """None: the same output as plain decoding, as far as it was measured."""

    @property
    def first(self) -> Measurement:
        """The first repetition there is."""
        return self.runs[min(self.runs)]

    def summary(self, figure: Callable[[Measurement], float]) -> Summary:
        """One figure over the repetitions."""
        return Summary.of([figure(run) for run in self.runs.values()])

    @property
    def speed(self) -> Summary:
        """Tokens per second after the first one."""
        return self.summary(lambda run: run.tokens_per_second)

    @property
    def sustained(self) -> Summary:
        """Tokens per second over the whole request."""
        return self.summary(lambda run: run.sustained)

    @property
    def ttft(self) -> Summary:
        """Seconds to the first token."""
        return self.summary(lambda run: run.ttft_s)

    def over(self, other: Mapping[int, Measurement]) -> Summary | None:
        """Tokens per second over those of ``other``, in pairs of the same repetition; None when there is no pair.

        An answer of a single token has no speed.
        """
        both = [
            i for i in self.runs if i in other and self.runs[i].tokens_per_second > 0 and other[i].tokens_per_second > 0
        ]
        if not both:
            return None
        return paired([self.runs[i].tokens_per_second for i in both], [other[i].tokens_per_second for i in both])

    @property
    def plain_speed(self) -> Summary | None:
        """That of plain decoding of ours; None where it was not measured."""
        speeds = [run.tokens_per_second for run in self.plain.values()]
        return Summary.of(speeds) if speeds else None

    @property
    def speed_up(self) -> Summary | None:
        """Over plain decoding of ours."""
        return self.over(self.plain)

    @property
    def acceptance(self) -> float | None:
        """Accepted over verified draft tokens."""
        drafted = sum(run.drafted for run in self.runs.values())
        return sum(run.accepted for run in self.runs.values()) / drafted if drafted else None

    @property
    def acceptance_by_position(self) -> list[float]:
        """Share of drafts whose token at each position was accepted; empty where it is not told."""
        return list(self.first.stats.get("acceptance_per_position", []))

    @property
    def mean_accepted_length(self) -> float | None:
        """Tokens per step that verified a draft."""
        value = self.first.stats.get("mean_accepted_length")
        return None if value is None else float(value)

    @property
    def ms_per_step(self) -> dict[str, float]:
        """Median milliseconds of each phase of a step; empty where it is not told."""
        each = [run.ms_per_step for run in self.runs.values()]
        return {phase: statistics.median(ms[phase] for ms in each) for phase in each[0]}

    @property
    def peak_ram_bytes(self) -> int | None:
        """The most that a repetition took."""
        return max((run.peak_ram_bytes for run in self.runs.values() if run.peak_ram_bytes is not None), default=None)

    @property
    def vram_bytes(self) -> int | None:
        """The most that a repetition took."""
        return max((run.vram_bytes for run in self.runs.values() if run.vram_bytes is not None), default=None)

    @property
    def notes(self) -> list[str]:
        """What makes it not comparable with plain decoding, if anything."""
        notes = [f"failed: {error.splitlines()[0]}" for error in self.errors]
        if len({run.text for run in self.runs.values()}) > 1:
            notes.append("different texts in different repetitions")
        if not self.plain:
            return notes
        plain = self.plain[min(self.plain)]
        if plain.prompt_tokens != self.first.prompt_tokens:
            notes.append(f"a prompt of {self.first.prompt_tokens} tokens, not {plain.prompt_tokens}")
        if Path(plain.library).resolve() != Path(self.first.library).resolve():
            notes.append(f"another library: {Path(self.first.library).name}, not {Path(plain.library).name}")
        return notes

    def to_dict(self) -> dict[str, Any]:
        """Everything, JSON-ready."""
        stats, speed_up = self.first.stats, self.speed_up
        return {
            "workload": self.workload,
            "side": self.side.label,
            "engine": self.side.engine,
            "strategy": self.side.strategy,
            "options": dict(self.side.options),
            "draft": self.side.draft,
            "tokens_per_second": self.speed.to_dict(),
            "sustained_tokens_per_second": self.sustained.to_dict(),
            "ttft_s": self.ttft.to_dict(),
            "speed_up": None if speed_up is None else speed_up.to_dict(),
            "prompt_tokens": self.first.prompt_tokens,
            "generated_tokens": self.first.n_tokens,
            "drafted": self.first.drafted,
            "accepted": self.first.accepted,
            "acceptance": self.acceptance,
            "acceptance_by_position": self.acceptance_by_position,
            "mean_accepted_length": self.mean_accepted_length,
            "ms_per_step": self.ms_per_step,
            "steps": stats.get("steps"),
            "rollbacks": stats.get("rollbacks", {}),
            "checkpoints": stats.get("checkpoints"),
            "checkpoint_bytes": stats.get("checkpoint_bytes"),
            "checkpoint_s": stats.get("seconds", {}).get("checkpoint"),
            "peak_ram_bytes": self.peak_ram_bytes,
            "vram_bytes": self.vram_bytes,
            "inactive_reason": stats.get("inactive_reason"),
            "same_output": self.divergence is None if self.plain else None,
            "divergence": None if self.divergence is None else attrs.asdict(self.divergence),
            "notes": self.notes,
            "runs": {str(i): attrs.asdict(run) for i, run in self.runs.items()},
        }


@attrs.frozen
class Comparison:
    """All rows, in the order of the run."""

    rows: tuple[Row, ...] = ()
    failures: tuple[str, ...] = ()
    """Sides that gave nothing at all on a text."""

    @property
    def workloads(self) -> list[str]:
        """In the order of the run."""
        return list(dict.fromkeys(row.workload for row in self.rows))

    def row(self, workload: str, label: str) -> Row | None:
        """The row of one side on one text."""
        return next((row for row in self.rows if row.workload == workload and row.side.label == label), None)

    def best_of_server(self, workload: str) -> Row | None:
        """The server's fastest way on a text, without drafts or with any setting, among those measured most often."""
        own = [row for row in self.rows if row.workload == workload and row.side.engine == SERVER]
        most = max((len(row.runs) for row in own), default=0)
        return max((row for row in own if len(row.runs) == most), key=lambda row: row.speed.median, default=None)


def gather(cases: Sequence[Case], margins: Callable[[str], Margins]) -> Comparison:
    """Rows out of cases.

    Args:
        cases: of a run.
        margins: of the plain run on a text. Asked only for texts on which a side of ours parts from it.
    """
    runs: dict[tuple[str, str], dict[int, Measurement]] = {}
    errors: dict[tuple[str, str], list[str]] = {}
    sides: dict[tuple[str, str], Side] = {}
    for case in cases:
        key = (case.workload, case.side.label)
        sides[key] = case.side
        if case.measurement is None:
            errors.setdefault(key, []).append(case.error)
        else:
            runs.setdefault(key, {})[case.repetition] = case.measurement
    plain = {workload: found for (workload, label), found in runs.items() if sides[workload, label].is_plain}
    rows = []
    for key, found in runs.items():
        workload, reference = key[0], plain.get(key[0], {})
        row = Row(side=sides[key], workload=workload, runs=found, errors=tuple(errors.get(key, ())), plain=reference)
        rows.append(attrs.evolve(row, divergence=_divergence(row, margins)))
    failures = [
        f"{label} on {workload}: {errors[workload, label][0]}" for workload, label in errors.keys() - runs.keys()
    ]
    return Comparison(tuple(rows), tuple(sorted(failures)))


def _divergence(row: Row, margins: Callable[[str], Margins]) -> Divergence | None:
    if not row.plain:
        return None
    plain = row.plain[min(row.plain)]
    if row.side.engine != OURS:
        at = first_difference(row.first.text, plain.text)
        return None if at is None else Divergence(at, "character")
    at = first_difference(row.first.tokens, plain.tokens)
    if at is None:
        return None
    clear = margins(row.workload)
    if at >= min(len(clear), len(row.first.tokens)):
        return Divergence(at, "token")
    return Divergence(at, "token", dict(clear[at]).get(row.first.tokens[at], clear[at][-1][1]))
