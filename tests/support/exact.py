"""Tiny models whose logits are the same to the last bit at every batch width, and a target that tells what it did.

The zoo's models have F32 weights, and llama.cpp may multiply those differently for one row than for several. With Q8_0
weights each row is computed by itself, so plain and drafted decoding can be compared exactly, whatever the sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import attrs
import cffi
import numpy as np
import numpy.typing as npt
import pytest

from specframe.backends.llama.library import load_library
from specframe.backends.llama.memory import LlamaCheckpoint
from specframe.backends.llama.model import Model
from specframe.backends.llama.target import LlamaTarget
from specframe.core.engine import Engine
from specframe.core.ports import BatchEntry, Checkpoint, Rollback
from specframe.core.request import Request
from specframe.testing import Output, tape
from specframe.testing.zoo.writer import gguf_package, part_of, write_file
from tests.support.lossless import drafted

#: Letters that the zoo's models recite, in the order of the alphabet; most tokens they emit are among them.
A_LETTER = ord("k")


@attrs.frozen
class Memory:
    """A model, and how its context is opened."""

    model: str
    kind: Rollback
    options: dict[str, Any] = attrs.field(factory=dict)


MEMORIES = {
    "dense": Memory("llama", Rollback.TRUNCATE),
    "dense-normed": Memory("qwen3", Rollback.TRUNCATE),
    "window": Memory("gemma4", Rollback.TRUNCATE),
    "window-snapshot": Memory("gemma4", Rollback.SNAPSHOT, {"swa_full": False}),
    "hybrid-snapshot": Memory("qwen35", Rollback.SNAPSHOT),
    "hybrid-bounded": Memory("qwen35", Rollback.BOUNDED, {"n_rs_seq": 6}),
}
every_memory = pytest.mark.parametrize("memory", MEMORIES.values(), ids=MEMORIES)


class ExactZoo(Protocol):
    """``exact_zoo(name, eos=token)`` opens a model once and keeps it open until the end of the session."""

    def __call__(self, name: str, *, eos: int | None = None) -> Model:
        """The model, with ``eos`` declared to be its end-of-sequence token if given."""
        ...


def quantized(source: Path, destination: Path, *, kind: str = "Q8_0", eos: int | None = None) -> Path:
    """A copy with quantized matrices, and another end-of-sequence token if one is given."""
    package = gguf_package()
    wanted = package.GGMLQuantizationType[kind]
    reader = package.GGUFReader(source)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    part = part_of(destination)
    writer = package.GGUFWriter(part, fields.pop("general.architecture").contents())
    for name, field in fields.items():
        value = field.contents()
        if eos is not None and name == "tokenizer.ggml.eos_token_id":
            value = eos
        writer.add_key_value(name, value, field.types[0], field.types[-1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        is_weight = tensor.name.endswith(".weight") and "conv1d" not in tensor.name
        is_matrix = is_weight and len(tensor.shape) >= 2 and tensor.shape[0] % package.GGML_QUANT_SIZES[wanted][0] == 0
        if is_matrix:
            values = package.quants.dequantize(np.array(tensor.data), tensor.tensor_type)
            stored = _natively(values, wanted) if kind.endswith("_K") else package.quants.quantize(values, wanted)
            writer.add_tensor(tensor.name, stored, raw_dtype=wanted)
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    write_file(writer, part, destination)
    return destination


def _natively(values: npt.NDArray[np.float32], kind: Any) -> npt.NDArray[np.uint8]:
    """Quantized by ggml, for the formats that the gguf package only reads."""
    ffi = cffi.FFI()
    ffi.cdef(
        "size_t ggml_quantize_chunk(int type, const float *values, void *out, int64_t start, int64_t n_rows,"
        " int64_t n_per_row, const float *importance);"
    )
    values = np.ascontiguousarray(values, np.float32)
    n_per_row = values.shape[-1]
    n_values, n_bytes = gguf_package().GGML_QUANT_SIZES[kind]
    stored = np.zeros((*values.shape[:-1], n_per_row // n_values * n_bytes), np.uint8)
    lib: Any = ffi.dlopen(str(load_library().path))
    written = lib.ggml_quantize_chunk(
        int(kind), ffi.cast("float *", values.ctypes.data), ffi.cast("void *", stored.ctypes.data),
        0, values.size // n_per_row, n_per_row, ffi.NULL,
    )  # fmt: skip
    assert written == stored.nbytes
    return stored


class WatchedTarget(LlamaTarget):
    """Records every batch and memory operation, and can be made to fail around the native decode."""

    def __init__(self, model: Model, **options: Any) -> None:
        super().__init__(model, **options)
        self.batches: list[tuple[BatchEntry, ...]] = []
        self.n_checkpoints = self.n_restores = self.n_clears = 0
        self.before_decode: Callable[[], None] | None = None
        self.after_decode: Callable[[], None] | None = None

    @property
    def n_decoded(self) -> int:
        """Tokens handed to the model so far."""
        return sum(len(entry.tokens) for batch in self.batches for entry in batch)

    @property
    def widths(self) -> list[int]:
        """Tokens in each batch so far."""
        return [sum(len(entry.tokens) for entry in batch) for batch in self.batches]

    def forget(self) -> None:
        """Start counting anew."""
        self.batches.clear()
        self.n_checkpoints = self.n_restores = self.n_clears = 0

    def decode(self, batch: Sequence[BatchEntry]) -> None:
        """Record a copy, since tokens may be a view of something that changes."""
        self.batches.append(tuple(BatchEntry(e.seq, e.pos, tuple(e.tokens), e.n_outputs) for e in batch))
        if self.before_decode is not None:
            self.before_decode()
        super().decode(batch)
        if self.after_decode is not None:
            self.after_decode()

    def checkpoint(self, seq: int, *, lasting: bool = False) -> LlamaCheckpoint:
        """Count those of verifications; prompts have lasting ones."""
        self.n_checkpoints += not lasting
        return super().checkpoint(seq, lasting=lasting)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Count it."""
        self.n_restores += 1
        super().restore(checkpoint)

    def clear(self, seq: int) -> None:
        """Count it."""
        self.n_clears += 1
        super().clear(seq)


@contextmanager
def watched(model: Model, **options: Any) -> Iterator[WatchedTarget]:
    """A small watched target on one thread."""
    with WatchedTarget(model, **{"n_ctx": 256, "n_threads": 1, **options}) as opened:
        yield opened


def fresh(model: Model, request: Request, **options: Any) -> Output:
    """What an engine of its own answers without drafting."""
    with watched(model, **options) as target, Engine(target) as engine:
        return Output.of(engine.submit(drafted(request, None)).result())


def right_tape(model: Model, request: Request, **options: Any) -> tuple[int, ...]:
    """The prompt and what the model says after it without drafting."""
    with watched(model, **options) as target:
        return tape(target, request)


def once(error: BaseException, *, at: int = 1) -> Callable[[], None]:
    """Raises ``error`` the ``at``-th time it is called, and never again."""
    calls = 0

    def strike() -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise error

    return strike
