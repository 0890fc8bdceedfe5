"""``specframe bench`` and ``report``."""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import attrs
import typer

from specframe.cli.command import EXIT_FAILED, JsonFlag, cli_parameter, command, complain
from specframe.cli.model import MODEL_HELP
from specframe.cli.output import print_json
from specframe.core.errors import ConfigError

if TYPE_CHECKING:
    from specframe.bench.program import Task
    from specframe.bench.results import Results
    from specframe.bench.settings import Settings
    from specframe.bench.sides import Side
    from specframe.bench.workloads import Workload

_DEFAULT_SIDES = ("plain", "auto", "server", "server:ngram-map-k")
_QUICK_TOKENS = 48

_run, _model = (partial(typer.Option, rich_help_panel=panel) for panel in ("Run", "Model"))

_OPTIONS: tuple[tuple[str, Any, Any, Any], ...] = (
    ("model", str, ..., typer.Argument(metavar="MODEL", help=MODEL_HELP)),
    (
        "draft",
        str | None,
        None,
        _model("--draft", "-d", metavar="FILE", help="Draft model for all sides, named as MODEL is."),
    ),
    (
        "workloads",
        str | None,
        None,
        _run("--workloads", "-w", metavar="NAMES", help="Built-in texts, with commas between them."),
    ),
    (
        "prompts",
        list[Path] | None,
        None,
        _run("--prompts", metavar="FILE", help="Own texts: a text file, or .jsonl; repeat."),
    ),
    ("repeat", int | None, None, _run("--repeat", "-r", min=1, help="Repetitions; unset: 3, with --quick 1.")),
    (
        "max_tokens",
        int | None,
        None,
        _run("--max-tokens", "-n", min=2, help="Tokens to generate; unset: 256, with --quick 48."),
    ),
    ("temperature", float, 0.0, _run("--temperature", help="0: greedy.")),
    ("seed", int, 1, _run("--seed", help="Of all sides.")),
    (
        "same_text",
        bool,
        False,
        _run(
            "--same-text",
            help="Hold the server to the text of plain decoding, by a grammar: drafts gain what the text allows.",
        ),
    ),
    ("quick", bool, False, _run("--quick", help="See that everything works; the figures mean little.")),
    ("ctx", int, 4096, _model("--ctx", min=1, help="Tokens of context.")),
    ("batch", int, 2048, _model("--batch", min=1, help="Most tokens evaluated at once.")),
    ("threads", int | None, None, _model("--threads", min=1, help="Of the model; unset: one per core.")),
    ("gpu_layers", int | None, None, _model("--gpu-layers", min=0, help="Layers on a GPU; unset: all that fit.")),
    ("type_k", str, "f16", _model("--cache-type-k", metavar="TYPE", help="Format of keys in memory.")),
    ("type_v", str, "f16", _model("--cache-type-v", metavar="TYPE", help="Format of values in memory.")),
    (
        "library",
        Path | None,
        None,
        _model(
            "--library",
            metavar="FILE",
            help="llama.cpp library of our sides; unset: the server's own when it takes part.",
        ),
    ),
    ("numerics", str, "auto", _model("--numerics", metavar="auto|exact|fast", help="Of our sides, as for generate.")),
    ("fetch", bool, False, _model("--fetch", help="Download a catalogue model.")),
)


