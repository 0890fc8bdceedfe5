"""``specframe strategies``, ``info`` and ``check``: reports that load no weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import typer

from specframe.cli.command import EXIT_UNUSABLE, JsonFlag, command
from specframe.cli.model import MODEL_HELP, ModelArgument
from specframe.cli.output import print_facts, print_json, print_table

if TYPE_CHECKING:
    from specframe.plugin_info import OptionInfo, StrategyInfo


def register(app: typer.Typer) -> None:
    """Add the three."""
    command(app, "strategies")(strategies)
    command(app, "info")(info)
    command(app, "check")(check)


def strategies(as_json: JsonFlag = False) -> None:
    """List the draft strategies: name, package, version, needs, options; and plugins that cannot be used."""
    from specframe.plugins import registry  # noqa: PLC0415 -- loads plugins; not needed for --help

    found = registry()
    if as_json:
        print_json(
            {
                "strategies": [strategy_document(i) for i in found.strategies()],
                "problems": [{"source": str(b.source), "message": b.message} for b in found.broken],
            }
        )
        return
    print_table(
        ("name", "package", "needs", "what it does"),
        [
            (i.name, str(i.source).removeprefix("package "), ", ".join(_needs(i)) or "-", i.summary)
            for i in found.strategies()
        ],
    )
    for names, options in _shared_options(found.strategies()).items():
        print(f"options of {', '.join(names)}:")
        for option in options:
            print(f"  -o {option.name}={option.default}  ({option.type}) {option.doc}".rstrip())
    for broken in found.broken:
        print(f"problem: {broken.message}")


def _shared_options(found: Iterable[StrategyInfo]) -> dict[tuple[str, ...], list[OptionInfo]]:
    """Each option once, by the names of all strategies that have it like this."""
    owners: dict[OptionInfo, list[str]] = {}
    for i in found:
        for option in i.options:
            owners.setdefault(option, []).append(i.name)
    shared: dict[tuple[str, ...], list[OptionInfo]] = {}
    for option, names in owners.items():
        shared.setdefault(tuple(names), []).append(option)
    return shared


def strategy_document(i: StrategyInfo) -> dict[str, Any]:
    """One strategy as JSON."""
    return {
        "name": i.name,
        "summary": i.summary,
        "package": i.source.package,
        "version": i.source.version,
        "module": i.source.module,
        "builtin": i.source.is_builtin,
        "needs": list(i.needs),
        "uses_draft_file": i.uses_draft_file,
        "options": [attrs.asdict(option) for option in i.options],
    }


def _needs(i: StrategyInfo) -> list[str]:
    return [*i.needs, *(["draft file"] if i.uses_draft_file else [])]


def info(model: ModelArgument, as_json: JsonFlag = False) -> None:
    """Show what a model file holds, without loading its weights."""
    from specframe.compatibility import describe  # noqa: PLC0415 -- loads the native library; not needed for --help

    document = describe(model)
    if as_json:
        print_json(document)
        return
    facts = {key.replace("_", " "): _shown(value) for key, value in document.items() if key != "metadata"}
    print_facts(facts)
    print()
    print_facts({key: _shown(value) for key, value in document["metadata"].items()})


def _shown(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "-"
    text = "-" if value is None else str(value)
    line = text.replace("\n", "\\n")
    return line if len(line) <= 100 else f"{line[:97]}..."  # noqa: PLR2004 -- about one terminal line


def check(
    target: Annotated[str, typer.Argument(metavar="TARGET", help=MODEL_HELP)],
    draft: Annotated[str | None, typer.Option("--draft", "-d", metavar="FILE", help="Draft model.")] = None,
    strategy: Annotated[
        str | None,
        typer.Option("--strategy", "-s", metavar="NAME", help="Only this one, or combination; unset: all."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Explain, before any weights are loaded, what works with a target. Exit 0: usable, 2: not."""
    from specframe.compatibility import check_files  # noqa: PLC0415 -- loads the native library; not needed for --help

    report = check_files(target, draft=draft, strategy=strategy)
    if as_json:
        print_json(report.to_dict())
    else:
        for entry in report.checks:
            print(f"{'ok ' if entry.ok else 'NO '} {entry.subject}: {entry.detail}")
        print("usable" if report.usable else "not usable")
    if not report.usable:
        raise typer.Exit(EXIT_UNUSABLE)
