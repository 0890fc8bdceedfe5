"""Choosing the most probable token of each row of a draft, inside the evaluation where possible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from specframe.backends.llama.library import Library
from specframe.backends.llama.log import native_log
from specframe.backends.llama.native_context import native_rows
from specframe.backends.llama.status import failure

#: Candidates a probability is taken among (what upstream's draft samplers keep).
N_CANDIDATES = 10


class RowChooser:
    """Greedy choices. With native samplers attached a few candidates leave the backend, not rows of logits."""

    def __init__(self, library: Library, n_vocab: int, *, probabilities: bool) -> None:
        self._library, self._lib, self._ffi = library, library.lib, library.ffi
        self._n_vocab, self._probabilities = n_vocab, probabilities
        self._chains: list[Any] = []
        self._context: Any = None

    def attach(self, context: Any, n_seq: int) -> None:
        """Let ``context`` choose by itself; falls back to rows of logits where the backend cannot."""
        self._context = context
        for seq in range(n_seq):
            chain = self._lib.llama_sampler_chain_init(self._lib.llama_sampler_chain_default_params())
            self._lib.llama_sampler_chain_add(chain, self._lib.llama_sampler_init_greedy())
            if self._probabilities:
                # Behind the choice, for its probability only. The choice is not read from these candidates: llama.cpp
                # plans memory for one graph and reuses it for others of the same size, whatever their outputs
                # (ggml_gallocr_needs_realloc), so that ids that are worked on further may be overwritten by another
                # row's. Results that nothing else reads never are.
                self._lib.llama_sampler_chain_add(chain, self._lib.llama_sampler_init_top_k(N_CANDIDATES))
            if not self._lib.llama_set_sampler(context, seq, chain):
                self._lib.llama_sampler_free(chain)
                native_log.take()
                self.detach()
                return
            self._chains.append(chain)

    def detach(self) -> None:
        """Take the samplers out of the context again, before it is freed."""
        for seq, chain in enumerate(self._chains):
            self._lib.llama_set_sampler(self._context, seq, self._ffi.NULL)
            self._lib.llama_sampler_free(chain)
        self._chains = []

    def choose(
        self, context: Any, outputs: Sequence[int], rows: Sequence[int] | None = None
    ) -> list[tuple[int, float]]:
        """Token and probability for the batch indices ``outputs``; ``rows`` of logits are theirs, or the first ones."""
        if not self._chains:
            return self._from_logits(context, range(len(outputs)) if rows is None else rows)
        tokens = [int(self._lib.llama_get_sampled_token_ith(context, index)) for index in outputs]
        if tokens and min(tokens) < 0:
            raise failure("choosing draft tokens", meaning="the backend chose none", outputs=list(outputs))
        if not self._probabilities:
            return [(token, 1.0) for token in tokens]
        return [(token, self._probability(context, index)) for token, index in zip(tokens, outputs, strict=True)]

    def _probability(self, context: Any, index: int) -> float:
        n = int(self._lib.llama_get_sampled_logits_count_ith(context, index))
        if not 0 < n <= N_CANDIDATES:
            raise failure("choosing draft tokens", meaning="the backend left no candidates", index=index, n=n)
        logits = self._ffi.unpack(self._lib.llama_get_sampled_logits_ith(context, index), n)
        best = max(logits)
        return 1.0 / sum(math.exp(logit - best) for logit in logits)

    def _from_logits(self, context: Any, wanted: Sequence[int]) -> list[tuple[int, float]]:
        pointer = self._lib.llama_get_logits(context)
        if not pointer:
            raise failure("reading draft logits", meaning="the context has none", rows=len(wanted))
        rows = native_rows(self._library, pointer, max(wanted, default=-1) + 1, self._n_vocab)
        if len(wanted) < len(rows):
            rows = rows[wanted]
        tokens = rows.argmax(axis=1).tolist()
        if not self._probabilities:
            return [(token, 1.0) for token in tokens]
        k = min(N_CANDIDATES, self._n_vocab)
        best = np.partition(rows, -k, axis=1)[:, -k:]
        shares = 1.0 / np.exp(best - best.max(axis=1, keepdims=True)).sum(axis=1)
        return list(zip(tokens, shares.tolist(), strict=True))
