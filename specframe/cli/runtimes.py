"""``specframe runtime``: building llama.cpp for this machine, and choosing among libraries."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from specframe.cli.command import JsonFlag, command
from specframe.cli.output import print_json, print_table
from specframe.cli.progress import progress_bar
from specframe.core.errors import ConfigError

Name = Annotated[str, typer.Argument(metavar="NAME", help="As `specframe runtime list` shows it.")]


def register(app: typer.Typer) -> None:
    """Add ``runtime`` and its four commands."""
    help_text = "Build llama.cpp for this machine; choose among libraries."
    group = typer.Typer(name="runtime", no_args_is_help=True, help=help_text)
    for name, function in (("build", build), ("list", listing), ("use", use), ("remove", remove)):
        command(group, name)(function)
    app.add_typer(group)


def build(
    backend: Annotated[
        str, typer.Option("--backend", "-b", metavar="NAME", help="cpu, cuda, hip, metal, musa, opencl, sycl, vulkan.")
    ] = "cpu",
    define: Annotated[
        list[str] | None,
        typer.Option("--define", "-D", metavar="KEY=VALUE", help="Further CMake option; repeat for several."),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--source", metavar="FILE", help="The pinned source distribution; unset: it is downloaded."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Compilers at once; unset: one per processor.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep source and build tree for the next build.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Build llama.cpp for this machine from the pinned source; used from then on. Goes on where it was stopped."""
    from specframe import runtime  # noqa: PLC0415 -- not needed for --help

    plan = runtime.Plan(backend=backend, options=_definitions(define or []), source=source, jobs=jobs, keep=keep)
    with progress_bar(announce=not as_json) as report:
        made = runtime.build(plan, progress=report)
    if as_json:
        print_json(made.to_dict() | {"path": made.path})
    else:
        print(made.path)


def _definitions(given: list[str]) -> dict[str, str]:
    pairs = [item.partition("=") for item in given]
    for item, (key, mark, _) in zip(given, pairs, strict=True):
        if not key.strip() or not mark:
            raise ConfigError(f"--define takes KEY=VALUE, as -D GGML_OPENMP=OFF, not {item!r}")
    return {key.strip(): value for key, _, value in pairs}


def listing(as_json: JsonFlag = False) -> None:
    """List the libraries in the order in which they are tried, and what becomes of each."""
    from specframe.backends.llama.native_builds import chosen_runtime, native_builds  # noqa: PLC0415 -- not for --help
    from specframe.diagnosis import diagnose_runtime  # noqa: PLC0415 -- loads the native library; not needed for --help
    from specframe.runtime import unfinished  # noqa: PLC0415

    candidates = diagnose_runtime().candidates
    builds = native_builds()
    if as_json:
        print_json(
            {
                "runtimes": candidates,
                "builds": [build.to_dict() | {"path": build.path} for build in builds],
                "chosen": chosen_runtime(),
                "unfinished": sorted(unfinished()),
            }
        )
        return
    print_table(
        ("name", "what", "state", "why or where"),
        [(c["name"] or "-", c["source"], c["state"], c["why"] or c["path"] or "") for c in candidates],
    )
    for name in sorted(unfinished()):
        print(f"unfinished: {name} (specframe runtime build goes on; specframe runtime remove {name} gives up)")


def use(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `specframe runtime list` shows it; auto: no choice.")],
) -> None:
    """Try a library first from now on; `auto`: native builds, newest first, then the wheels."""
    from specframe import runtime  # noqa: PLC0415 -- not needed for --help

    runtime.use(None if name == "auto" else name)
    print("native builds first, then wheels" if name == "auto" else f"{name} first", file=sys.stderr)


def remove(name: Name) -> None:
    """Delete a native build, or what is left of an unfinished one."""
    from specframe import runtime  # noqa: PLC0415 -- not needed for --help

    runtime.remove(name)
