"""Sampling parameters of one request: names, defaults and order are those of llama.cpp's ``common_params_sampling``."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

import attrs

from specframe.core.errors import ConfigError
from specframe.core.validators import elements, finite, flag, text_or_none, whole_number


def _bias(value: Mapping[int, float] | None) -> tuple[tuple[int, float], ...]:
    try:
        return tuple(sorted((_token(token), float(bias)) for token, bias in dict(value or {}).items()))
    except (TypeError, ValueError) as error:
        msg = f"logit_bias must map token ids to numbers, not {value!r}"
        raise ConfigError(msg) from error


def _token(given: int | str) -> int:
    return int(given) if isinstance(given, str) else operator.index(given)  # JSON has keys of text only


def _breakers(value: Sequence[str]) -> tuple[str, ...]:
    breakers = elements("dry_sequence_breakers", value)
    for breaker in breakers:
        if not isinstance(breaker, str):
            msg = f"dry_sequence_breakers must be texts, not {breaker!r:.80}"
            raise ConfigError(msg)
    return breakers


@attrs.frozen(kw_only=True)
class SamplingParams:
    """How the target's logits become a token. Frozen; every parameter is applied or refused, none is ignored.

    Defaults are upstream's (``common/common.h``, ``common_params_sampling``). ``seed=None`` draws a fresh seed per
    request and reports it. ``temperature <= 0`` is greedy.
    """

    seed: int | None = attrs.field(default=None, validator=attrs.validators.optional(whole_number(0, 2**32 - 1)))
    temperature: float = attrs.field(default=0.8, validator=finite())
    top_k: int = attrs.field(default=40, validator=whole_number())
    """<= 0: the whole vocabulary."""
    top_p: float = attrs.field(default=0.95, validator=finite(0.0, 1.0))
    min_p: float = attrs.field(default=0.05, validator=finite(0.0, 1.0))
    typical_p: float = attrs.field(default=1.0, validator=finite(0.0, 1.0))
    top_n_sigma: float = attrs.field(default=-1.0, validator=finite())
    """<= 0: off."""
    xtc_probability: float = attrs.field(default=0.0, validator=finite(0.0, 1.0))
    xtc_threshold: float = attrs.field(default=0.1, validator=finite(0.0, 1.0))
    dynatemp_range: float = attrs.field(default=0.0, validator=finite(0.0))
    dynatemp_exponent: float = attrs.field(default=1.0, validator=finite(0.0))
    penalty_last_n: int = attrs.field(default=64, validator=whole_number(-1))
    """Tokens the penalties look at; 0: off, -1: the whole context."""
    repeat_penalty: float = attrs.field(default=1.0, validator=finite(above=0.0))
    frequency_penalty: float = attrs.field(default=0.0, validator=finite())
    presence_penalty: float = attrs.field(default=0.0, validator=finite())
    dry_multiplier: float = attrs.field(default=0.0, validator=finite(0.0))
    dry_base: float = attrs.field(default=1.75, validator=finite(0.0))
    dry_allowed_length: int = attrs.field(default=2, validator=whole_number(0))
    dry_penalty_last_n: int = attrs.field(default=64, validator=whole_number(-1))
    """0: off, -1: the whole context."""
    dry_sequence_breakers: tuple[str, ...] = attrs.field(default=("\n", ":", '"', "*"), converter=_breakers)
    mirostat: int = attrs.field(default=0, validator=whole_number(0, 2))
    mirostat_tau: float = attrs.field(default=5.0, validator=finite(0.0))
    mirostat_eta: float = attrs.field(default=0.1, validator=finite(0.0))
    logit_bias: tuple[tuple[int, float], ...] = attrs.field(factory=dict, converter=_bias)
    """Given as a mapping token id -> bias; ``-inf`` bans a token."""
    ignore_eos: bool = attrs.field(default=False, validator=flag)
    """Never choose an end-of-generation token."""
    min_tokens: int = attrs.field(default=0, validator=whole_number(0))
    """No end-of-generation token before this many tokens were generated."""
    grammar: str | None = attrs.field(default=None, validator=text_or_none)
    """GBNF text; the root rule is ``root``."""
    logprobs: int | None = attrs.field(default=None, validator=attrs.validators.optional(whole_number(0, 100)))
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
