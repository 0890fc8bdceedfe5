"""The tiny models: readable, the same each time, and what they say they are."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from specframe import testing
from specframe.core.errors import ConfigError
from specframe.testing import zoo as kit
from specframe.testing.zoo import corrupt
from specframe.testing.zoo.writer import ModelWriter

Zoo = Callable[[str], Path]


def keys_of(path: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}


def tensors_of(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes in GGUF order."""
    return {tensor.name: tuple(int(n) for n in tensor.shape) for tensor in gguf.GGUFReader(path).tensors}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("name", kit.NAMES)
def test_building_twice_gives_the_same_bytes_and_leaves_nothing_else(name: str, tmp_path: Path) -> None:
    first, second = kit.build(name, tmp_path / "a"), kit.build(name, tmp_path / "b")
    assert digest(first) == digest(second)
    assert [p.name for p in (tmp_path / "a").iterdir()] == [f"{name}.gguf"]
    assert first.stat().st_size < 2_000_000


@pytest.mark.parametrize("name", kit.NAMES)
def test_shapes_agree_with_the_keys(name: str, zoo: Zoo) -> None:
    keys, tensors = keys_of(zoo(name)), tensors_of(zoo(name))
    arch = keys["general.architecture"]
    width, n_vocab = keys[f"{arch}.embedding_length"], len(keys["tokenizer.ggml.tokens"])
    assert keys[f"{arch}.vocab_size"] == n_vocab
    assert tensors["output_norm.weight"] == (width,)
    assert tensors.get("token_embd.weight", (width, n_vocab)) == (width, n_vocab)
    blocks = {int(tensor.split(".")[1]) for tensor in tensors if tensor.startswith("blk.")}
    assert max(blocks) == keys[f"{arch}.block_count"] - 1


def test_build_all_makes_every_model(tmp_path: Path) -> None:
    built = kit.build_all(tmp_path)
    assert tuple(built) == kit.NAMES
    assert sorted(tmp_path.iterdir()) == sorted(built.values())


def test_an_unknown_name_is_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'qwen35-mtp"):
        kit.build("qwen35-mpt", tmp_path)
    with pytest.raises(ConfigError, match=r"there are llama, "):
        kit.build("zzzz", tmp_path)


def test_without_the_gguf_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigError, match=r"pip install 'specframe\[testing\]'"):
        kit.build("llama", tmp_path)
    assert testing.ScriptedTarget is not None


def test_a_model_that_fails_half_way_leaves_no_file(tmp_path: Path) -> None:
    def build() -> None:
        with ModelWriter(tmp_path / "half.gguf", "llama", "half") as writer:
            writer.ones(4, "output_norm.weight")
            writer.array("pattern", [])

    with pytest.raises(ConfigError, match="empty"):
        build()
    assert list(tmp_path.iterdir()) == []


# -- what each architecture must carry for llama.cpp ------------------------------------------------------------------


def test_the_mtp_block_counts_as_a_block(zoo: Zoo) -> None:
    plain, mtp = keys_of(zoo("qwen35")), keys_of(zoo("qwen35-mtp"))
    assert (plain["qwen35.block_count"], mtp["qwen35.block_count"]) == (4, 5)
    assert "qwen35.nextn_predict_layers" not in plain
    assert mtp["qwen35.nextn_predict_layers"] == 1
    assert tensors_of(zoo("qwen35-mtp"))["blk.4.nextn.eh_proj.weight"] == (128, 64)


def test_an_external_mtp_file_has_no_trunk(zoo: Zoo) -> None:
    tensors = tensors_of(zoo("mtp-qwen35"))
    assert "blk.0.attn_norm.weight" not in tensors
    assert "blk.4.nextn.eh_proj.weight" in tensors
    assert keys_of(zoo("mtp-qwen35"))["qwen35.block_count"] == 5


def test_every_chained_head_has_its_own_projection(zoo: Zoo) -> None:
    tensors, keys = tensors_of(zoo("step35-mtp3")), keys_of(zoo("step35-mtp3"))
    assert [f"blk.{i}.nextn.eh_proj.weight" in tensors for i in range(3, 8)] == [False, True, True, True, False]
    assert len(keys["step35.attention.sliding_window_pattern"]) == keys["step35.block_count"] == 7


def test_the_assistant_reads_the_keys_and_values_of_its_target(zoo: Zoo) -> None:
    keys, tensors = keys_of(zoo("gemma4-assistant")), tensors_of(zoo("gemma4-assistant"))
    assert keys["gemma4-assistant.embedding_length_out"] == keys_of(zoo("gemma4"))["gemma4.embedding_length"]
    assert not [name for name in tensors if "attn_k." in name or "attn_v." in name]


