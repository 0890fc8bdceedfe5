"""The sampler of the scripted target: llama.cpp's order of steps in numpy, with strict checks of how it is used."""

from __future__ import annotations

import math
import random
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from specframe.core.errors import BackendError, ClosedError, ConfigError
from specframe.core.ports import Logits, TokenSampler
from specframe.core.sampling import SamplingParams
from specframe.testing.errors import ContractError
from specframe.testing.faults import FaultPlan, When

#: A tiny grammar: generated tokens so far -> tokens that may come next; an empty answer means the grammar is complete.
Grammar: TypeAlias = Callable[[Sequence[int]], Collection[int]]

_Row: TypeAlias = npt.NDArray[np.float64]


def refuse_unsupported(params: SamplingParams, n_vocab: int) -> None:
    """Raise ConfigError for every parameter this sampler would otherwise ignore."""
    unsupported = {
        "typical_p": params.typical_p < 1,
        "top_n_sigma": params.top_n_sigma > 0,
        "xtc_probability": params.xtc_probability > 0,
        "dynatemp_range": params.dynatemp_range > 0,
        "dry_multiplier": params.dry_multiplier > 0,
        "mirostat": params.mirostat > 0,
    }
    for name, asked in unsupported.items():
        if asked:
            msg = f"the scripted sampler does not implement {name}; leave it at its default"
            raise ConfigError(msg)
    params.check_vocabulary(n_vocab)


class ScriptedSampler(TokenSampler):
    """Sampler of one request: bias, penalties, top-k, top-p, min-p, temperature, then one uniform draw.

    It fails with ContractError when it is not called strictly in turn (sample, accept, sample, accept), when another
    token than the sampled one is accepted, or when a row is used after the decode that followed it.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        *,
        n_vocab: int,
        eog: frozenset[int],
        grammar: Grammar | None,
        faults: FaultPlan,
    ) -> None:
        refuse_unsupported(params, n_vocab)
        self.params = params
        self.generated: list[int] = []
        self.n_draws = 0
        """Uniform numbers taken so far: one per sampled token, none for greedy decoding."""
        self._n_vocab = n_vocab
        self._eog = sorted(eog)
        self._grammar = grammar
        self._faults = faults
        self._seen = list(prompt)
        self.seed = secrets.randbits(32) if params.seed is None else params.seed
        self._random = random.Random(self.seed)  # noqa: S311 -- repeatable on purpose
        self._sampled: int | None = None
        self._closed = False

    @override
    def sample(self, logits: Logits) -> int:
        self._check(logits)
        fault = self._faults.due("sample")
        if fault is not None and fault.when is not When.AFTER:
            raise fault.make()
        token = self._choose(self._adjust(logits.astype(np.float64)))
        if fault is not None:
            raise fault.make()
        self._sampled = token
        return token

    @override
    def accept(self, token: int) -> None:
        if self._closed:
            msg = "accept() on a closed sampler"
            raise ClosedError(msg)
        if self._sampled is None:
            msg = f"accept({token}) without a sample() before it"
            raise ContractError(msg)
        if token != self._sampled:
            msg = f"accept({token}) after sample() returned {self._sampled}"
            raise ContractError(msg)
        fault = self._faults.due("accept")
        if fault is not None and fault.when is not When.AFTER:
            raise fault.make()
        self._sampled = None
        self._seen.append(token)
        self.generated.append(token)
        if fault is not None:
            raise fault.make()

    @override
    def allowed(self, token: int) -> bool:
        return self._grammar is None or token in self._grammar(tuple(self.generated))

    @override
    def finished(self) -> bool:
        return self._grammar is not None and not self._grammar(tuple(self.generated))

    @override
    def close(self) -> None:
        self._closed = True

    def _check(self, logits: Logits) -> None:
        if self._closed:
            msg = "sample() on a closed sampler"
            raise ClosedError(msg)
        if self._sampled is not None:
            msg = f"sample() called again before {self._sampled} was accepted"
            raise ContractError(msg)
        if logits.shape != (self._n_vocab,) or logits.dtype != np.float32:
            msg = f"sample() needs one float32 row of {self._n_vocab}, not {logits.dtype} {logits.shape}"
            raise ContractError(msg)
        if np.isnan(logits).any():
            msg = "sample() was given a row that is no longer valid: its buffer was reused by a later decode"
            raise ContractError(msg)

    def _adjust(self, row: _Row) -> _Row:
        """Bias, bans and penalties: everything that changes logits before candidates are cut."""
        p = self.params
        for token, bias in p.logit_bias:
            row[token] += bias
        if p.ignore_eos or len(self.generated) < p.min_tokens:
            row[self._eog] = -math.inf
        if self._grammar is not None:
            mask = np.ones(self._n_vocab, dtype=bool)
            mask[list(self._grammar(tuple(self.generated)))] = False
            row[mask] = -math.inf
        window = (
            self._seen
            if p.penalty_last_n < 0
            else self._seen[len(self._seen) - min(p.penalty_last_n, len(self._seen)) :]
        )
        for token, count in Counter(window).items():
            row[token] = row[token] * p.repeat_penalty if row[token] <= 0 else row[token] / p.repeat_penalty
            row[token] -= count * p.frequency_penalty + p.presence_penalty
        return row

    def _choose(self, row: _Row) -> int:
        p = self.params
        best = int(np.argmax(row))
        if not math.isfinite(row[best]):
            msg = "no token is left to choose from"
            raise BackendError(msg)
        if p.temperature <= 0:
            return best
        order = np.argsort(-row, kind="stable")
        order = order[: int(np.isfinite(row).sum())]
        if p.top_k > 0:
            order = order[: p.top_k]
        if p.top_p < 1:
            inside = np.cumsum(_softmax(row[order])) < p.top_p
            order = order[: max(1, int(inside.sum()) + 1)]
        if p.min_p > 0:
            order = order[row[order] >= row[order[0]] + math.log(p.min_p)]
        self.n_draws += 1
        cumulated = np.cumsum(_softmax(row[order] / p.temperature))
        drawn = int(np.searchsorted(cumulated, self._random.random() * cumulated[-1], side="right"))
        return int(order[min(drawn, len(order) - 1)])


def _softmax(row: _Row) -> _Row:
    shifted = np.exp(row - row.max())
    return np.asarray(shifted / shifted.sum(), dtype=np.float64)
