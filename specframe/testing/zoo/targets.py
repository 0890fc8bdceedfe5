"""Target models: dense, hybrid, chained NextN heads, sliding window."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs
import numpy as np

from specframe.testing.zoo.blocks import (
    Nextn,
    Shape,
    write_attention,
    write_embeddings,
    write_ffn,
    write_nextn,
    write_shape,
    write_window,
)
from specframe.testing.zoo.tokenizer import Vocabulary
from specframe.testing.zoo.world import World, linear
from specframe.testing.zoo.writer import ModelWriter


def dense(
    path: Path,
    *,
    arch: str = "llama",
    world: World | None = None,
    shape: Shape | None = None,
    strength: float = 0.22,
    tied: bool = False,
    seed: int = 5,
) -> Path:
    """A plain transformer.

    Args:
        path: of the file to write.
        arch: ``llama``, or ``qwen3`` (with query and key norms).
        world: what it says; gives the width and the vocabulary.
        shape: the sizes; any number of layers.
        strength: how much context matters; 0 is the pure bigram model.
        tied: no output head of its own.
        seed: of the random blocks.
    """
    world, shape = world or World(), shape or Shape()
    rng = np.random.default_rng(seed)
    with ModelWriter(path, arch, f"zoo-{arch}") as writer:
        write_shape(writer, world, shape)
        world.vocabulary.write(writer)
        write_embeddings(writer, world, tied=tied)
        for layer in range(shape.n_layer):
            writer.ones(world.width, f"blk.{layer}.attn_norm.weight", f"blk.{layer}.ffn_norm.weight")
            write_attention(writer, rng, world, layer, shape, strength=strength, qk_norm=arch == "qwen3")
            write_ffn(writer, rng, world, layer, shape.n_ff, strength=strength * 0.5)
    return path


@attrs.frozen
class Recurrence:
    """Sizes of the gated delta net layers of a hybrid model."""

    kernel: int = 4
    state: int = 16
    n_value_heads: int = 4
    n_key_heads: int = 2
    attention_interval: int = 2

    @property
    def inner(self) -> int:
        """Width of the recurrent values."""
        return self.state * self.n_value_heads


def hybrid(
    path: Path,
    *,
    world: World | None = None,
    shape: Shape | None = None,
    recurrence: Recurrence | None = None,
    strength: float = 0.15,
    nextn: Nextn | None = None,
    trunk: bool = True,
    tied: bool = False,
    seed: int = 4,
) -> Path:
    """Qwen 3.5: recurrent layers with full attention in between, and a NextN block if wanted.

    Args:
        path: of the file to write.
        world: what it says.
        shape: the sizes of the trunk.
        recurrence: the sizes of the recurrent layers.
        strength: how much context matters; 0 is the pure bigram model.
        nextn: the built-in MTP head; None for a model without.
        trunk: False for a file with the NextN block only (an external MTP draft: same architecture and counts).
        tied: no output head of its own.
        seed: of the random blocks.
    """
    world = world or World(vocabulary=Vocabulary.byte_level(pre="qwen35"))
    shape, recurrence = shape or Shape(), recurrence or Recurrence()
    rng = np.random.default_rng(seed)
    with ModelWriter(path, "qwen35", "zoo-qwen35") as writer:
        write_shape(writer, world, shape, n_extra=int(nextn is not None))
        writer.array("rope.dimension_sections", [3, 3, 2, 0])
        writer.u32(
            {
                "ssm.conv_kernel": recurrence.kernel,
                "ssm.state_size": recurrence.state,
                "ssm.group_count": recurrence.n_key_heads,
                "ssm.time_step_rank": recurrence.n_value_heads,
                "ssm.inner_size": recurrence.inner,
                "full_attention_interval": recurrence.attention_interval,
            }
        )
        if nextn is not None:
            writer.u32({"nextn_predict_layers": 1})
        world.vocabulary.write(writer)
        write_embeddings(writer, world, tied=tied)
        if trunk:
            for layer in range(shape.n_layer):
                _hybrid_layer(writer, rng, world, layer, shape, recurrence, strength)
        if nextn is not None:
            write_nextn(writer, np.random.default_rng(seed + 100), world, shape.n_layer, shape, nextn, qwen=True)
    return path


def _hybrid_layer(  # noqa: PLR0917 -- a block description
    writer: ModelWriter,
    rng: np.random.Generator,
    world: World,
    layer: int,
    shape: Shape,
    recurrence: Recurrence,
    strength: float,
) -> None:
    prefix = f"blk.{layer}."
    writer.ones(world.width, prefix + "attn_norm.weight", prefix + "post_attention_norm.weight")
    if (layer + 1) % recurrence.attention_interval == 0:
        write_attention(writer, rng, world, layer, shape, strength=strength * 2, gated=True)
    else:
        _delta_net(writer, rng, world, prefix, recurrence, strength * 1.5)
    write_ffn(writer, rng, world, layer, shape.n_ff, strength=strength * 0.5)


def _delta_net(
    writer: ModelWriter,
    rng: np.random.Generator,
    world: World,
    prefix: str,
    recurrence: Recurrence,
    strength: float,
) -> None:
    width, n_value = world.width, recurrence.n_value_heads
    n_conv = 2 * recurrence.state * recurrence.n_key_heads + recurrence.inner
    writer.tensor(prefix + "attn_qkv.weight", linear(rng, n_conv, width))
    writer.tensor(prefix + "attn_gate.weight", linear(rng, recurrence.inner, width, 1.5))
    writer.tensor(prefix + "ssm_conv1d.weight", rng.standard_normal((n_conv, recurrence.kernel)) * 0.6)
    writer.tensor(prefix + "ssm_dt.bias", rng.standard_normal(n_value) * 0.3)
    writer.tensor(prefix + "ssm_a", -np.abs(rng.standard_normal(n_value) * 0.3) - 0.05)  # -exp(A_log): never positive
    writer.tensor(prefix + "ssm_beta.weight", linear(rng, n_value, width))
    writer.tensor(prefix + "ssm_alpha.weight", linear(rng, n_value, width))
    writer.ones(recurrence.state, prefix + "ssm_norm.weight")
    writer.tensor(prefix + "ssm_out.weight", world.into_active(rng, recurrence.inner, strength))


def chained(
    path: Path,
    *,
    world: World | None = None,
    shape: Shape | None = None,
    strength: float = 0.35,
    heads: Sequence[Nextn] = (Nextn(error=0.1), Nextn(error=0.2), Nextn(error=0.3)),
    trunk: bool = True,
    seed: int = 10,
) -> Path:
    """Step 3.5: several NextN heads, each drafting one position further; half of the layers have a sliding window.

    Args:
        path: of the file to write.
        world: what it says.
        shape: the sizes of the trunk.
        strength: how much context matters.
        heads: the NextN heads; empty for a trunk without.
        trunk: False for a file with the heads only.
        seed: of the random blocks.
    """
    world, shape = world or World(), shape or Shape()
    rng = np.random.default_rng(seed)
    n_blocks = shape.n_layer + len(heads)
    with ModelWriter(path, "step35", "zoo-step35") as writer:
        write_shape(writer, world, shape, n_extra=len(heads))
        # llama.cpp wants the array form, one entry per block, MTP blocks included
        write_window(writer, shape, [layer % 2 == 1 for layer in range(n_blocks)])
        writer.u32({"expert_feed_forward_length": 32})  # required even without experts
        if heads:
            writer.u32({"nextn_predict_layers": len(heads)})
        world.vocabulary.write(writer)
        write_embeddings(writer, world)
        for layer in range(shape.n_layer if trunk else 0):
            writer.ones(world.width, f"blk.{layer}.attn_norm.weight", f"blk.{layer}.ffn_norm.weight")
            write_attention(writer, rng, world, layer, shape, strength=strength)
            writer.tensor(f"blk.{layer}.attn_gate.weight", linear(rng, shape.n_head, world.width))
            write_ffn(writer, rng, world, layer, shape.n_ff, strength=strength * 0.5)
        for k, head in enumerate(heads):
            own = np.random.default_rng(seed + 100 + k)
            write_nextn(writer, own, world, shape.n_layer + k, shape, head, qwen=False)
    return path


def sliding_window(
    path: Path,
    *,
    world: World | None = None,
    shape: Shape | None = None,
    strength: float = 0.35,
    softcap: float = 30.0,
    pattern: Sequence[bool] | None = None,
    window: int = 64,
    seed: int = 5,
) -> Path:
    """Gemma 4: sliding-window and full attention by turns, norms behind the blocks, soft-capped logits.

    Args:
        path: of the file to write.
        world: what it says.
        shape: the sizes.
        strength: how much context matters.
        softcap: bound of the logits.
        pattern: True for each layer with a window; by default every other one, the last layer full.
        window: how many tokens back they see.
        seed: of the random blocks.
    """
    world, shape = world or World(), shape or Shape()
    rng = np.random.default_rng(seed)
    width = world.width
    with ModelWriter(path, "gemma4", "zoo-gemma4") as writer:
        write_shape(writer, world, shape)
        write_window(writer, shape, pattern or [i % 2 == 0 for i in range(shape.n_layer)], window=window)
        writer.u32(
            {
                "attention.key_length_swa": shape.head,
                "attention.value_length_swa": shape.head,
                "attention.shared_kv_layers": 0,
                "embedding_length_per_layer_input": 0,  # required; 0 for no per-layer embeddings
            }
        )
        writer.f32({"final_logit_softcapping": softcap})
        world.vocabulary.write(writer)
        writer.tensor("token_embd.weight", world.embeddings / np.sqrt(width))  # the graph multiplies by sqrt(width)
        writer.tensor("output.weight", world.head)
        writer.ones(width, "output_norm.weight")
        writer.ones(shape.head // 2, "rope_freqs.weight")  # required as soon as one layer has full attention
        for layer in range(shape.n_layer):
            prefix = f"blk.{layer}."
            writer.ones(width, prefix + "attn_norm.weight", prefix + "ffn_norm.weight")
            write_attention(writer, rng, world, layer, shape, strength=1.0)
            write_ffn(writer, rng, world, layer, shape.n_ff, strength=1.0)
            writer.tensor(prefix + "post_attention_norm.weight", np.full(width, strength * 1.5))
            writer.tensor(prefix + "post_ffw_norm.weight", np.full(width, strength * 0.7))
    return path
