"""llama.cpp's sampler chain for the parameters of one request, in upstream's order (``common_sampler_init``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np

from specframe.backends.llama.model import Model
from specframe.core.errors import ConfigError
from specframe.core.sampling import SamplingParams

#: ``MAX_CHAR_LEN`` in ``llama_sampler_init_dry``: longer breakers are cut there.
MAX_BREAKER_BYTES = 40
#: Below this a logit divided by the temperature leaves the range of a float.
MIN_TEMPERATURE = 1e-30
#: Less probable than this, in units of the best token, is as good as impossible: a probability would be rounded to 0.
IMPOSSIBLE = float(np.finfo(np.float32).tiny)
#: ``LLAMA_DEFAULT_SEED``: "draw one yourself".
NATIVE_RANDOM_SEED = 2**32 - 1
#: Tokens that mirostat 1 estimates the distribution from (the constant upstream passes).
MIROSTAT_M = 100

_SKIPPED_BY_MIROSTAT = (
    "top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold", "dynatemp_range",
    "dynatemp_exponent", "repeat_penalty", "frequency_penalty", "presence_penalty", "dry_multiplier",
)  # fmt: skip
_FLOATS = (
    "temperature", "top_p", "min_p", "typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold", "dynatemp_range",
    "dynatemp_exponent", "repeat_penalty", "frequency_penalty", "presence_penalty", "dry_multiplier", "dry_base",
    "mirostat_tau", "mirostat_eta",
)  # fmt: skip


def check_sampling(params: SamplingParams, n_vocab: int) -> None:
    """Refuse what llama.cpp would ignore, or answer with NaN. Raises ConfigError that says what to do."""
    for name in _FLOATS:
        value = getattr(params, name)
        with np.errstate(over="ignore"):
            if not np.isfinite(np.float32(value)):
                msg = f"{name} {value!r} is outside the range of a 32-bit float; use a smaller number"
                raise ConfigError(msg)
    with np.errstate(over="ignore", divide="ignore"):
        if not np.isfinite(np.float32(1) / np.float32(params.repeat_penalty)):
            msg = f"repeat_penalty {params.repeat_penalty!r} is too close to 0; 1.0 turns it off"
            raise ConfigError(msg)
    if 0 < params.temperature < MIN_TEMPERATURE:
        msg = f"temperature {params.temperature!r} is too close to 0 to divide by; use 0 for the most probable token"
        raise ConfigError(msg)
    if params.dry_multiplier > 0 and 0 < params.dry_base < 1:
        msg = f"dry_base must be 1 or more, or 0 to turn DRY off, not {params.dry_base!r}"
        raise ConfigError(msg)
    params.check_vocabulary(n_vocab)
    for token, bias in params.logit_bias:
        with np.errstate(over="ignore"):
            if np.isnan(bias) or (np.float32(bias) != -np.inf and not np.isfinite(np.float32(bias))):
                msg = f"logit_bias of token {token} must be a 32-bit float or -inf, not {bias!r}; 100 nearly forces it"
                raise ConfigError(msg)
    _check_breakers(params)
    if params.mirostat:
        _check_mirostat(params)


def _check_mirostat(params: SamplingParams) -> None:
    fields = attrs.fields_dict(SamplingParams)
    for name in _SKIPPED_BY_MIROSTAT:
        if getattr(params, name) != fields[name].default:
            msg = (
                f"mirostat takes the place of {name}, which would be ignored; leave {name} at "
                f"{fields[name].default!r} or set mirostat to 0"
            )
            raise ConfigError(msg)


def _check_breakers(params: SamplingParams) -> None:
    for breaker in params.dry_sequence_breakers:
        size = len(breaker.encode("utf-8", "surrogatepass")) if isinstance(breaker, str) else 0
        if not 0 < size <= MAX_BREAKER_BYTES or "\0" in breaker or any("\ud800" <= c <= "\udfff" for c in breaker):
            msg = (
                f"dry_sequence_breakers must be texts of 1 to {MAX_BREAKER_BYTES} bytes without NUL characters, "
                f"not {breaker!r}"
            )
            raise ConfigError(msg)


def window(last_n: int, n_ctx: int) -> int:
    """Tokens that a penalty looks at: -1 is the whole context, and more than that never exists."""
    return n_ctx if last_n < 0 else min(last_n, n_ctx)


def native_seed(seed: int) -> int:
    """The seed for llama.cpp. The value that means "random" there gives way to its neighbour: a seed is a promise."""
    return seed - 1 if seed == NATIVE_RANDOM_SEED else seed


class Chain:
    """An owned ``llama_sampler_chain``."""

    def __init__(self, model: Model, params: SamplingParams, *, seed: int, n_ctx: int, greedy: bool) -> None:
        """Build the chain.

        Args:
            model: must be open now; the chain does not need it later.
            params: checked ones.
            seed: of the random stream.
            n_ctx: the whole context, for windows of -1.
            greedy: end with the argmax instead of a draw; what only cuts unlikely tokens off is left out.
        """
        lib = model.library.lib
        self._free = lib.llama_sampler_free
        options = lib.llama_sampler_chain_default_params()
        options.no_perf = True
        self.handle: Any = lib.llama_sampler_chain_init(options)
        for sampler in _samplers(model, params, native_seed(seed), n_ctx, greedy):
            lib.llama_sampler_chain_add(self.handle, sampler)

    def close(self) -> None:
        """Free it and the samplers in it; closing twice is allowed."""
        handle, self.handle = self.handle, None
        if handle is not None:
            self._free(handle)


def _samplers(model: Model, p: SamplingParams, seed: int, n_ctx: int, greedy: bool) -> Iterator[Any]:
    lib, n_vocab = model.library.lib, model.facts.n_vocab
    if p.mirostat:
        yield lib.llama_sampler_init_temp(p.temperature)
        if p.mirostat == 1:
            yield lib.llama_sampler_init_mirostat(n_vocab, seed, p.mirostat_tau, p.mirostat_eta, MIROSTAT_M)
        else:
            yield lib.llama_sampler_init_mirostat_v2(seed, p.mirostat_tau, p.mirostat_eta)
        return
    yield lib.llama_sampler_init_penalties(
        n_vocab, window(p.penalty_last_n, n_ctx), p.repeat_penalty, p.frequency_penalty, p.presence_penalty
    )
    if p.dry_multiplier > 0:
        yield _dry(model, p, n_ctx)
    if greedy:
        yield lib.llama_sampler_init_greedy()
        return
    # min_keep is upstream's default.
    min_keep = 0
    yield lib.llama_sampler_init_top_n_sigma(p.top_n_sigma)
    yield lib.llama_sampler_init_top_k(max(0, min(p.top_k, n_vocab)))
    if p.typical_p < 1:  # it takes the logarithm of every probability, also of what top_n_sigma ruled out
        yield lib.llama_sampler_init_min_p(IMPOSSIBLE, min_keep)
    yield lib.llama_sampler_init_typical(p.typical_p, min_keep)
    yield lib.llama_sampler_init_top_p(p.top_p, min_keep)
    yield lib.llama_sampler_init_min_p(p.min_p, min_keep)
    yield lib.llama_sampler_init_xtc(p.xtc_probability, p.xtc_threshold, min_keep, seed)
    # A range around a temperature of 0 would not be greedy.
    spread = p.dynatemp_range if p.temperature > 0 else 0.0
    yield lib.llama_sampler_init_temp_ext(p.temperature, spread, p.dynatemp_exponent)
    yield lib.llama_sampler_init_dist(seed)


def _dry(model: Model, p: SamplingParams, n_ctx: int) -> Any:
    ffi, lib = model.library.ffi, model.library.lib
    texts = [ffi.new("char[]", breaker.encode()) for breaker in p.dry_sequence_breakers]
    return lib.llama_sampler_init_dry(
        lib.llama_model_get_vocab(model.handle),
        p.dry_multiplier,
        p.dry_base,
        min(p.dry_allowed_length, 2**31 - 1),
        window(p.dry_penalty_last_n, n_ctx),
        ffi.new("const char *[]", texts),
        len(texts),
    )
