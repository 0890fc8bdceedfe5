"""Writing one GGUF file: typed keys, float32 tensors, all or nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Self

from specframe.core.errors import ConfigError

if TYPE_CHECKING:
    import gguf

Array = NDArray[np.float64]


def gguf_package() -> ModuleType:
    """The ``gguf`` package, which is imported here and nowhere else: the rest of the test kit works without it.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import gguf  # noqa: PLC0415 -- an extra
    except ImportError as error:
        raise ConfigError("analytic models need the gguf package: pip install 'specframe[testing]'") from error
    return gguf


def part_of(path: Path) -> Path:
    """Where a file is written before it is complete."""
    return path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")


def write_file(raw: gguf.GGUFWriter, part: Path, path: Path) -> None:
    """Write what ``raw``, made for ``part``, has collected; the file appears at ``path`` complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        try:
            raw.write_header_to_file()
            raw.write_kv_data_to_file()
            raw.write_tensors_to_file()
        finally:
            raw.close()
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


class ModelWriter:
    """Collects the keys and tensors of one model; leaving the ``with`` block normally writes the file.

    Two processes may build the same model at once: see :func:`write_file`. Keys given to the typed setters are prefixed
    with the architecture.
    """

    def __init__(self, path: Path, arch: str, name: str) -> None:
        self.path = Path(path)
        self.arch = arch
        self._part = part_of(self.path)
        self.raw: gguf.GGUFWriter = gguf_package().GGUFWriter(self._part, arch)
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
            raise ConfigError(f"array key {key!r} of {self.path.name} is empty; leave the key out instead")
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
        if kind is None:
            write_file(self.raw, self._part, self.path)
