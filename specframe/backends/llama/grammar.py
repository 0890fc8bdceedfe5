"""Generation held to a GBNF grammar."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from specframe.backends.llama.candidates import Candidates
from specframe.backends.llama.gbnf import ROOT, check_grammar
from specframe.backends.llama.log import native_log
from specframe.backends.llama.model import Model
from specframe.core.errors import BackendError, ClosedError, ConfigError

#: Bytes that occur in UTF-8 text; NUL never passes a grammar.
_TEXT_BYTES = frozenset(range(1, 0xC0)) | frozenset(range(0xC2, 0xF5))


@attrs.frozen
class _Probes:
    """Tokens to ask whether anything at all may follow."""

    single: npt.NDArray[np.int32]
    """One byte each. Whatever a grammar lets follow begins with a byte."""
    complete: bool
    """Every byte has such a token, so asking them is enough."""
    everything: npt.NDArray[np.int32]
    """All tokens that do not end the generation."""


_probes: weakref.WeakKeyDictionary[Model, _Probes] = weakref.WeakKeyDictionary()


class Grammar:
    """State of one generation inside a grammar. Tokens are checked first: llama.cpp throws through C on bad ones."""

    def __init__(self, model: Model, text: str) -> None:
        """Parse the grammar.

        Args:
            model: whose tokens are used; must stay open.
            text: GBNF with a rule ``root``.

        Raises:
            ConfigError: the grammar cannot be used; says where and why.
        """
        self._handle: Any = None
        check_grammar(text)
        self._model = model
        ffi, self._lib = model.library.ffi, model.library.lib
        native_log.take()
        vocab = self._lib.llama_model_get_vocab(model.handle)
        handle = self._lib.llama_sampler_init_grammar(vocab, text.encode(), ROOT.encode())
        if not handle:
            said = " | ".join(native_log.take()) or "no reason given"
            msg = f"llama.cpp refuses the grammar: {said}"
            raise ConfigError(msg)
        self._handle = handle
        self._one = ffi.new("llama_token_data[1]")
        self._array = ffi.new("llama_token_data_array *")
        self._eog = sorted(model.vocab.eog)
        self._scratch: Candidates | None = None

    def allowed(self, token: int) -> bool:
        """Whether ``token`` may come next; changes nothing."""
        one, array = self._one[0], self._array
        one.id, one.logit = token, 0.0
        array.data, array.size, array.selected, array.sorted = self._one, 1, -1, False
        self._lib.llama_sampler_apply(self._open(), array)
        return bool(one.logit == 0.0)

    def forbid(self, array: Any) -> None:
        """Set the logits of all tokens in a ``llama_token_data_array`` that may not come next to -inf."""
        self._lib.llama_sampler_apply(self._open(), array)

    def accept(self, token: int) -> None:
        """``token`` was generated. Raises BackendError when it is not allowed; nothing changed then."""
        if not self.allowed(token):
            msg = f"token {token} is forbidden by the grammar and cannot be accepted"
            raise BackendError(msg)
        self._lib.llama_sampler_accept(self._open(), token)

    def finished(self) -> bool:
        """Whether nothing but the end of the generation may come next."""
        if self._eog and not self.allowed(self._eog[0]):
            return False
        probes = _probes_of(self._model)
        if self._any_allowed(probes.single):
            return False
        return probes.complete or not self._any_allowed(probes.everything)

    def close(self) -> None:
        """Free the grammar; closing twice is allowed."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._lib.llama_sampler_free(handle)

    def _open(self) -> Any:
        if self._handle is None or self._model.closed:
            msg = "the grammar, or the model it belongs to, is closed"
            raise ClosedError(msg)
        return self._handle

    def _any_allowed(self, tokens: npt.NDArray[np.int32]) -> bool:
        if self._scratch is None:
            self._scratch = Candidates(self._model.library, self._model.facts.n_vocab)
        self._scratch.fill(tokens, 0.0)
        self.forbid(self._scratch.array)
        return bool((self._scratch.logits == 0.0).any())

    def __del__(self) -> None:
        if not sys.is_finalizing() and getattr(self, "_handle", None) is not None:
            self.close()


def _probes_of(model: Model) -> _Probes:
    found = _probes.get(model)
    if found is None:
        found = _probes[model] = _find_probes(model)
    return found


def _find_probes(model: Model) -> _Probes:
    vocab = model.vocab
    eog = vocab.eog
    by_byte: dict[int, int] = {}
    everything = [token for token in range(vocab.n_tokens) if token not in eog]
    for token in everything:
        piece = vocab.piece_special(token)
        if len(piece) == 1:
            by_byte.setdefault(piece[0], token)
    return _Probes(_ids(list(by_byte.values())), by_byte.keys() >= _TEXT_BYTES, _ids(everything))


def _ids(tokens: Sequence[int]) -> npt.NDArray[np.int32]:
    return np.array(tokens, np.int32)
