"""Which draft files work with a target whose layer inputs they read; what does not would end the process.

Block drafters (DFlash, DFlash2, DSpark) and EAGLE-3: they share the target's width, and often its embeddings or head.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specframe.backends.llama.architectures import LAST_LAYER_INPUTS, provides
from specframe.backends.llama.draft_kinds import BlockFile, check_kind, flag, n_heads, n_vocab, target_layers
from specframe.backends.llama.gguf import GgufFile
from specframe.backends.llama.validation import validate_loadable, validate_target, wrong
from specframe.backends.llama.vocab_difference import check_vocabulary
from specframe.core.errors import ConfigError
from specframe.core.ports import Need

#: Longest block with a Markov head, which llama.cpp repeats in the graph for every token; longer ones do not fit into
#: the graph of a small draft, and end the process. Trained ones have about eight tokens.
MAX_MARKOV_BLOCK = 24

#: Layers an EAGLE-3 draft reads.
EAGLE_LAYERS = 3

_MADE_FOR = "take the draft that was made for this target"
_AGAIN = "convert the draft again"
_ATTENTION = ("attn_norm", "attn_q", "attn_k", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")


def check_draft(target: GgufFile, draft: GgufFile | None, kind: str) -> None:
    """Check that ``draft`` can draft for ``target`` with strategy ``kind``, a block drafter or ``eagle3``.

    Raises:
        ConfigError: names the file, what is wrong with it, and the way out.
    """
    validate_target(target)
    if Need.LAYER_INPUTS not in provides(target.arch):
        raise ConfigError(
            f"{target.path}: llama.cpp does not hand out the layer inputs of {target.arch} models, which strategy "
            f"{kind!r} reads; use another strategy"
        )
    if draft is None:
        raise ConfigError(
            f"strategy {kind!r} drafts with a file made for {target.path.name}; name it with draft= (--draft FILE)"
        )
    validate_loadable(draft)
    check_kind(draft, kind)
    _check_layers(target, draft)
    (_check_eagle if kind == "eagle3" else _check_block)(target, draft)
    _check_head(target, draft)
    check_vocabulary(target, draft)


def _check_layers(target: GgufFile, draft: GgufFile) -> None:
    """Every layer whose input is read is there, and llama.cpp hands it out."""
    layers, n_layer = target_layers(draft), (target.integer("{arch}.block_count") or 0) - n_heads(target)
    if not layers or (draft.arch == "eagle3" and len(layers) != EAGLE_LAYERS):
        wanted = f"name {EAGLE_LAYERS} layers" if draft.arch == "eagle3" else "name at least one layer"
        raise wrong(draft, "{arch}.target_layers", list(layers), wanted, _AGAIN)
    # The output of the last layer is the input of one after it, for those that hand it out; or a hidden state.
    beyond = Need.HIDDEN in provides(target.arch) if draft.arch == "eagle3" else target.arch in LAST_LAYER_INPUTS
    last = n_layer if beyond else n_layer - 1
    for layer in layers:
        if not 0 <= layer <= last:
            raise ConfigError(
                f"{draft.path}: {draft.arch}.target_layers names layer {layer}, and {target.path} has inputs of the "
                f"layers 0 to {last}; {_MADE_FOR}"
            )


def _check_attention(draft: GgufFile) -> None:
    """Sizes that the graphs of drafts take for granted."""
    width, n_head = draft.integer("{arch}.embedding_length") or 0, draft.get("{arch}.attention.head_count")
    if (out := draft.integer("{arch}.embedding_length_out")) not in {None, width}:
        raise wrong(draft, "{arch}.embedding_length_out", out, f"equal embedding_length ({width})", _AGAIN)
    n_kv = draft.get("{arch}.attention.head_count_kv")
    for key, value in (("head_count", n_head), ("head_count_kv", n_kv)):
        if isinstance(value, tuple) and not all(value):
            raise wrong(draft, f"{{arch}}.attention.{key}", list(value), "be at least 1 in every layer", _AGAIN)
    one, other = (draft.integer(f"{{arch}}.attention.{name}_length") for name in ("key", "value"))
    if one is not None and other is not None and one != other:
        raise wrong(draft, "{arch}.attention.value_length", other, f"equal attention.key_length ({one})", _AGAIN)
    if one is None and isinstance(n_head, int) and n_head > 0:
        one = width // n_head
    n_rot = draft.integer("{arch}.rope.dimension_count")
    if n_rot is not None and (n_rot < 1 or n_rot % 2 or (one is not None and n_rot > one)):
        raise wrong(draft, "{arch}.rope.dimension_count", n_rot, f"be even and at most the head size ({one})", _AGAIN)


def _check_block(target: GgufFile, draft: GgufFile) -> None:
    facts = BlockFile.of(draft)
    _check_width(target, draft, "{arch}.embedding_length")
    if draft.get("{arch}.block_size") is None and facts.kind != "dflash":
        raise wrong(draft, "{arch}.block_size", None, "be the number of tokens it was trained to draft", _AGAIN)
    if facts.max_draft < 1:
        raise wrong(draft, "{arch}.block_size", facts.block_size, "leave room for a drafted token", _AGAIN)
    if facts.kind == "dspark" and facts.block_size > MAX_MARKOV_BLOCK:
        raise wrong(draft, "{arch}.block_size", facts.block_size, f"be at most {MAX_MARKOV_BLOCK}", _AGAIN)
    if not 0 <= facts.mask_token < n_vocab(draft):
        found = draft.get("tokenizer.ggml.mask_token_id")
        raise wrong(draft, "tokenizer.ggml.mask_token_id", found, f"be a token, below {n_vocab(draft)}", _AGAIN)
    if facts.kind == "dspark" and "selector_hidden.weight" in draft.tensors:
        raise ConfigError(f"{draft.path} has the heads of both dspark and dflash2, and only one can be run; {_AGAIN}")
    if draft.integer("{arch}.hyper_connection.count"):  # a stack of DeepSeek-V4 layers
        _check_positive(draft, "attention.output_group_count", "attention.sliding_window")
        return
    _check_attention(draft)
    if facts.kind == "dflash2":
        _check_lattice(draft)
    _check_tensors(draft, _block_tensors(draft, facts.kind))


def _check_lattice(draft: GgufFile) -> None:
    _check_positive(draft, "selector_rank", "selector_top_k", "conv_kernel_size", "conv_group_size")
    width, top_k = draft.integer("{arch}.embedding_length") or 0, draft.integer("{arch}.selector_top_k") or 0
    group = draft.integer("{arch}.conv_group_size") or 1
    if width % group:
        raise wrong(draft, "{arch}.conv_group_size", group, f"divide {width} (embedding_length)", _AGAIN)
    # A row of the lattice travels where a hidden state would.
    if top_k * (top_k + 1) > width:
        raise wrong(
            draft, "{arch}.selector_top_k", top_k, f"fit k * (k + 1) into {width} values (embedding_length)", _AGAIN
        )
    for name, tensor in draft.tensors.items():
        # It is added to what the layer computes, which llama.cpp cannot do with another type.
        if name.endswith("_conv_base") and tensor.kind != "f32":
            raise ConfigError(f"{draft.path}: the tensor {name} is of type {tensor.kind} and must be f32; {_AGAIN}")


def _check_eagle(target: GgufFile, draft: GgufFile) -> None:
    _check_attention(draft)
    _check_width(target, draft, "{arch}.target_hidden_size")
    if (blocks := draft.integer("{arch}.block_count")) != 1:
        raise wrong(draft, "{arch}.block_count", blocks, "be 1: llama.cpp runs a single layer", _AGAIN)
    if not {"token_embd.weight", "output.weight"} <= draft.tensors.keys():
        _check_width(target, draft, "{arch}.embedding_length")  # it takes the target's
    own = draft.tensors.get("token_embd.weight")
    if own is not None and own.shape[-1] != n_vocab(draft):  # llama.cpp takes any number
        raise ConfigError(
            f"{draft.path}: the tensor token_embd.weight has {own.shape[-1]} tokens and the vocabulary "
            f"{n_vocab(draft)}; {_AGAIN}"
        )
    tensors = ["fc", "output_norm"]
    if flag(draft, "{arch}.norm_before_fc", default=False):
        tensors.append("enc.output_norm")
    blocks_of = [f"blk.0.{name}" for name in (*_ATTENTION, "attn_norm_2", "attn_v")]
    _check_tensors(draft, (f"{name}.weight" for name in (*tensors, *blocks_of)))


def _check_width(target: GgufFile, draft: GgufFile, key: str) -> None:
    one, other = target.integer("{arch}.embedding_length"), draft.integer(key)
    if one != other:
        raise wrong(draft, key, other, f"equal the width of {target.path} ({one})", _MADE_FOR)


def _check_positive(draft: GgufFile, *keys: str) -> None:
    for key in keys:
        value = draft.integer(f"{{arch}}.{key}")
        if value is None or value < 1:
            raise wrong(draft, f"{{arch}}.{key}", value, "be at least 1", _AGAIN)


def _block_tensors(draft: GgufFile, kind: str) -> Iterator[str]:
    yield from ("fc.weight", "enc.output_norm.weight", "output_norm.weight")
    yield from {
        "dspark": ("markov_w1.weight", "markov_w2.weight"),
        "dflash2": tuple(f"selector_{name}.weight" for name in ("predecessor", "successor", "hidden")),
    }.get(kind, ())
    for block in range(draft.integer("{arch}.block_count") or 0):
        yield from (f"blk.{block}.{name}.weight" for name in (*_ATTENTION, "attn_q_norm", "attn_k_norm"))
        if kind == "dflash2":
            for name in ("attn_conv", "ffn_conv"):
                yield from (f"blk.{block}.{name}_base", f"blk.{block}.{name}_proj.weight")


def _check_tensors(draft: GgufFile, names: Iterator[str]) -> None:
    for name in names:
        if name not in draft.tensors:
            raise ConfigError(f"{draft.path}: the tensor {name} is not there; {_AGAIN}, or download it again")


def _check_head(target: GgufFile, draft: GgufFile) -> None:
    """What scores the vocabulary, its own or the target's, scores the tokens that llama.cpp believes it scores."""
    own, n_draft, n_target = draft.tensors.keys(), n_vocab(draft), n_vocab(target)
    shared = [] if "token_embd.weight" in own else ["embeddings"]
    # A block drafter with embeddings of its own uses them as its head too.
    if "output.weight" not in own and (shared or draft.arch == "eagle3"):
        shared.append("output head")
    if shared and n_draft != n_target:
        raise ConfigError(
            f"{draft.path} takes the {' and the '.join(shared)} of its target and has {n_draft} tokens, but "
            f"{target.path} has {n_target}; {_MADE_FOR}"
        )
    if "d2t" in own:
        _check_mapping(draft, n_draft)


def _check_mapping(draft: GgufFile, n_tokens: int) -> None:
    """``d2t`` gives each row of a smaller head its token id."""
    mapping, head = draft.tensors["d2t"], draft.tensors.get("output.weight")
    if mapping.kind != "i64":
        raise ConfigError(f"{draft.path}: the tensor d2t is of type {mapping.kind} and must be i64; {_AGAIN}")
    if head is None or head.shape[-1] != mapping.shape[0]:
        rows = "no head of its own (output.weight)" if head is None else f"a head of {head.shape[-1]} tokens"
        raise ConfigError(f"{draft.path}: the tensor d2t names {mapping.shape[0]} tokens for {rows}; {_AGAIN}")
    ids = np.frombuffer(draft.data("d2t"), "<i8")
    if bad := [int(token) for token in ids if not 0 <= token < n_tokens]:
        raise ConfigError(
            f"{draft.path}: the tensor d2t names the token {bad[0]}, outside the vocabulary of {n_tokens}; {_AGAIN}"
        )
