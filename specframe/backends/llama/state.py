"""The whole memory of a sequence as bytes, and what these bytes are good for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from specframe.backends.llama.status import failure
from specframe.core.errors import RollbackError

if TYPE_CHECKING:
    from specframe.backends.llama.context import Context
    from specframe.backends.llama.library import Library
    from specframe.backends.llama.memory import Memory

_HEAD = 16 << 20
_BLOCK = 4096
_N_BLOCKS = 64


class Holder(Protocol):
    """A context whose sequences are saved or loaded."""

    memory: Memory

    @property
    def library(self) -> Library:
        """The native library."""
        ...

    @property
    def handle(self) -> Any:
        """``struct llama_context *``."""
        ...


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
    """The model, and the settings that decide what the bytes of :func:`save` mean."""
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


def save(context: Holder, seq: int) -> bytes:
    """Everything ``seq`` holds. Raises BackendError when llama.cpp does not write it."""
    ffi, lib = context.library.ffi, context.library.lib
    context.memory.n_past(seq)
    size = int(lib.llama_state_seq_get_size_ext(context.handle, seq, lib.LLAMA_STATE_SEQ_FLAGS_NONE))
    state = np.empty(size, np.uint8)
    target = ffi.from_buffer("uint8_t[]", state, require_writable=True)
    wrote = int(lib.llama_state_seq_get_data_ext(context.handle, target, size, seq, lib.LLAMA_STATE_SEQ_FLAGS_NONE))
    if wrote != size or size == 0:
        raise failure("saving a sequence", meaning="the state was not written", seq=seq, size=size, wrote=wrote)
    return state.tobytes()


def load(context: Holder, seq: int, state: bytes, n_past: int) -> None:
    """Make ``seq`` hold ``state``. Raises RollbackError when llama.cpp refuses it; then the sequence is empty."""
    ffi, lib, memory = context.library.ffi, context.library.lib, context.memory
    memory.clear(seq)
    source = ffi.from_buffer("uint8_t[]", state)
    read = int(
        lib.llama_state_seq_set_data_ext(context.handle, source, len(state), seq, lib.LLAMA_STATE_SEQ_FLAGS_NONE)
    )
    held = memory.n_past(seq)
    if read != len(state) or held != n_past:
        memory.clear(seq)
        msg = (
            f"sequence {seq} was to hold {n_past} tokens, but llama.cpp took {read} of {len(state)} bytes: {held} held"
        )
        raise RollbackError(msg)
