"""Vocabularies for scripted targets: any list of byte pieces."""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterable, Sequence

from typing_extensions import override

from specframe.core.errors import ConfigError
from specframe.core.ports import Vocab

#: Pieces that split characters of two, three and four bytes over several tokens, next to whole ones.
UTF8_PIECES: tuple[bytes, ...] = (
    b"a",
    b" b",
    b"\xc3",  # first byte of two: e acute needs \xa9
    b"\xa9",
    b"\xe4\xbd",  # two of the three bytes of a CJK character
    b"\xa0",
    b"\xf0\x9f",  # half of an emoji
    b"\x98\x80",
    "\N{GRINNING FACE}".encode(),
    b"\n",
)


def letter_pieces(n: int) -> tuple[bytes, ...]:
    """``n`` different pieces: a, b, ..., z, A, ..., Z, then aa, ab, ...: texts stay readable."""
    lengths = itertools.count(1)
    words = itertools.chain.from_iterable(itertools.product(string.ascii_letters, repeat=k) for k in lengths)
    return tuple("".join(word).encode() for word in itertools.islice(words, n))


class ScriptedVocab(Vocab):
    """A vocabulary made of the pieces it is given.

    Args:
        pieces: Bytes of each token, in order of ids.
        eog: End-of-generation tokens; their piece is ``b""``, like that of every control token.
        control: Other tokens without text.
    """

    def __init__(self, pieces: Sequence[bytes], *, eog: Iterable[int] = (), control: Iterable[int] = ()) -> None:
        self._pieces = tuple(pieces)
        self._eog = frozenset(eog)
        self._silent = self._eog | frozenset(control)
        for token in self._silent:
            if not 0 <= token < len(self._pieces):
                msg = f"token {token} is declared special but the vocabulary has {len(self._pieces)} tokens"
                raise ConfigError(msg)

    @property
    @override
    def n_tokens(self) -> int:
        return len(self._pieces)

    @property
    @override
    def eog(self) -> frozenset[int]:
        return self._eog

    @override
    def piece(self, token: int) -> bytes:
        if not 0 <= token < len(self._pieces):
            msg = f"token {token} is outside the vocabulary of {len(self._pieces)} tokens"
            raise ConfigError(msg)
        return b"" if token in self._silent else self._pieces[token]

    def ids(self, text: str) -> tuple[int, ...]:
        """Token ids spelling ``text``, longest piece first; for writing tests, not a real tokenizer."""
        data, ids = text.encode(), []
        by_length = sorted(range(self.n_tokens), key=lambda token: -len(self.piece(token)))
        while data:
            token = next((t for t in by_length if self.piece(t) and data.startswith(self.piece(t))), None)
            if token is None:
                msg = f"no piece of this vocabulary begins {data[:20]!r}"
                raise ConfigError(msg)
            ids.append(token)
            data = data[len(self.piece(token)) :]
        return tuple(ids)
