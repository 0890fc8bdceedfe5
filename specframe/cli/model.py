"""Options of commands that load a model."""

from __future__ import annotations

import inspect
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import attrs
import typer

from specframe.cli.command import cli_parameter
from specframe.core.errors import ConfigError
from specframe.core.validators import parse_draft_length

if TYPE_CHECKING:
    from specframe.core.sampling import SamplingParams
    from specframe.llm import LLM
    from specframe.llm.options import GenerateOptions

_MODEL, _RUN = "Model", "Drafting"

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="A GGUF file, or a name of the catalogue.")]

_OPTIONS: tuple[tuple[str, Any, Any, Any], ...] = (
    ("model", str, ..., typer.Argument(metavar="MODEL", help="A GGUF file, or a name of the catalogue.")),
    (
        "strategy",
        str,
        "auto",
        typer.Option(
            "--strategy",
            "-s",
            metavar="NAME",
            help="auto: what suits the files; none: plain; a name; or several: first-of(a,b), extend(a,b).",
            rich_help_panel=_RUN,
        ),
    ),
    (
        "draft",
        Path | None,
        None,
        typer.Option(
            "--draft",
            "-d",
            metavar="FILE",
            help="Draft model; auto takes the strategy it is for.",
            rich_help_panel=_RUN,
        ),
    ),
    (
        "option",
        list[str] | None,
        None,
        typer.Option(
            "--option",
            "-o",
            metavar="KEY=VALUE",
            help="Option of the strategy; repeat for several.",
            rich_help_panel=_RUN,
        ),
    ),
    (
        "draft_length",
        str,
        "auto",
        typer.Option(
            "--draft-length",
            metavar="N",
            help="Tokens to draft; auto: what pays, off: none.",
            rich_help_panel=_RUN,
        ),
    ),
    (
        "max_tokens",
        int | None,
        None,
        typer.Option("--max-tokens", "-n", min=0, help="Most tokens to generate; unset: what the context holds."),
    ),
    (
        "stop",
        list[str] | None,
        None,
        typer.Option("--stop", metavar="TEXT", help="Stop before this text; repeat for several."),
    ),
    (
        "context_full",
        Literal["stop", "shift"],
        "stop",
        typer.Option("--context-full", help="When the context is full: stop, or shift older tokens out; needs -n."),
    ),
    (
        "n_keep",
        int | None,
        None,
        typer.Option("--n-keep", min=0, help="Tokens at the beginning that a shift keeps; unset: 4."),
    ),
    (
        "session",
        Path | None,
        None,
        typer.Option("--session", metavar="FILE", help="Start from this file if it is there; written at the end."),
    ),
    (
        "ctx",
        int | None,
        None,
        typer.Option(
            "--ctx",
            min=1,
            help="Tokens of context; unset: 4096, or the model's training length if less.",
            rich_help_panel=_MODEL,
        ),
    ),
    (
        "threads",
        int | None,
        None,
        typer.Option("--threads", min=1, help="Processor threads; unset: one per core.", rich_help_panel=_MODEL),
    ),
    ("batch", int, 2048, typer.Option("--batch", min=1, help="Most tokens evaluated at once.", rich_help_panel=_MODEL)),
    (
        "devices",
        str | None,
        None,
        typer.Option(
            "--devices",
            metavar="NAMES",
            help="Devices to use, by commas; none: processor only.",
            rich_help_panel=_MODEL,
        ),
    ),
    (
        "gpu_layers",
        int | None,
        None,
        typer.Option(
            "--gpu-layers",
            min=0,
            help="Layers to keep on a GPU; unset: all that fit a GPU build.",
            rich_help_panel=_MODEL,
        ),
    ),
    (
        "flash_attn",
        bool,
        True,
        typer.Option("--flash-attn/--no-flash-attn", help="Off: drafting may change the text.", rich_help_panel=_MODEL),
    ),
    (
        "numerics",
        str,
        "auto",
        typer.Option(
            "--numerics",
            metavar="auto|exact|fast",
            help="exact: make sure by measurement that drafting cannot change the text, or refuse; "
            "fast: take the fastest kernels even if it may.",
            rich_help_panel=_MODEL,
        ),
    ),
    (
        "ctx_checkpoints",
        int,
        8,
        typer.Option(
            "--ctx-checkpoints",
            min=0,
            help="Checkpoints kept of a prompt, for models with recurrent layers.",
            rich_help_panel=_MODEL,
        ),
    ),
    (
        "checkpoint_interval",
        int,
        2048,
        typer.Option("--checkpoint-interval", min=1, help="Tokens between two of them.", rich_help_panel=_MODEL),
    ),
    (
        "checkpoint_mib",
        int,
        1024,
        typer.Option("--checkpoint-mib", min=0, help="Most memory for them, in MiB.", rich_help_panel=_MODEL),
    ),
    (
        "checkpoint_on_device",
        bool,
        False,
        typer.Option("--checkpoint-on-device", help="Keep those of drafts in device memory.", rich_help_panel=_MODEL),
    ),
    (
        "library",
        Path | None,
        None,
        typer.Option(
            "--library", metavar="FILE", help="llama.cpp library to use, and no other.", rich_help_panel=_MODEL
        ),
    ),
    (
        "fetch",
        bool,
        False,
        typer.Option("--fetch", help="Download a catalogue model that is not cached yet.", rich_help_panel=_MODEL),
    ),
)