@pytest.mark.parametrize(
    ("name", "marks"),
    [
        ("dflash", set()),
        ("dflash2", {"selector_hidden.weight"}),
        ("dspark-anchor", {"markov_w1.weight", "conf_proj.weight"}),
        ("dspark-bonus", {"markov_w1.weight", "conf_proj.weight"}),
    ],
)
def test_block_drafters_are_told_apart_by_their_tensors(name: str, marks: set[str], zoo: Zoo) -> None:
    keys, tensors = keys_of(zoo(name)), tensors_of(zoo(name))
    assert {"selector_hidden.weight", "markov_w1.weight", "conf_proj.weight"} & tensors.keys() == marks
    assert keys["general.architecture"] == "dflash"
    assert keys["tokenizer.ggml.mask_token_id"] == 259
    assert keys["dflash.target_layers"] == [0, 2]
    assert tensors["fc.weight"] == (128, 64)


@pytest.mark.parametrize("name", ["dflash", "dflash2", "eagle3"])
def test_a_shared_draft_carries_neither_embeddings_nor_head(name: str, zoo: Zoo) -> None:
    whole, shared = tensors_of(zoo(name)), tensors_of(zoo(f"{name}-shared"))
    assert whole.keys() - shared.keys() == {"token_embd.weight", "output.weight"}


def test_a_mapped_draft_has_absolute_ids_as_int64(tmp_path: Path) -> None:
    own = kit.Own(mapped=True)
    models = [
        kit.dflash(tmp_path / "d.gguf", block=kit.Block(own=own), markov=kit.Markov()),
        kit.drafts.eagle3(tmp_path / "e.gguf", own=own),
    ]
    for path in models:
        d2t = next(t for t in gguf.GGUFReader(path).tensors if t.name == "d2t")
        assert d2t.tensor_type == gguf.GGMLQuantizationType.I64
        assert sorted(kit.World().active) == d2t.data.tolist()
        assert tensors_of(path)["output.weight"] == (64, 24)
    assert tensors_of(models[0])["markov_w2.weight"] == (32, 24)


def test_optional_parts_are_written_when_asked_for(tmp_path: Path) -> None:
    block = kit.Block(causal=True, window=32, rope_sections=(3, 3, 2, 0), sinks=True)
    path = kit.dflash(tmp_path / "d.gguf", block=block)
    keys = keys_of(path)
    assert keys["dflash.attention.causal"] is True
    assert keys["dflash.attention.sliding_window"] == 32
    assert keys["dflash.rope.dimension_sections"] == [3, 3, 2, 0]
    assert tensors_of(path)["blk.1.attn_sinks.weight"] == (8,)
    eagle = tensors_of(kit.drafts.eagle3(tmp_path / "e.gguf", norm_before_fc=True))
    assert eagle["enc.output_norm.weight"] == (192,)
    own = kit.Nextn(own_embeddings=True, own_head=True)
    mtp = tensors_of(kit.drafts.external_mtp(tmp_path / "m.gguf", nextn=own))
    assert mtp["blk.4.nextn.embed_tokens.weight"] == mtp["blk.4.nextn.shared_head_head.weight"] == (64, 288)
    assert "output.weight" not in tensors_of(kit.targets.dense(tmp_path / "t.gguf", tied=True))


def test_a_larger_model_is_a_matter_of_arguments(tmp_path: Path) -> None:
    shape = kit.Shape(n_layer=7, n_ff=128, n_head=8, n_kv=4, head=32)
    path = kit.targets.dense(tmp_path / "big.gguf", world=kit.World(width=256), shape=shape)
    tensors = tensors_of(path)
    assert tensors["blk.6.attn_q.weight"] == (256, 256)
    assert tensors["blk.6.ffn_down.weight"] == (128, 256)
    assert keys_of(path)["llama.block_count"] == 7


# -- vocabularies -----------------------------------------------------------------------------------------------------


def test_two_swapped_pieces_change_the_vocabulary_but_not_its_size() -> None:
    plain, swapped = kit.Vocabulary.byte_level(), kit.Vocabulary.byte_level(swap=(97, 98))
    assert [i for i in range(len(plain)) if plain.pieces[i] != swapped.pieces[i]] == [97, 98]


@pytest.mark.parametrize("n_vocab", [262, 287, 289, 320])
def test_a_vocabulary_can_be_shorter_or_longer(n_vocab: int) -> None:
    plain, other = kit.Vocabulary.byte_level(), kit.Vocabulary.byte_level(n_vocab=n_vocab)
    assert len(other) == n_vocab
    common = min(n_vocab, len(plain))
    assert other.pieces[:common] == plain.pieces[:common]


def test_a_vocabulary_too_small_for_its_bytes_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 262"):
        kit.Vocabulary.byte_level(n_vocab=261)


def test_byte_fallback_spells_what_it_has_no_letter_for() -> None:
    vocabulary = kit.Vocabulary.byte_fallback()
    ids = vocabulary.tokens_of("a \N{SLIGHTLY SMILING FACE}")
    assert [vocabulary.pieces[i] for i in ids] == ["a", "\u2581", "<0xF0>", "<0x9F>", "<0x99>", "<0x82>"]


