"""``specframe audit``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specframe.cli.command import JsonFlag, command
from specframe.cli.model import ModelArgument
from specframe.cli.output import print_facts, print_json, print_table

if TYPE_CHECKING:
    from specframe.backends.llama.audit import Audit


def register(app: typer.Typer) -> None:
    """Add ``audit``."""
    command(app, "audit")(audit)


def audit(  # noqa: PLR0913, PLR0917 -- typer calls it by name
    model: ModelArgument,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Processor threads; unset: one per core.")
    ] = None,
    threads_batch: Annotated[
        int | None, typer.Option("--threads-batch", min=1, help="Those of batches; unset: as --threads.")
    ] = None,
    ubatch: Annotated[int, typer.Option("--ubatch", min=1, help="Most tokens computed at a time.")] = 512,
    flash_attn: Annotated[bool, typer.Option("--flash-attn/--no-flash-attn", help="As for generate.")] = True,
    type_k: Annotated[str, typer.Option("--cache-type-k", metavar="TYPE", help="Format of keys in memory.")] = "f16",
    type_v: Annotated[str, typer.Option("--cache-type-v", metavar="TYPE", help="Format of values in memory.")] = "f16",
    offload_kqv: Annotated[
        bool, typer.Option("--kv-offload/--no-kv-offload", help="Keep this memory on a GPU, where there is one.")
    ] = True,
    repack: Annotated[
        bool | None,
        typer.Option(
            "--repack/--no-repack",
            help="Let the processor's kernels rearrange weights; unset: where that is known to be exact.",
        ),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help='Use the kernels of numerics "exact", for BF16 and F32 weights too.')
    ] = False,
    gpu_layers: Annotated[
        int | None, typer.Option("--gpu-layers", min=0, help="Layers to keep on a GPU; unset: all that fit.")
    ] = None,
    library: Annotated[
        Path | None, typer.Option("--library", metavar="FILE", help="llama.cpp library to use, and no other.")
    ] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Compare these settings with others that could be faster.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Measure whether and how logits depend on the number of tokens evaluated together, and what that costs."""
    from specframe import catalogue  # noqa: PLC0415 -- not needed for --help
    from specframe.backends.llama import audit as auditor  # noqa: PLC0415 -- loads the native library
    from specframe.backends.llama.library import load_library  # noqa: PLC0415
    from specframe.backends.llama.model import Model  # noqa: PLC0415

    path, native = catalogue.resolve(model), load_library(library)
    options: dict[str, Any] = {
        "n_threads": threads,
        "n_threads_batch": threads_batch,
        "n_ubatch": ubatch,
        "flash_attn": flash_attn,
        "type_k": type_k,
        "type_v": type_v,
        "offload_kqv": offload_kqv,
        "exact": exact,
    }
    if sweep:
        given = {name: value for name, value in options.items() if value is not None}
        settings = auditor.sweep(
            lambda **more: Model(path, library=native, n_gpu_layers=gpu_layers, **more), contexts=(32,), **given
        )
        _print_sweep(settings, as_json=as_json)
        return
    with Model(path, library=native, n_gpu_layers=gpu_layers, use_extra_bufts=repack) as opened:
        found = auditor.audit(opened, **options)
    if as_json:
        print_json(found.to_dict())
    else:
        _print(found)


def _print(found: Audit) -> None:
    print_facts(
        {
            "model": found.model,
            "runtime": found.library,
            "settings": found.settings,
            "smallest margin": f"{found.smallest_margin:.3g}",
        }
    )
    print_table(
        ("context", "width", "equal to width 1", "largest difference", "other argmax", "ms", "x width 1"),
        [
            (
                str(row.context),
                str(row.width),
                "yes" if row.exact else "NO",
                f"{row.max_difference:.3g}",
                f"{row.flips} of {row.positions}",
                f"{row.cost_s * 1e3:.2f}",
                f"{found.relative_cost(row):.2f}",
            )
            for row in found.rows
        ],
    )
    print(found.recommendation)


def _print_sweep(settings: list[Audit], *, as_json: bool) -> None:
    from specframe.backends.llama.audit import recommended  # noqa: PLC0415 -- loads the native library

    best = recommended(settings)
    if as_json:
        print_json({"settings": [found.to_dict() for found in settings], "recommended": best.to_dict()})
        return
    widths = [str(row.width) for row in settings[0].rows]
    print_table(
        ("settings", "equal up to", *(f"ms at {width}" for width in widths)),
        [
            (found.settings, str(found.exact_width), *(f"{row.cost_s * 1e3:.1f}" for row in found.rows))
            for found in settings
        ],
        title=f"{settings[0].model} on {settings[0].library}",
    )
    usual = "the usual ones: " if best is settings[0] else ""
    print(f"recommended for widths 2 to 16: {usual}{best.settings}")
