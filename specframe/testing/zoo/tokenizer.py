"""Tiny vocabularies of the two kinds that matter: byte-level BPE, and SentencePiece with byte fallback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from specframe.core.errors import ConfigError

if TYPE_CHECKING:
    from specframe.testing.zoo.writer import ModelWriter

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # llama_token_type

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A chat template that fits the special tokens of :meth:`Vocabulary.byte_level`."""

UTF8_CYCLE = "a\N{SLIGHTLY SMILING FACE}b\u65e5c\u4e2dd\u8a9ee\u00e9fghi"
"""Text whose 24 UTF-8 bytes all differ, so that a bigram model can recite it for ever, byte by byte."""


@attrs.frozen
class Vocabulary:
    """What a GGUF says about its tokenizer.

    Attributes:
        model: ``gpt2`` (byte-level BPE) or ``llama`` (SentencePiece).
        pieces: text of each token as stored; special token ids index into it.
        kinds: ``llama_token_type`` of each token.
        settings: further ``tokenizer.ggml.*`` keys; bool, int and str are told apart by type.
        merges: BPE merges, best first. llama.cpp insists on the key for ``gpt2``.
        scores: SentencePiece scores.
        mask: the token that diffusion drafters fill in, if there is one.
        chat_template: jinja2 source stored with the model.
    """

    model: str
    pieces: tuple[str, ...]
    kinds: tuple[int, ...]
    bos: int
    eos: int
    eot: int | None = None
    pad: int | None = None
    mask: int | None = None
    add_bos: bool = False
    settings: Mapping[str, bool | int | str] = attrs.field(factory=dict)
    merges: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    chat_template: str | None = None

    def __attrs_post_init__(self) -> None:
        if len(self.pieces) != len(self.kinds) or len(set(self.pieces)) != len(self.pieces):
            raise ConfigError(f"{len(self.pieces)} pieces need as many kinds ({len(self.kinds)}) and no piece twice")

    def __len__(self) -> int:
        return len(self.pieces)

    @classmethod
    def byte_level(
        cls,
        *,
        n_vocab: int = 288,
        pre: str = "default",
        eos: int = 256,
        mask: bool = True,
        add_bos: bool = False,
        swap: tuple[int, int] | None = None,
        chat_template: str | None = None,
    ) -> Vocabulary:
        """256 bytes (the id is the byte), four special tokens, two merges, extras.

        The special tokens are ``<|endoftext|>``, ``<|im_start|>``, ``<|im_end|>`` and ``<|mask|>``.

        Args:
            n_vocab: size; shorter cuts the extras, longer adds some.
            pre: name of the pre-tokenizer.
            eos: id of the end-of-sequence token; any token can be declared to be it.
            mask: whether the mask token is declared as such.
            add_bos: whether the tokenizer puts ``<|endoftext|>`` in front.
            swap: two token ids whose pieces change places, for a vocabulary that differs and has the same size.
            chat_template: see the class.
        """
        merged = ["\u0120t", "he"]  # U+0120 stands for a space in byte-level BPE
        pieces = [*_byte_letters(), "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>", *merged]
        kinds = [NORMAL] * 256 + [CONTROL] * 4 + [NORMAL] * 2
        if n_vocab < len(pieces):
            raise ConfigError(f"n_vocab is {n_vocab}; a byte-level vocabulary has at least {len(pieces)} tokens")
        n_extra = n_vocab - len(pieces)
        pieces += [f"<|extra_{i}|>" for i in range(n_extra)]
        kinds += [CONTROL] * n_extra
        if swap is not None:
            a, b = swap
            pieces[a], pieces[b] = pieces[b], pieces[a]
            kinds[a], kinds[b] = kinds[b], kinds[a]
        return cls(
            model="gpt2",
            pieces=tuple(pieces),
            kinds=tuple(kinds),
            bos=256,
            eos=eos,
            eot=258,
            pad=256,
            mask=259 if mask else None,
            add_bos=add_bos,
            settings={"pre": pre},
            merges=("\u0120 t", "h e"),
            chat_template=chat_template,
        )

    @classmethod
    def byte_fallback(cls, *, eos: int = 2, add_bos: bool = False, chat_template: str | None = None) -> Vocabulary:
        """SentencePiece: three special tokens, 256 byte tokens ``<0xXX>`` (id = byte + 3), the space, a to z, a mask.

        The special tokens are ``<unk>``, ``<s>`` and ``</s>``. Whatever is not a letter or a space comes out byte by
        byte, which is how emoji and CJK fall apart into tokens.
        """
        letters = ["\u2581", *map(chr, range(ord("a"), ord("z") + 1))]  # U+2581 is SentencePiece's space
        pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, "<mask>"]
        kinds = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(letters) + [CONTROL]
        return cls(
            model="llama",
            pieces=tuple(pieces),
            kinds=tuple(kinds),
            bos=1,
            eos=eos,
            mask=len(pieces) - 1,
            add_bos=add_bos,
            settings={"unknown_token_id": 0, "add_space_prefix": False},
            scores=tuple(0.0 if kind != NORMAL else -float(i) for i, kind in enumerate(kinds)),
            chat_template=chat_template,
        )

    def tokens_of(self, text: str) -> list[int]:
        """Ids of ``text``: one per letter that has a piece, otherwise one per UTF-8 byte; no merges."""
        if self.model == "gpt2":
            letters = _byte_letters()
            return [self.pieces.index(letters[byte]) for byte in text.encode()]
        ids: list[int] = []
        for letter in text.replace(" ", "\u2581"):
            whole = letter in self.pieces
            ids += (
                [self.pieces.index(letter)] if whole else [self.pieces.index(f"<0x{b:02X}>") for b in letter.encode()]
            )
        return ids

    def write(self, writer: ModelWriter) -> None:
        """Store all of it."""
        raw, prefix = writer.raw, "tokenizer.ggml."
        raw.add_string(prefix + "model", self.model)
        raw.add_array(prefix + "tokens", list(self.pieces))
        raw.add_array(prefix + "token_type", list(self.kinds))
        if self.merges:
            raw.add_array(prefix + "merges", list(self.merges))
        if self.scores:
            raw.add_array(prefix + "scores", list(self.scores))
        special = {"bos": self.bos, "eos": self.eos, "eot": self.eot, "padding": self.pad, "mask": self.mask}
        for name, token in special.items():
            if token is not None:
                raw.add_uint32(f"{prefix}{name}_token_id", token)
        flags: dict[str, bool | int | str] = {"add_bos_token": self.add_bos, "add_eos_token": False, **self.settings}
        for key, value in flags.items():
            if isinstance(value, bool):
                raw.add_bool(prefix + key, value)
            elif isinstance(value, int):
                raw.add_uint32(prefix + key, value)
            else:
                raw.add_string(prefix + key, value)
        if self.chat_template is not None:
            raw.add_string("tokenizer.chat_template", self.chat_template)


def _byte_letters() -> list[str]:
    """The printable letter that stands for each byte in byte-level BPE (GPT-2's ``bytes_to_unicode``)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters, n_moved = [], 0
    for byte in range(256):
        if byte in printable:
            letters.append(chr(byte))
        else:
            letters.append(chr(256 + n_moved))
            n_moved += 1
    return letters