def test_the_chat_model_carries_its_template(zoo: Zoo) -> None:
    assert keys_of(zoo("llama-chat"))["tokenizer.chat_template"] == kit.CHATML


# -- the world --------------------------------------------------------------------------------------------------------


def test_embeddings_survive_a_norm_and_the_head_reads_the_successor() -> None:
    world = kit.World()
    np.testing.assert_allclose((world.embeddings**2).sum(axis=1), world.width)
    logits = world.embeddings @ world.head.T
    for token in world.active:
        assert int(logits[token].argmax()) == world.successor(token)
        assert logits[token].max() == pytest.approx(world.gain)


def test_reciting_goes_round_the_cycle() -> None:
    world = kit.World(vocabulary=kit.Vocabulary.byte_level(), cycle="abcde", ordered=True)
    assert bytes(world.recite(ord("c"), 7)) == b"deabcde"


def test_shifting_moves_along_the_cycle_except_where_it_is_wrong() -> None:
    world = kit.World()
    wrong = world.wrong(0.25)
    assert len(wrong) == 6
    moved = world.embeddings[world.active] @ world.shift(1, wrong).T
    for i, row in enumerate(moved):
        j = (i + 1) % world.n_active
        expected = world.active[(j + 7) % world.n_active if j in wrong else j]
        np.testing.assert_allclose(row, world.embeddings[expected], atol=1e-9)


def test_a_cycle_that_repeats_a_token_or_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="twice"):
        kit.World(cycle="aba")
    with pytest.raises(ConfigError, match="at least 50"):
        kit.World(width=49)


# -- damage -----------------------------------------------------------------------------------------------------------


def test_an_edit_changes_what_was_asked_and_nothing_else(zoo: Zoo, tmp_path: Path) -> None:
    source = zoo("qwen35-mtp")
    path = corrupt.edit(
        source,
        tmp_path / "edited.gguf",
        drop_keys=["qwen35.full_attention_interval"],
        drop_tensors=["blk.2.ffn_up.weight"],
        keys={"qwen35.block_count": 9, "qwen35.extra": [1, 2], "qwen35.flag": True, "qwen35.rate": 0.5, "note": "x"},
        tensors={"output_norm.weight": np.zeros(8)},
    )
    before, after = keys_of(source), keys_of(path)
    counts = {name for name in before if name.startswith("GGUF.")}
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} - counts
    added = {"qwen35.extra", "qwen35.flag", "qwen35.rate", "note"}
    assert changed == {"qwen35.full_attention_interval", "qwen35.block_count", *added}
    assert [after[name] for name in sorted(added)] == ["x", [1, 2], True, 0.5]
    old, new = tensors_of(source), tensors_of(path)
    assert old.keys() - new.keys() == {"blk.2.ffn_up.weight"}
    assert {name for name in new if new[name] != old[name]} == {"output_norm.weight"}


def test_an_edit_of_nothing_is_a_faithful_copy(zoo: Zoo, tmp_path: Path) -> None:
    assert digest(corrupt.edit(zoo("gemma4"), tmp_path / "same.gguf")) == digest(zoo("gemma4"))


def test_the_architecture_can_be_changed_or_dropped_in_place(zoo: Zoo, tmp_path: Path) -> None:
    path = corrupt.edit(zoo("llama"), tmp_path / "m.gguf", keys={"general.architecture": "nonesuch"})
    assert keys_of(path)["general.architecture"] == "nonesuch"
    corrupt.edit(path, path, drop_keys=["general.architecture"])
    assert "general.architecture" not in keys_of(path)


def test_dropping_what_is_not_there_is_an_error(zoo: Zoo, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no llama\.nope, blk\.9\.x to drop"):
        corrupt.edit(zoo("llama"), tmp_path / "m.gguf", drop_keys=["llama.nope"], drop_tensors=["blk.9.x"])


def test_truncation_and_bad_bytes(zoo: Zoo, tmp_path: Path) -> None:
    data = zoo("llama").read_bytes()
    assert corrupt.truncate(zoo("llama"), tmp_path / "t", n_bytes=100).read_bytes() == data[:100]
    assert corrupt.truncate(zoo("llama"), tmp_path / "t", n_bytes=-1).read_bytes() == data[:-1]
    assert corrupt.bad_magic(zoo("llama"), tmp_path / "b").read_bytes() == b"GGML" + data[4:]
    with pytest.raises(ConfigError, match="nothing would change"):
        corrupt.truncate(zoo("llama"), tmp_path / "t", n_bytes=len(data))
    with pytest.raises(ConfigError, match="change nothing"):
        corrupt.overwrite(zoo("llama"), tmp_path / "b", at=0, data=b"GGUF")
