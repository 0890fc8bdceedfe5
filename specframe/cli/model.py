"""Options of commands that load a model."""

from __future__ import annotations

import inspect
import itertools
from functools import partial
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

_drafting, _model, _checkpoints = (
    partial(typer.Option, rich_help_panel=panel) for panel in ("Drafting", "Model", "Checkpoints, for recurrent layers")
)

MODEL_HELP = "A GGUF file, a name of the catalogue, or zoo:NAME: an analytic model."
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]

_OPTIONS: tuple[tuple[str, Any, Any, Any], ...] = (
    ("model", str, ..., typer.Argument(metavar="MODEL", help=MODEL_HELP)),
    (
        "strategy",
        str,
        "auto",
        _drafting(
            "--strategy",
            "-s",
            metavar="NAME",
            help="auto: what suits the files; none: plain; a name; or several: first-of(a,b), extend(a,b).",
        ),
    ),
    (
        "draft",
        str | None,
        None,
        _drafting(
            "--draft", "-d", metavar="FILE", help="Draft model, named as MODEL is; auto takes the strategy it is for."
        ),
    ),
    (
        "option",
        list[str] | None,
        None,
        _drafting("--option", "-o", metavar="KEY=VALUE", help="Option of the strategy; repeat for several."),
    ),
    (
        "draft_length",
        str,
        "auto",
        _drafting("--draft-length", metavar="N", help="Tokens to draft; auto: what pays, off: none."),
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
        _model("--ctx", min=1, help="Tokens of context; unset: 4096, or the model's training length if less."),
    ),
    ("threads", int | None, None, _model("--threads", min=1, help="Processor threads; unset: one per core.")),
    (
        "threads_batch",
        int | None,
        None,
        _model("--threads-batch", min=1, help="Those of prompts and drafts; unset: as --threads."),
    ),
    ("batch", int, 2048, _model("--batch", min=1, help="Most tokens evaluated at once.")),
    ("ubatch", int, 512, _model("--ubatch", min=1, help="Most tokens computed at once.")),
    (
        "devices",
        str | None,
        None,
        _model("--devices", metavar="NAMES", help="Devices to use, by commas; none: processor only."),
    ),
    (
        "gpu_layers",
        int | None,
        None,
        _model("--gpu-layers", min=0, help="Layers to keep on a GPU; unset: all that fit a GPU build."),
    ),
    ("flash_attn", bool, True, _model("--flash-attn/--no-flash-attn", help="Off: drafting may change the text.")),
    (
        "type_k",
        str,
        "f16",
        _model(
            "--cache-type-k",
            metavar="TYPE",
            help="Format of keys in memory: f16, f32, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl.",
        ),
    ),
    ("type_v", str, "f16", _model("--cache-type-v", metavar="TYPE", help="Of values, as for keys.")),
    (
        "offload_kqv",
        bool,
        True,
        _model("--kv-offload/--no-kv-offload", help="Keep this memory on a GPU, where there is one."),
    ),
    ("use_mmap", bool, True, _model("--mmap/--no-mmap", help="Map the file instead of reading it.")),
    ("use_mlock", bool, False, _model("--mlock", help="Keep the weights from being swapped out.")),
    ("check_tensors", bool, False, _model("--check-tensors", help="Look for invalid values in the file; slow.")),
    (
        "numerics",
        str,
        "auto",
        _model(
            "--numerics",
            metavar="auto|exact|fast",
            help="exact: make sure by measurement that drafting cannot change the text, or refuse; "
            "fast: take the fastest kernels even if it may.",
        ),
    ),
    (
        "ctx_checkpoints",
        int,
        8,
        _checkpoints("--ctx-checkpoints", min=0, help="Checkpoints kept of a prompt."),
    ),
    (
        "checkpoint_interval",
        int,
        2048,
        _checkpoints("--checkpoint-interval", min=1, help="Tokens between two of them."),
    ),
    ("checkpoint_mib", int, 1024, _checkpoints("--checkpoint-mib", min=0, help="Most memory for them, in MiB.")),
    (
        "checkpoint_on_device",
        bool,
        False,
        _checkpoints("--checkpoint-on-device", help="Keep those of drafts in device memory."),
    ),
    ("library", Path | None, None, _model("--library", metavar="FILE", help="llama.cpp library to use, and no other.")),
    ("fetch", bool, False, _model("--fetch", help="Download catalogue models that are not cached yet.")),
)


@attrs.frozen(kw_only=True)
class ModelFlags:
    """What was asked of the model and the strategy."""

    model: str
    strategy: str
    draft: str | None
    option: list[str] | None
    draft_length: str
    max_tokens: int | None
    stop: list[str] | None
    context_full: Literal["stop", "shift"]
    n_keep: int | None
    session: Path | None
    ctx: int | None
    threads: int | None
    threads_batch: int | None
    batch: int
    ubatch: int
    devices: str | None
    gpu_layers: int | None
    flash_attn: bool
    type_k: str
    type_v: str
    offload_kqv: bool
    use_mmap: bool
    use_mlock: bool
    check_tensors: bool
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

        model, draft = self.model, self.draft
        if self.fetch:
            from specframe import catalogue  # noqa: PLC0415

            with progress_bar() as report:
                model = str(catalogue.resolve(model, fetch=True, progress=report))
                draft = None if draft is None else str(catalogue.resolve_draft(draft, fetch=True, progress=report))
        return load(
            model,
            strategy=self.strategy,
            draft=draft,
            options=parse_options(self.option or ()),
            n_ctx=self.ctx,
            threads=self.threads,
            threads_batch=self.threads_batch,
            n_batch=self.batch,
            n_ubatch=self.ubatch,
            devices=self.devices,
            n_gpu_layers=self.gpu_layers,
            flash_attn=self.flash_attn,
            type_k=self.type_k,
            type_v=self.type_v,
            offload_kqv=self.offload_kqv,
            use_mmap=self.use_mmap,
            use_mlock=self.use_mlock,
            check_tensors=self.check_tensors,
            numerics=cast("Literal['auto', 'exact', 'fast']", self.numerics),  # checked there
            ctx_checkpoints=self.ctx_checkpoints,
            checkpoint_interval=self.checkpoint_interval,
            checkpoint_mib=self.checkpoint_mib,
            checkpoint_on_device=self.checkpoint_on_device,
            library=self.library,
            template=template,
        )
