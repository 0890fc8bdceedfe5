"""Keyword arguments of a generation: their types for editors, and their checks at run time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypedDict

import attrs

from specframe.core.errors import ConfigError
from specframe.core.names import resembling
from specframe.core.request import LogitsProcessor, PromptProgress, Request, StoppingCriterion
from specframe.core.sampling import SamplingParams
from specframe.core.validators import elements
from specframe.llm.choosing import StrategyChoice, StrategyChooser
from specframe.llm.unset import UNSET

#: Spellings of other libraries.
ALIASES: Final[Mapping[str, str]] = {"present_penalty": "presence_penalty"}


class SamplingOptions(TypedDict, total=False):
    """Fields of :class:`~specframe.core.sampling.SamplingParams` as keywords, and ``present_penalty`` as an alias."""

    seed: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    dynatemp_range: float
    dynatemp_exponent: float
    penalty_last_n: int
    repeat_penalty: float
    frequency_penalty: float
    presence_penalty: float
    present_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Sequence[str]
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    logit_bias: Mapping[int, float]
    ignore_eos: bool
    min_tokens: int
    grammar: str | None
    logprobs: int | None


class GenerateOptions(SamplingOptions, total=False):
    """What every way of generating takes."""

    max_tokens: int | None
    """None: as many as the context holds."""
    stop: str | Sequence[str]
    strategy: StrategyChoice
    """For this request only; the one given to ``load`` unless set."""
    options: Mapping[str, Any]
    """Of the strategy. Without ``strategy`` they are laid over those given to ``load``."""
    draft_length: int | Literal["auto", "off"]
    """Tokens to draft: ``"auto"`` (default) lets costs decide, a number is verified whatever it costs, ``"off"`` (or 0)
    is plain decoding.
    """
    sampling: SamplingParams
    """Starting point for the sampling keywords; those given beside it win."""
    logits_processors: Sequence[LogitsProcessor]
    stopping_criteria: Sequence[StoppingCriterion]
    on_prompt_progress: PromptProgress
    reuse_prefix: bool
    context_full: Literal["stop", "shift"]
    """What to do when the context is full; ``"shift"`` drops a part of it and goes on, where the model allows."""
    n_keep: int
    """Tokens at the beginning that a shift keeps."""


class PromptOptions(GenerateOptions, total=False):
    """For prompts given as text."""

    parse_special: bool
    """Read control tokens such as ``<|im_start|>`` in the prompt as tokens instead of as text."""


class ChatOptions(GenerateOptions, total=False):
    """For conversations."""

    tools: Sequence[Mapping[str, Any]]
    """JSON schemas for templates that know tools."""
    template_variables: Mapping[str, Any]
    """Further variables of the template, such as ``enable_thinking``."""
    add_generation_prompt: bool


_SAMPLING = frozenset(SamplingOptions.__annotations__)
_REQUEST = (
    "draft_length",
    "max_tokens",
    "stop",
    "logits_processors",
    "stopping_criteria",
    "on_prompt_progress",
    "reuse_prefix",
    "context_full",
    "n_keep",
)


def check_names(function: str, given: Iterable[str], known: type) -> None:
    """Refuse keywords that ``known`` does not declare, as Python does, and name the nearest ones."""
    names = list(known.__annotations__)
    for name in given:
        if name not in names:
            hint = resembling(name, names)
            msg = f"{function}() got an unexpected keyword argument {name!r}{'; ' if hint else ''}{hint}"
            raise TypeError(msg)


def sampling_params(given: Mapping[str, Any], base: SamplingParams | None = None) -> SamplingParams:
    """Lay the sampling keywords in ``given`` over ``base``. Raises ConfigError for bad values and double spellings."""
    chosen = {name: value for name, value in given.items() if name in _SAMPLING}
    for alias, name in ALIASES.items():
        if alias in chosen:
            if name in chosen:
                msg = f"{alias} is another spelling of {name}; give one of them"
                raise ConfigError(msg)
            chosen[name] = chosen.pop(alias)
    if base is None:
        return SamplingParams(**chosen)
    if not isinstance(base, SamplingParams):
        msg = f"sampling must be a SamplingParams, not {base!r:.80}; give single parameters as keywords"
        raise ConfigError(msg)
    return attrs.evolve(base, **chosen)


def build_request(
    prompt: Sequence[int], given: Mapping[str, Any], chooser: StrategyChooser, base: SamplingParams | None
) -> Request:
    """A request from keywords whose names were checked before. Raises ConfigError."""
    _check_callbacks(given)
    arguments: dict[str, Any] = {name: given[name] for name in _REQUEST if name in given}
    arguments["prompt"] = prompt
    arguments["sampling"] = sampling_params(given, given.get("sampling", base))
    choice = chooser.choose(given.get("strategy", UNSET), given.get("options"))
    arguments["strategy"], arguments["strategy_reason"] = choice.spec, choice.reason
    arguments["strategy_required"] = choice.required
    return Request(**arguments)


def _check_callbacks(given: Mapping[str, Any]) -> None:
    """Refuse what cannot be called now, not in the middle of a request."""
    progress = given.get("on_prompt_progress")
    callbacks: Mapping[str, object] = {
        "logits_processors": given.get("logits_processors", ()),
        "stopping_criteria": given.get("stopping_criteria", ()),
        "on_prompt_progress": () if progress is None else (progress,),
    }
    for name, values in callbacks.items():
        for value in elements(name, values):
            if not callable(value):
                msg = f"{name}: {value!r:.80} cannot be called"
                raise ConfigError(msg)
