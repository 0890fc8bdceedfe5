"""What the saved memory of a sequence is good for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specframe.backends.llama.context import Context

_HEAD = 16 << 20
_BLOCK = 4096
_N_BLOCKS = 64


def fingerprint(parts: Iterable[Path]) -> str:
    """What tells a model from another, wherever its files are: sizes, metadata, tensor directory, sampled weights."""
    digest = hashlib.sha256()
    for path in parts:
        size = path.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with path.open("rb") as file:
            digest.update(file.read(_HEAD))
            for i in range(_N_BLOCKS):
                file.seek(size * i // _N_BLOCKS)
                digest.update(file.read(_BLOCK))
    return digest.hexdigest()


def identity(context: Context) -> dict[str, Any]:
    """The model, and the settings that decide what the bytes of ``Memory.pack`` mean."""
    options, model = context.options, context.model
    return {
        "model": fingerprint(model.gguf.parts),
        "library": context.library.version,
        "n_ctx": context.n_ctx,
        # llama.cpp writes how many separate memories there are, and refuses another number.
        "n_seq": 1 if options.kv_unified else context.n_seq,
        "type_k": options.type_k,
        "type_v": options.type_v,
        "flash_attn": options.flash_attn,
        "swa_full": options.swa_full,
        "n_rs_seq": context.n_rs_seq,
    }
