"""What is asked of the engine, and what it answers."""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np

from specframe.core.combination import AnySpec
from specframe.core.errors import ConfigError
from specframe.core.history import History
from specframe.core.ports import Logits
from specframe.core.sampling import SamplingParams
from specframe.core.stats import RequestStats
from specframe.core.validators import elements, flag, whole_number

#: ``(history, logits) -> logits``: history up to (not including) the token being chosen, and a private writable copy
#: of that token's own row ``(n_vocab,)`` float32. Returns the row to sample from.
LogitsProcessor: TypeAlias = Callable[[History, "np.ndarray[Any, np.dtype[np.float32]]"], Logits]

#: ``(history, logits) -> stop?``: called after each committed token with the history ending in it and a read-only copy
#: of the row it came from.
StoppingCriterion: TypeAlias = Callable[[History, Logits], bool]

#: ``(tokens evaluated, tokens to evaluate)``, after each prompt chunk.
PromptProgress: TypeAlias = Callable[[int, int], None]


class FinishReason(enum.Enum):
    """Why a request ended."""

    STOP = "stop"
    """End-of-generation token, stop string, stopping criterion, or the end of a grammar."""
    LENGTH = "length"
    """The token budget is used up or the context is full."""
    CANCELLED = "cancelled"
    """Its consumer left, or an interrupt (Ctrl-C) fell between the draw of a token and its commit."""
    ERROR = "error"
    """It failed; the error is raised where the output is consumed."""


@attrs.frozen
class TokenLogprob:
    """Natural logarithms of probabilities under the target's own distribution: no bias, penalties, truncation."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    """Most probable tokens with their log probabilities, best first."""


@attrs.frozen
class Chunk:
    """New output of a running request: one or more tokens and the text that became certain with them."""

    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    """One for each of ``tokens`` when they were asked for, else empty."""


@attrs.frozen(kw_only=True)
class Completion:
    """A finished request."""

    text: str
    tokens: tuple[int, ...]
    """Tokens behind ``text``: a final end-of-generation token is not among them."""
    finish_reason: FinishReason
    stop_detail: str
    """What exactly ended it: eog, stop-string, criterion, grammar, max-tokens, context-full, cancelled, interrupted (by
    Ctrl-C, between the draw of a token and its commit), error.
    """
    prompt_tokens: int
    strategy: str
    """Name of the strategy asked for; "none" is plain decoding."""
    stats: RequestStats
    logprobs: tuple[TokenLogprob, ...] = ()
    """One for each of ``tokens`` when they were asked for, else empty."""

    @property
    def completion_tokens(self) -> int:
        """Tokens delivered."""
        return len(self.tokens)


def _strings(value: str | Sequence[str]) -> tuple[str, ...]:
    strings: tuple[Any, ...] = (value,) if isinstance(value, str) else elements("stop", value)
    for s in strings:
        if not isinstance(s, str) or not s:
            msg = f"a stop string must be a non-empty text, not {s!r}"
            raise ConfigError(msg)
    return strings


def token_ids(prompt: Iterable[int]) -> tuple[int, ...]:
    """``prompt`` as plain integers, whatever kind they come as. Raises ConfigError when they are no token ids."""
    # bytes would pass as a sequence of small integers
    if not isinstance(prompt, bytes | bytearray):
        try:
            return tuple(map(operator.index, prompt))
        except TypeError:
            pass
    msg = f"a prompt is a sequence of token ids, or for an LLM a text, not {prompt!r:.80}"
    raise ConfigError(msg)


# Converters with types of their own: of a bare ``tuple`` type checkers know no element type.
def _processors(value: Iterable[LogitsProcessor]) -> tuple[LogitsProcessor, ...]:
    return tuple(value)


def _criteria(value: Iterable[StoppingCriterion]) -> tuple[StoppingCriterion, ...]:
    return tuple(value)


def _draft_length(value: int | str | None) -> Any:
    return {"auto": None, "off": 0}.get(value, value) if isinstance(value, str) else value


def _budget(_: object, __: object, value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        msg = f"max_tokens must be a whole number >= 0 or None for the rest of the context, not {value!r}"
        raise ConfigError(msg)


def _context_full(_: object, __: object, value: Any) -> None:
    if value not in ("stop", "shift"):
        msg = f"context_full must be 'stop' or 'shift', not {value!r}"
        raise ConfigError(msg)


def _n_keep(_: object, __: object, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        msg = f"n_keep must be a whole number >= 0, not {value!r}"
        raise ConfigError(msg)


@attrs.frozen(kw_only=True, eq=False)
class Request:
    """One generation. Raises ConfigError for values that cannot work."""

    prompt: tuple[int, ...] = attrs.field(converter=token_ids)
    """Token ids, at least one; whether they are of the vocabulary is checked when the request is submitted."""
    max_tokens: int | None = attrs.field(default=None, validator=_budget)
    """Most tokens to generate, an end-of-generation token included; None: as many as the context holds."""
    sampling: SamplingParams = attrs.field(factory=SamplingParams)
    stop: tuple[str, ...] = attrs.field(default=(), converter=_strings)
    """Texts that end the request where they begin; they are not part of its text."""
    strategy: AnySpec | None = None
    """None: plain decoding."""
    strategy_reason: str = ""
    """Why this one; repeated in the statistics."""
    strategy_required: bool = True
    """Refuse the request when the strategy cannot be set up; False: do without it, or without that part of it."""
    draft_length: int | None = attrs.field(
        default=None,
        converter=_draft_length,
        validator=attrs.validators.optional(whole_number(0, way_out="or 'auto', or 'off'")),
    )
    """Verify drafts of up to this many tokens, whatever they cost; None or ``"auto"``: the scheduler decides; 0 or
    ``"off"``: plain decoding.
    """
    logits_processors: tuple[LogitsProcessor, ...] = attrs.field(default=(), converter=_processors)
    """Applied in this order to the row of each token, before the sampler. What one raises ends this request."""
    stopping_criteria: tuple[StoppingCriterion, ...] = attrs.field(default=(), converter=_criteria)
    """Asked after each token; the first that says so ends the request, with that token in its text."""
    on_prompt_progress: PromptProgress | None = None
    reuse_prefix: bool = attrs.field(default=True, validator=flag)
    """Reuse what memory holds of the prompt from earlier requests."""
    context_full: str = attrs.field(default="stop", validator=_context_full)
    """What happens when the context is full: ``"stop"``, or ``"shift"``: the first ``n_keep`` tokens stay, half of the
    others are dropped, and the request goes on. Callbacks and strategies then see what is left.
    """
    n_keep: int = attrs.field(default=4, validator=_n_keep)
    """Tokens at the beginning that a shift keeps; a few always, as models lean on them (Xiao et al. 2023,
    arXiv:2309.17453).
    """

    def __attrs_post_init__(self) -> None:
        if self.context_full == "shift" and self.max_tokens is None:
            msg = "context_full='shift' never runs out of room: say when to end with max_tokens (--max-tokens)"
            raise ConfigError(msg)
