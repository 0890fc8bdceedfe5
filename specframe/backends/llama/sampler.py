"""Choosing tokens of one request with llama.cpp's samplers."""

from __future__ import annotations

import math
import secrets
import sys
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from specframe.backends.llama.candidates import Candidates
from specframe.backends.llama.grammar import Grammar
from specframe.backends.llama.model import Model
from specframe.backends.llama.sampler_chain import NATIVE_RANDOM_SEED, Chain, check_sampling, window
from specframe.core.errors import BackendError, ClosedError, ConfigError
from specframe.core.ports import Logits, TokenSampler
from specframe.core.sampling import SamplingParams

#: numpy looks for the largest number of a read-only row in a copy; from this size on it is quicker to go around that.
_COPIED = 16384


class LlamaSampler(TokenSampler):
    """Implements ``specframe.core.ports.TokenSampler``.

    The steps are biases, then penalties, DRY, top-n-sigma, top-k, typical, top-p, min-p, XTC, temperature and one draw;
    or mirostat. A grammar is asked about the chosen token; only when it refuses that one are all candidates put before
    it and the choice made anew, as upstream's ``common_sampler_sample`` does.

    Greedy choices that no earlier token influences are a numpy argmax; no candidate array is made for them.
    """

    def __init__(self, model: Model, params: SamplingParams, prompt: Sequence[int], *, n_ctx: int) -> None:
        """Set the samplers up and let them see the prompt.

        Args:
            model: an open model; must stay open as long as a grammar is used.
            params: of the request.
            prompt: feeds the penalties.
            n_ctx: tokens a sequence can hold; what -1 means for the windows of penalties.

        Raises:
            ConfigError: a parameter cannot be honoured.
        """
        self._closed = True
        self._grammar: Grammar | None = None
        self._chain: Chain | None = None
        check_sampling(params, model.facts.n_vocab)
        self.seed = secrets.randbelow(NATIVE_RANDOM_SEED) if params.seed is None else params.seed
        """Of the random stream, also when none was asked for."""
        self._lib = model.library.lib
        self._library, self._n_vocab = model.library, model.facts.n_vocab
        self._candidates: Candidates | None = None
        self._scratch: npt.NDArray[np.float32] | None = None
        self._n_accepted = 0
        self._set_up_biases(model, params)
        self._greedy = (
            params.temperature <= 0 and params.typical_p >= 1 and params.xtc_probability == 0 and params.mirostat == 0
        )
        if params.grammar is not None:
            self._grammar = Grammar(model, params.grammar)
        if not self._greedy or params.has_penalties:
            self._chain = Chain(model, params, seed=self.seed, n_ctx=n_ctx, greedy=self._greedy)
        self._closed = False
        if params.has_penalties and self._chain is not None:
            longest = max(window(params.penalty_last_n, n_ctx), window(params.dry_penalty_last_n, n_ctx))
            for token in prompt[max(0, len(prompt) - longest) :]:
                self._lib.llama_sampler_accept(self._chain.handle, token)

    def _set_up_biases(self, model: Model, params: SamplingParams) -> None:
        biases = dict(params.logit_bias)
        banned = dict.fromkeys(_suppressed(model), -math.inf)
        eog = sorted(model.vocab.eog)
        if params.ignore_eos:
            banned |= dict.fromkeys(eog, -math.inf)
        biases |= banned
        self._bias_ids = np.array(list(biases), np.intp)
        self._biases = np.array(list(biases.values()), np.float32)
        self._min_tokens = params.min_tokens if eog else 0
        self._eog = np.array(eog, np.intp)
        self._always_adjust = bool(biases)

    def sample(self, logits: Logits) -> int:
        """Choose from one row. Raises BackendError when the row is invalid or everything in it is ruled out."""
        if self._closed:
            raise _closed()
        if logits.shape != (self._n_vocab,):
            msg = f"a row of {self._n_vocab} logits is needed, not one of shape {logits.shape}"
            raise ConfigError(msg)
        if self._always_adjust or self._n_accepted < self._min_tokens:
            logits = self._adjusted(logits)
        token = self._argmax(logits) if self._chain is None else self._draw(logits)
        if self._grammar is None or self._grammar.allowed(token):
            return token
        return self._draw_allowed(logits, self._grammar)

    def accept(self, token: int) -> None:
        """``token`` was committed. Raises BackendError when a grammar forbids it; nothing changed then."""
        if self._closed:
            raise _closed()
        if not 0 <= token < self._n_vocab:
            msg = f"token {token} is outside the vocabulary of {self._n_vocab} tokens"
            raise ConfigError(msg)
        if self._grammar is not None:
            self._grammar.accept(token)
        if self._chain is not None:
            self._lib.llama_sampler_accept(self._chain.handle, token)
        self._n_accepted += 1

    def allowed(self, token: int) -> bool:
        """False when the grammar forbids ``token`` next."""
        if self._closed:
            raise _closed()
        return self._grammar is None or (0 <= token < self._n_vocab and self._grammar.allowed(token))

    def finished(self) -> bool:
        """True when the grammar admits nothing but the end."""
        if self._closed:
            raise _closed()
        return self._grammar is not None and self._grammar.finished()

    def close(self) -> None:
        """Free the native samplers; closing twice is allowed."""
        self._closed = True
        if self._grammar is not None:
            self._grammar.close()
        if self._chain is not None:
            self._chain.close()

    def _adjusted(self, logits: Logits) -> Logits:
        """The row with biases added and bans set, in a buffer of our own."""
        if self._scratch is None:
            self._scratch = np.empty(self._n_vocab, np.float32)
        row = self._scratch
        np.copyto(row, logits)
        row[self._bias_ids] += self._biases
        if self._n_accepted < self._min_tokens:
            row[self._eog] = -np.inf
        return row

    def _argmax(self, logits: Logits) -> int:
        if len(logits) >= _COPIED and not logits.flags.writeable and logits.flags.c_contiguous:
            ffi = self._library.ffi
            logits = np.frombuffer(ffi.buffer(ffi.from_buffer(logits)), logits.dtype)
        token = int(logits.argmax())
        if not math.isfinite(logits.item(token)):
            raise _invalid(logits)
        return token

    def _fill(self, logits: Logits) -> Candidates:
        peak = float(logits.max())  # NaN, if there is one
        if not math.isfinite(peak):
            raise _invalid(logits)
        if self._candidates is None:
            self._candidates = Candidates(self._library, self._n_vocab)
            self._ids = np.arange(self._n_vocab, dtype=np.int32)
        self._candidates.fill(self._ids, logits)
        return self._candidates

    def _draw(self, logits: Logits) -> int:
        candidates = self._fill(logits)
        if logits.min() == -np.inf:  # banned by a bias or a logits processor
            candidates.drop_forbidden()
        return self._apply_chain(candidates)

    def _draw_allowed(self, logits: Logits, grammar: Grammar) -> int:
        candidates = self._fill(logits)
        grammar.forbid(candidates.array)
        candidates.drop_forbidden()
        if not len(candidates.ids):
            msg = "no token is left to choose from: the grammar and the bans together rule out the whole vocabulary"
            raise BackendError(msg)
        if self._chain is None:
            return int(candidates.ids[candidates.logits.argmax()])
        return self._apply_chain(candidates)

    def _apply_chain(self, candidates: Candidates) -> int:
        if self._chain is None:
            raise _closed()
        array = candidates.array
        self._lib.llama_sampler_apply(self._chain.handle, array)
        selected = array.selected
        if not 0 <= selected < array.size:
            msg = f"no token was chosen (candidate {selected} of {array.size}); check the sampling parameters"
            raise BackendError(msg)
        chosen = array.data[selected]
        # The argmax leaves probabilities alone; its candidate must have a logit.
        sound = math.isfinite(chosen.logit) if self._greedy else not math.isnan(chosen.p)
        if not sound:
            msg = "the sampling parameters turned the logits into NaN or infinity; use smaller penalties and biases"
            raise BackendError(msg)
        return int(chosen.id)

    def __del__(self) -> None:
        # A backstop only; at interpreter exit nothing is freed.
        if not sys.is_finalizing() and not getattr(self, "_closed", True):
            self.close()


def _suppressed(model: Model) -> list[int]:
    """Tokens that the model's file says are never to be generated."""
    ffi, lib = model.library.ffi, model.library.lib
    count = ffi.new("int32_t *")
    tokens = lib.llama_vocab_get_suppress_tokens(lib.llama_model_get_vocab(model.handle), count)
    return [int(token) for token in ffi.unpack(tokens, count[0])] if count[0] else []


def _closed() -> ClosedError:
    return ClosedError("the sampler is closed")


def _invalid(logits: Logits) -> BackendError:
    n_nan = int(np.isnan(logits).sum())
    if n_nan:
        return BackendError(f"{n_nan} of {len(logits)} logits are NaN: the model or the runtime computed nonsense")
    if np.isposinf(logits).any():
        return BackendError("a logit is +inf: the model, a bias or a logits processor produced it")
    return BackendError("no token is left to choose from: every token of the vocabulary is banned")
