"""Keys and values of the target in other formats: rows stay equal at every width, and so do texts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import specframe
from specframe.backends.llama import kernels
from specframe.backends.llama.audit import Audit, audit, sweep
from specframe.backends.llama.context import Context
from specframe.backends.llama.context_options import CACHE_TYPES, IN_BLOCKS
from specframe.backends.llama.model import Model
from specframe.backends.llama.settings_key import settings_key
from specframe.backends.llama.target import LlamaTarget
from specframe.core.engine import Engine
from specframe.core.errors import ConfigError
from specframe.core.request import Request
from specframe.core.sampling import SamplingParams
from specframe.testing import Noisy
from specframe.testing.zoo import Shape, World, corrupt, drafts, targets
from tests.support.exact import quantized
from tests.support.llama import Zoo

PROMPT = [*b"the cat the cat the "]

#: Of 64 values each: llama.cpp turns keys and values of such heads before it stores them in blocks.
TURNED = Shape(n_layer=2, n_ff=512, n_head=4, n_kv=2, head=64)
#: Of 32 it does not.
STRAIGHT = Shape(n_layer=2, n_ff=512, n_head=4, n_kv=2, head=32)
FORMATS = (
    ("q8_0", "q8_0"),
    ("q4_0", "f16"),
    ("f16", "iq4_nl"),
    ("bf16", "q5_1"),
    ("f32", "f32"),
    ("f16", "f32"),
    ("bf16", "f16"),
)

Made = Callable[..., Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """``made(kind, shape, arch)`` is a model with weights of one type, written once."""
    directory = tmp_path_factory.mktemp("formats")
    build: dict[str, Callable[..., Path]] = {
        "llama": targets.dense,
        "gemma4": targets.sliding_window,
        "qwen35": targets.hybrid,
    }

    def get(kind: str, shape: Shape = TURNED, arch: str = "llama") -> Path:
        path = directory / f"{arch}-{shape.head}-{kind}.gguf"
        if not path.is_file():
            world = {} if arch == "qwen35" else {"world": World(width=256)}
            source = build[arch](directory / "source.gguf", shape=shape, **world)
            quantized(source, path, kind=kind)
        return path

    return get


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "F16", "BF16"])
@pytest.mark.parametrize("shape", [TURNED, STRAIGHT], ids=["turned", "straight"])
def test_rows_do_not_depend_on_the_width(made: Made, kind: str, shape: Shape) -> None:
    """Behind a long context as well, where a single row on F16 would be computed in parts, one for each thread."""
    with Model(made(kind, shape)) as model:
        for type_k, type_v in FORMATS:
            found = audit(
                model, widths=(1, 2, 5, 8, 24), n_threads=2, exact=kind == "BF16", type_k=type_k, type_v=type_v
            )
            assert found.exact_width == 24, (type_k, type_v, found.rows)
            assert f"{type_k} keys and {type_v} values" in found.settings


@pytest.mark.parametrize(
    ("weights", "exact", "expected"),
    [
        ({"q4_1", "q8_0"}, False, set()),
        ({"q4_K", "f32"}, False, {1, 2, 63}),
        ({"f16", "f32"}, False, {1, 2, 63}),
        ({"bf16", "f32"}, False, set()),
        ({"bf16", "f32"}, True, {1, 2, 63}),
    ],
)
def test_the_mode_is_one_for_all_widths_where_memory_is_turned(
    weights: set[str], exact: bool, expected: set[int]
) -> None:
    rows = kernels._referenced(weights, exact=exact, turned=True)
    assert {n for n in (1, 2, 63) if n in rows} == expected


@pytest.mark.parametrize("arch", ["llama", "gemma4", "qwen35"])
@pytest.mark.parametrize(("type_k", "type_v"), [("q8_0", "q8_0"), ("q4_0", "q5_1"), ("bf16", "f32")])
@pytest.mark.parametrize("parallel", [1, 2])
def test_drafts_change_no_text(made: Made, arch: str, type_k: str, type_v: str, parallel: int) -> None:
    sampled: dict[str, Any] = {"max_tokens": 60, "temperature": 1.5, "ignore_eos": True, "reuse_prefix": False}
    with specframe.load(
        made("Q8_0", TURNED, arch),
        strategy="none",
        type_k=type_k,
        type_v=type_v,
        n_ctx=256,
        threads=1,
        threads_batch=2,
        parallel=parallel,
    ) as llm:
        assert (llm.info.type_k, llm.info.type_v) == (type_k, type_v)
        prompts = [llm.tokenize(text, add_special=True) for text in ("abcabcabc", "the cat the cat")[:parallel]]
        plain = [llm.generate(prompt, seed=seed, **sampled) for seed, prompt in enumerate(prompts)]
        streams = [
            llm.stream(
                prompt,
                seed=seed,
                strategy=Noisy,
                options={"tape": (*prompt, *right.tokens), "accuracy": 0.8},
                draft_length=7,
                **sampled,
            )
            for seed, (prompt, right) in enumerate(zip(prompts, plain, strict=True))
        ]
        drafted = [stream.result() for stream in streams]
    assert [each.tokens for each in drafted] == [each.tokens for each in plain]
    assert all(each.stats.accepted > 20 and each.stats.rollbacks for each in drafted)


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_exact_numerics_look_at_the_memory_that_is_used(
    made: Made, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path))
    options: dict[str, Any] = {"max_tokens": 60, "temperature": 1.5, "seed": 3, "ignore_eos": True}
    with specframe.load(
        made(kind), strategy="none", numerics="exact", type_k="q8_0", type_v="q8_0", n_ctx=256, threads=1
    ) as llm:
        plain = llm.generate("abcabc", reuse_prefix=False, **options)
        noisy = {"tape": (*llm.tokenize("abcabc", add_special=True), *plain.tokens), "accuracy": 0.9}
        drafted = llm.generate("abcabc", strategy=Noisy, options=noisy, draft_length=7, reuse_prefix=False, **options)
    assert drafted.tokens == plain.tokens
    assert drafted.stats.accepted > 20
    [kept] = [json.loads(path.read_text()) for path in (tmp_path / "audits").iterdir()]
    assert (kept["type_k"], kept["type_v"], kept["exact_width"]) == ("q8_0", "q8_0", 63)


def test_a_draft_that_attends_to_memory_in_blocks(made: Made, tmp_path: Path) -> None:
    """An assistant reads the keys and values of its target, whatever they are stored as."""
    assistant = drafts.assistant(tmp_path / "assistant.gguf", world=World(width=256), head=TURNED.head)
    with specframe.load(
        made("Q8_0", TURNED, "gemma4"), draft=assistant, type_k="q8_0", type_v="q8_0", n_ctx=256, threads=1
    ) as llm:
        options: dict[str, Any] = {"max_tokens": 40, "temperature": 0, "ignore_eos": True}
        drafted = llm.generate("abcabc", strategy="mtp", draft_length=3, **options)
        assert drafted.tokens == llm.generate("abcabc", strategy="none", **options).tokens
        assert drafted.stats.verified > 0


def test_every_format_works_for_keys_and_for_values(made: Made) -> None:
    with Model(made("Q8_0")) as model:
        for name in CACHE_TYPES:
            wanted: tuple[dict[str, Any], ...] = ({"type_k": name}, {"type_v": name}, {"type_k": name, "type_v": name})
            for options in wanted:
                with LlamaTarget(model, n_ctx=256, n_threads=1, **options) as target, Engine(target) as engine:
                    request = Request(prompt=PROMPT, max_tokens=4, sampling=SamplingParams(ignore_eos=True))
                    assert engine.submit(request).result().completion_tokens == 4


def test_what_cannot_be_stored_is_refused_before_llama_cpp_sees_it(zoo: Zoo, made: Made, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="type_v 'q8_0' needs flash_attn"):
        specframe.load(made("Q8_0"), type_v="q8_0", flash_attn=False)
    with specframe.load(made("Q8_0"), type_k="q8_0", flash_attn=False, n_ctx=256) as llm:
        assert llm.generate("abc", max_tokens=4).tokens
    with pytest.raises(ConfigError, match="type_k 'q8_0' stores blocks of 32 values, which do not divide"):
        specframe.load(zoo("llama"), type_k="q8_0", n_ctx=256)
    with pytest.raises(ConfigError, match="type_k 'q8' is not a memory format; did you mean 'q8_0'"):
        specframe.load(tmp_path / "missing.gguf", type_k="q8")
    latent = corrupt.edit(zoo("llama"), tmp_path / "latent.gguf", keys={"llama.attention.key_length_mla": 16})
    with Model(zoo("llama")) as model, Model(latent) as other:
        assert not Context(model, type_k="bf16").closed
        with pytest.raises(ConfigError, match="type_k 'bf16' and type_v 'f16' must be the same for llama models"):
            Context(other, type_k="bf16")


def test_keys_in_blocks_cannot_be_shifted(made: Made) -> None:
    with (
        specframe.load(made("Q8_0"), type_k="q8_0", n_ctx=64, threads=1) as llm,
        pytest.raises(ConfigError, match="context_full='shift' does not work with this model"),
    ):
        llm.generate("abc", max_tokens=100, context_full="shift")
    with specframe.load(made("Q8_0"), type_v="q8_0", n_ctx=64, threads=1) as llm:
        done = llm.generate("abc", max_tokens=100, context_full="shift", ignore_eos=True)
        assert (done.completion_tokens, done.stats.shifts > 0) == (100, True)


def test_a_session_with_another_format_is_refused_by_name(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "q8.session"
    options: dict[str, Any] = {"n_ctx": 256, "threads": 1, "strategy": "none"}
    with specframe.load(made("Q8_0"), type_k="q8_0", type_v="q4_0", **options) as llm:
        right = llm.generate(PROMPT, max_tokens=8, temperature=0, reuse_prefix=False)
        llm.save_session(path, PROMPT)
    with specframe.load(made("Q8_0"), type_k="q8_0", type_v="q8_0", **options) as llm:  # noqa: SIM117 -- reads in order
        with pytest.raises(ConfigError, match="made with type_v 'q4_0'"):
            llm.load_session(path)
    with specframe.load(made("Q8_0"), type_k="q8_0", type_v="q4_0", **options) as llm:
        assert llm.load_session(path) == len(PROMPT) - 1
        assert llm.generate(PROMPT, max_tokens=8, temperature=0).tokens == right.tokens


@pytest.mark.parametrize(
    "changed", [{"type_k": "q8_0"}, {"type_v": "f32"}, {"threads_batch": 2}, {"offload_kqv": False}], ids=str
)
def test_costs_are_kept_for_these_settings_and_no_others(
    made: Made, changed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path))
    for options, n_kept in (({}, 1), (changed, 2), (changed, 2)):
        with specframe.load(made("Q8_0"), n_ctx=256, threads=1, **options) as llm:
            llm.generate("abcabcabcabc", max_tokens=12, ignore_eos=True)
        assert len(list((tmp_path / "costs").iterdir())) == n_kept


def test_verdicts_are_kept_for_these_settings_and_no_others(made: Made) -> None:
    with Model(made("Q8_0")) as model:
        keys = {settings_key(model, {"type_k": kind, "type_v": "f16"}) for kind in CACHE_TYPES}
    assert len(keys) == len(CACHE_TYPES)


def test_a_sweep_leaves_out_what_values_in_blocks_rule_out(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[bool] = []

    def measured(model: Model, **options: Any) -> Audit:
        tried.append(options.get("flash_attn", True))
        return audit(model, **{**options, "widths": (1,), "contexts": (32,)})

    monkeypatch.setattr("specframe.backends.llama.audit.audit", measured)
    for type_v in ("q8_0", "f16"):
        tried.clear()
        sweep(lambda **more: Model(made("Q8_0"), **more), rounds=1, type_v=type_v)
        assert (False in tried) is (type_v not in IN_BLOCKS)


# -- how weights are loaded -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"use_mmap": False}, {"use_mlock": True}, {"check_tensors": True}], ids=str)
def test_the_text_does_not_depend_on_how_weights_are_loaded(made: Made, options: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    with specframe.load(made("Q8_0"), n_ctx=256, threads=1) as llm:
        right = llm.generate("abc", **asked)
    with specframe.load(made("Q8_0"), n_ctx=256, threads=1, **options) as llm:
        assert llm.generate("abc", **asked).tokens == right.tokens


def test_invalid_values_are_found_when_they_are_looked_for(zoo: Zoo, tmp_path: Path) -> None:
    bad = corrupt.edit(
        zoo("llama"), tmp_path / "nan.gguf", tensors={"output_norm.weight": [float("nan")] * World().width}
    )
    with pytest.raises(ConfigError, match=r"nan\.gguf cannot be loaded; llama\.cpp says: .*output_norm\.weight"):
        specframe.load(bad, n_ctx=256, check_tensors=True)


@pytest.mark.parametrize("name", ["use_mmap", "use_mlock", "check_tensors"])
def test_how_weights_are_loaded_is_said_with_true_or_false(zoo: Zoo, name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be true or false, not 'no'"):
        specframe.load(zoo("llama"), **{name: "no"})  # type: ignore[arg-type]
