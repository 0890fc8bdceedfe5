"""``specframe doctor``."""

from __future__ import annotations

from typing import Any

import typer

from specframe.cli.command import EXIT_UNUSABLE, JsonFlag, command
from specframe.cli.output import print_facts, print_json, print_table


def register(app: typer.Typer) -> None:
    """Add ``doctor``."""
    command(app, "doctor")(doctor)


def doctor(as_json: JsonFlag = False) -> None:
    """Show the runtime in use and why, the machine, cached models and plugins. Exit 2: no usable runtime."""
    from specframe.diagnosis import diagnose  # noqa: PLC0415 -- loads the native library; not needed for --help

    report = diagnose()
    if as_json:
        print_json(report)
    else:
        _print(report)
    if report["runtime"] is None:
        raise typer.Exit(EXIT_UNUSABLE)


def _print(report: dict[str, Any]) -> None:
    machine, runtime = report["machine"], report["runtime"]
    facts = {
        "specframe": report["specframe"],
        "python": f"{machine['python']} on {machine['platform']} ({machine['libc']})",
        "threads": f"{machine['threads']} used by default, {machine['cpus']} processors",
        "cpu can": ", ".join(machine["cpu_features"]) or "unknown",
    }
    if runtime is not None:
        facts |= {
            "runtime": f"{runtime['source']} ({runtime['path']})",
            "abi": f"llama.cpp {runtime['version']}, ggml {runtime['ggml_version']}",
            "runtime uses": ", ".join(runtime["cpu_features"]) or "nothing special",
        }
    print_facts(facts)
    for advice in report["advice"]:
        print(f"note: {advice}")
    print()
    print_table(
        ("runtime candidate", "state", "why"),
        [(c["source"], c["state"], c["why"] or c["path"] or "") for c in report["candidates"]],
    )
    if runtime is not None:
        print_table(
            ("device", "kind", "memory free", "of"),
            [
                (f"{d['name']} {d['description']}", d["kind"], _mb(d["memory_free"]), _mb(d["memory_total"]))
                for d in runtime["devices"]
            ],
        )
    print_table(
        ("cached model", "size", "state", "path"),
        [
            (m["name"], _mb(m["n_bytes"]), "complete" if m["complete"] else "damaged", m["path"])
            for m in report["models"]
        ],
    )
    print_table(("strategy", "from"), [(s["name"], s["source"]) for s in report["strategies"]])
    for problem in report["plugin_problems"]:
        print(f"problem: {problem}")


def _mb(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.0f} MB"
