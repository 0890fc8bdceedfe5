"""``specframe pull``."""

from __future__ import annotations

from typing import Annotated

import typer

from specframe.cli.command import JsonFlag, command
from specframe.cli.output import print_json, print_table
from specframe.cli.progress import progress_bar


def register(app: typer.Typer) -> None:
    """Add ``pull``."""

    @command(app, "pull")
    def pull(
        name: Annotated[
            str | None, typer.Argument(metavar="NAME", help="Name of the catalogue, zoo:NAME, or a local file.")
        ] = None,
        force: Annotated[bool, typer.Option("--force", help="Fetch again even if the cached file is good.")] = False,
        as_json: JsonFlag = False,
    ) -> None:
        """Get a model by its name into the cache and print where it is. Without NAME: list the catalogue."""
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
