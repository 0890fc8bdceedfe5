"""Block-diffusion drafters: DFlash, DFlash2 (a lattice of candidates) and DSpark (a Markov head on top).

One decode of ``[anchor, mask, mask, ...]`` drafts a whole block. The first layer is built so that head ``h`` of a mask
looks ``h + 1`` positions back and knows, from what it finds there, which token the mask stands for.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from pathlib import Path

import attrs
import numpy as np

from specframe.testing.zoo.blocks import Own, Shape, write_ffn, write_own, write_shape
from specframe.testing.zoo.world import World, linear, side_by_side
from specframe.testing.zoo.writer import Array, ModelWriter

_RANK = 32  # of the factorised heads; more than the tokens of a cycle
_HEADS_FADE = 0.6  # how much less the next farther position counts
_SHARPNESS = 7.0  # of query and key: attention falls on one position


class Reads(enum.Enum):
    """What the masks may look at."""

    BOTH = "both"
    ANCHOR = "anchor"  # the token in the block only
    FEATURES = "features"  # the injected features of the target only: shows at once when the injection is missing


@attrs.frozen
class Lattice:
    """What makes a DFlash2 model: a convolution and a selector over the best candidates of each position."""

    kernel: int = 3
    group: int = 16
    top_k: int = 6
    weight: float = 1.0


@attrs.frozen
class Markov:
    """What makes a DSpark model: a head that scores a token after its predecessor, and perhaps a confidence head.

    Attributes:
        from_anchor: the first drafted token comes from the anchor's row; else from the first mask's.
        scores: the head says something; otherwise it is all zeros.
        confidence: there is a confidence head.
        declare_confidence: the key that announces it is written.
    """

    from_anchor: bool = True
    scores: bool = True
    confidence: bool = True
    declare_confidence: bool = True


@attrs.frozen
class Block:
    """Knobs of the drafter itself.

    Attributes:
        size: tokens of a block, anchor included.
        error: share of the active tokens whose successor it gets wrong.
        target_layers: whose inputs are injected.
        reads: what the masks look at.
        backbone: the first layer works as described above; otherwise it is random.
        n_layer: number of layers.
        n_ff: width of their feed-forward parts.
        head: size of an attention head.
        strength: how much the random parts add.
        own: embeddings and head of its own.
        causal: the key ``attention.causal``; left out when None.
        expects_causal: the first mask is drafted rightly with attention of this kind only, from the last committed
            token alone; the other masks say nothing. ``reads``, ``backbone`` and ``error`` are without effect then.
        window: sliding window of all layers but the last; 0 for none.
        rope_sections: the key ``rope.dimension_sections``, for targets with multi-axis positions; empty for none.
        sinks: attention sinks, of no effect.
    """

    size: int = 8
    error: float = 0.2
    target_layers: tuple[int, ...] = (0, 2)
    reads: Reads = Reads.BOTH
    backbone: bool = True
    n_layer: int = 2
    n_ff: int = 64
    head: int = 32
    strength: float = 0.01
    own: Own = Own()  # noqa: RUF009 -- frozen
    causal: bool | None = None
    expects_causal: bool | None = None
    window: int = 0
    rope_sections: tuple[int, ...] = ()
    sinks: bool = False

    @property
    def shape(self) -> Shape:
        """One head per position of the block, one key-value head."""
        return Shape(n_layer=self.n_layer, n_ff=self.n_ff, n_head=self.size, n_kv=1, head=self.head, rope_base=100.0)


def dflash(
    path: Path,
    *,
    world: World | None = None,
    block: Block | None = None,
    lattice: Lattice | None = None,
    markov: Markov | None = None,
    seed: int = 6,
) -> Path:
    """A block drafter: DFlash, with ``lattice`` DFlash2, with ``markov`` DSpark.

    Args:
        path: of the file to write.
        world: the target's. Its vocabulary must declare a mask token for llama.cpp to take the model.
        block: knobs of the drafter.
        lattice: makes it a DFlash2 model.
        markov: makes it a DSpark model.
        seed: of the random parts.
    """
    world, block = world or World(), block or Block()
    rng = np.random.default_rng(seed)
    kind = "dspark" if markov else "dflash2" if lattice else "dflash"
    wrong = world.wrong(block.error)
    with ModelWriter(path, "dflash", f"zoo-{kind}") as writer:
        write_shape(writer, world, block.shape)
        _write_keys(writer, block, lattice, markov)
        world.vocabulary.write(writer)
        write_own(writer, world, block.own)
        n_targets = len(block.target_layers)
        # injected features go to the spare basis, tokens stay in the basis: the two cannot be mixed up
        inject = np.outer(np.eye(world.width)[0], np.eye(world.width)[0]) + world.spare_basis.T @ world.basis
        writer.tensor("fc.weight", side_by_side(*[inject / n_targets] * n_targets))
        writer.ones(world.width, "enc.output_norm.weight", "output_norm.weight")
        from_anchor = markov is not None and markov.from_anchor
        for layer in range(block.n_layer):
            writer.ones(world.width, f"blk.{layer}.attn_norm.weight", f"blk.{layer}.ffn_norm.weight")
            if layer == 0 and block.expects_causal is not None:
                _write_counting(writer, world, block, expects_causal=block.expects_causal)
            elif layer == 0 and block.backbone:
                _write_backbone(writer, world, block, wrong, from_anchor=from_anchor)
            else:
                _write_noise(writer, rng, world, layer, block)
            if block.sinks:
                writer.tensor(f"blk.{layer}.attn_sinks.weight", np.full(block.size, -10.0))
            write_ffn(writer, rng, world, layer, block.shape.n_ff, strength=block.strength)
            if lattice is not None:
                _write_convolutions(writer, rng, world, layer, lattice)
        if markov is not None:
            _write_markov(writer, world, wrong, markov, mapped=block.own.mapped)
        if lattice is not None:
            _write_selector(writer, world, lattice)
    return path


def _write_keys(writer: ModelWriter, block: Block, lattice: Lattice | None, markov: Markov | None) -> None:
    writer.u32({"block_size": block.size})
    if block.target_layers:
        writer.array("target_layers", list(block.target_layers))
    if block.causal is not None:
        writer.flag("attention.causal", block.causal)
    if block.window:
        writer.u32({"attention.sliding_window": block.window})
        writer.array("attention.sliding_window_pattern", [True] * (block.n_layer - 1) + [False])
    if block.rope_sections:
        writer.array("rope.dimension_sections", list(block.rope_sections))
    if markov is not None:
        writer.flag("sample_from_anchor", markov.from_anchor)
        if markov.declare_confidence:
            writer.flag("has_confidence_head", markov.confidence)
    if lattice is not None:
        writer.u32(
            {
                "conv_kernel_size": lattice.kernel,
                "conv_group_size": lattice.group,
                "selector_rank": _RANK,
                "selector_top_k": lattice.top_k,
            }
        )


def _write_backbone(
    writer: ModelWriter, world: World, block: Block, wrong: Collection[int], *, from_anchor: bool
) -> None:
    """Attention in which head ``h`` looks at the position ``h + 1`` back, by a rotation that undoes the rope's."""
    n, head, half, width = world.n_active, block.head, block.head // 2, world.width
    frequencies = 100.0 ** (-np.arange(half) * 2 / head)
    constant = np.zeros(width)
    constant[0] = 1 / world.bias
    query, output = np.zeros((block.size * head, width)), np.zeros((width, block.size * head))
    for h in range(block.size):
        back = h + 1
        rows = slice(h * head, h * head + half), slice(h * head + half, (h + 1) * head)
        query[rows[0]] = np.outer(np.cos(frequencies * back), constant)
        query[rows[1]] = np.outer(-np.sin(frequencies * back), constant)
        # what is wanted is the embedding of the token just before the predicted one; nearer tokens outvote farther ones
        step = back if from_anchor else back - 1
        for i in range(n):
            output[:, h * head + i] += (
                3.0 * _HEADS_FADE**h * world.scale * world.basis[world.target_of(i + step, wrong)]
            )
    key, value = np.zeros((head, width)), np.zeros((head, width))
    key[:half] = constant
    value[:n] = _visible(world, block.reads) / world.scale
    writer.tensor("blk.0.attn_q.weight", query)
    writer.tensor("blk.0.attn_k.weight", key)
    writer.tensor("blk.0.attn_v.weight", value)
    writer.tensor("blk.0.attn_output.weight", output)
    writer.tensor("blk.0.attn_q_norm.weight", np.full(head, _SHARPNESS))
    writer.tensor("blk.0.attn_k_norm.weight", np.full(head, _SHARPNESS))


