"""Every sampling parameter as an option, from one table."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import attrs
import typer

from specframe.core.errors import ConfigError
from specframe.core.sampling import SamplingParams

_PANEL = "Sampling"


@attrs.frozen
class _Flag:
    """How one field of SamplingParams looks on the command line."""

    name: str
    kind: Any
    help: str
    metavar: str | None = None
    aliases: tuple[str, ...] = ()

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")


FLAGS = (
    _Flag("seed", int, "Random seed; unset: a fresh one, reported in the statistics."),
    _Flag("temperature", float, "Randomness; 0 always takes the most probable token."),
    _Flag("top_k", int, "Keep this many most probable tokens; 0: all."),
    _Flag("top_p", float, "Keep the most probable tokens up to this share of probability; 1: all."),
    _Flag("min_p", float, "Drop tokens below this fraction of the best one's probability; 0: none."),
    _Flag("typical_p", float, "Locally typical sampling; 1: off."),
    _Flag("top_n_sigma", float, "Keep logits within n standard deviations of the best; <= 0: off."),
    _Flag("xtc_probability", float, "Chance of excluding top choices; 0: off."),
    _Flag("xtc_threshold", float, "Probability above which a token is a top choice."),
    _Flag("dynatemp_range", float, "Range of dynamic temperature; 0: off."),
    _Flag("dynatemp_exponent", float, "Exponent of dynamic temperature."),
    _Flag("penalty_last_n", int, "Tokens the penalties look back at; 0: off, -1: the whole context."),
    _Flag("repeat_penalty", float, "Penalty for repeated tokens; 1: off."),
    _Flag("frequency_penalty", float, "Penalty growing with the count of a token; 0: off."),
    _Flag("presence_penalty", float, "Penalty for tokens that occurred; 0: off.", aliases=("--present-penalty",)),
    _Flag("dry_multiplier", float, "Strength of the penalty for repeated sequences (DRY); 0: off."),
    _Flag("dry_base", float, "Base of the DRY penalty."),
    _Flag("dry_allowed_length", int, "Length of a repetition DRY lets pass."),
    _Flag("dry_penalty_last_n", int, "Tokens DRY looks back at; 0: off, -1: the whole context."),
    _Flag("dry_sequence_breakers", list[str], "Text that ends a repetition for DRY; repeat for several.", "TEXT"),
    _Flag("mirostat", int, "Mirostat 1 or 2 instead of top-k, top-p and the like; 0: off."),
    _Flag("mirostat_tau", float, "Target entropy of Mirostat."),
    _Flag("mirostat_eta", float, "Learning rate of Mirostat."),
    _Flag("logit_bias", list[str], "Add to the logit of a token id; -inf bans it; repeat for several.", "TOKEN=BIAS"),
    _Flag("ignore_eos", bool, "Never choose an end-of-generation token."),
    _Flag("min_tokens", int, "No end-of-generation token before this many tokens."),
    _Flag("logprobs", int, "Report this many alternatives per token (in --json)."),
    _Flag("grammar", str, "GBNF grammar the answer must follow.", "GBNF"),
)


@attrs.frozen
class SamplingFlags:
    """The sampling options that were given."""

    params: SamplingParams

    @classmethod
    def cli_parameters(cls) -> list[inspect.Parameter]:
        """One option per field of SamplingParams, and ``--grammar-file``."""
        defaults = {field.name: field.default for field in attrs.fields(SamplingParams)}
        return [*(_parameter(flag, defaults[flag.name]) for flag in FLAGS), _GRAMMAR_FILE]

    @classmethod
    def from_cli(cls, values: dict[str, Any]) -> SamplingFlags:
        """Raises ConfigError for values that cannot be honoured."""
        grammar_file: Path | None = values.pop("grammar_file")
        given = {name: value for name, value in values.items() if value not in (None, [])}
        if grammar_file is not None:
            if "grammar" in given:
                msg = "give --grammar or --grammar-file, not both"
                raise ConfigError(msg)
            try:
                given["grammar"] = grammar_file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                msg = f"cannot read the grammar {str(grammar_file)!r}: {error}"
                raise ConfigError(msg) from error
        if "logit_bias" in given:
            given["logit_bias"] = dict(map(_bias, given["logit_bias"]))
        return cls(SamplingParams(**given))


_GRAMMAR_FILE = inspect.Parameter(
    "grammar_file",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        Path | None, typer.Option("--grammar-file", help="File with a GBNF grammar.", rich_help_panel=_PANEL)
    ],
)


def _parameter(flag: _Flag, default: Any) -> inspect.Parameter:
    # None means "not given" throughout, so that the one truth about defaults stays in SamplingParams.
    shown = default if isinstance(default, int | float) and not isinstance(default, bool) else None
    names = [flag.option, *flag.aliases]
    option = typer.Option(
        *names,
        help=flag.help if shown is None else f"{flag.help.removesuffix('.')}; unset: {shown:g}.",
        metavar=flag.metavar,
        rich_help_panel=_PANEL,
        show_default=False,
    )
    kind = flag.kind if flag.kind is bool else flag.kind | None
    return inspect.Parameter(
        flag.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=False if flag.kind is bool else None,
        annotation=Annotated[kind, option],
    )


def _bias(pair: str) -> tuple[int, float]:
    token, _, bias = pair.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        msg = f"--logit-bias {pair!r} is not of the form TOKEN=BIAS, such as 42=-inf"
        raise ConfigError(msg) from None
