"""Files with NVFP4 weights: blocks of 4-bit floats with a scale of 8 bits each, and one scale for a whole tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specframe.testing.zoo.writer import gguf_package, part_of, write_file

#: Values in a block, and in the parts of it that have a scale of their own.
BLOCK, PART = 64, 16


def nvfp4_copy(source: Path, destination: Path) -> Path:
    """A copy whose layers are stored as NVFP4, with ``NAME.scale`` beside each ``NAME.weight``."""
    package = gguf_package()
    kind = package.GGMLQuantizationType.NVFP4
    reader = package.GGUFReader(source)
    part = part_of(destination)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    writer = package.GGUFWriter(part, fields.pop("general.architecture").contents())
    for name, field in fields.items():
        writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        stem, _, end = tensor.name.rpartition(".")
        layer = tensor.name.startswith(("blk.", "fc.")) and end == "weight" and "conv" not in stem
        if layer and len(tensor.shape) == 2 and tensor.shape[0] % BLOCK == 0:
            values = np.array(tensor.data, np.float32)
            scale = float(np.abs(values).max()) / (6 * 448) or 1.0  # the largest part gets the largest scale
            packed = _pack((values / scale).astype(np.float32), package.quants.NVFP4)
            writer.add_tensor(tensor.name, packed, raw_dtype=kind)
            writer.add_tensor(f"{stem}.scale", np.full(1, scale, np.float32))
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    write_file(writer, part, destination)
    return destination


def _pack(values: npt.NDArray[np.float32], codec: Any) -> npt.NDArray[np.uint8]:
    """Rows of blocks: four scales, then two values in each byte."""
    parts = values.reshape(-1, BLOCK // PART, PART)
    scales = codec.fp32_to_ue4m3(np.abs(parts).max(axis=2) / 6)
    steps = codec.ue4m3_to_fp32(scales)[:, :, None, None] * np.array(codec.kvalues, np.float32)
    nearest = np.abs(parts[..., None] - steps).argmin(axis=3).astype(np.uint8)
    packed = nearest[:, :, : PART // 2] | (nearest[:, :, PART // 2 :] << 4)
    blocks = np.concatenate([scales, packed.reshape(len(parts), -1)], axis=1).astype(np.uint8)
    return blocks.reshape(len(values), -1)
