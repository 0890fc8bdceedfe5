"""``specframe pull``, and the progress bar of everything that downloads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from specframe.cli.command import JsonFlag, command
from specframe.cli.output import print_json, print_table

_STAGES = {
    "wait": "waiting for another process",
    "download": "downloading",
    "extract": "unpacking",
    "check": "checking",
}


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """A reporter for the catalogue that draws on stderr, when that is a terminal."""
    from rich.console import Console  # noqa: PLC0415 -- only what downloads needs it
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("starting", total=None)
        stage = ""

        def report(now: str, done: int, total: int) -> None:
            nonlocal stage
            if now != stage:
                stage = now
                bar.reset(task, total=total or None, description=_STAGES.get(now, now))
            bar.update(task, completed=done)

        yield report


def register(app: typer.Typer) -> None:
    """Add ``pull``."""

    @command(app, "pull")
    def pull(
        name: Annotated[
            str | None, typer.Argument(metavar="NAME", help="Name of the catalogue, or a local file.")
        ] = None,
        force: Annotated[bool, typer.Option("--force", help="Fetch again even if the cached file is good.")] = False,
        as_json: JsonFlag = False,
    ) -> None:
        """Fetch a model of the catalogue into the cache and print where it is. Without NAME: list the catalogue."""
        from specframe import catalogue  # noqa: PLC0415 -- not needed for --help

        if name is None:
            _list(as_json=as_json)
            return
        with progress_bar() as report:
            path = catalogue.pull(name, progress=report, force=force)
        if as_json:
            print_json({"name": name, "path": str(path), "n_bytes": path.stat().st_size})
        else:
            print(path)


def _list(*, as_json: bool) -> None:
    from specframe import catalogue  # noqa: PLC0415 -- not needed for --help

    here = {model.entry.name for model in catalogue.cached() if model.complete}
    entries = [
        {
            "name": entry.name,
            "description": entry.description,
            "license": entry.license,
            "n_bytes": entry.n_bytes,
            "download_bytes": entry.download_bytes,
            "cached": entry.name in here,
        }
        for entry in catalogue.CATALOGUE.values()
    ]
    if as_json:
        print_json({"catalogue": entries})
        return
    print_table(
        ("name", "description", "license", "size", "cached"),
        [
            (
                str(e["name"]),
                str(e["description"]),
                str(e["license"]),
                f"{catalogue.CATALOGUE[str(e['name'])].n_bytes / 1e6:.0f} MB",
                "yes" if e["cached"] else "no",
            )
            for e in entries
        ],
    )