@attrs.frozen(kw_only=True)
class MeasureFlags:
    """The model, the texts and how often."""

    model: str
    draft: Path | None
    workloads: str | None
    prompts: list[Path] | None
    repeat: int | None
    max_tokens: int | None
    temperature: float
    seed: int
    same_text: bool
    quick: bool
    ctx: int
    batch: int
    threads: int | None
    gpu_layers: int | None
    type_k: str
    type_v: str
    library: Path | None
    numerics: str
    fetch: bool

    @classmethod
    def cli_parameters(cls) -> list[inspect.Parameter]:
        """MODEL and its options."""
        return list(itertools.starmap(cli_parameter, _OPTIONS))

    @classmethod
    def from_cli(cls, values: dict[str, Any]) -> MeasureFlags:
        """Raises ConfigError when there is no such draft, or a value is none of those possible."""
        from specframe import catalogue  # noqa: PLC0415 -- not needed for --help

        draft = catalogue.resolve_draft(values["draft"], fetch=values["fetch"])
        flags = cls(**{**values, "draft": draft})
        if flags.numerics not in ("auto", "exact", "fast"):
            raise ConfigError(f"--numerics is auto, exact or fast, not {flags.numerics!r}")
        return flags

    @property
    def n_repeat(self) -> int:
        """Repetitions."""
        return self.repeat or (1 if self.quick else 3)

    def settings(self) -> Settings:
        """What is the same for all sides. Raises ConfigError when there is no such model."""
        from specframe import catalogue  # noqa: PLC0415 -- not needed for --help
        from specframe.backends.llama.threads import default_threads  # noqa: PLC0415
        from specframe.bench.settings import Settings  # noqa: PLC0415

        return Settings(
            model=str(catalogue.resolve(self.model, fetch=self.fetch).resolve()),
            library=None if self.library is None else str(self.library),
            n_ctx=self.ctx,
            n_batch=self.batch,
            n_ubatch=min(512, self.batch),
            n_threads=self.threads or default_threads(),
            n_gpu_layers=self.gpu_layers,
            type_k=self.type_k,
            type_v=self.type_v,
            numerics=cast("Literal['auto', 'exact', 'fast']", self.numerics),
            max_tokens=self.max_tokens or (_QUICK_TOKENS if self.quick else 256),
            temperature=self.temperature,
            seed=self.seed,
            same_text=self.same_text,
        )

    def texts(self, default: tuple[str, ...]) -> list[Workload]:
        """Built-in ones by name, and those of files; ``default`` when neither is asked for. Raises ConfigError."""
        from specframe.bench import workloads  # noqa: PLC0415 -- not needed for --help

        own = [workload for path in self.prompts or () for workload in workloads.from_file(path)]
        names = default if self.workloads is None and not own else tuple(_listed(self.workloads or ""))
        found = [*workloads.built_in(names), *own]
        if not found:
            raise ConfigError(f"name a text to measure (--workloads); there are {', '.join(workloads.BUILT_IN)}")
        labels = [workload.name for workload in found]
        if twice := sorted({label for label in labels if labels.count(label) > 1}):
            raise ConfigError(f"there are two texts called {twice[0]!r}; rename one")
        return found


def _listed(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def register(app: typer.Typer) -> None:
    """Add both."""
    command(app, "bench")(bench)
    command(app, "report")(report)


def _axis(flag: str, key: str, example: str = "6,8,10 or 1..8") -> Any:
    return typer.Option(flag, metavar="VALUES", help=f"Grid over {key}: {example}.", rich_help_panel="Grid")


def bench(  # noqa: PLR0913 -- what can be asked for; keyword-only, each with a default
    measuring: MeasureFlags,
    *,
    side: Annotated[
        list[str] | None,
        typer.Option("--side", "-s", metavar="SIDE", help="plain, a strategy, or server:TYPE(...); repeat."),
    ] = None,
    ngram_n: Annotated[str | None, _axis("--ngram-n", "n")] = None,
    ngram_m: Annotated[str | None, _axis("--ngram-m", "m")] = None,
    n_max: Annotated[str | None, _axis("--n-max", "n_max")] = None,
    p_min: Annotated[str | None, _axis("--p-min", "p_min", "0,0.3,0.7")] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", metavar="KEY=VALUES", help="Grid over any option; repeat.", rich_help_panel="Grid"),
    ] = None,
    screen: Annotated[
        int | None,
        typer.Option("--screen", min=1, help="Repeat only the so many fastest of a grid.", rich_help_panel="Grid"),
    ] = None,
    parts: Annotated[
        str,
        typer.Option(
            "--parts",
            metavar="NAMES",
            help="compare, verify, audit, turns, checkpoints, orchestration, drafting; or all.",
        ),
    ] = "compare",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write JSON, CSV, Markdown, and an HTML report.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what --out has.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit 1 when a goal is not met.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Measure speed: plain decoding, strategies, and llama.cpp's own server, each request in a fresh process."""
    from specframe.bench import program, tables  # noqa: PLC0415 -- loads plugins; not needed for --help
    from specframe.bench.sides import expand  # noqa: PLC0415
    from specframe.bench.workloads import BUILT_IN  # noqa: PLC0415

    axes = {"n": ngram_n, "m": ngram_m, "n_max": n_max, "p_min": p_min}
    settings = measuring.settings()
    sides = _sides(side or list(_DEFAULT_SIDES), measuring.draft, Path(settings.model))
    task = program.Task(
        settings=settings,
        sides=tuple(expand(sides, _grid(axes, grid or []))),
        workloads=tuple(measuring.texts(BUILT_IN)),
        parts=program.PARTS if parts.strip() == "all" else tuple(_listed(parts)),
        repeat=measuring.n_repeat,
        screen=screen,
        n_steps=100 if measuring.quick else 400,
        directory=out,
        resume=resume,
    )
    found = _measure(task)
    try:
        written = [] if out is None else program.write(found, out)
    finally:  # a full disk takes the files only, and a reader that goes away the tables only
        if as_json:
            print_json(found.to_dict())
        else:
            for table in tables.tables(found):
                _show(table.title, table.headings, table.rows, table.remarks)
    for path in written:
        print(f"wrote {path}", file=sys.stderr)
    if found.failures or (check and not all(goal.met for goal in found.goals)):
        complain("; ".join(failure.splitlines()[0] for failure in found.failures) or "a goal is not met")
        raise typer.Exit(EXIT_FAILED)


def _sides(texts: list[str], draft: Path | None, model: Path) -> list[Side]:
    """Plain decoding first, asked for or not: everything is held against it. Raises ConfigError."""
    from specframe.bench.sides import PLAIN, Side  # noqa: PLC0415 -- loads plugins; not needed for --help

    sides = [PLAIN, *(Side.parse(text, draft, model) for text in texts)]
    if draft is not None and all(side.draft is None for side in sides):
        raise ConfigError(f"no side uses a draft file, but {str(draft)!r} was given")
    return sides


def _grid(axes: Mapping[str, str | None], others: list[str]) -> dict[str, tuple[Any, ...]]:
    from specframe.bench.sides import parse_values  # noqa: PLC0415 -- as above

    grid = {key: parse_values(values) for key, values in axes.items() if values is not None}
    for text in others:
        key, equals, values = text.partition("=")
        if not equals or key in grid:
            raise ConfigError(f"--grid {text!r}: write KEY=VALUES, and each key once")
        grid[key.strip().replace("-", "_")] = parse_values(values)
    return grid


@contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None]]:
    """A bar on stderr, when that is a terminal."""
    from rich.console import Console  # noqa: PLC0415 -- not needed for --help
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    # Not as markup: texts and models are called what they are called.
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, total, now: bar.update(task, completed=done, total=total or None, description=now)