def _write_counting(writer: ModelWriter, world: World, block: Block, *, expects_causal: bool) -> None:
    """Attention that divides itself evenly among the tokens of a block, and so tells how many masks it can see.

    The first mask finds the last committed token with weight 1/2 if it sees no later masks, and with little if it does.
    What that token says competes with a constant answer, and wins by weight 1/2 (``expects_causal``) or by less.
    """
    n, head, half, width = world.n_active, block.head, block.head // 2, world.width
    slow = half - 1  # the pair that the rope hardly turns
    constant = np.zeros(width)
    constant[0] = 1 / world.bias
    query, key, value = np.zeros((block.size * head, width)), np.zeros((head, width)), np.zeros((head, width))
    query[slow] = constant
    key[slow] = (world.basis.sum(axis=0) + world.mask_vector) / world.scale  # not the injected features
    key[slow - 1] = 0.1 * constant
    value[:n], value[n] = world.basis / world.scale, world.mask_vector / world.scale
    by_token, by_mask = (0.0, 0.35) if expects_causal else (3.0, -0.5)
    output = np.zeros((width, block.size * head))
    output[:, :n] = 6.0 * world.scale * (world.basis + by_token * world.basis[0]).T
    output[:, n] = 6.0 * world.scale * by_mask * world.basis[0]
    writer.tensor("blk.0.attn_q.weight", query)
    writer.tensor("blk.0.attn_k.weight", key)
    writer.tensor("blk.0.attn_v.weight", value)
    writer.tensor("blk.0.attn_output.weight", output)
    for name in ("q", "k"):
        writer.tensor(f"blk.0.attn_{name}_norm.weight", np.full(head, 1.9))


