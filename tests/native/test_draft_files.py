"""Draft files that would end the process, or draft noise, are refused first; one process sees them all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specframe
from specframe.backends.llama.draft_files import check_draft
from specframe.backends.llama.draft_kinds import BlockFile, draft_kind
from specframe.backends.llama.gguf import inspect
from specframe.backends.llama.model import Model
from specframe.compatibility import check_files
from specframe.core.errors import ConfigError
from specframe.plugins import Registry
from specframe.testing.zoo import Block, Lattice, Markov, Own, World, corrupt, dflash, drafts
from tests.support.llama import Zoo

Make = Callable[[Zoo, Path], Path]

WIDE = World(width=96)


def _edited(name: str, **changes: Any) -> Make:
    return lambda zoo, path: corrupt.edit(zoo(name), path, **changes)


def _made(**knobs: Any) -> Make:
    return lambda _, path: dflash(path, **knobs)


def _eagle(**knobs: Any) -> Make:
    return lambda _, path: drafts.eagle3(path, **knobs)


def _named(name: str) -> Make:
    return lambda zoo, _: zoo(name)


def _list_replaced(zoo: Zoo, path: Path) -> Path:
    corrupt.edit(zoo("dflash"), path, drop_keys=["dflash.target_layers"])
    return corrupt.edit(path, path, keys={"dflash.target_layers": 3})


def _kv_heads(zoo: Zoo, path: Path) -> Path:
    corrupt.edit(zoo("dflash"), path, drop_keys=["dflash.attention.head_count_kv"])
    return corrupt.edit(path, path, keys={"dflash.attention.head_count_kv": [1, 0]})


def _permuted(zoo: Zoo, path: Path) -> Path:
    names = list(inspect(zoo("dflash")).array("tokenizer.ggml.tokens") or ())
    names[97], names[98] = names[98], names[97]
    return corrupt.edit(zoo("dflash"), path, keys={"tokenizer.ggml.tokens": names})


def _fewer_tokens(name: str) -> Make:
    def make(zoo: Zoo, path: Path) -> Path:
        names = list(inspect(zoo(name)).array("tokenizer.ggml.tokens") or ())
        return corrupt.edit(zoo(name), path, keys={"tokenizer.ggml.tokens": names[:-1]})

    return make


def _headless_with_fewer_tokens(zoo: Zoo, path: Path) -> Path:
    _fewer_tokens("eagle3")(zoo, path)
    fitting = {"token_embd.weight": np.zeros((287, 64))}
    return corrupt.edit(path, path, drop_tensors=["output.weight"], tensors=fitting)


def _mapped(ids: Any, **knobs: Any) -> Make:
    """A block drafter with a smaller head whose rows stand for ``ids``."""

    def make(_: Zoo, path: Path) -> Path:
        dflash(path, block=Block(own=Own(mapped=True)), **knobs)
        return corrupt.edit(path, path, tensors={"d2t": ids})

    return make


def _wider_than_its_target(_: Zoo, path: Path) -> Path:
    drafts.eagle3(path, world=WIDE, target_width=64)
    return corrupt.edit(path, path, tensors={"fc.weight": np.zeros((96, 3 * 64))})


_IDS = np.arange(24)

STRATEGIES = {info.name for info in Registry.discover(load="").strategies()}

#: What is wrong -> strategy, target, a draft that has it, and what the message says.
BAD: dict[str, tuple[str, str, Make | None, str]] = {
    "no draft": ("dflash", "llama", None, "strategy 'dflash' drafts with a file .* name it with draft="),
    "target without layer inputs": ("dflash", "step35-mtp3", _named("dflash"), "layer inputs of step35 models"),
    "target that is a draft": ("dflash", "dflash", _named("dflash"), "is a dflash draft model"),
    "dflash2 as dflash": ("dflash", "llama", _named("dflash2"), "made for strategy 'dflash2', not for 'dflash'"),
    "dspark as dflash": ("dflash", "llama", _named("dspark-anchor"), "made for strategy 'dspark', not for 'dflash'"),
    "dflash as dspark": ("dspark", "llama", _named("dflash"), "made for strategy 'dflash', not for 'dspark'"),
    "dflash2 as dspark": ("dspark", "llama", _named("dflash2"), "made for strategy 'dflash2', not for 'dspark'"),
    "dspark as dflash2": ("dflash2", "llama", _named("dspark-bonus"), "made for strategy 'dspark', not for 'dflash2'"),
    "eagle3 as dflash": ("dflash", "llama", _named("eagle3"), "made for strategy 'eagle3', not for 'dflash'"),
    "dflash as eagle3": ("eagle3", "llama", _named("dflash"), "made for strategy 'dflash', not for 'eagle3'"),
    "heads as dflash": ("dflash", "qwen35", _named("mtp-qwen35"), "made for strategy 'mtp', not for 'dflash'"),
    "full model as dflash": ("dflash", "llama", _named("llama"), "is a llama model, no draft for strategy 'dflash'"),
    "both heads": (
        "dspark", "llama", _made(markov=Markov(), lattice=Lattice()), "the heads of both dspark and dflash2"),
    "other width": ("dflash", "llama", _made(world=WIDE), "dflash.embedding_length is 96 and must equal .*64"),
    "no target layers": (
        "dflash", "llama", _edited("dflash", drop_keys=["dflash.target_layers"]), "dflash.target_layers is missing"),
    "target layers are no list": (
        "dflash", "llama", _list_replaced, "dflash.target_layers is 3 and must list layers"),
    "target layer past the last": (
        "dflash", "llama", _made(block=Block(target_layers=(0, 4))), "names layer 4, and .* layers 0 to 3"),
    "target layer far past the last": ("dflash", "llama", _made(block=Block(target_layers=(0, 99))), "layer 99"),
    "negative target layer": ("dflash", "llama", _made(block=Block(target_layers=(-1, 2))), "names layer -1"),
    "target layer is a NextN layer": (
        "dflash", "qwen35-mtp", _made(block=Block(target_layers=(0, 4))), "names layer 4, and .* layers 0 to 3"),
    "no mask token": (
        "dflash", "llama", _edited("dflash", drop_keys=["tokenizer.ggml.mask_token_id"]),
        "tokenizer.ggml.mask_token_id is missing"),
    "mask token outside": (
        "dspark", "llama", _edited("dspark-anchor", keys={"tokenizer.ggml.mask_token_id": 9999}),
        "mask_token_id is 9999 and must be a token"),
    "dflash2 without block size": (
        "dflash2", "llama", _edited("dflash2", drop_keys=["dflash.block_size"]), "dflash.block_size is missing"),
    "dspark without block size": (
        "dspark", "llama", _edited("dspark-bonus", drop_keys=["dflash.block_size"]), "dflash.block_size is missing"),
    "block size 0": ("dspark", "llama", _edited("dspark-anchor", keys={"dflash.block_size": 0}), "block_size is 0"),
    "anchor alone": ("dflash", "llama", _edited("dflash", keys={"dflash.block_size": 1}), "block_size is 1"),
    "block without an end": (
        "dspark", "llama", _edited("dspark-anchor", keys={"dflash.block_size": 25}), "block_size is 25 and must"),
    "negative epsilon": (
        "dflash", "llama", _edited("dflash", keys={"dflash.attention.layer_norm_rms_epsilon": -1.0}),
        "layer_norm_rms_epsilon is -1.0 and must be a number from 0 on"),
    "epsilon is no number": (
        "eagle3", "llama", _edited("eagle3", keys={"eagle3.attention.layer_norm_rms_epsilon": float("nan")}),
        "layer_norm_rms_epsilon is nan"),
    "nothing is rotated": (
        "dflash", "llama", _edited("dflash", keys={"dflash.rope.dimension_count": 0}), "rope.dimension_count is 0 and"),
    "half a pair is rotated": (
        "dflash", "llama", _edited("dflash", keys={"dflash.rope.dimension_count": 31}), "rope.dimension_count is 31"),
    "more is rotated than there is": (
        "eagle3", "llama", _edited("eagle3", keys={"eagle3.rope.dimension_count": 64}),
        r"rope.dimension_count is 64 and must be even and at most the size of an attention head \(16\)"),
    "more is rotated than the width leaves": (
        "dflash", "llama",
        _edited("dflash", drop_keys=["dflash.attention.key_length", "dflash.attention.value_length"]),
        r"rope.dimension_count is 32 and must .* the size of an attention head \(8\)"),
    "a layer without keys": (
        "dflash", "llama", _kv_heads, r"attention.head_count_kv is \[1, 0\] and must be at least 1 in every layer"),
    "states of another width": (
        "dflash2", "llama", _edited("dflash2", keys={"dflash.embedding_length_out": 1000}),
        r"embedding_length_out is 1000 and must equal embedding_length \(64\)"),
    "causal is no flag": (
        "dflash", "llama", _edited("dflash", keys={"dflash.attention.causal": 1}), "attention.causal is 1 and should"),
    "keys and values differ": (
        "dflash", "llama", _edited("dflash", keys={"dflash.attention.value_length": 16}),
        "attention.value_length is 16 and must equal attention.key_length"),
    "lattice too wide": (
        "dflash2", "llama", _made(lattice=Lattice(top_k=8)), r"selector_top_k is 8 and must fit k .* into 64"),
    "no candidates": ("dflash2", "llama", _edited("dflash2", keys={"dflash.selector_top_k": 0}), "selector_top_k is 0"),
    "no rank": (
        "dflash2", "llama", _edited("dflash2", drop_keys=["dflash.selector_rank"]), "selector_rank is missing"),
    "no kernel": (
        "dflash2", "llama", _edited("dflash2", keys={"dflash.conv_kernel_size": 0}), "conv_kernel_size is 0"),
    "groups that do not divide": (
        "dflash2", "llama", _edited("dflash2", keys={"dflash.conv_group_size": 24}), "conv_group_size is 24 and must"),
    "projection missing": ("dflash", "llama", _edited("dflash", drop_tensors=["fc.weight"]), "tensor fc.weight is not"),
    "layer missing": (
        "dflash", "llama", _edited("dflash", drop_tensors=["blk.1.attn_k.weight"]), "blk.1.attn_k.weight is not"),
    "half a Markov head": (
        "dspark", "llama", _edited("dspark-anchor", drop_tensors=["markov_w2.weight"]), "markov_w2.weight is not"),
    "selector missing": (
        "dflash2", "llama", _edited("dflash2", drop_tensors=["selector_successor.weight"]), "selector_successor"),
    "convolution of another type": (
        "dflash2",
        "llama",
        _edited("dflash2", tensors={"blk.0.attn_conv_base": np.zeros((2, 3, 64), np.float16)}),
        "blk.0.attn_conv_base is of type f16 and must be f32",
    ),
    "weights that are none": (
        "dflash", "llama", _edited("dflash", tensors={"fc.weight": np.zeros((64, 128), np.int64)}),
        "the tensor fc.weight is of type i64 and holds no weights"),
    "a norm in another type": (
        "eagle3", "llama", _edited("eagle3", tensors={"blk.0.attn_norm.weight": np.ones(64, np.float16)}),
        "blk.0.attn_norm.weight is of type f16 and must be f32"),
    "convolution missing": (
        "dflash2", "llama", _edited("dflash2", drop_tensors=["blk.1.ffn_conv_base"]), "blk.1.ffn_conv_base is not"),
    "DeepSeek-V4 without groups": (
        "dspark", "llama", _edited("dspark-anchor", keys={"dflash.hyper_connection.count": 4}),
        "dflash.attention.output_group_count is missing"),
    "mapping of another type": ("dflash", "llama", _mapped(_IDS.astype(np.float32)), "d2t is of type f32 and must"),
    "mapping past the vocabulary": ("dspark", "llama", _mapped(_IDS + 999, markov=Markov()), "the token 999, out"),
    "negative mapping": ("dflash", "llama", _mapped(_IDS - 1), "names the token -1, outside"),
    "mapping of another size": (
        "dflash", "llama", _mapped(np.arange(20)), "d2t names 20 tokens for a head of 24 tokens"),
    "mapping without a head": (
        "dflash", "llama", _edited("dflash-shared", tensors={"d2t": _IDS}), "d2t names 24 tokens for no head"),
    "target's parts, other vocabulary": (
        "dflash", "llama", _fewer_tokens("dflash-shared"),
        "takes the embeddings and the output head of its target and has 287 tokens, but .* has 288"),
    "target's head, other vocabulary": (
        "eagle3", "llama",
        _headless_with_fewer_tokens,
        "takes the output head of its target"),
    "another vocabulary": (
        "dflash", "llama", _permuted, "another vocabulary .* token 97 is 'a' in the target and 'b' in the draft"),
    "another end": (
        "dflash", "llama", _edited("dflash", keys={"tokenizer.ggml.eos_token_id": 5}),
        "the EOS token is .* in the target and 5 in the draft"),
    "two layers for EAGLE-3": (
        "eagle3", "llama", _eagle(target_layers=(0, 2)), r"target_layers is \[0, 2\] and must name 3 layers"),
    "state after the last layer": (
        "eagle3", "llama", _eagle(target_layers=(0, 2, 4)), "names layer 4, and .* layers 0 to 3"),
    "past the state after the last layer": (
        "eagle3", "qwen35", _eagle(target_layers=(0, 2, 5)), "names layer 5, and .* layers 0 to 4"),
    "EAGLE-3 of another target": (
        "eagle3", "llama", _eagle(target_width=96), "eagle3.target_hidden_size is 96 and must equal the width"),
    "EAGLE-3 without the target's width": (
        "eagle3", "llama", _edited("eagle3", drop_keys=["eagle3.target_hidden_size"]), "target_hidden_size is missing"),
    "wider EAGLE-3 with the target's embeddings": (
        "eagle3", "llama", _eagle(world=WIDE, target_width=64, own=Own(embeddings=False)),
        "eagle3.embedding_length is 96 and must equal"),
    "two EAGLE-3 blocks": (
        "eagle3", "llama", _edited("eagle3", keys={"eagle3.block_count": 2}), "block_count is 2 and must be 1"),
    "EAGLE-3 without its second norm": (
        "eagle3", "llama", _edited("eagle3", drop_tensors=["blk.0.attn_norm_2.weight"]), "attn_norm_2.weight is not"),
    "EAGLE-3 without a declared norm": (
        "eagle3", "llama", _edited("eagle3", keys={"eagle3.norm_before_fc": True}), "enc.output_norm.weight is not"),
    "EAGLE-3 with embeddings of fewer tokens": (
        "eagle3", "llama", _edited("eagle3", tensors={"token_embd.weight": np.zeros((200, 64))}),
        "token_embd.weight has 200 tokens and the vocabulary 288"),
    "EAGLE-3 keys and values differ": (
        "eagle3", "llama", _edited("eagle3", keys={"eagle3.attention.value_length": 8}), "attention.value_length is 8"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_files_are_refused_by_name(zoo: Zoo, tmp_path: Path, what: str) -> None:
    kind, target, make, named = BAD[what]
    draft = None if make is None else make(zoo, tmp_path / "draft.gguf")
    with pytest.raises(ConfigError, match=named) as caught:
        check_draft(inspect(zoo(target)), None if draft is None else inspect(draft), kind)
    assert str(draft) in str(caught.value) or zoo(target).name in str(caught.value)
    if kind in STRATEGIES:
        report = check_files(zoo(target), draft=draft, strategy=kind)
        assert not report.usable
        with pytest.raises(ConfigError):
            specframe.load(zoo(target), draft=draft, strategy=kind)


GOOD: list[tuple[str, str, Make]] = [
    *(("dflash", target, _named("dflash")) for target in ("llama", "qwen3", "qwen35", "qwen35-mtp", "gemma4")),
    ("dflash", "llama", _named("dflash-shared")),
    ("dflash", "llama", _made(block=Block(own=Own(mapped=True)))),
    ("dflash", "llama", _edited("dflash", drop_keys=["dflash.block_size"])),
    ("dflash", "llama", _made(block=Block(causal=True, window=8, sinks=True, rope_sections=(8, 0, 0, 0)))),
    ("dflash2", "llama", _named("dflash2")),
    ("dflash2", "qwen35", _named("dflash2-shared")),
    ("dflash2", "llama", _made(lattice=Lattice(top_k=7))),
    ("dspark", "llama", _named("dspark-anchor")),
    ("dspark", "gemma4", _named("dspark-bonus")),
    ("dspark", "llama", _made(block=Block(own=Own(mapped=True)), markov=Markov(confidence=False))),
    ("eagle3", "llama", _named("eagle3")),
    ("eagle3", "qwen35", _named("eagle3-shared")),
    ("eagle3", "qwen35", _eagle(target_layers=(0, 2, 4))),
    ("eagle3", "llama", _eagle(norm_before_fc=True)),
    ("eagle3", "llama", _wider_than_its_target),
]


@pytest.mark.parametrize(("kind", "target", "make"), GOOD)
def test_good_files_are_taken_and_load(zoo: Zoo, tmp_path: Path, kind: str, target: str, make: Make) -> None:
    path = make(zoo, tmp_path / "draft.gguf")
    check_draft(inspect(zoo(target)), inspect(path), kind)
    Model(path).close()


def test_kinds(zoo: Zoo) -> None:
    kinds = {
        "llama": None,
        "qwen35": None,
        "draft-simple": None,
        "qwen35-mtp": "mtp",
        "mtp-qwen35": "mtp",
        "gemma4-assistant": "mtp",
        "dflash": "dflash",
        "dflash-shared": "dflash",
        "dflash2": "dflash2",
        "dspark-anchor": "dspark",
        "dspark-bonus": "dspark",
        "eagle3": "eagle3",
    }
    assert {name: draft_kind(inspect(zoo(name))) for name in kinds} == kinds


def test_what_a_block_drafter_says(zoo: Zoo, tmp_path: Path) -> None:
    plain = BlockFile.of(inspect(zoo("dflash")))
    assert (plain.kind, plain.block_size, plain.target_layers, plain.max_draft) == ("dflash", 8, (0, 2), 7)
    assert (plain.causal, plain.from_anchor, plain.confidence, plain.top_k) == (False, False, False, 0)
    assert plain.mask_token == inspect(zoo("dflash")).metadata["tokenizer.ggml.mask_token_id"]
    assert BlockFile.of(inspect(zoo("dflash2"))).top_k == 6
    assert BlockFile.of(inspect(dflash(tmp_path / "causal.gguf", block=Block(causal=True)))).causal

    anchor, bonus = (BlockFile.of(inspect(zoo(f"dspark-{name}"))) for name in ("anchor", "bonus"))
    assert (anchor.from_anchor, anchor.max_draft, anchor.confidence) == (True, 8, True)
    assert (bonus.from_anchor, bonus.max_draft, bonus.confidence) == (False, 7, True)
    silent = corrupt.edit(
        zoo("dspark-anchor"),
        tmp_path / "silent.gguf",
        drop_keys=["dflash.sample_from_anchor", "dflash.has_confidence_head"],
    )
    assert BlockFile.of(inspect(silent)) == anchor  # what upstream takes by default
    for n, markov in enumerate([Markov(confidence=False), Markov(confidence=False, declare_confidence=False)]):
        assert not BlockFile.of(inspect(dflash(tmp_path / f"{n}.gguf", markov=markov))).confidence
    denied = corrupt.edit(zoo("dspark-anchor"), tmp_path / "denied.gguf", keys={"dflash.has_confidence_head": False})
    assert not BlockFile.of(inspect(denied)).confidence


def test_a_default_block_size_is_upstreams(zoo: Zoo, tmp_path: Path) -> None:
    path = corrupt.edit(zoo("dflash"), tmp_path / "draft.gguf", drop_keys=["dflash.block_size"])
    assert BlockFile.of(inspect(path)).block_size == 16


def test_the_files_say_which_strategy_to_take(zoo: Zoo, tmp_path: Path) -> None:
    registry = Registry.discover(load="")
    text = ["ngram-k"]

    def suitable(target: Path, draft: Path | None = None) -> list[str]:
        return [info.name for info in registry.suitable(target, draft)[0]]

    assert suitable(zoo("llama")) == suitable(zoo("qwen35")) == text
    assert suitable(zoo("qwen35-mtp")) == ["mtp", *text]
    assert suitable(zoo("qwen35"), zoo("mtp-qwen35")) == ["mtp", *text]
    assert suitable(zoo("gemma4"), zoo("gemma4-assistant")) == ["mtp", *text]
    for kind in ("dflash", "dflash2"):
        assert suitable(zoo("qwen35-mtp"), zoo(kind)) == [kind, *text]
    assert suitable(zoo("llama"), zoo("dspark-anchor")) == ["dspark", *text]
    with pytest.raises(ConfigError, match="layer inputs of step35 models"):
        suitable(zoo("step35-mtp3"), zoo("dspark-bonus"))
    stripped = corrupt.edit(zoo("qwen35-mtp"), tmp_path / "stripped.gguf", drop_tensors=["blk.4.nextn.eh_proj.weight"])
    assert suitable(stripped) == text
    with pytest.raises(ConfigError, match="hidden states of llama models"):
        suitable(zoo("llama-bigram"), zoo("step35-mtp3"))
    assert suitable(zoo("llama"), zoo("eagle3")) == ["eagle3", *text]
    assert suitable(zoo("qwen35"), zoo("llama")) == ["draft-model", *text]
