"""The commands together."""

from __future__ import annotations

from typing import Annotated

import typer

from specframe.cli import auditing, benching, chatting, diagnosing, generating, inspecting, pulling, runtimes

app = typer.Typer(
    name="specframe",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="Speculative decoding for llama.cpp: more tokens per second, the same text.",
    epilog="Exit codes: 0 done, 1 failed while running, 2 cannot work (usage, files, compatibility), 130 interrupted.",
)


def _version(value: bool) -> None:
    if value:
        from importlib.metadata import version  # noqa: PLC0415 -- not needed otherwise

        print(f"specframe {version('specframe')}")
        raise typer.Exit


@app.callback()
def _specframe(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


for _part in (generating, chatting, inspecting, diagnosing, pulling, runtimes, benching, auditing):
    _part.register(app)
