"""Opening, closing and questioning models; tokens and text."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specframe.backends.llama import model as model_module
from specframe.backends.llama.gguf import inspect
from specframe.backends.llama.library import load_library
from specframe.backends.llama.log import native_log
from specframe.backends.llama.model import Model
from specframe.backends.llama.vocab import LlamaVocab
from specframe.core.errors import BackendError, ClosedError, ConfigError
from specframe.core.ports import Need, Vocab
from specframe.testing.zoo import corrupt
from tests.support.threads import at_once


@pytest.fixture(scope="module")
def byte_level(zoo: Callable[[str], Path]) -> Iterator[Model]:
    with Model(zoo("llama-chat")) as model:
        yield model


@pytest.fixture(scope="module")
def byte_fallback(zoo: Callable[[str], Path]) -> Iterator[Model]:
    with Model(zoo("llama-utf8")) as model:
        yield model


class Context:
    """Stands for a context: notes whether its model was still there when it was closed."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.closed_while_open: bool | None = None
        model.adopt(self)

    def close(self) -> None:
        self.closed_while_open = not self.model.closed


def test_facts_are_those_of_the_file(zoo: Callable[[str], Path]) -> None:
    with Model(zoo("qwen35-mtp")) as model:
        file = model.gguf
        assert model.facts.arch == "qwen35"
        assert model.facts.n_embd == file.integer("{arch}.embedding_length")
        assert model.facts.n_ctx_train == file.integer("{arch}.context_length")
        assert model.facts.n_layer_nextn == 1
        assert model.facts.n_layer == (file.integer("{arch}.block_count") or 0) - 1
        assert model.facts.n_vocab == model.vocab.n_tokens == len(file.array("tokenizer.ggml.tokens") or ())
        assert model.facts.is_hybrid
        assert not model.facts.is_recurrent
        assert model.facts.rope == "imrope"
        assert model.facts.provides == Need.HIDDEN | Need.LAYER_INPUTS
        assert model.metadata["general.architecture"] == "qwen35"


def test_sizes_count_the_weights(byte_level: Model) -> None:
    tensors = byte_level.gguf.tensors.values()
    assert byte_level.facts.size_bytes == sum(tensor.n_bytes for tensor in tensors)
    assert byte_level.facts.n_params == byte_level.facts.size_bytes // 4
    assert "llama" in byte_level.facts.description
    assert byte_level.facts.has_decoder
    assert not byte_level.facts.has_encoder


def test_a_sliding_window_is_told(zoo: Callable[[str], Path]) -> None:
    with Model(zoo("gemma4")) as model:
        assert model.facts.n_swa == model.gguf.integer("{arch}.attention.sliding_window")


@pytest.mark.parametrize("options", [{"use_mmap": False}, {"use_mlock": True}, {"use_extra_bufts": False}])
def test_ways_of_loading_give_the_same_model(options: dict[str, Any], byte_level: Model) -> None:
    with Model(byte_level.path, n_gpu_layers=0, check_tensors=True, **options) as model:
        assert model.facts == byte_level.facts


def test_a_closed_model_says_so(zoo: Callable[[str], Path]) -> None:
    model = Model(zoo("llama"))
    assert "open" in repr(model)
    model.close()
    model.close()
    assert model.closed
    assert "closed" in repr(model)
    for use in (
        lambda: model.handle,
        lambda: model.vocab.tokenize("a"),
        lambda: model.vocab.bos,
        lambda: model.vocab.text(0),
        lambda: model.adopt(Context.__new__(Context)),
    ):
        with pytest.raises(ClosedError):
            use()
    assert model.facts.n_vocab == model.vocab.n_tokens


def test_contexts_are_closed_first(zoo: Callable[[str], Path]) -> None:
    model = Model(zoo("llama"))
    contexts = [Context(model), Context(model)]
    model.close()
    assert [context.closed_while_open for context in contexts] == [True, True]


def test_a_context_that_is_gone_is_forgotten(zoo: Callable[[str], Path]) -> None:
    with Model(zoo("llama")) as model:
        Context(model)
        gc.collect()
        assert not model._dependents


def test_a_forgotten_model_is_freed_and_its_vocabulary_knows(zoo: Callable[[str], Path]) -> None:
    model = Model(zoo("llama"))
    vocab = model.vocab
    del model
    gc.collect()
    with pytest.raises(ClosedError):
        vocab.tokenize("a")


def test_closing_from_many_threads_frees_once(zoo: Callable[[str], Path]) -> None:
    model = Model(zoo("llama"))
    at_once(lambda _: model.close())
    assert model.closed


