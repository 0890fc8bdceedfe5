"""Reading GGUF files: whole ones, damaged ones, and ones that would end the process."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specframe.backends.llama import gguf
from specframe.backends.llama.gguf import MAX_INLINE_ARRAY, GgufFile, LongArray, inspect, inspecting
from specframe.backends.llama.library import Library, load_library
from specframe.backends.llama.model import Model
from specframe.backends.llama.validation import validate_loadable, validate_target
from specframe.core.errors import ConfigError, SpecframeError
from specframe.testing.zoo import NAMES, corrupt

DRAFT_ONLY = ("gemma4-assistant", "dflash", "dflash2-shared", "dspark-bonus", "eagle3")
TARGETS = ("llama", "llama-utf8", "llama-chat", "qwen3", "qwen35-mtp", "step35-mtp3", "gemma4", "draft-simple")


@pytest.fixture
def llama(zoo: Callable[[str], Path]) -> Path:
    return zoo("llama")


def test_metadata_comes_as_python_values(llama: Path) -> None:
    file = inspect(llama)
    assert file.arch == "llama"
    assert file.version == 3
    assert file.integer("{arch}.block_count") == file.metadata["llama.block_count"]
    assert isinstance(file.metadata["llama.attention.layer_norm_rms_epsilon"], float)
    assert file.metadata["tokenizer.ggml.model"] == "gpt2"
    assert file.get("no.such.key") is None
    assert file.integer("no.such.key") is None
    assert file.size_bytes == llama.stat().st_size
    assert file.parts == (llama,)


def test_the_tensor_directory_is_read(llama: Path) -> None:
    file = inspect(llama)
    embedding = file.tensors["token_embd.weight"]
    assert embedding.kind == "f32"
    assert embedding.shape[0] == file.metadata["llama.embedding_length"]
    assert embedding.n_bytes == 4 * embedding.shape[0] * embedding.shape[1]


def test_files_are_read_once_and_with_the_given_library_where_that_was_asked_for(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = load_library()

    def other_library() -> Library:
        raise AssertionError("another library was asked for")

    monkeypatch.setattr(gguf, "load_library", other_library)
    with inspecting(library):
        file = inspect(llama)
        with inspecting(library):
            assert inspect(llama) is inspect(llama, library=library) is file
        assert inspect(llama) is file
    assert inspect(llama, library=library) is not file
    with pytest.raises(AssertionError, match="another library"):
        inspect(llama)


def test_it_is_frozen(llama: Path) -> None:
    file = inspect(llama)
    with pytest.raises(AttributeError):
        file.version = 4  # type: ignore[misc]
    with pytest.raises(TypeError):
        file.metadata["x"] = 1  # type: ignore[index]


def test_long_arrays_are_named_and_read_on_demand(llama: Path, tmp_path: Path) -> None:
    many = list(range(MAX_INLINE_ARRAY + 1))
    path = corrupt.edit(llama, tmp_path / "long.gguf", keys={"x.many": many, "x.few": many[:-1], "x.words": ["é", "b"]})
    file = inspect(path)
    assert file.metadata["x.many"] == LongArray("int32", len(many))
    assert file.array("x.many") == tuple(many)
    assert file.metadata["x.few"] == tuple(many[:-1])
    assert file.array("x.words") == ("é", "b")
    assert file.array("x.none") is None
    with pytest.raises(ConfigError, match="should be an array"):
        file.array("general.architecture")
    with pytest.raises(ConfigError, match="should be an integer"):
        file.integer("general.architecture")


def test_a_file_that_changed_meanwhile_is_noticed(llama: Path, tmp_path: Path) -> None:
    many = list(range(MAX_INLINE_ARRAY + 1))
    path = corrupt.edit(llama, tmp_path / "long.gguf", keys={"x.many": many})
    file = inspect(path)
    path.write_bytes(llama.read_bytes())
    with pytest.raises(ConfigError, match="changed while it was in use"):
        file.array("x.many")


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a directory"):
        inspect(tmp_path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        inspect(tmp_path / "no.gguf")


@pytest.mark.parametrize("content", [b"", b"GG", b"GGML" + bytes(64)])
def test_a_file_that_is_not_gguf_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="is not a GGUF file"):
        inspect(path)


def test_a_truncated_file_names_the_tensor(llama: Path, tmp_path: Path) -> None:
    path = corrupt.truncate(llama, tmp_path / "cut.gguf", n_bytes=-1)
    with pytest.raises(ConfigError, match=r"is truncated: tensor \S+ ends at byte"):
        inspect(path)


def test_an_unreadable_header_quotes_the_reason(llama: Path, tmp_path: Path) -> None:
    path = corrupt.overwrite(llama, tmp_path / "v.gguf", at=4, data=(99).to_bytes(4, "little"))
    with pytest.raises(ConfigError, match="version 99"):
        inspect(path)


def split(source: Path, directory: Path, numbers: tuple[int, ...] = (0, 1), count: int = 2) -> list[Path]:
    paths = []
    for number in numbers:
        path = directory / f"m-{number + 1:05d}-of-{count:05d}.gguf"
        paths.append(corrupt.edit(source, path, keys={"split.no": number, "split.count": count}))
    return paths


def test_a_split_model_is_read_whole(llama: Path, tmp_path: Path) -> None:
    parts = split(llama, tmp_path)
    file = inspect(parts[0])
    assert file.parts == tuple(parts)
    assert file.size_bytes == sum(part.stat().st_size for part in parts)


def test_a_later_part_is_not_the_model(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="part 2 of 2 of a split model; name the first"):
        inspect(split(llama, tmp_path)[1])


def test_a_missing_part_is_named(llama: Path, tmp_path: Path) -> None:
    first = split(llama, tmp_path, numbers=(0,))[0]
    with pytest.raises(ConfigError, match=r"m-00002-of-00002\.gguf cannot be read"):
        inspect(first)


def test_a_renamed_first_part_is_refused(llama: Path, tmp_path: Path) -> None:
    first = split(llama, tmp_path)[0].rename(tmp_path / "other.gguf")
    with pytest.raises(ConfigError, match=r"its name should end in -00001-of-00002\.gguf"):
        inspect(first)


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_model_can_be_loaded(name: str, zoo: Callable[[str], Path]) -> None:
    with Model(zoo(name)) as model:
        assert model.facts.arch == inspect(zoo(name)).arch


@pytest.mark.parametrize("name", TARGETS)
def test_targets_are_accepted(name: str, zoo: Callable[[str], Path]) -> None:
    validate_target(inspect(zoo(name)))


@pytest.mark.parametrize("name", DRAFT_ONLY)
def test_draft_models_are_refused_as_targets(name: str, zoo: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="draft model: it cannot generate by itself"):
        validate_target(inspect(zoo(name)))


def test_prediction_blocks_alone_are_refused_as_a_target(zoo: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match=r"blk\.0\.attn_norm\.weight.*as the draft of the full model"):
        validate_target(inspect(zoo("mtp-qwen35")))


def test_a_vocabulary_alone_is_refused_as_a_target(llama: Path, tmp_path: Path) -> None:
    path = corrupt.edit(llama, tmp_path / "v.gguf", drop_tensors=list(inspect(llama).tensors))
    with pytest.raises(ConfigError, match="no weights"):
        validate_target(inspect(path))


def test_a_target_without_its_first_layer_is_refused(llama: Path, tmp_path: Path) -> None:
    first = [name for name in inspect(llama).tensors if name.startswith("blk.0.")]
    path = corrupt.edit(llama, tmp_path / "v.gguf", drop_tensors=first)
    with pytest.raises(ConfigError, match=r"no tensors of layer 0"):
        validate_target(inspect(path))


@pytest.mark.parametrize("tokenizer", ["none", "no_vocab"])
def test_a_target_without_a_tokenizer_is_refused(tokenizer: str, llama: Path, tmp_path: Path) -> None:
    path = corrupt.edit(llama, tmp_path / "v.gguf", keys={"tokenizer.ggml.model": tokenizer})
    with pytest.raises(ConfigError, match=r"tokenizer\.ggml\.model is 'no"):
        validate_target(inspect(path))


#: A model of the zoo, values of keys or types of tensors that make it bad, and what is said of them.
Damage = tuple[str, dict[str, Any], str]

# Each of these ends the process when llama.cpp is given the file.
FATAL: list[Damage] = [
    ("llama", {"llama.block_count": 0}, r"llama\.block_count is 0 and must be between 1 and 512"),
    ("llama", {"llama.block_count": 513}, r"llama\.block_count is 513 and must be between 1 and 512"),
    ("qwen35-mtp", {"qwen35.nextn_predict_layers": 99}, r"nextn_predict_layers is 99 and must be between 0 and"),
    ("llama", {"llama.expert_used_count": 1}, r"expert_used_count is 1 and must be between 0 and 0"),
    ("llama", {"llama.expert_count": 1025}, r"expert_count is 1025 and must be between 0 and 1024"),
    ("llama", {"llama.expert_count": 4, "llama.expert_used_count": 5}, r"expert_used_count is 5 and must be between 1"),
    ("llama", {"llama.expert_count": 4}, r"expert_used_count is missing and must be between 1 and 4"),
    (
        "llama",
        {"llama.expert_count": 4, "llama.expert_used_count": [9] * 4},
        r"expert_used_count is 9 and must have",
    ),
    ("llama", {"llama.expert_group_count": 2}, r"expert_group_count is 2 and must be between 0 and 0"),
    (
        "llama",
        {"llama.expert_count": 4, "llama.expert_used_count": 2, "llama.expert_group_count": 3},
        r"expert_group_count is 3 and must divide 4",
    ),
    (
        "llama",
        {"llama.expert_count": 4, "llama.expert_used_count": 2, "llama.expert_group_count": 2},
        r"expert_group_used_count is missing and must be between 1 and 1",
    ),
    (
        "llama",
        {"llama.rope.scaling.type": "spiral"},
        r"rope\.scaling\.type is 'spiral' and must be one of none",
    ),
    ("qwen35", {"qwen35.full_attention_interval": 0}, r"full_attention_interval is 0 and must be at least 1"),
]


def damage(zoo: Callable[[str], Path], name: str, keys: dict[str, Any], path: Path) -> Path:
    source = zoo(name)
    layers = inspect(source).integer("{arch}.block_count")
    # One value per layer where a list is meant.
    values = {key: value[:1] * (layers or 1) if isinstance(value, list) else value for key, value in keys.items()}
    tensors = {
        key: np.ones(inspect(source).tensors[key].shape[::-1], values.pop(key))
        for key, value in keys.items()
        if isinstance(value, type)
    }
    return corrupt.edit(source, path, keys=values, tensors=tensors)


#: Programs that use the files named by their arguments, each in a child, and print those that did not end it.
EACH_IN_A_CHILD = """
for path in sys.argv[1:]:
    child = os.fork()
    if not child:
        use(path)
        os._exit(0)
    if not os.WIFSIGNALED(os.waitpid(child, 0)[1]):
        print(path)
