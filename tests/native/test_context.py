"""Contexts: what they refuse before llama.cpp would abort, what they report, and how they end."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from specframe.backends.llama.context import Context
from specframe.backends.llama.context_options import CACHE_TYPES, ContextOptions
from specframe.backends.llama.model import Model
from specframe.backends.llama.status import NativeCallError
from specframe.backends.llama.target import LlamaTarget
from specframe.core.errors import BackendError, ClosedError, ConfigError
from specframe.core.ports import BatchEntry
from tests.support.llama import Zoo, feed, target, tokens
from tests.support.resident import resident_bytes


@pytest.fixture
def model(zoo: Zoo) -> Iterator[Model]:
    with Model(zoo("llama")) as opened:
        yield opened


BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"n_ctx": 0}, "n_ctx"),
    ({"n_ctx": 2**40}, "n_ctx"),
    ({"n_ctx": 2**24, "n_seq": 200}, "n_seq"),
    ({"n_batch": 0}, "n_batch"),
    ({"n_batch": True}, "n_batch"),
    ({"n_batch": 1, "n_seq": 2}, "n_batch"),
    ({"n_ubatch": 0}, "n_ubatch"),
    ({"n_seq": 0}, "n_seq"),
    ({"n_seq": 257}, "n_seq"),
    ({"n_threads": 0}, "n_threads"),
    ({"n_threads": 10_000}, "n_threads"),
    ({"n_threads_batch": -1}, "n_threads_batch"),
    ({"n_outputs_max": 1, "n_seq": 2}, "n_outputs_max"),
    ({"n_outputs_max": 64, "n_batch": 32}, "n_outputs_max"),
    ({"n_rs_seq": 8, "n_ubatch": 9}, "n_ubatch"),
    ({"n_rs_seq": 8, "n_batch": 9}, "n_batch"),
    ({"n_rs_seq": -1}, "n_rs_seq"),
    ({"type_k": "q8"}, "did you mean 'q8_0'"),
    ({"type_k": ["q8_0"]}, r"type_k \['q8_0'\] is not a memory format"),
    ({"type_v": None}, "type_v None is not a memory format; there are f32, f16"),
    ({"type_v": "float"}, "type_v"),
    ({"type_v": "q8_0", "flash_attn": False}, "flash_attn"),
    ({"flash_attn": 1}, "flash_attn"),
]


@pytest.mark.parametrize(("options", "named"), BAD_OPTIONS)
def test_bad_option_is_named_before_anything_native(model: Model, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Context(model, **{"n_ctx": 512, **options})
    with Context(model, n_ctx=256, n_threads=1) as context:
        context.decode([BatchEntry(0, 0, [1], 1)])
        assert np.isfinite(context.logits()).all()


def test_unknown_option_is_an_error(model: Model) -> None:
    with pytest.raises(TypeError, match="n_contexts"):
        Context(model, n_contexts=5)


def test_block_size_must_divide_the_heads(model: Model) -> None:
    # Heads of 16 values, blocks of 32.
    with pytest.raises(ConfigError, match=r"type_k 'q8_0' stores blocks of 32 values.*use type_k 'f16'"):
        Context(model, type_k="q8_0")
    with pytest.raises(ConfigError, match="type_v"):
        Context(model, type_v="q4_0")


def test_memory_larger_than_the_machine_is_refused(model: Model) -> None:
    with pytest.raises(ConfigError, match=r"takes .* GiB, but the machine has"):
        Context(model, n_ctx=2**30)


def test_draft_model_or_encoder_is_no_target(zoo: Zoo) -> None:
    with Model(zoo("mtp-qwen35")) as draft, pytest.raises(ConfigError, match="draft"):
        LlamaTarget(draft)


def test_every_cache_type_exists_in_the_library(model: Model) -> None:
    for name in CACHE_TYPES:
        assert hasattr(model.library.lib, f"GGML_TYPE_{name.upper()}")


@pytest.mark.parametrize("name", ["llama", "qwen3", "qwen35", "qwen35-mtp", "step35-mtp3", "gemma4"])
def test_smallest_batch_works(zoo: Zoo, name: str) -> None:
    """Batches of one token are nothing special."""
    prompt = tokens(9)
    with target(zoo(name), n_batch=1) as narrow, target(zoo(name)) as wide:
        last = [feed(narrow, [token]) for token in prompt][-1]
        np.testing.assert_allclose(last[-1], feed(wide, prompt)[-1], rtol=0, atol=1e-2)
        with pytest.raises(ConfigError, match="n_batch is 1"):
            narrow.decode([BatchEntry(0, len(prompt), [1, 2], 1)])


def test_actual_sizes_are_asked_back(model: Model) -> None:
    with Context(model, n_ctx=100, n_seq=3, n_batch=5000, n_ubatch=4000) as context:
        assert context.n_ctx == 100
        assert context.n_ctx_seq == 256
        assert context.n_seq == 3
        assert context.n_batch == context.n_ubatch == 768
    with Context(model, n_ctx=300, n_seq=2, kv_unified=True) as context:
        assert context.n_ctx_seq == 1024


def test_rows_reserved_by_default_fit_one_long_draft_per_sequence() -> None:
    assert ContextOptions(n_seq=3).outputs == 3 * 64
    assert ContextOptions(n_batch=32).outputs == 32
    assert attrs.evolve(ContextOptions(), n_outputs_max=7).outputs == 7


def test_refused_batch_changes_nothing(model: Model) -> None:
    cases: list[tuple[list[BatchEntry], str]] = [
        ([], "empty"),
        ([BatchEntry(0, 4, [], 0)], "1 token or more"),
        ([BatchEntry(2, 0, [1], 1)], "sequence 2 does not exist"),
        ([BatchEntry(-1, 0, [1], 1)], "sequence -1 does not exist"),
        ([BatchEntry(0, 4, [1], 1), BatchEntry(0, 5, [1], 1)], "twice"),
        ([BatchEntry(0, 4, [1], 2)], "2 logits rows of 1 tokens"),
        ([BatchEntry(0, 4, [1], -1)], "-1 logits rows"),
        ([BatchEntry(0, 4, [1, 288], 1)], "token 288"),
        ([BatchEntry(0, 4, [-1], 1)], "token -1"),
        ([BatchEntry(0, 3, [1], 1)], "holds 4"),
        ([BatchEntry(0, 5, [1], 1)], "holds 4"),
        ([BatchEntry(0, 4, [1] * 9, 1), BatchEntry(1, 0, [1] * 9, 1)], "n_batch is 16"),
        ([BatchEntry(0, 4, [1] * 8, 5), BatchEntry(1, 0, [1] * 8, 4)], "n_outputs_max"),
        ([BatchEntry(0, 4, [1] * 13, 1)], "n_ctx 16"),
    ]
    with Context(model, n_ctx=16, n_seq=2, n_batch=16, n_outputs_max=8, n_threads=1) as context:
        context.decode([BatchEntry(0, 0, [1, 2, 3, 4], 1)])
        before = np.array(context.logits())
        for batch, named in cases:
            with pytest.raises(ConfigError, match=named):
                context.decode(batch)
            assert (context.memory.n_past(0), context.memory.n_past(1)) == (4, 0)
        np.testing.assert_array_equal(context.logits(), before)
        context.decode([BatchEntry(0, 4, [5] * 12, 1)])
        assert context.memory.n_past(0) == 16


def test_native_failure_has_code_and_meaning(model: Model) -> None:
    with Context(model, n_ctx=256, n_threads=1) as context:
        context.decode([BatchEntry(0, 0, [1, 2], 1)])
        # Behind the back of the checks: a hole in the positions.
        context.batch._n_past = lambda _seq: 7
        with pytest.raises(NativeCallError, match=r"decoding a batch failed with status -1: invalid batch") as caught:
            context.decode([BatchEntry(0, 7, [3], 1)])
        assert caught.value.code == -1
        assert "llama.cpp says" in str(caught.value)
        with pytest.raises(BackendError, match="the last decode failed"):
            context.logits()
        assert context.memory.n_past(0) == 2


def test_unified_pool_holds_every_sequence_full(zoo: Zoo) -> None:
    with target(zoo("llama"), n_ctx=256, n_seq=2, kv_unified=True, n_batch=512) as opened:
        for seq in (0, 1):
            opened.decode([BatchEntry(seq, 0, tokens(256), 1)])
        assert (opened.n_past(0), opened.n_past(1)) == (256, 256)


def test_rows_come_in_batch_order(zoo: Zoo) -> None:
    for name in ("llama", "qwen35"):
        with target(zoo(name), n_seq=3) as opened:
            alone = {}
            for seq in (0, 1, 2):
                alone[seq] = feed(opened, tokens(5, seed=seq), seq=seq)
                opened.clear(seq)
            opened.decode(
                [
                    BatchEntry(2, 0, tokens(5, seed=2), 2),
                    BatchEntry(0, 0, tokens(5, seed=0), 0),
                    BatchEntry(1, 0, tokens(5, seed=1), 5),
                ]
            )
            expected = np.concatenate([alone[2][-2:], alone[1]])
            np.testing.assert_allclose(opened.logits(), expected, rtol=0, atol=1e-2)


def test_rows_are_a_read_only_view_of_native_memory(model: Model) -> None:
    with Context(model, n_ctx=256, n_threads=1) as context:
        assert context.logits().shape == (0, 288)
        context.decode([BatchEntry(0, 0, [1, 2, 3], 0)])
        assert context.logits().shape == (0, 288)
        context.decode([BatchEntry(0, 3, [1, 2, 3], 2)])
        rows = context.logits()
        assert rows.shape == (2, 288)
        assert rows.dtype == np.float32
        assert context.logits() is rows
        with pytest.raises(ValueError, match="read-only"):
            rows[0, 0] = 1.0
        with pytest.raises(ValueError, match="WRITEABLE"):
            rows.flags.writeable = True
        address = context.library.ffi.cast("uintptr_t", context.library.lib.llama_get_logits(context.handle))
        assert rows.ctypes.data == int(address)


def test_rows_outlive_context_and_model(zoo: Zoo) -> None:
    model = Model(zoo("llama"))
    context = Context(model, n_ctx=256, n_threads=1)
    context.decode([BatchEntry(0, 0, [1, 2, 3], 3)])
    kept = context.logits()[1]
    copy = kept.copy()
    native = context._native
    assert native is not None
    context.close()
    model.close()
    assert native.context is not None
    np.testing.assert_array_equal(kept, copy)
    del kept
    gc.collect()
    assert native.context is None


def test_closing_frees_at_once_when_no_rows_are_kept(model: Model) -> None:
    context = Context(model, n_ctx=256, n_threads=1)
    context.decode([BatchEntry(0, 0, [1], 1)])
    context.logits()
    native = context._native
    assert native is not None
    context.close()
    assert native.context is None
    context.close()


def test_closed_context_says_so(zoo: Zoo) -> None:
    model = Model(zoo("llama"))
    opened = LlamaTarget(model, n_ctx=256, n_threads=1)
    opened.decode([BatchEntry(0, 0, [1], 1)])
    checkpoint = opened.checkpoint(0)
    model.close()
    assert opened.context.closed
    calls: list[Callable[[], object]] = [
        lambda: opened.decode([BatchEntry(0, 1, [1], 1)]),
        opened.logits,
        lambda: opened.n_past(0),
        lambda: opened.truncate(0, 0),
        lambda: opened.clear(0),
        lambda: opened.checkpoint(0),
        lambda: opened.restore(checkpoint),
    ]
    for call in calls:
        with pytest.raises(ClosedError):
            call()
    with pytest.raises(ClosedError):
        Context(model)


def test_close_waits_for_a_decode_in_another_thread(zoo: Zoo) -> None:
    with Model(zoo("llama")) as model:
        context = Context(model, n_ctx=4096, n_threads=1)
        started, errors = threading.Event(), []

        def work() -> None:
            at = 0
            try:
                while True:
                    context.decode([BatchEntry(0, at, tokens(64), 1)])
                    at = (at + 64) % 2048
                    if at == 0:
                        context.memory.clear(0)
                    started.set()
            except ClosedError:
                pass
            except BaseException as error:
                errors.append(error)
                raise

        worker = threading.Thread(target=work)
        worker.start()
        started.wait(300)
        context.close()
        worker.join(300)
        assert not worker.is_alive()
        assert not errors


EXITS = {
    "open": "target.decode([BatchEntry(0, 0, [1], 1)]); rows = target.logits()",
    "generator": "gen = stream(target); next(gen)",
    "cycle": "a = [target, model]; a.append(a)",
    "kept rows": "target.decode([BatchEntry(0, 0, [1], 1)]); rows = target.logits(); target.close()",
    "sampler": "s = target.make_sampler(SamplingParams(grammar='root ::= [a-z]+'), [1]); s.finished()",
    "exception": "raise SystemExit(0)",
}


@pytest.mark.parametrize("ending", EXITS)
def test_interpreter_exit_is_silent(zoo: Zoo, ending: str) -> None:
    """Nothing closed, nothing said, exit code 0."""
    program = textwrap.dedent(
        f"""
        import sys
        from specframe.backends.llama.model import Model
        from specframe.backends.llama.target import LlamaTarget
        from specframe.core.ports import BatchEntry
        from specframe.core.sampling import SamplingParams
        def stream(target):
            try:
                while True:
                    target.decode([BatchEntry(0, target.n_past(0), [1], 1)])
                    yield target.logits()
            finally:
                target.close()
        model = Model(sys.argv[1])
        target = LlamaTarget(model, n_ctx=256, n_threads=1)
        {EXITS[ending]}
        """
    )
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program, str(zoo("llama"))],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_cycles_reach_a_memory_plateau(zoo: Zoo) -> None:
    """Models, contexts, checkpoints and samplers give everything back."""
    from specframe.core.sampling import SamplingParams  # noqa: PLC0415 -- only here

    def cycle(path: Path) -> None:
        with target(path, n_batch=64) as opened:
            feed(opened, tokens(20))
            opened.restore(opened.checkpoint(0))
            sampler = opened.make_sampler(SamplingParams(grammar='root ::= "a"+', dry_multiplier=1.0), tokens(20))
            sampler.accept(97)
            sampler.close()

    path = zoo("qwen35")
    sizes = []
    for n in range(200):
        cycle(path)
        if n % 25 == 24:
            gc.collect()
            sizes.append(resident_bytes() // 1024)
    # The allocator keeps some; what leaks grows with every cycle.
    assert sizes[-1] - sizes[2] < 6 * 1024, sizes
