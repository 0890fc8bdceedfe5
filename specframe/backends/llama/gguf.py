"""Reading a GGUF file's metadata and tensor directory, without weights."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import attrs
from typing_extensions import Self

from specframe.backends.llama.library import Library, load_library
from specframe.backends.llama.log import native_log
from specframe.core.errors import ConfigError, InternalError

#: Longer arrays (vocabularies) are named in the metadata and read on demand.
MAX_INLINE_ARRAY = 1024

_CTYPES = {
    "UINT8": "uint8_t",
    "INT8": "int8_t",
    "UINT16": "uint16_t",
    "INT16": "int16_t",
    "UINT32": "uint32_t",
    "INT32": "int32_t",
    "UINT64": "uint64_t",
    "INT64": "int64_t",
    "FLOAT32": "float",
    "FLOAT64": "double",
    "BOOL": "bool",
}

Scalar: TypeAlias = bool | int | float | str


@attrs.frozen
class LongArray:
    """Stands for an array that was not read: its element type and its length."""

    kind: str
    length: int


Value: TypeAlias = Scalar | tuple[Scalar, ...] | LongArray


@attrs.frozen
class TensorInfo:
    """One entry of the tensor directory."""

    name: str
    kind: str
    """Quantization type: ``f32``, ``q4_K``."""
    shape: tuple[int, ...]
    """Fastest dimension first, as the file has it; trailing ones are left out."""
    n_bytes: int
    path: Path
    """The file, or the part of a split model, that holds its data."""
    offset: int
    """Where in that file they begin."""


@attrs.frozen
class GgufFile:
    """Metadata and tensor directory of a GGUF file; of a split model, those of all parts."""

    path: Path
    version: int
    metadata: Mapping[str, Value] = attrs.field(repr=False)
    tensors: Mapping[str, TensorInfo] = attrs.field(repr=False)
    size_bytes: int
    """Size on disk, over all parts."""
    parts: tuple[Path, ...]
    _library: Library = attrs.field(repr=False, eq=False)

    @property
    def arch(self) -> str:
        """``general.architecture``."""
        return str(self.metadata.get("general.architecture", ""))

    @property
    def weights(self) -> frozenset[str]:
        """Types of its matrices, as ggml names them: ``q4_K``. Kernels of convolutions are none."""
        return frozenset(
            tensor.kind for name, tensor in self.tensors.items() if len(tensor.shape) > 1 and "conv1d" not in name
        )

    def get(self, key: str) -> Value | None:
        """A value by its full key, where ``{arch}`` stands for the architecture."""
        return self.metadata.get(key.replace("{arch}", self.arch))

    def integer(self, key: str) -> int | None:
        """An integer, or None when the key is absent.

        Raises:
            ConfigError: the value is not an integer.
        """
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{self.path}: {key.replace('{arch}', self.arch)} is {value!r} and should be an integer")
        return value

    def array(self, key: str) -> tuple[Scalar, ...] | None:
        """All elements of an array of any length, or None when the key is absent. Reads the file again if need be.

        Raises:
            ConfigError: the value is not an array.
        """
        value = self.metadata.get(key)
        if value is None or isinstance(value, tuple):
            return value
        if not isinstance(value, LongArray):
            raise ConfigError(f"{self.path}: {key} is {value!r} and should be an array")
        with _Reader(self._library, self.path) as reader:
            return reader.array(reader.find(key))

    def data(self, name: str) -> bytes:
        """The bytes of a tensor, as stored. Raises KeyError when there is none of that name."""
        tensor = self.tensors[name]
        with tensor.path.open("rb") as file:
            file.seek(tensor.offset)
            return file.read(tensor.n_bytes)


class _Reader:
    """An open ``struct gguf_context``."""

    def __init__(self, library: Library, path: Path) -> None:
        self._ffi, self._lib, self._path = library.ffi, library.lib, path
        params = self._ffi.new("struct gguf_init_params *", {"no_alloc": True})
        native_log.take()
        self._context = self._lib.gguf_init_from_file(os.fsencode(path), params[0])
        if not self._context:
            reason = " | ".join(native_log.take()) or "no reason given"
            raise ConfigError(f"{path} is not a usable GGUF file: {reason}. Check the file, or download it again.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lib.gguf_free(self._context)

    @property
    def version(self) -> int:
        return int(self._lib.gguf_get_version(self._context))

    def find(self, key: str) -> int:
        index = int(self._lib.gguf_find_key(self._context, key.encode()))
        if index < 0:
            raise ConfigError(f"{self._path} no longer has the key {key}: it changed while it was in use")
        return index

    def items(self) -> Iterator[tuple[str, Value]]:
        for index in range(self._lib.gguf_get_n_kv(self._context)):
            yield self._text(self._lib.gguf_get_key(self._context, index)), self._value(index)

    def tensors(self) -> Iterator[TensorInfo]:
        lib, context = self._lib, self._context
        start = int(lib.gguf_get_data_offset(context))
        for index in range(lib.gguf_get_n_tensors(context)):
            shape = self._ffi.unpack(lib.gguf_get_tensor_ne(context, index), 4)
            while len(shape) > 1 and shape[-1] == 1:
                shape.pop()
            n_bytes = int(lib.gguf_get_tensor_size(context, index))
            kind = self._text(lib.ggml_type_name(lib.gguf_get_tensor_type(context, index)))
            name = self._text(lib.gguf_get_tensor_name(context, index))
            offset = start + int(lib.gguf_get_tensor_offset(context, index))
            yield TensorInfo(name, kind, tuple(shape), n_bytes, self._path, offset)

    def array(self, index: int) -> tuple[Scalar, ...]:
        kind, length = self._array_kind(index), int(self._lib.gguf_get_arr_n(self._context, index))
        if kind == "STRING":
            get, context, string = self._lib.gguf_get_arr_str, self._context, self._ffi.string
            return tuple(string(get(context, index, i)).decode("utf-8", "replace") for i in range(length))
        if not length:
            return ()
        data = self._ffi.cast(f"{self._ctype(kind)} *", self._lib.gguf_get_arr_data(self._context, index))
        return tuple(self._ffi.unpack(data, length))

    def _value(self, index: int) -> Value:
        kind = self._name(self._lib.gguf_get_kv_type(self._context, index))
        if kind == "STRING":
            return self._text(self._lib.gguf_get_val_str(self._context, index))
        if kind == "ARRAY":
            length = int(self._lib.gguf_get_arr_n(self._context, index))
            if length > MAX_INLINE_ARRAY:
                return LongArray(self._array_kind(index).lower(), length)
            return self.array(index)
        data = self._ffi.cast(f"{self._ctype(kind)} *", self._lib.gguf_get_val_data(self._context, index))
        scalar: Scalar = data[0]
        return scalar

    def _array_kind(self, index: int) -> str:
        return self._name(self._lib.gguf_get_arr_type(self._context, index))

    def _name(self, kind: int) -> str:
        name: str = self._ffi.string(self._ffi.cast("enum gguf_type", kind))
        return name.removeprefix("GGUF_TYPE_")

    def _ctype(self, kind: str) -> str:
        try:
            return _CTYPES[kind]
        except KeyError:
            raise InternalError(f"{self._path} has values of the unknown GGUF type {kind}") from None

    def _text(self, pointer: Any) -> str:
        raw: bytes = self._ffi.string(pointer)
        return raw.decode("utf-8", "replace")


def inspect(path: str | os.PathLike[str], *, library: Library | None = None) -> GgufFile:
    """Read a file's metadata and tensor directory, and check that the file is whole.

    Args:
        path: a GGUF file; of a split model the first part.
        library: the native library, by default that of :func:`inspecting`, or else ``load_library()``.

    Raises:
        ConfigError: there is no such file, it is not GGUF, it is damaged, truncated, or not the first part.
    """
    once = _once.get()
    if once is None or (library is not None and library.lib is not once.library.lib):
        return _inspect(path, library or load_library())
    if (key := os.fspath(path)) not in once.files:
        once.files[key] = _inspect(path, once.library)
    return once.files[key]


@attrs.frozen
class _Once:
    library: Library
    files: dict[str, GgufFile] = attrs.field(factory=dict)


_once: ContextVar[_Once | None] = ContextVar("_once", default=None)


@contextmanager
def inspecting(library: Library) -> Iterator[None]:
    """Inside, files are read with ``library``, and each of them once: strategies look at the same ones in turn."""
    outer = _once.get()
    token = _once.set(outer if outer is not None and outer.library.lib is library.lib else _Once(library))
    try:
        yield
    finally:
        _once.reset(token)


def _inspect(path: str | os.PathLike[str], library: Library) -> GgufFile:
    first = _read_part(library, _existing(Path(path)))
    number, count = first.integer("split.no") or 0, first.integer("split.count") or 1
    if count <= 1:
        return first
    if number != 0:
        raise ConfigError(f"{path} is part {number + 1} of {count} of a split model; name the first part instead")
    parts = [first] + [_read_part(library, part) for part in _siblings(first.path, count)]
    tensors = {name: tensor for part in parts for name, tensor in part.tensors.items()}
    return attrs.evolve(
        first,
        tensors=MappingProxyType(tensors),
        size_bytes=sum(part.size_bytes for part in parts),
        parts=tuple(part.path for part in parts),
    )


def _existing(path: Path) -> Path:
    if path.is_dir():
        raise ConfigError(f"{path} is a directory; name a .gguf file in it")
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    if magic != b"GGUF":
        raise ConfigError(
            f"{path} is not a GGUF file: it begins with {magic!r} and not with b'GGUF'; "
            "convert the model to GGUF, or download it again"
        )
    return path


def _siblings(first: Path, count: int) -> Iterator[Path]:
    tail = f"-00001-of-{count:05d}.gguf"
    if not first.name.endswith(tail):
        raise ConfigError(
            f"{first} says it is the first of {count} parts, so its name should end in {tail}; give it back its name"
        )
    prefix = first.name[: -len(tail)]
    for number in range(2, count + 1):
        yield _existing(first.with_name(f"{prefix}-{number:05d}-of-{count:05d}.gguf"))


def _read_part(library: Library, path: Path) -> GgufFile:
    size = path.stat().st_size
    tensors: dict[str, TensorInfo] = {}
    with _Reader(library, path) as reader:
        version, metadata = reader.version, dict(reader.items())
        for tensor in reader.tensors():
            end = tensor.offset + tensor.n_bytes
            if end > size:
                raise ConfigError(
                    f"{path} is truncated: tensor {tensor.name} ends at byte {end} and the file has {size}; "
                    "download it again"
                )
            tensors[tensor.name] = tensor
    return GgufFile(path, version, MappingProxyType(metadata), MappingProxyType(tensors), size, (path,), library)
