"""Shapes and the transformer blocks that several architectures share."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from specframe.testing.zoo.world import World, linear, side_by_side
from specframe.testing.zoo.writer import ModelWriter


@attrs.frozen
class Shape:
    """Sizes of a transformer. The width is the world's."""

    n_layer: int = 4
    n_ff: int = 96
    n_head: int = 4
    n_kv: int = 2
    head: int = 16
    n_ctx: int = 4096
    rope_base: float = 10000.0


def write_shape(writer: ModelWriter, world: World, shape: Shape, *, width: int | None = None, n_extra: int = 0) -> None:
    """The keys every architecture needs.

    Args:
        writer: takes them.
        world: gives the width and the vocabulary.
        shape: the sizes.
        width: instead of the world's.
        n_extra: blocks beyond the trunk (``block_count`` includes MTP blocks).
    """
    writer.u32(
        {
            "context_length": shape.n_ctx,
            "embedding_length": width or world.width,
            "block_count": shape.n_layer + n_extra,
            "feed_forward_length": shape.n_ff,
            "attention.head_count": shape.n_head,
            "attention.head_count_kv": shape.n_kv,
            "attention.key_length": shape.head,
            "attention.value_length": shape.head,
        }
    )
    writer.f32({"attention.layer_norm_rms_epsilon": 1e-6})
    writer.u32({"rope.dimension_count": shape.head})
    writer.f32({"rope.freq_base": shape.rope_base})
    writer.u32({"vocab_size": world.n_vocab})


def write_window(writer: ModelWriter, shape: Shape, pattern: Sequence[bool], *, window: int = 64) -> None:
    """Which blocks see only the last ``window`` tokens."""
    writer.array("attention.sliding_window_pattern", list(pattern))
    writer.u32({"attention.sliding_window": window, "rope.dimension_count_swa": shape.head})
    writer.f32({"rope.freq_base_swa": 10000.0})


def write_embeddings(writer: ModelWriter, world: World, *, tied: bool = False) -> None:
    """Token embeddings, final norm and, unless tied, the output head."""
    writer.tensor("token_embd.weight", world.embeddings)
    writer.ones(world.width, "output_norm.weight")
    if not tied:
        writer.tensor("output.weight", world.head)


def write_attention(
    writer: ModelWriter,
    rng: np.random.Generator,
    world: World,
    layer: int,
    shape: Shape,
    *,
    strength: float,
    qk_norm: bool = True,
    gated: bool = False,
) -> None:
    """Random attention whose output stays in the active subspace.

    Args:
        writer: takes the tensors.
        rng: drawn from.
        world: of the model.
        layer: block number.
        shape: the sizes.
        strength: how much the block adds; 0 leaves the bigram alone.
        qk_norm: query and key norms, which then carry the sharpness of the attention.
        gated: the query projection carries an output gate too (Qwen 3.5).
    """
    prefix, width, sharpness = f"blk.{layer}.", world.width, 2.0
    std = 1.0 if qk_norm else sharpness
    n_q, n_kv = shape.n_head * shape.head, shape.n_kv * shape.head
    writer.tensor(prefix + "attn_q.weight", linear(rng, n_q * (2 if gated else 1), width, std))
    writer.tensor(prefix + "attn_k.weight", linear(rng, n_kv, width, std))
    writer.tensor(prefix + "attn_v.weight", linear(rng, n_kv, width))
    writer.tensor(prefix + "attn_output.weight", world.into_active(rng, n_q, strength))
    if qk_norm:
        writer.tensor(prefix + "attn_q_norm.weight", np.full(shape.head, sharpness))
        writer.ones(shape.head, prefix + "attn_k_norm.weight")


def write_ffn(
    writer: ModelWriter, rng: np.random.Generator, world: World, layer: int, n_ff: int, *, strength: float
) -> None:
    """A random gated feed-forward layer whose output stays in the active subspace."""
    prefix = f"blk.{layer}."
    writer.tensor(prefix + "ffn_gate.weight", linear(rng, n_ff, world.width))
    writer.tensor(prefix + "ffn_up.weight", linear(rng, n_ff, world.width))
    writer.tensor(prefix + "ffn_down.weight", world.into_active(rng, n_ff, strength))


@attrs.frozen
class Own:
    """What a draft carries itself; the rest it takes from the target.

    Attributes:
        embeddings: the token embeddings.
        head: the output head.
        mapped: the head covers the tokens of the cycle only, mapped to the target's ids by ``d2t``.
    """

    embeddings: bool = True
    head: bool = True
    mapped: bool = False


def write_own(writer: ModelWriter, world: World, own: Own) -> None:
    """The embeddings and the head of a draft, as far as it has any."""
    if own.embeddings:
        writer.tensor("token_embd.weight", world.embeddings)
    if own.mapped:
        rows = sorted(world.active)
        writer.tensor("d2t", np.array(rows, dtype=np.int64))  # absolute target ids
        writer.tensor("output.weight", world.head[rows])
    elif own.head:
        writer.tensor("output.weight", world.head)


@attrs.frozen
class Nextn:
    """A NextN (multi-token prediction) head: ``(1 - mix) * E[x] + mix * shift(h)``, then one block.

    Attributes:
        error: share of the active tokens whose successor it gets wrong.
        mix: weight of the hidden state against the token; 1 shows wrong wiring of the hidden state at once.
        strength: how much its own block adds.
        own_embeddings: carries a token embedding table of its own.
        own_head: carries an output head of its own.
    """

    error: float = 0.2
    mix: float = 0.5
    strength: float = 0.05
    own_embeddings: bool = False
    own_head: bool = False


def write_nextn(
    writer: ModelWriter,
    rng: np.random.Generator,
    world: World,
    layer: int,
    shape: Shape,
    head: Nextn,
    *,
    qwen: bool,
) -> None:
    """One NextN block; ``qwen`` for the gated attention and the norm names of Qwen 3.5."""
    prefix, width = f"blk.{layer}.", world.width
    wrong = world.wrong(head.error)
    writer.ones(width, prefix + "attn_norm.weight")
    writer.ones(width, prefix + ("post_attention_norm.weight" if qwen else "ffn_norm.weight"))
    write_attention(writer, rng, world, layer, shape, strength=head.strength, gated=qwen)
    write_ffn(writer, rng, world, layer, shape.n_ff, strength=head.strength)
    from_token = world.shift(0, wrong) if head.error else np.eye(width)
    projection = side_by_side((1 - head.mix) * from_token, head.mix * world.shift(1, wrong))  # embedding half first
    writer.tensor(prefix + "nextn.eh_proj.weight", projection)
    writer.ones(width, *(f"{prefix}nextn.{name}.weight" for name in ("enorm", "hnorm", "shared_head_norm")))
    if head.own_embeddings:
        writer.tensor(prefix + "nextn.embed_tokens.weight", world.embeddings)
    if head.own_head:
        writer.tensor(prefix + "nextn.shared_head_head.weight", world.head)
