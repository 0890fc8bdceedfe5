"""Damaged and altered copies of GGUF files: what users have on their disks, and what a loader must survive."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from specframe.core.errors import ConfigError
from specframe.testing.zoo.writer import gguf_package, part_of, write_file

if TYPE_CHECKING:
    import gguf


def truncate(source: Path, destination: Path, *, n_bytes: int) -> Path:
    """Keep the first ``n_bytes``; of a negative number, drop that many from the end. Returns ``destination``."""
    data = source.read_bytes()
    if not 0 < abs(n_bytes) < len(data):
        raise ConfigError(f"n_bytes is {n_bytes}, but {source.name} has {len(data)} bytes: nothing would change")
    destination.write_bytes(data[:n_bytes])
    return destination


def overwrite(source: Path, destination: Path, *, at: int, data: bytes) -> Path:
    """Put other bytes at offset ``at``. The magic is at 0, the version at 4, the counts at 8 and 16."""
    original = source.read_bytes()
    if original[at : at + len(data)] == data or at + len(data) > len(original):
        raise ConfigError(f"{len(data)} bytes at offset {at} change nothing of {source.name}, or do not fit in it")
    destination.write_bytes(original[:at] + data + original[at + len(data) :])
    return destination


def bad_magic(source: Path, destination: Path) -> Path:
    """A file that does not say it is GGUF."""
    return overwrite(source, destination, at=0, data=b"GGML")


def edit(
    source: Path,
    destination: Path,
    *,
    drop_keys: Collection[str] = (),
    drop_tensors: Collection[str] = (),
    keys: Mapping[str, Any] | None = None,
    tensors: Mapping[str, ArrayLike] | None = None,
) -> Path:
    """A well-formed copy with other contents.

    Args:
        source: the model to start from.
        destination: the file to write; may be ``source``.
        drop_keys: metadata keys to leave out.
        drop_tensors: tensors to leave out.
        keys: metadata to change or add. A changed key keeps its type, a new one gets the type of its value.
        tensors: tensors to change or add, in numpy order; integers and float16 stay, everything else becomes float32.

    Raises:
        ConfigError: something to drop is not there, so that a test would not test what it says; or no gguf package.
    """
    keys, tensors = dict(keys or {}), dict(tensors or {})
    package = gguf_package()
    reader = package.GGUFReader(source)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    present = {tensor.name: tensor for tensor in reader.tensors}
    missing = sorted({*drop_keys} - fields.keys()) + sorted({*drop_tensors} - present.keys())
    if missing:
        raise ConfigError(f"{source.name} has no {', '.join(missing)} to drop")
    part = part_of(destination)
    architecture = keys.pop("general.architecture", None) or fields["general.architecture"].contents()
    writer = package.GGUFWriter(part, architecture)
    for name, field in fields.items():
        if name not in drop_keys and name != "general.architecture":
            sub_type = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, keys.pop(name, field.contents()), field.types[0], sub_type)
    for name, value in keys.items():
        _add_key(writer, name, value)
    for name, tensor in present.items():
        if name not in drop_tensors and name not in tensors:
            writer.add_tensor(name, tensor.data, raw_dtype=tensor.tensor_type)
    for name, values in tensors.items():
        data = np.asarray(values)
        stays = data.dtype.kind == "i" or data.dtype == np.float16
        writer.add_tensor(name, np.ascontiguousarray(data, dtype=None if stays else np.float32))
    if "general.architecture" in drop_keys:
        writer.kv_data[0].pop("general.architecture")
    write_file(writer, part, destination)
    return destination


def _add_key(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    else:
        writer.add_array(name, value)