def _measure(task: Task) -> Results:
    from specframe.bench import program  # noqa: PLC0415 -- not needed for --help

    program.check_files(program.prepare(task)[0])
    with _progress() as progress:
        return program.measure(task, progress=progress)


def _show(title: str, headings: tuple[str, ...], rows: tuple[tuple[str, ...], ...], remarks: tuple[str, ...]) -> None:
    from rich.console import Console  # noqa: PLC0415 -- not needed for --help
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(width=None if sys.stdout.isatty() else 160)
    table = Table(title=Text(title), title_justify="left")
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="left" if i == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row), style="red" if row[-1] == "not met" else None)
    console.print(table)
    for remark in remarks:
        console.print(f"  {remark}", highlight=False, markup=False)


def report(
    measuring: MeasureFlags,
    *,
    strategy: Annotated[
        str, typer.Option("--strategy", "-s", metavar="NAME", help="Draft strategy or combination.")
    ] = "auto",
    observations: Annotated[str, typer.Option("--observations", metavar="TEXT", help="What you noticed.")] = "",
    as_json: JsonFlag = False,
) -> None:
    """Measure a strategy against plain decoding and fill in the feedback form, without private paths and names."""
    from specframe.backends.llama.facts import runtime_facts  # noqa: PLC0415 -- native; not needed for --help
    from specframe.backends.llama.library import load_library  # noqa: PLC0415
    from specframe.bench import feedback, program  # noqa: PLC0415
    from specframe.bench.redaction import Redactor  # noqa: PLC0415
    from specframe.compatibility import describe  # noqa: PLC0415

    settings = measuring.settings()
    sides = _sides([strategy], measuring.draft, Path(settings.model))
    chosen = sides[-1]
    if chosen.is_plain or chosen.engine != sides[0].engine:
        raise ConfigError(
            f"{strategy!r} is no strategy of specframe: a report is about one (see: specframe strategies)"
        )
    found = _measure(
        program.Task(
            settings=settings,
            sides=tuple(sides),
            workloads=tuple(measuring.texts(("code-rewrite",))),
            repeat=measuring.n_repeat,
        )
    )
    fields = feedback.form(
        found,
        chosen,
        members=chosen.members(measuring.draft, Path(settings.model)),
        runtime=runtime_facts(load_library(settings.library)),
        target=describe(Path(settings.model)),
        draft=None if chosen.draft is None else describe(Path(chosen.draft)),
        observations=observations,
    )
    files = [Path(name) for name in (settings.model, settings.library, chosen.draft) if name is not None]
    fields = Redactor.here(*files)(fields)
    if as_json:
        print_json(fields)
    else:
        print(feedback.markdown(fields), end="")
    if found.failures:
        raise typer.Exit(EXIT_FAILED)
