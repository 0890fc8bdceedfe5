"""Draft models that know the world of a target, with a chosen share of errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from specframe.testing.zoo.blocks import (
    Nextn,
    Shape,
    write_attention,
    write_ffn,
    write_shape,
)
from specframe.testing.zoo.targets import hybrid
from specframe.testing.zoo.world import World
from specframe.testing.zoo.writer import ModelWriter


def simple(path: Path, *, world: World | None = None, error: float = 0.2, seed: int = 9) -> Path:
    """A one-layer dense model that drafts on its own.

    Args:
        path: of the file to write.
        world: the target's.
        error: share of the active tokens whose successor it gets wrong.
        seed: of the random block.
    """
    world, shape = world or World(), Shape(n_layer=1)
    rng = np.random.default_rng(seed)
    with ModelWriter(path, "llama", "zoo-draft-simple") as writer:
        write_shape(writer, world, shape)
        world.vocabulary.write(writer)
        writer.tensor("token_embd.weight", world.wrong_embeddings(world.wrong(error)))
        writer.ones(world.width, "output_norm.weight")
        writer.tensor("output.weight", world.head)
        writer.ones(world.width, "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight")
        write_attention(writer, rng, world, 0, shape, strength=0.02, qk_norm=False)
        write_ffn(writer, rng, world, 0, shape.n_ff, strength=0.02)
    return path


def external_mtp(path: Path, *, world: World | None = None, nextn: Nextn | None = None, seed: int = 4) -> Path:
    """The NextN block of a hybrid target as a file of its own; see :func:`~specframe.testing.zoo.targets.hybrid`."""
    return hybrid(path, world=world, nextn=nextn or Nextn(), trunk=False, seed=seed)