@pytest.mark.parametrize("given", [-1, 10**11, "all", True])
def test_layers_to_offload_are_a_whole_number(given: Any, zoo: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="n_gpu_layers must be a whole number"):
        Model(zoo("llama"), n_gpu_layers=given)


def test_progress_runs_from_nothing_to_all(zoo: Callable[[str], Path]) -> None:
    seen: list[float] = []
    Model(zoo("llama"), progress=seen.append).close()
    assert seen == sorted(seen)
    assert seen[0] == 0.0
    assert seen[-1] == 1.0


@pytest.mark.parametrize("error", [RuntimeError("enough"), KeyboardInterrupt()])
def test_what_progress_raises_stops_the_load_and_comes_out(error: BaseException, zoo: Callable[[str], Path]) -> None:
    def stop(_fraction: float) -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        Model(zoo("llama"), progress=stop)
    assert raised.value is error


def test_a_missing_tensor_is_named(zoo: Callable[[str], Path], tmp_path: Path) -> None:
    path = corrupt.edit(zoo("llama"), tmp_path / "m.gguf", drop_tensors=["blk.1.ffn_up.weight"])
    with pytest.raises(ConfigError, match=r"m\.gguf cannot be loaded; llama\.cpp says: .*blk\.1\.ffn_up\.weight"):
        Model(path)


def test_a_missing_key_is_named(zoo: Callable[[str], Path], tmp_path: Path) -> None:
    path = corrupt.edit(zoo("llama"), tmp_path / "m.gguf", drop_keys=["llama.context_length"])
    with pytest.raises(ConfigError, match=r"llama\.cpp says: .*llama\.context_length"):
        Model(path)


