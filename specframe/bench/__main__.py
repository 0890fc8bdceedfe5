"""The command line: ``python -m specframe.bench``."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable

from specframe import catalogue
from specframe.bench import comparison, drafting, orchestration, results, tables, turns
from specframe.bench.results import Results
from specframe.bench.settings import PEERS, VARIANTS, WORKLOADS, Settings, Variant, text_of
from specframe.testing import zoo

PARTS = ("compare", "orchestration", "drafting", "turns")
SHARED_TOKENS = 1_300


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; what is wrong with it ends the process with exit code 2."""
    parser = argparse.ArgumentParser(prog="specframe.bench", description="Measure against llama.cpp's own server.")
    parser.add_argument("--model", default="smollm2-135m", help="a GGUF file or a name of the catalogue (%(default)s)")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="texts, by name (%(default)s)")
    parser.add_argument(
        "--strategies", default=",".join(v.label for v in VARIANTS), help="plain, or name:nNmM (%(default)s)"
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="what to measure (%(default)s)")
    parser.add_argument("--repeat", type=int, help="repetitions (5, with --quick 1)")
    parser.add_argument("--tokens", type=int, help="tokens to generate (256, with --quick 48)")
    parser.add_argument("--threads", type=int, default=2, help="of the model, on both sides (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="see that everything works; the figures mean little")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a goal is not met")
    options = parser.parse_args(arguments)
    options.repeat = options.repeat or (1 if options.quick else 5)
    options.tokens = options.tokens or (48 if options.quick else 256)
    try:
        options.variants = [Variant.parse(text) for text in _listed(options.strategies)]
        options.workloads = _listed(options.workloads)
        for workload in options.workloads:
            text_of(workload)
        options.parts = _listed(options.parts)
        if unknown := [part for part in options.parts if part not in PARTS]:
            raise ValueError(f"there is no part {unknown[0]!r}; there are {', '.join(PARTS)}")  # noqa: TRY301 -- as above
        if options.repeat < 1 or options.tokens < 2:  # noqa: PLR2004 -- speed is measured after the first token
            raise ValueError("give --repeat of at least 1 and --tokens of at least 2")  # noqa: TRY301 -- as above
    except ValueError as error:
        parser.error(str(error))
    return options


def _listed(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def library() -> str:
    """The file that both sides load: the extension module of the ``xllamacpp`` wheel."""
    files = importlib.metadata.files("xllamacpp") or []
    return next(str(file.locate()) for file in files if file.name.startswith("xllamacpp.") and file.suffix == ".so")


def measure(options: argparse.Namespace, console: Console) -> Results:
    """Everything that was asked for."""
    settings = Settings(
        model=str(Path(catalogue.resolve(options.model, fetch=True)).resolve()),
        library=library(),
        max_tokens=options.tokens,
        n_threads=options.threads,
    )
    # For the parts that run in this process; OpenMP reads them when the library is loaded.
    os.environ.update(settings.environment)
    found = Results(settings=settings, repeat=options.repeat)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)
        if "compare" in options.parts:
            found.comparison = comparison.compare(
                settings,
                options.variants,
                options.workloads,
                repeat=options.repeat,
                progress=lambda done, total, next_: bar.update(task, completed=done, total=total, description=next_),
            )
        bar.update(task, completed=0, total=None, description="costs of specframe itself")
        _own_costs(options, found)
    found.load_after = results.load()
    return found


def _own_costs(options: argparse.Namespace, found: Results) -> None:
    settings, quick = found.settings, options.quick
    if "orchestration" in options.parts:
        found.orchestration = _orchestration(settings, repeat=options.repeat, n_tokens=100 if quick else 400)
    if "drafting" in options.parts:
        found.drafting = [
            drafting.measure(name, length, steps=200 if quick else 2000)
            for name in PEERS
            for length in drafting.LENGTHS
        ]
    if "turns" in options.parts:
        one_each = list({v.strategy: v for v in options.variants}.values())
        found.turns = turns.measure(settings, one_each, shared=SHARED_TOKENS, repeat=options.repeat)


def _orchestration(settings: Settings, *, repeat: int, n_tokens: int) -> dict[str, list[orchestration.Cost]]:
    found = {}
    with tempfile.TemporaryDirectory() as directory:
        tiny = zoo.build("llama-bigram", Path(directory))
        # One thread for the tiny model: waking a second one takes longer than its work.
        for name, path, n_threads in (
            ("tiny model", tiny, 1),
            (Path(settings.model).stem, Path(settings.model), settings.n_threads),
        ):
            with orchestration.opened(path, library=settings.library, n_threads=n_threads) as bench:
                cases = orchestration.CASES if path is tiny else orchestration.REAL_CASES
                found[name] = [bench.cost(case, n_tokens=n_tokens, repeat=repeat, top=12) for case in cases]
    return found


def show(found: Results, console: Console) -> None:
    """Print the tables."""
    for table in tables.tables(found):
        view = RichTable(title=table.title, title_justify="left")
        for i, heading in enumerate(table.headings):
            view.add_column(heading, justify="left" if i == 0 else "right", overflow="fold")
        for row in table.rows:
            view.add_row(*row, style="red" if row[-1] == "not met" else None)
        console.print(view)
        for remark in table.remarks:
            console.print(f"  {remark}", highlight=False, markup=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; returns the exit code."""
    options = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    found = measure(options, console)
    show(found, console)
    if options.json:
        options.json.write_text(json.dumps(found.to_dict(), indent=1), encoding="utf-8")
    if options.markdown:
        options.markdown.write_text(tables.markdown(found), encoding="utf-8")
    return int(options.check and not all(goal.met for goal in found.goals))


if __name__ == "__main__":
    sys.exit(main())