def _visible(world: World, reads: Reads) -> Array:
    if reads is Reads.ANCHOR:
        return world.basis
    if reads is Reads.FEATURES:
        return world.spare_basis
    return world.basis + world.spare_basis


def _write_noise(writer: ModelWriter, rng: np.random.Generator, world: World, layer: int, block: Block) -> None:
    prefix, head, width = f"blk.{layer}.", block.head, world.width
    writer.tensor(prefix + "attn_q.weight", linear(rng, block.size * head, width))
    writer.tensor(prefix + "attn_k.weight", linear(rng, head, width))
    writer.tensor(prefix + "attn_v.weight", linear(rng, head, width))
    writer.tensor(prefix + "attn_output.weight", world.into_active(rng, block.size * head, block.strength))
    writer.ones(head, prefix + "attn_q_norm.weight", prefix + "attn_k_norm.weight")


def _write_convolutions(
    writer: ModelWriter, rng: np.random.Generator, world: World, layer: int, lattice: Lattice
) -> None:
    identity = np.zeros((2, lattice.kernel, world.width))
    identity[:, 0, :] = 1.0
    n_rows = 2 * lattice.kernel * (world.width // lattice.group)
    for name in ("attn_conv", "ffn_conv"):
        writer.tensor(f"blk.{layer}.{name}_base", identity)
        writer.tensor(f"blk.{layer}.{name}_proj.weight", linear(rng, n_rows, world.width, 0.002))


def _write_selector(writer: ModelWriter, world: World, lattice: Lattice) -> None:
    predecessor, successor = np.zeros((world.n_vocab, _RANK)), np.zeros((world.n_vocab, _RANK))
    predecessor[np.arange(world.n_vocab), world.behaves_like] = 1.0
    for i, token in enumerate(world.active):
        successor[token, (i - 1) % world.n_active] = 1.0
    hidden = np.zeros((_RANK, world.width))
    hidden[:, 0] = lattice.weight / world.bias * 10
    writer.tensor("selector_predecessor.weight", predecessor)
    writer.tensor("selector_successor.weight", successor)
    writer.tensor("selector_hidden.weight", hidden)


def _write_markov(writer: ModelWriter, world: World, wrong: Collection[int], markov: Markov, *, mapped: bool) -> None:
    n = world.n_active
    before, after = np.zeros((world.n_vocab, _RANK)), np.zeros((world.n_vocab, _RANK))
    for token in range(world.n_vocab):
        i = int(world.behaves_like[token])
        before[token, world.target_of(i, wrong)] = 1.0
        before[token, n] = float(i in wrong)  # a slot that only the confidence head reads
    for i, token in enumerate(world.active):
        after[token, (i - 1) % n] = world.gain if markov.scores else 0.0
    rows: Sequence[int] = sorted(world.active) if mapped else range(world.n_vocab)
    writer.tensor("markov_w1.weight", before)
    writer.tensor("markov_w2.weight", after[rows])
    if markov.confidence:
        projection = np.zeros((1, world.width + _RANK))
        projection[0, world.width + n] = -8.0  # confidence = sigmoid(3 - 8 * [predecessor is a wrong one])
        writer.tensor("conf_proj.weight", projection)
        writer.tensor("conf_proj.bias", np.array([3.0]))