def test_an_unknown_architecture_is_named(zoo: Callable[[str], Path], tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(zoo("llama").read_bytes().replace(b"llama", b"lhama"))
    with pytest.raises(ConfigError, match="lhama"):
        Model(path)


def test_a_file_that_would_end_the_process_is_not_tried(zoo: Callable[[str], Path], tmp_path: Path) -> None:
    path = corrupt.edit(zoo("llama"), tmp_path / "m.gguf", keys={"llama.block_count": 0})
    with pytest.raises(ConfigError, match=r"block_count is 0"):
        Model(path)


def test_no_memory_is_not_the_file_s_fault(byte_level: Model) -> None:
    library = load_library()

    class OutOfMemory:
        def __getattr__(self, name: str) -> object:
            return getattr(library.lib, name)

        def llama_model_load_from_file(self, *_: object) -> object:
            native_log.feed(4, "load_tensors: unable to allocate CPU buffer\n")
            return library.ffi.NULL

    fake = attrs.evolve(library, lib=OutOfMemory())
    with pytest.raises(BackendError, match="unable to allocate CPU buffer"):
        model_module._load(fake, byte_level.path, library.lib.llama_model_default_params(), None)


@pytest.mark.parametrize("kept", ["model", "model.vocab", "[model, model.vocab.tokenize]"])
def test_exiting_with_everything_open_is_clean(kept: str, zoo: Callable[[str], Path]) -> None:
    code = (
        "from specframe.backends.llama.model import Model\n"
        f"model = Model({str(zoo('llama'))!r}, progress=lambda fraction: None)\n"
        f"cycle = [{kept}]; cycle.append(cycle)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_it_is_the_vocabulary_of_the_contract(byte_level: Model) -> None:
    vocab: Vocab = byte_level.vocab
    assert vocab.eog
    assert all(vocab.piece(token) == b"" for token in vocab.eog)


def test_control_tokens_are_spelled_only_on_demand(byte_level: Model) -> None:
    vocab = byte_level.vocab
    eos = vocab.eos
    assert eos is not None
    assert eos in vocab.eog
    assert vocab.attr(eos) & load_library().lib.LLAMA_TOKEN_ATTR_CONTROL
    assert vocab.piece(eos) == b""
    assert vocab.piece_special(eos) == vocab.text(eos).encode()
    assert vocab.tokenize(vocab.text(eos), add_special=False, parse_special=True) == [eos]
    assert eos not in vocab.tokenize(vocab.text(eos), add_special=False)


@pytest.mark.parametrize("use", ["piece", "piece_special", "text", "attr"])
@pytest.mark.parametrize("token", [-1, 10**9])
def test_an_id_outside_the_vocabulary_is_refused(use: str, token: int, byte_level: Model) -> None:
    with pytest.raises(ConfigError, match=f"token id {token} is outside the vocabulary"):
        getattr(byte_level.vocab, use)(token)


def test_detokenizing_checks_its_ids(byte_level: Model) -> None:
    with pytest.raises(ConfigError, match="outside the vocabulary"):
        byte_level.vocab.detokenize([0, 10**9])
    assert byte_level.vocab.detokenize([]) == b""


@settings(max_examples=50, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
@pytest.mark.parametrize("which", ["byte_level", "byte_fallback"])
def test_text_survives_tokenizing(which: str, text: str, request: pytest.FixtureRequest) -> None:
    vocab: LlamaVocab = request.getfixturevalue(which).vocab
    ids = vocab.tokenize(text, add_special=False)
    assert b"".join(map(vocab.piece, ids)).removeprefix(b" ") == text.encode().removeprefix(b" ")
    assert vocab.detokenize(ids).lstrip(b" ") == text.encode().lstrip(b" ")


def test_an_empty_text_has_no_tokens(byte_level: Model) -> None:
    assert byte_level.vocab.tokenize("", add_special=False) == []


def test_a_lone_surrogate_is_refused(byte_level: Model) -> None:
    with pytest.raises(ConfigError, match=r"lone surrogate \(U\+D800\) at character 2"):
        byte_level.vocab.tokenize("ab\ud800")


def test_a_beginning_is_added_once(
    zoo: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = corrupt.edit(zoo("llama-utf8"), tmp_path / "m.gguf", keys={"tokenizer.ggml.add_bos_token": True})
    with Model(path) as model, caplog.at_level(logging.WARNING, "specframe.llama.vocab"):
        vocab = model.vocab
        bos = vocab.bos
        assert bos is not None
        assert vocab.add_bos
        assert vocab.tokenize_prompt("ab") == [bos, *vocab.tokenize("ab", add_special=False)]
        assert [record for record in caplog.records if record.name == "specframe.llama.vocab"] == []
        begun = f"{vocab.text(bos)}ab"
        assert vocab.tokenize(begun, parse_special=True)[:2] == [bos, bos]
        assert vocab.tokenize_prompt(begun, parse_special=True) == vocab.tokenize(
            begun, add_special=False, parse_special=True
        )
    assert f"the doubled token {bos} was dropped" in caplog.text


def test_two_beginnings_that_the_caller_wrote_stay(byte_fallback: Model) -> None:
    vocab = byte_fallback.vocab
    text = vocab.text(vocab.bos or 0) * 2
    assert vocab.tokenize_prompt(text, add_special=False, parse_special=True).count(vocab.bos or 0) == 2


@pytest.mark.parametrize("name", ["bos", "eos"])
def test_a_token_to_be_added_that_does_not_exist_is_refused(name: str, byte_level: Model) -> None:
    # Some tokenizer families have none; llama.cpp asserts on adding it.
    lacking = type("Lacking", (LlamaVocab,), {name: None, f"add_{name}": True})
    vocab: LlamaVocab = lacking(byte_level.library, byte_level.handle)
    with pytest.raises(ConfigError, match=f"tokenizer.ggml.{name}_token_id"):
        vocab.tokenize("a")
    assert vocab.tokenize("a", add_special=False) == byte_level.vocab.tokenize("a", add_special=False)


def test_special_tokens_that_are_absent_are_none(byte_level: Model) -> None:
    vocab = byte_level.vocab
    found = {name: getattr(vocab, name) for name in ("bos", "eos", "eot", "sep", "nl", "pad", "mask")}
    assert found["eos"] is not None
    assert None in found.values()
    assert all(token is None or 0 <= token < vocab.n_tokens for token in found.values())


def test_the_kind_of_tokenizer_is_told(byte_level: Model, byte_fallback: Model) -> None:
    assert (byte_level.vocab.kind, byte_fallback.vocab.kind) == ("bpe", "spm")
    assert not byte_level.vocab.add_eos


def test_a_file_without_a_tokenizer_is_refused(zoo: Callable[[str], Path], tmp_path: Path) -> None:
    path = corrupt.edit(
        zoo("llama"),
        tmp_path / "m.gguf",
        keys={"tokenizer.ggml.model": "none", "llama.vocab_size": len(_tokens(zoo("llama")))},
    )
    with pytest.raises(ConfigError, match="has no tokenizer"):
        Model(path)


def _tokens(path: Path) -> tuple[object, ...]:
    return inspect(path).array("tokenizer.ggml.tokens") or ()


def test_the_real_model_is_what_its_card_says(smollm2: Path) -> None:
    with Model(smollm2) as model:
        assert model.facts.n_params == 134_515_008
        assert model.vocab.n_tokens == 49_152
        text = "<|im_start|>user\nHi\0 \U0001f600<|im_end|>"
        ids = model.vocab.tokenize_prompt(text, parse_special=True)
        assert ids[0] == model.vocab.bos
        assert model.vocab.detokenize(ids, unparse_special=True) == text.encode()
        assert "tokenizer.chat_template" in model.metadata
