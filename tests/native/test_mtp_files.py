"""Files and settings that would end the process in a prediction head are refused first; one process sees them all."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specframe
from specframe.backends.llama.autoregressive_context import DraftEntry
from specframe.backends.llama.context import Context
from specframe.backends.llama.gguf import inspect
from specframe.backends.llama.model import Model
from specframe.backends.llama.mtp_files import check_mtp
from specframe.backends.llama.nextn_context import NextnContext
from specframe.compatibility import check_files
from specframe.core.errors import BackendError, ClosedError, ConfigError
from specframe.core.strategy import StrategyContext, StrategySpec
from specframe.strategies.mtp import Mtp
from specframe.testing import ScriptedTarget
from specframe.testing.zoo import Shape, Vocabulary, World, corrupt, drafts, targets
from tests.support.drafting import engine, request, spec
from tests.support.llama import Zoo

Make = Callable[[Zoo, Path], tuple[Path, Path | None]]

HYBRID = World(vocabulary=Vocabulary.byte_level(pre="qwen35"))


def _edited(name: str, **changes: Any) -> Make:
    return lambda zoo, path: (corrupt.edit(zoo(name), path / "target.gguf", **changes), None)


def _draft(target: str, make: Callable[[Zoo, Path], Path]) -> Make:
    return lambda zoo, path: (zoo(target), make(zoo, path / "draft.gguf"))


def _wide(path: Path) -> Path:
    world = World(vocabulary=Vocabulary.byte_level(pre="qwen35"), width=96)
    return drafts.external_mtp(path, world=world)


#: What is wrong -> files that have it, and what the message says.
BAD: dict[str, tuple[Make, str]] = {
    "architecture without hidden states": (
        lambda zoo, path: (zoo("llama"), None),
        "does not hand out the hidden states of llama",
    ),
    "no heads": (lambda zoo, path: (zoo("qwen35"), None), r"has no NextN layers .* name a file that has them"),
    "heads declared, left out": (
        _edited("qwen35-mtp", drop_tensors=[f"blk.4.nextn.{name}.weight" for name in ("eh_proj", "enorm", "hnorm")]),
        "blk.4.nextn.eh_proj.weight is not there",
    ),
    "one tensor left out": (
        _edited("qwen35-mtp", drop_tensors=["blk.4.nextn.hnorm.weight"]),
        "blk.4.nextn.hnorm.weight is not there",
    ),
    "one of several heads left out": (
        _edited("step35-mtp3", drop_tensors=["blk.6.nextn.eh_proj.weight"]),
        "blk.6.nextn.eh_proj.weight is not there",
    ),
    "half a feed-forward network": (
        _edited("step35-mtp3", drop_tensors=["blk.6.ffn_up.weight"]),
        "blk.6.ffn_up.weight is not there",
    ),
    "half a feed-forward network in the trunk": (
        _edited("step35-mtp3", drop_tensors=["blk.1.ffn_down.weight"]),
        "blk.1.ffn_down.weight is not there",
    ),
    "no norm for the head": (
        _edited("qwen35-mtp", drop_tensors=["blk.4.nextn.shared_head_norm.weight", "output_norm.weight"]),
        "output_norm.weight is not there",
    ),
    "several heads where one is run": (
        _edited("qwen35-mtp", keys={"qwen35.nextn_predict_layers": 2}),
        "has 2 NextN layers, but llama.cpp runs only one in qwen35",
    ),
    "all layers are heads": (
        _edited("qwen35-mtp", keys={"qwen35.nextn_predict_layers": 5}),
        "nextn_predict_layers",
    ),
    "more heads than layers": (_edited("qwen35-mtp", keys={"qwen35.nextn_predict_layers": 9}), "between 0 and 5"),
    "heads only as the target": (lambda zoo, path: (zoo("mtp-qwen35"), None), "cannot be a target"),
    "draft of another architecture": (
        _draft("qwen35", lambda zoo, path: zoo("step35-mtp3")),
        "is a step35 file and .* a qwen35 one",
    ),
    "draft without heads": (_draft("qwen35", lambda zoo, path: zoo("qwen35")), "no NextN layers .* no draft"),
    "draft of another width": (_draft("qwen35", lambda zoo, path: _wide(path)), "96 values and .* has 64"),
    "draft with a tensor missing": (
        _draft("qwen35", lambda zoo, path: corrupt.edit(
            zoo("mtp-qwen35"), path, drop_tensors=["blk.4.nextn.enorm.weight"])),
        "blk.4.nextn.enorm.weight is not there",
    ),
    "draft with another vocabulary": (
        _draft("qwen35", lambda zoo, path: _permuted(zoo("mtp-qwen35"), path)),
        "another vocabulary .* token 97 is 'a' in the target and 'b' in the draft",
    ),
    "draft with another end": (
        _draft("qwen35", lambda zoo, path: corrupt.edit(
            zoo("mtp-qwen35"), path, keys={"tokenizer.ggml.eos_token_id": 5})),
        "the EOS token is .* in the target and 5 in the draft",
    ),
    "block drafter": (_draft("qwen35", lambda zoo, path: zoo("dflash")), "made for strategy 'dflash', not for 'mtp'"),
    "assistant of another architecture": (
        _draft("qwen35", lambda zoo, path: zoo("gemma4-assistant")),
        "an assistant for gemma4 models",
    ),
    "assistant of another width": (
        _draft("gemma4", lambda zoo, path: drafts.assistant(path, world=World(width=80))),
        "80 values and .* has 64",
    ),
    "assistant with other heads": (
        _draft("gemma4", lambda zoo, path: drafts.assistant(path, head=32)),
        "attention.key_length is 32 and .* has 16",
    ),
    "assistant with other head counts": (
        _draft("gemma4", lambda zoo, path: corrupt.edit(
            zoo("gemma4-assistant"), path, keys={"gemma4-assistant.attention.head_count_kv": 4})),
        "attention.head_count_kv is 4 and",
    ),
    "assistant that leaves out the count of the heads it shares": (
        _draft("gemma4", lambda zoo, path: corrupt.edit(
            zoo("gemma4-assistant"), path, drop_keys=["gemma4-assistant.attention.head_count_kv"])),
        "attention.head_count_kv is 4 and",
    ),
    "assistant that leaves out the size of the values it shares": (
        _draft("gemma4", lambda zoo, path: corrupt.edit(
            zoo("gemma4-assistant"), path, drop_keys=["gemma4-assistant.attention.value_length"])),
        "attention.value_length is",
    ),
    "assistant without a count": (
        _draft("gemma4", lambda zoo, path: corrupt.edit(
            zoo("gemma4-assistant"), path, drop_keys=["gemma4-assistant.nextn_predict_layers"])),
        "nextn_predict_layers is missing",
    ),
    "assistant of a target with one layer": (
        lambda zoo, path: (
            targets.sliding_window(path / "one.gguf", shape=Shape(n_layer=1), pattern=[True]), zoo("gemma4-assistant")
        ),
        "a single layer, and .* reads two",
    ),
}  # fmt: skip


def _permuted(source: Path, path: Path) -> Path:
    names = list(inspect(source).array("tokenizer.ggml.tokens") or ())
    names[97], names[98] = names[98], names[97]
    return corrupt.edit(source, path, keys={"tokenizer.ggml.tokens": names})


@pytest.mark.parametrize("what", BAD)
def test_bad_files_are_refused_before_anything_is_loaded(zoo: Zoo, tmp_path: Path, what: str) -> None:
    make, named = BAD[what]
    target, draft = make(zoo, tmp_path)
    with pytest.raises(ConfigError, match=named) as caught:
        check_mtp(inspect(target), None if draft is None else inspect(draft))
    assert str(target) in str(caught.value) or str(draft) in str(caught.value)
    with pytest.raises(ConfigError, match=named):
        specframe.load(target, strategy="mtp", draft=draft)
    report = check_files(target, draft=draft, strategy="mtp")
    assert not report.usable


@pytest.mark.parametrize(
    ("target", "draft"),
    [("qwen35-mtp", None), ("qwen35", "mtp-qwen35"), ("step35-mtp3", None), ("gemma4", "gemma4-assistant")],
)
def test_loading_a_model_for_its_heads(zoo: Zoo, target: str, draft: str | None) -> None:
    path = None if draft is None else zoo(draft)
    assert check_files(zoo(target), draft=path, strategy="mtp").usable
    with specframe.load(zoo(target), strategy="mtp", draft=path, n_ctx=256, threads=1) as llm:
        assert llm.info.rollback == ("bounded" if target.startswith("qwen35") else "truncate")
        done = llm.generate([1, 2, 3], max_tokens=40, temperature=0, draft_length=3)
        plain = llm.generate([1, 2, 3], max_tokens=40, temperature=0, strategy="none", reuse_prefix=False)
        assert done.tokens == plain.tokens
        assert done.stats.accepted > 0


def test_heads_are_loaded_for_the_strategy_that_was_chosen_only(zoo: Zoo) -> None:
    with specframe.load(zoo("qwen35-mtp"), strategy="none", n_ctx=256, threads=1) as llm:
        assert llm.info.rollback == "snapshot"
        with pytest.raises(ConfigError, match="were not loaded; choose strategy 'mtp' when the model is loaded"):
            llm.generate([1, 2, 3], strategy="mtp")
        assert llm.generate([1, 2, 3], max_tokens=3).completion_tokens == 3
    assert Mtp.model_options(Mtp.Options(), None) == {"load_mtp": True}
    assert Mtp.model_options(Mtp.Options(), zoo("mtp-qwen35")) == {}


def test_rollback_depth_fits_into_small_batches(zoo: Zoo) -> None:
    with specframe.load(
        zoo("qwen35-mtp"), strategy="mtp", options={"n_max": 8}, n_ctx=256, n_ubatch=5, threads=1
    ) as llm:
        assert llm.generate([1, 2, 3], max_tokens=30, temperature=0, draft_length=8).stats.accepted > 0


def test_another_backend_is_refused() -> None:
    target = ScriptedTarget(n_vocab=300)
    with pytest.raises(ConfigError, match=r"needs a llama\.cpp target"):
        Mtp(Mtp.Options(), StrategyContext(target=target.info, vocab=target.vocab, services=target.services))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"n_max": 0}, "n_max"),
        ({"n_max": 65}, "n_max"),
        ({"n_min": 4}, "n_min=4 would drop every draft of n_max=3"),
        ({"p_min": 1.5}, "p_min"),
        ({"p_min": True}, "p_min"),
        ({"threads": 0}, "threads"),
        ({"n_ctx": 0}, "n_ctx"),
        ({"n_batch": 0}, "n_batch"),
        ({"n_gpu_layers": -1}, "n_gpu_layers"),
        ({"backend_sampling": 1}, "backend_sampling"),
        ({"n_mx": 1}, "n_mx"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(named)):
        StrategySpec.of(Mtp, options)


@pytest.mark.parametrize(
    ("options", "named"), [({"type_k": "q9"}, "type_k"), ({"type_v": "q4_0"}, "type_v 'q4_0' stores blocks of 32")]
)
def test_memory_formats_are_checked(zoo: Zoo, options: dict[str, Any], named: str) -> None:
    with engine(zoo("qwen35-mtp")) as (running, _):
        with pytest.raises(ConfigError, match=named):
            running.submit(request([1, 2, 3], spec(None, **options)))
        formats = spec(None, type_k="f32", type_v="bf16")
        assert running.submit(request([1, 2, 3], formats)).result().stats.accepted > 0


# -- the context ------------------------------------------------------------------------------------------------------


def rows(n: int, width: int = 64) -> Any:
    return np.ones((n, width), np.float32)


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [DraftEntry(0, 0, [], rows(0))],
        [DraftEntry(0, 1, [5], rows(1))],
        [DraftEntry(0, 0, [5], rows(2))],
        [DraftEntry(0, 0, [5], rows(1, 63))],
        [DraftEntry(0, 0, [5, 6], rows(2)), DraftEntry(0, 2, [5], rows(1))],
        [DraftEntry(2, 0, [5], rows(1))],
        [DraftEntry(-1, 0, [5], rows(1))],
        [DraftEntry(0, 0, [288], rows(1))],
        [DraftEntry(0, 0, [-1], rows(1))],
        [DraftEntry(0, 0, [5] * 65, rows(65))],
        [DraftEntry(0, 0, [5] * 20, rows(20)), DraftEntry(1, 0, [5] * 20, rows(20))],
    ],
)
def test_impossible_batches_are_refused(zoo: Zoo, entries: list[DraftEntry]) -> None:
    with (
        Model(zoo("qwen35-mtp"), load_mtp=True) as model,
        Context(model, n_ctx=64, n_batch=32, n_seq=2, n_threads=1) as target,
        NextnContext(model, target) as context,
    ):
        with pytest.raises(ConfigError):
            context.decode(entries)
        assert (context.n_past(0), context.n_past(1)) == (0, 0)
        with pytest.raises(ConfigError, match="no head 1"):
            context.use_head(1)
        context.decode([DraftEntry(1, 0, [5, 6], rows(2), output=True)])
        assert len(context.choices()) == 1
        assert context.states().shape == (1, 64)
        target.close()
        with pytest.raises(ClosedError):
            context.decode([DraftEntry(1, 2, [5], rows(1))])


def test_heads_that_were_not_loaded_are_not_run(zoo: Zoo) -> None:
    with Model(zoo("qwen35-mtp")) as model, Context(model, n_ctx=64, n_threads=1) as target:
        with pytest.raises(ConfigError, match="load_mtp=True"):
            NextnContext(model, target)
        with Model(zoo("qwen35")) as other, pytest.raises(ConfigError, match="no NextN layers"):
            NextnContext(other, target)


def test_rows_of_a_batch_with_few_outputs_are_the_outputs(zoo: Zoo) -> None:
    """llama.cpp hands out rows of other tokens for some architectures."""
    for name in ("qwen35-mtp", "step35-mtp3"):
        with (
            Model(zoo(name), load_mtp=True) as model,
            Context(model, n_ctx=64, n_seq=2, n_threads=1) as target,
            NextnContext(model, target) as context,
        ):
            states = np.random.default_rng(1).standard_normal((4, 64), np.float32)
            single = []
            for pos, token in enumerate([5, 6, 7, 8]):
                context.decode([DraftEntry(0, pos, [token], states[pos : pos + 1], output=True)])
                single.append((context.choices()[0][0], context.states()[0].copy()))
            context.clear(0)
            context.decode(
                [DraftEntry(0, 0, [5, 6, 7, 8], states, output=True), DraftEntry(1, 0, [5, 6], states[:2], output=True)]
            )
            found = context.states()
            for index, row in ((3, found[0]), (1, found[1])):
                np.testing.assert_allclose(row, single[index][1], atol=5e-3)
            assert [token for token, _ in context.choices()] == [single[3][0], single[1][0]]


def test_a_native_failure_is_an_error(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        Model(zoo("qwen35-mtp"), load_mtp=True) as model,
        Context(model, n_ctx=64, n_threads=1) as target,
        NextnContext(model, target) as context,
    ):
        monkeypatch.setattr(context, "_decode", lambda *_: 1)
        with pytest.raises(BackendError, match="no room for the batch"):
            context.decode([DraftEntry(0, 0, [5], rows(1), output=True)])
        assert context.choices() == []
