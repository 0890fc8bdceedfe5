"""The vocabulary of a loaded model: tokens, the bytes they stand for, and turning one into the other."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from specframe.backends.llama.library import Library
from specframe.core.errors import ClosedError, ConfigError
from specframe.core.ports import Vocab

logger = logging.getLogger("specframe.llama.vocab")

_INT32_MAX = 2**31 - 1


class LlamaVocab(Vocab):
    """Implements ``specframe.core.ports.Vocab`` over a model that must stay open.

    Every id is range-checked before it reaches llama.cpp, where a wrong one ends the process.
    Safe to use from several threads.
    """

    def __init__(self, library: Library, model: Any, *, is_open: Callable[[], bool] = lambda: True) -> None:
        """Borrow the vocabulary of a model.

        Args:
            library: the library that loaded the model.
            model: ``struct llama_model *``, borrowed.
            is_open: says whether the model still exists.

        Raises:
            ConfigError: the file has no tokenizer.
        """
        self._ffi, self._lib, self._is_open = library.ffi, library.lib, is_open
        self._vocab = self._lib.llama_model_get_vocab(model)
        if self._lib.llama_vocab_type(self._vocab) == self._lib.LLAMA_VOCAB_TYPE_NONE:
            raise ConfigError(
                "the file has no tokenizer (tokenizer.ggml.model is none); use a model that was converted with one"
            )
        self._n_tokens = int(self._lib.llama_vocab_n_tokens(self._vocab))
        self._pieces: dict[int, bytes] = {}

    @property
    def n_tokens(self) -> int:
        """Number of token ids; they are ``range(n_tokens)``."""
        return self._n_tokens

    @functools.cached_property
    def kind(self) -> str:
        """Tokenizer family: ``spm``, ``bpe``, ``wpm``, ``ugm``, ``rwkv``, ``plamo2``."""
        kind = self._lib.llama_vocab_type(self._handle())
        name: str = self._ffi.string(self._ffi.cast("enum llama_vocab_type", kind))
        return name.removeprefix("LLAMA_VOCAB_TYPE_").lower()

    @functools.cached_property
    def eog(self) -> frozenset[int]:
        """End-of-generation tokens."""
        vocab, is_eog = self._handle(), self._lib.llama_vocab_is_eog
        return frozenset(token for token in range(self._n_tokens) if is_eog(vocab, token))

    @property
    def bos(self) -> int | None:
        """Beginning of a text, or None."""
        return self._special("bos")

    @property
    def eos(self) -> int | None:
        """End of a text, or None."""
        return self._special("eos")

    @property
    def eot(self) -> int | None:
        """End of a chat turn, or None."""
        return self._special("eot")

    @property
    def sep(self) -> int | None:
        """Separator, or None."""
        return self._special("sep")

    @property
    def nl(self) -> int | None:
        """Line feed, or None."""
        return self._special("nl")

    @property
    def pad(self) -> int | None:
        """Padding, or None."""
        return self._special("pad")

    @property
    def mask(self) -> int | None:
        """The mask that block drafters fill in, or None."""
        return self._special("mask")

    @property
    def add_bos(self) -> bool:
        """Whether ``tokenize`` puts a BOS in front."""
        return bool(self._lib.llama_vocab_get_add_bos(self._handle()))

    @property
    def add_eos(self) -> bool:
        """Whether ``tokenize`` puts an EOS at the end."""
        return bool(self._lib.llama_vocab_get_add_eos(self._handle()))

    def piece(self, token: int) -> bytes:
        """Bytes of one token in generated text; control tokens give ``b""``."""
        found = self._pieces.get(token)
        if found is None:
            found = self._pieces[token] = self._render(token, special=False)
        return found

    def piece_special(self, token: int) -> bytes:
        """Bytes of one token, control tokens spelled out (``<|im_end|>``)."""
        return self._render(token, special=True)

    def text(self, token: int) -> str:
        """The token as the file spells it, byte-level alphabet and all."""
        raw: bytes = self._ffi.string(self._lib.llama_vocab_get_text(self._handle(), self._checked(token)))
        return raw.decode("utf-8", "replace")

    def attr(self, token: int) -> int:
        """Bit set of ``LLAMA_TOKEN_ATTR_*``."""
        return int(self._lib.llama_vocab_get_attr(self._handle(), self._checked(token)))

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of ``text``.

        Args:
            text: may be empty and may hold NUL characters.
            add_special: put BOS and EOS where the model wants them.
            parse_special: read ``<|im_start|>`` and the like as control tokens instead of as text.

        Raises:
            ConfigError: the text has lone surrogates or is too long, or a token to be added does not exist.
        """
        try:
            raw = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"the text has a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}; "
                "it stands for no character, so remove or replace it"
            ) from None
        vocab = self._handle()
        if add_special:
            self._check_addable()
        room = len(raw) + 8
        while True:
            if room > _INT32_MAX:
                raise ConfigError(f"a text of {len(raw)} bytes is too long to tokenize at once; split it")
            ids = self._ffi.new("llama_token[]", room)
            n = int(self._lib.llama_tokenize(vocab, raw, len(raw), ids, room, add_special, parse_special))
            if n >= 0:
                return list(self._ffi.unpack(ids, n)) if n else []
            room = -n

    def tokenize_prompt(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """``tokenize`` for a whole prompt: exactly one BOS, also when the text already begins with one.

        Chat templates often write the BOS that the tokenizer adds too. The doubled one is dropped with a warning, since
        models answer worse to it.
        """
        ids = self.tokenize(text, add_special=add_special, parse_special=parse_special)
        bos = self.bos
        if add_special and self.add_bos and bos is not None and ids[:2] == [bos, bos]:
            logger.warning(
                "the prompt begins with %s and the tokenizer adds one: the doubled token %d was dropped",
                self.text(bos),
                bos,
            )
            return ids[1:]
        return ids

    def detokenize(
        self, tokens: Sequence[int], *, remove_special: bool = False, unparse_special: bool = False
    ) -> bytes:
        """Bytes of a whole text; unlike joined pieces, without the space that some tokenizers put in front.

        Args:
            tokens: ids.
            remove_special: leave out the BOS and EOS that ``tokenize`` added.
            unparse_special: spell control tokens out.
        """
        vocab, n = self._handle(), len(tokens)
        ids = self._ffi.new("llama_token[]", [self._checked(token) for token in tokens])
        room = 16 + 8 * n
        while True:
            buffer = self._ffi.new("char[]", room)
            wrote = int(self._lib.llama_detokenize(vocab, ids, n, buffer, room, remove_special, unparse_special))
            if wrote >= 0:
                return bytes(self._ffi.buffer(buffer, wrote))
            room = -wrote

    def _render(self, token: int, *, special: bool) -> bytes:
        vocab, token, room = self._handle(), self._checked(token), 64
        while True:
            buffer = self._ffi.new("char[]", room)
            wrote = int(self._lib.llama_token_to_piece(vocab, token, buffer, room, 0, special))
            if wrote >= 0:
                return bytes(self._ffi.buffer(buffer, wrote))
            room = -wrote

    def _special(self, name: str) -> int | None:
        token = int(getattr(self._lib, f"llama_vocab_{name}")(self._handle()))
        return token if token >= 0 else None

    def _check_addable(self) -> None:
        # llama.cpp asserts on these, which ends the process.
        for wanted, token, key in ((self.add_bos, self.bos, "bos"), (self.add_eos, self.eos, "eos")):
            if wanted and token is None:
                raise ConfigError(
                    f"the file wants a {key.upper()} token added (tokenizer.ggml.add_{key}_token) but names none "
                    f"(tokenizer.ggml.{key}_token_id); pass add_special=False or repair the file"
                )

    def _checked(self, token: int) -> int:
        if not 0 <= token < self._n_tokens:
            raise ConfigError(f"token id {token} is outside the vocabulary, which has {self._n_tokens} tokens")
        return token

    def _handle(self) -> Any:
        if not self._is_open():
            raise ClosedError("the model of this vocabulary is closed")
        return self._vocab
