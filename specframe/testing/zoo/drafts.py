"""Draft models that know the world of a target, with a chosen share of errors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from specframe.testing.zoo.blocks import (
    Nextn,
    Own,
    Shape,
    write_attention,
    write_ffn,
    write_own,
    write_shape,
    write_window,
)
from specframe.testing.zoo.targets import hybrid
from specframe.testing.zoo.world import World, linear, side_by_side
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


def assistant(
    path: Path,
    *,
    world: World | None = None,
    n_layer: int = 2,
    width: int = 48,
    width_out: int | None = None,
    head: int = 16,
    error: float = 0.2,
    mix: float = 0.5,
    strength: float = 0.05,
    seed: int = 5,
) -> Path:
    """Gemma 4's assistant: a narrower model whose layers all read the target's keys and values.

    Args:
        path: of the file to write.
        world: the target's.
        n_layer: number of layers, all of them NextN layers; the last one has full attention.
        width: its own; must differ from the target's.
        width_out: the target's width; the world's unless given.
        head: size of an attention head; must be the target's.
        error: share of the active tokens whose successor it gets wrong.
        mix: weight of the target's hidden state against the token.
        strength: how much its blocks add.
        seed: of everything random in it.
    """
    world = world or World()
    rng = np.random.default_rng(seed)
    shape = Shape(n_layer=n_layer, head=head)
    wrong, n = world.wrong(error), world.n_active
    with ModelWriter(path, "gemma4-assistant", "zoo-gemma4-assistant") as writer:
        write_shape(writer, world, shape, width=width)
        writer.u32({"embedding_length_out": width_out or world.width, "nextn_predict_layers": n_layer})
        write_window(writer, shape, [True] * (n_layer - 1) + [False])
        writer.u32({"attention.key_length_swa": head, "attention.value_length_swa": head})
        writer.u32({"attention.shared_kv_layers": n_layer})
        world.vocabulary.write(writer)
        # from the target's space into its own: e0 stays e0, each u becomes one of as many orthonormal vectors
        q, _ = np.linalg.qr(rng.standard_normal((width - 1, n)))
        own = np.zeros((n, width))
        own[:, 1:] = q.T
        into = np.outer(np.eye(width)[0], np.eye(world.width)[0]) + own.T @ world.basis
        table = rng.standard_normal((world.n_vocab, width)) * 0.002
        for i, token in enumerate(world.active):
            table[token] = world.gain / np.sqrt(width) * 1.2 * own[(i - 1) % n]  # the head is tied to it
        writer.tensor("token_embd.weight", table)
        writer.ones(width, "output_norm.weight")
        writer.tensor("nextn.post_projection.weight", into.T * np.sqrt(world.width / width))
        both = side_by_side((1 - mix) * (into @ world.shift(0, wrong)), mix * (into @ world.shift(1, wrong)))
        writer.tensor("nextn.pre_projection.weight", both)
        writer.ones(head // 2, "rope_freqs.weight")
        for layer in range(n_layer):
            _assistant_layer(writer, rng, layer, shape, width, strength)
    return path


def _assistant_layer(
    writer: ModelWriter, rng: np.random.Generator, layer: int, shape: Shape, width: int, strength: float
) -> None:
    prefix, n_q = f"blk.{layer}.", shape.n_head * shape.head
    writer.ones(width, prefix + "attn_norm.weight", prefix + "ffn_norm.weight")
    writer.tensor(prefix + "attn_q.weight", linear(rng, n_q, width))
    writer.tensor(prefix + "attn_output.weight", linear(rng, width, n_q))
    writer.ones(shape.head, prefix + "attn_q_norm.weight")
    writer.tensor(prefix + "post_attention_norm.weight", np.full(width, strength))
    writer.tensor(prefix + "post_ffw_norm.weight", np.full(width, strength))
    writer.ones(1, prefix + "layer_output_scale.weight")
    writer.tensor(prefix + "ffn_gate.weight", linear(rng, shape.n_ff, width))
    writer.tensor(prefix + "ffn_up.weight", linear(rng, shape.n_ff, width))
    writer.tensor(prefix + "ffn_down.weight", linear(rng, width, shape.n_ff))


def eagle3(
    path: Path,
    *,
    world: World | None = None,
    error: float = 0.2,
    mix: float = 0.5,
    target_layers: Sequence[int] = (0, 1, 2),
    own: Own | None = None,
    norm_before_residual: bool = True,
    norm_before_fc: bool = False,
    target_width: int | None = None,
    n_head: int = 4,
    strength: float = 0.02,
    seed: int = 8,
) -> Path:
    """EAGLE-3: one layer that reads the token and a mixture of the target's layer inputs.

    Args:
        path: of the file to write.
        world: the target's.
        error: share of the active tokens whose successor it gets wrong.
        mix: weight of the features against the token; 1 shows wrong wiring of the features at once.
        target_layers: whose inputs it reads; llama.cpp wants exactly three.
        own: what it carries itself.
        norm_before_residual: a key of the architecture.
        norm_before_fc: a key of the architecture.
        target_width: declared width of the target; the world's unless given.
        n_head: number of attention heads.
        strength: how much its feed-forward layer adds.
        seed: of the random parts.
    """
    world = world or World()
    rng = np.random.default_rng(seed)
    width, head = world.width, world.width // 4
    shape = Shape(n_layer=1, n_ff=64, n_head=n_head, n_kv=n_head, head=head, rope_base=100.0)
    target_width = target_width or width
    wrong, n_targets = world.wrong(error), len(target_layers)
    with ModelWriter(path, "eagle3", "zoo-eagle3") as writer:
        write_shape(writer, world, shape)
        writer.array("target_layers", list(target_layers))
        writer.u32({"target_hidden_size": target_width})
        writer.flag("norm_before_residual", norm_before_residual)
        writer.flag("norm_before_fc", norm_before_fc)
        world.vocabulary.write(writer)
        write_own(writer, world, own or Own())
        writer.ones(width, "output_norm.weight")
        writer.tensor("fc.weight", side_by_side(*[np.eye(width) / n_targets] * n_targets))
        if norm_before_fc:
            writer.ones(3 * target_width, "enc.output_norm.weight")
        writer.ones(width, *(f"blk.0.{name}.weight" for name in ("attn_norm", "attn_norm_2", "ffn_norm")))
        # attention that sees its own position only; input [norm(E[token]); norm(features)], rope pairs (2i, 2i+1)
        constant = np.zeros(2 * width)
        constant[0] = 1 / world.bias
        query = np.zeros(head)
        query[0::2] = 10.0
        own_position = np.outer(np.tile(query, n_head), constant)
        writer.tensor("blk.0.attn_q.weight", own_position)
        writer.tensor("blk.0.attn_k.weight", own_position)
        # the residual is the normed features: subtracted here, so that only the wanted mixture is left
        from_features = mix * world.shift(1, wrong) - np.eye(width)
        writer.tensor("blk.0.attn_v.weight", side_by_side((1 - mix) * world.shift(0, wrong), from_features))
        writer.tensor("blk.0.attn_output.weight", np.eye(width))
        write_ffn(writer, rng, world, 0, shape.n_ff, strength=strength)
    return path