"""
LOADING = f"""
import os, sys
from specframe.backends.llama.library import load_library
lib = load_library().lib
def use(path):
    lib.llama_model_load_from_file(os.fsencode(path), lib.llama_model_default_params())
{EACH_IN_A_CHILD}"""
GENERATING = f"""
import os, sys
import specframe, specframe.backends.llama.model as model, specframe.backends.llama.validation as validation
model.validate_loadable = validation.validate_loadable = validation.validate_target = lambda _: None
def use(path):
    specframe.load(path, threads=1, n_ctx=64).generate("abc", max_tokens=2)
{EACH_IN_A_CHILD}"""


def survivors(zoo: Callable[[str], Path], damages: Sequence[Damage], directory: Path, program: str) -> list[Damage]:
    """Those with which ``program`` works."""
    paths = [directory / f"{i}.gguf" for i in range(len(damages))]
    for (name, keys, _), path in zip(damages, paths, strict=True):
        damage(zoo, name, keys, path)
    alive = use(program, *paths)
    return [each for each, path in zip(damages, paths, strict=True) if str(path) in alive]


def use(program: str, *paths: Path) -> list[str]:
    """What ``program`` prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, paths)],
        capture_output=True,
        check=True,
        text=True,
        timeout=300,
        env={**os.environ, "GGML_NO_BACKTRACE": "1"},
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(("name", "keys", "message"), FATAL)
def test_values_that_would_end_the_process_are_refused(
    name: str, keys: dict[str, Any], message: str, zoo: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        validate_loadable(inspect(damage(zoo, name, keys, tmp_path / "bad.gguf")))


def test_refused_files_would_have_ended_the_process(zoo: Callable[[str], Path], tmp_path: Path) -> None:
    # Or the check refuses what would work. When upstream stops aborting, this says which check can go.
    assert survivors(zoo, FATAL, tmp_path, LOADING) == []


# And each of these in the first computation.
FATAL_LATER: list[Damage] = [
    (
        "qwen35",
        {"qwen35.rope.dimension_count": 64},
        r"qwen35\.rope\.dimension_count is 64 and must be even",
    ),
    (
        "qwen35",
        {"qwen35.rope.dimension_count": 15},
        r"qwen35\.rope\.dimension_count is 15 and must be even",
    ),
    ("step35-mtp3", {"step35.rope.dimension_count_swa": 4096}, r"dimension_count_swa is 4096 and must be even"),
    ("gemma4", {"gemma4.attention.shared_kv_layers": 3}, r"shared_kv_layers is 3 and must be between 0 and 2"),
    (
        "qwen35",
        {"qwen35.rope.dimension_sections": (9, 9, 0, 0)},
        r"dimension_sections is \[9, 9, 0, 0\] and must",
    ),
    (
        "qwen35",
        {"qwen35.rope.dimension_sections": (0, 0, 0, 0)},
        r"dimension_sections is \[0, 0, 0, 0\] and must have",
    ),
    ("qwen35", {"qwen35.ssm.inner_size": 128}, r"ssm\.inner_size is 128 and must be ssm\.state_size \(16\) times"),
    ("qwen3", {"qwen3.rope.dimension_count": 0}, r"rope\.dimension_count is 0 and must be even .* and above 0"),
    ("llama", {"output.weight": np.int64}, r"the tensor output\.weight is of type i64 and holds no weights"),
    ("llama", {"token_embd.weight": np.int32}, r"token_embd\.weight is of type i32 and holds no weights"),
    ("llama", {"blk.0.ffn_up.weight": np.int8}, r"ffn_up\.weight is of type i8 and holds no weights"),
    ("llama", {"blk.0.attn_norm.weight": np.float16}, r"attn_norm\.weight is of type f16 and must be f32"),
    ("qwen35", {"blk.0.ssm_conv1d.weight": np.float16}, r"ssm_conv1d\.weight is of type f16 and must be f32"),
    ("qwen35", {"blk.0.ssm_a": np.float16}, r"ssm_a is of type f16 and must be f32"),
    ("gemma4", {"rope_freqs.weight": np.float16}, r"rope_freqs\.weight is of type f16 and must be f32"),
]


@pytest.mark.parametrize(("name", "keys", "message"), FATAL_LATER)
def test_values_that_would_end_a_computation_are_refused(
    name: str, keys: dict[str, Any], message: str, zoo: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        validate_target(inspect(damage(zoo, name, keys, tmp_path / "bad.gguf")))


def test_refused_files_would_have_ended_a_computation(zoo: Callable[[str], Path], tmp_path: Path) -> None:
    assert survivors(zoo, FATAL_LATER, tmp_path, GENERATING) == []


def test_repeated_tokens_are_refused(llama: Path, tmp_path: Path) -> None:
    tokens = list(inspect(llama).array("tokenizer.ggml.tokens") or ())
    tokens[7] = tokens[3]
    path = corrupt.edit(llama, tmp_path / "bad.gguf", keys={"tokenizer.ggml.tokens": tokens})
    with pytest.raises(ConfigError, match="twice, the second time at 7"):
        validate_loadable(inspect(path))
    assert use(LOADING, path, llama) == [str(llama)]


def test_a_file_without_an_architecture_is_refused(llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    # The key is renamed in place: the writer that makes the copies needs an architecture.
    path.write_bytes(llama.read_bytes().replace(b"general.architecture", b"general.architectura", 1))
    with pytest.raises(ConfigError, match=r"general\.architecture is missing"):
        validate_loadable(inspect(path))


def test_a_projector_is_refused(llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    key = b"general.architecture" + (8).to_bytes(4, "little")
    old, new = (key + len(arch).to_bytes(8, "little") + arch for arch in (b"llama", b"clip"))
    path.write_bytes(llama.read_bytes().replace(old, new, 1))
    with pytest.raises(ConfigError, match="projector"):
        validate_loadable(inspect_header(path))


def inspect_header(path: Path) -> GgufFile:
    """One byte was lost before the tensors, which moves the padded data by nothing or by one alignment."""
    with path.open("ab") as file:
        file.write(bytes(64))
    return inspect(path)


def test_a_dense_hunyuan_may_have_expert_keys(llama: Path, tmp_path: Path) -> None:
    file = inspect(corrupt.edit(llama, tmp_path / "h.gguf", keys={"hunyuan-dense.expert_count": 1}))
    metadata = {**file.metadata, "general.architecture": "hunyuan-dense"}
    validate_loadable(GgufFile(file.path, 3, metadata, file.tensors, 0, file.parts, file._library))


def survives(path: Path) -> None:
    try:
        validate_target(inspect(path))
    except SpecframeError:
        return


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_headers_are_errors_never_crashes(data: st.DataObject, damaged_dir: tuple[Path, bytes]) -> None:
    directory, original = damaged_dir
    end = len(original) // 2
    damaged = bytearray(original)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(4, end))
        damaged[at : at + 8] = data.draw(
            st.sampled_from([b"\xff" * 8, bytes(8), b"\xff" * 7 + b"\x7f", b"\x00\x00\x00\x40" + bytes(4)])
            | st.binary(min_size=1, max_size=8)
        )
    if data.draw(st.booleans()):
        del damaged[data.draw(st.integers(4, len(damaged))) :]
    path = directory / "damaged.gguf"
    path.write_bytes(damaged)
    survives(path)


@pytest.fixture(scope="module")
def damaged_dir(tmp_path_factory: pytest.TempPathFactory, zoo: Callable[[str], Path]) -> tuple[Path, bytes]:
    original = zoo("llama").read_bytes()
    return tmp_path_factory.mktemp("damaged"), original[: original.index(b"token_embd.weight") + 4096]


@pytest.mark.parametrize("seed", range(3))
def test_a_file_cut_anywhere_is_an_error(seed: int, llama: Path, tmp_path: Path) -> None:
    size, choose = llama.stat().st_size, random.Random(seed)
    for _ in range(20):
        path = corrupt.truncate(llama, tmp_path / "cut.gguf", n_bytes=choose.randrange(1, size - 1))
        with pytest.raises(ConfigError):
            inspect(path)