@attrs.frozen(kw_only=True)
class ModelFlags:
    """What was asked of the model and the strategy."""

    model: str
    strategy: str
    draft: Path | None
    option: list[str] | None
    draft_length: str
    max_tokens: int | None
    stop: list[str] | None
    context_full: Literal["stop", "shift"]
    n_keep: int | None
    session: Path | None
    ctx: int | None
    threads: int | None
    batch: int
    devices: str | None
    gpu_layers: int | None
    flash_attn: bool
    numerics: str
    ctx_checkpoints: int
    checkpoint_interval: int
    checkpoint_mib: int
    checkpoint_on_device: bool
    library: Path | None
    fetch: bool

    @classmethod
    def cli_parameters(cls) -> list[inspect.Parameter]:
        """MODEL and its options."""
        return list(itertools.starmap(cli_parameter, _OPTIONS))

    @classmethod
    def from_cli(cls, values: dict[str, Any]) -> ModelFlags:
        """Raises ConfigError for options without anything that uses them."""
        flags = cls(**values)
        if flags.strategy == "none" and (flags.draft or flags.option):
            given = "--draft" if flags.draft else "--option"
            msg = f"{given} is for a strategy, and --strategy none is plain decoding; leave one of them out"
            raise ConfigError(msg)
        parse_draft_length("--draft-length", flags.draft_length)
        if flags.n_keep is not None and flags.context_full != "shift":
            msg = "--n-keep says what a shift keeps; add --context-full shift, or leave it out"
            raise ConfigError(msg)
        return flags

    def answer(self, sampling: SamplingParams) -> GenerateOptions:
        """What every answer is asked for with."""
        options: GenerateOptions = {
            "sampling": sampling,
            "draft_length": parse_draft_length("--draft-length", self.draft_length),
            "max_tokens": self.max_tokens,
            "stop": self.stop or (),
            "context_full": self.context_full,
        }
        if self.n_keep is not None:
            options["n_keep"] = self.n_keep
        return options

    def load(self, *, template: Path | None = None) -> LLM:
        """Open the model. Raises ConfigError or BackendError."""
        # What follows imports numpy and the native library; --help and usage errors do without.
        from specframe.cli.progress import progress_bar  # noqa: PLC0415
        from specframe.llm import load  # noqa: PLC0415
        from specframe.plugins import parse_options  # noqa: PLC0415

        model = self.model
        if self.fetch:
            from specframe import catalogue  # noqa: PLC0415

            with progress_bar() as report:
                model = str(catalogue.resolve(model, fetch=True, progress=report))
        return load(
            model,
            strategy=self.strategy,
            draft=self.draft,
            options=parse_options(self.option or ()),
            n_ctx=self.ctx,
            threads=self.threads,
            n_batch=self.batch,
            devices=self.devices,
            n_gpu_layers=self.gpu_layers,
            flash_attn=self.flash_attn,
            numerics=cast("Literal['auto', 'exact', 'fast']", self.numerics),  # checked there
            ctx_checkpoints=self.ctx_checkpoints,
            checkpoint_interval=self.checkpoint_interval,
            checkpoint_mib=self.checkpoint_mib,
            checkpoint_on_device=self.checkpoint_on_device,
            library=self.library,
            template=template,
        )
