"""Sampling parameters of one request: names, defaults and order are those of llama.cpp's ``common_params_sampling``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs

from specframe.core.errors import ConfigError


def _finite(low: float | None = None, high: float | None = None, *, above: float | None = None) -> Any:
    """Validator: a finite number within [low, high] (and > above)."""

    def check(_: object, field: attrs.Attribute[Any], value: Any) -> None:
        bad = isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)
        if not bad:
            bad = (
                (low is not None and value < low)
                or (high is not None and value > high)
                or (above is not None and value <= above)
            )
        if bad:
            bounds = [
                *([f"> {above:g}"] if above is not None else []),
                *([f">= {low:g}"] if low is not None else []),
                *([f"<= {high:g}"] if high is not None else []),
            ]
            msg = f"{field.name} must be a finite number{' ' + ' and '.join(bounds) if bounds else ''}, not {value!r}"
            raise ConfigError(msg)

    return check


def _whole(low: int | None = None, high: int | None = None) -> Any:
    """Validator: an int (no bool) within [low, high]."""

    def check(_: object, field: attrs.Attribute[Any], value: Any) -> None:
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or (low is not None and value < low)
            or (high is not None and value > high)
        ):
            span = f" in [{low if low is not None else '-inf'}, {high if high is not None else 'inf'}]"
            msg = f"{field.name} must be a whole number{span}, not {value!r}"
            raise ConfigError(msg)

    return check


def _flag(_: object, field: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, bool):
        msg = f"{field.name} must be true or false, not {value!r}"
        raise ConfigError(msg)


def _bias(value: Mapping[int, float] | None) -> tuple[tuple[int, float], ...]:
    try:
        return tuple(sorted((int(token), float(bias)) for token, bias in dict(value or {}).items()))
    except (TypeError, ValueError) as error:
        msg = f"logit_bias must map token ids to numbers, not {value!r}"
        raise ConfigError(msg) from error


@attrs.frozen(kw_only=True)
class SamplingParams:
    """How the target's logits become a token. Frozen; every parameter is applied or refused, none is ignored.

    Defaults are upstream's (``common/common.h``, ``common_params_sampling``). ``seed=None`` draws a fresh seed per
    request and reports it. ``temperature <= 0`` is greedy.
    """

    seed: int | None = attrs.field(default=None, validator=attrs.validators.optional(_whole(0, 2**32 - 1)))
    temperature: float = attrs.field(default=0.8, validator=_finite())
    top_k: int = attrs.field(default=40, validator=_whole())
    """<= 0: the whole vocabulary."""
    top_p: float = attrs.field(default=0.95, validator=_finite(0.0, 1.0))
    min_p: float = attrs.field(default=0.05, validator=_finite(0.0, 1.0))
    typical_p: float = attrs.field(default=1.0, validator=_finite(0.0, 1.0))
    top_n_sigma: float = attrs.field(default=-1.0, validator=_finite())
    """<= 0: off."""
    xtc_probability: float = attrs.field(default=0.0, validator=_finite(0.0, 1.0))
    xtc_threshold: float = attrs.field(default=0.1, validator=_finite(0.0, 1.0))
    dynatemp_range: float = attrs.field(default=0.0, validator=_finite(0.0))
    dynatemp_exponent: float = attrs.field(default=1.0, validator=_finite(0.0))
    penalty_last_n: int = attrs.field(default=64, validator=_whole(-1))
    """Tokens the penalties look at; 0: off, -1: the whole context."""
    repeat_penalty: float = attrs.field(default=1.0, validator=_finite(above=0.0))
    frequency_penalty: float = attrs.field(default=0.0, validator=_finite())
    presence_penalty: float = attrs.field(default=0.0, validator=_finite())
    dry_multiplier: float = attrs.field(default=0.0, validator=_finite(0.0))
    dry_base: float = attrs.field(default=1.75, validator=_finite(0.0))
    dry_allowed_length: int = attrs.field(default=2, validator=_whole(0))
    dry_penalty_last_n: int = attrs.field(default=64, validator=_whole(-1))
    """0: off, -1: the whole context."""
    dry_sequence_breakers: tuple[str, ...] = attrs.field(default=("\n", ":", '"', "*"), converter=tuple)
    mirostat: int = attrs.field(default=0, validator=_whole(0, 2))
    mirostat_tau: float = attrs.field(default=5.0, validator=_finite(0.0))
    mirostat_eta: float = attrs.field(default=0.1, validator=_finite(0.0))
    logit_bias: tuple[tuple[int, float], ...] = attrs.field(factory=dict, converter=_bias)
    """Given as a mapping token id -> bias; ``-inf`` bans a token."""
    ignore_eos: bool = attrs.field(default=False, validator=_flag)
    """Never choose an end-of-generation token."""
    min_tokens: int = attrs.field(default=0, validator=_whole(0))
    """No end-of-generation token before this many tokens were generated."""
    grammar: str | None = None
    """GBNF text; the root rule is ``root``."""
    logprobs: int | None = attrs.field(default=None, validator=attrs.validators.optional(_whole(0, 100)))
    """Number of alternatives to report per token (of the target's unmodified distribution); None: no logprobs."""

    def check_vocabulary(self, n_vocab: int) -> None:
        """Raise ConfigError when ``logit_bias`` names a token outside a vocabulary of ``n_vocab`` tokens."""
        for token, _ in self.logit_bias:
            if not 0 <= token < n_vocab:
                msg = f"logit_bias names token {token}, outside the vocabulary of {n_vocab} tokens"
                raise ConfigError(msg)

    @property
    def has_penalties(self) -> bool:
        """True when earlier tokens change the logits."""
        repetition = self.penalty_last_n != 0 and (
            self.repeat_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0
        )
        return repetition or (self.dry_multiplier > 0 and self.dry_penalty_last_n != 0)
