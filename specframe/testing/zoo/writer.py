"""Writing one GGUF file: typed keys, float32 tensors, all or nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Self

from specframe.core.errors import ConfigError

if TYPE_CHECKING:
    import gguf

Array = NDArray[np.float64]


def new_writer(path: Path, arch: str) -> gguf.GGUFWriter:
    """A writer of the ``gguf`` package, which is imported here and nowhere else on the way to a zoo model.

    Raises:
        ConfigError: the package is not installed.
    """
    try:
        import gguf  # noqa: PLC0415 -- an extra: the rest of the test kit works without it
    except ImportError as error:
        msg = "building models needs the gguf package: pip install specframe[testing]"
        raise ConfigError(msg) from error
    return gguf.GGUFWriter(path, arch)


class ModelWriter:
    """Collects the keys and tensors of one model; leaving the ``with`` block normally writes the file.

    The file appears at ``path`` complete or not at all, so two processes may build the same model at once.
    Keys given to the typed setters are prefixed with the architecture.
    """

    def __init__(self, path: Path, arch: str, name: str) -> None:
        self.path = Path(path)
        self.arch = arch
        self._part = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        self.raw = new_writer(self._part, arch)
        self.raw.add_string("general.name", name)
        self.raw.add_string("general.type", "model")
        self.raw.add_uint32("general.file_type", 0)  # ALL_F32

    def u32(self, values: Mapping[str, int]) -> None:
        """Set unsigned integers."""
        for key, value in values.items():
            self.raw.add_uint32(f"{self.arch}.{key}", int(value))

    def f32(self, values: Mapping[str, float]) -> None:
        """Set floating-point numbers."""
        for key, value in values.items():
            self.raw.add_float32(f"{self.arch}.{key}", float(value))

    def flag(self, key: str, value: bool) -> None:
        """Set a boolean."""
        self.raw.add_bool(f"{self.arch}.{key}", bool(value))

    def array(self, key: str, values: Sequence[Any]) -> None:
        """Set an array. An empty one would be dropped by the ``gguf`` package without a word, so it is refused."""
        if not values:
            msg = f"array key {key!r} of {self.path.name} is empty; leave the key out instead"
            raise ConfigError(msg)
        self.raw.add_array(f"{self.arch}.{key}", list(values))

    def tensor(self, name: str, values: ArrayLike) -> None:
        """Add a tensor in numpy order (the last axis is GGUF's first); int64 stays, everything else becomes float32."""
        data = np.asarray(values)
        self.raw.add_tensor(name, np.ascontiguousarray(data, dtype=None if data.dtype == np.int64 else np.float32))

    def ones(self, size: int, *names: str) -> None:
        """Add RMS-norm weights that change nothing."""
        for name in names:
            self.tensor(name, np.ones(size))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is not None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            try:
                self.raw.write_header_to_file()
                self.raw.write_kv_data_to_file()
                self.raw.write_tensors_to_file()
            finally:
                self.raw.close()
            self._part.replace(self.path)
        finally:
            self._part.unlink(missing_ok=True)
