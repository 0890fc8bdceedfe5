"""Memory: after any way back, logits equal those of a context that never went astray."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import pytest

from specframe.backends.llama.architectures import rollback_means
from specframe.backends.llama.gguf import inspect
from specframe.backends.llama.target import LlamaTarget
from specframe.core.engine import Engine
from specframe.core.errors import ConfigError, RollbackError
from specframe.core.ports import BatchEntry, Logits, Rollback
from specframe.core.request import Request
from specframe.core.sampling import SamplingParams
from specframe.core.scheduler import Unlimited
from specframe.core.strategy import StrategySpec
from specframe.testing import Poison, replay, tape
from tests.support.llama import Zoo, feed, target, tokens

# Longer than the sliding window of the zoo's model (64), so that cells drop out of it.
PROMPT = tokens(90)
AHEAD = tokens(12, seed=1)
WRONG = tokens(6, seed=2)

KINDS: list[tuple[str, dict[str, Any], Rollback]] = [
    ("llama", {}, Rollback.TRUNCATE),
    ("llama", {"n_seq": 2, "kv_unified": True}, Rollback.TRUNCATE),
    ("llama", {"flash_attn": False}, Rollback.TRUNCATE),
    ("qwen3", {"type_k": "bf16", "type_v": "f32"}, Rollback.TRUNCATE),
    ("gemma4", {}, Rollback.TRUNCATE),
    ("gemma4", {"swa_full": False}, Rollback.SNAPSHOT),
    ("qwen35", {}, Rollback.SNAPSHOT),
    ("qwen35", {"n_rs_seq": 6}, Rollback.BOUNDED),
    ("step35-mtp3", {}, Rollback.TRUNCATE),
]
each_kind = pytest.mark.parametrize(("name", "options", "kind"), KINDS)


def continuation(opened: LlamaTarget) -> Logits:
    """Logits along ``AHEAD``, a token at a time."""
    return np.concatenate([feed(opened, [token]) for token in AHEAD])


@pytest.fixture
def fresh(zoo: Zoo, name: str, options: dict[str, Any]) -> Iterator[Logits]:
    with target(zoo(name), **options) as opened:
        feed(opened, PROMPT, rows=1)
        yield continuation(opened)


@each_kind
def test_kind_is_decided_from_facts(zoo: Zoo, name: str, options: dict[str, Any], kind: Rollback) -> None:
    with target(zoo(name), **options) as opened:
        assert opened.info.rollback is kind
        assert opened.info.rollback_depth == (6 if kind is Rollback.BOUNDED else 0)


@each_kind
def test_truncated_or_refused(zoo: Zoo, fresh: Logits, name: str, options: dict[str, Any], kind: Rollback) -> None:
    with target(zoo(name), **options) as opened:
        feed(opened, PROMPT, rows=1)
        feed(opened, [PROMPT[-1], *WRONG])
        if kind is Rollback.SNAPSHOT:
            with pytest.raises(RollbackError, match="only restores checkpoints"):
                opened.truncate(0, len(PROMPT))
            assert opened.n_past(0) == len(PROMPT) + 1 + len(WRONG)
            return
        opened.truncate(0, len(PROMPT) + 1)
        assert opened.n_past(0) == len(PROMPT) + 1
        if kind is Rollback.BOUNDED:
            # The token that was kept is not taken back a second time.
            with pytest.raises(RollbackError, match="left 0"):
                opened.truncate(0, len(PROMPT))
        else:
            opened.truncate(0, len(PROMPT))
            np.testing.assert_array_equal(continuation(opened), fresh)


@each_kind
def test_checkpoint_restores(zoo: Zoo, fresh: Logits, name: str, options: dict[str, Any], kind: Rollback) -> None:
    with target(zoo(name), **options) as opened:
        feed(opened, PROMPT, rows=1)
        checkpoint = opened.checkpoint(0)
        assert (checkpoint.seq, checkpoint.n_past) == (0, len(PROMPT))
        assert (checkpoint.n_bytes > 0) == (kind is not Rollback.TRUNCATE)
        for wrong in (WRONG, WRONG[:1]):
            feed(opened, wrong)
            opened.restore(checkpoint)
            assert opened.n_past(0) == len(PROMPT)
        np.testing.assert_array_equal(continuation(opened), fresh)


@each_kind
def test_cleared_is_as_new(zoo: Zoo, fresh: Logits, name: str, options: dict[str, Any], kind: Rollback) -> None:
    with target(zoo(name), **options) as opened:
        feed(opened, WRONG)
        checkpoint = opened.checkpoint(0)
        opened.clear(0)
        assert opened.n_past(0) == 0
        assert opened.info.rollback is kind
        feed(opened, PROMPT, rows=1)
        np.testing.assert_array_equal(continuation(opened), fresh)
        with pytest.raises(RollbackError, match="outdated"):
            opened.restore(checkpoint)


@pytest.mark.parametrize("n_rejected", [1, 2, 5, 6])
def test_bounded_takes_back_tokens_of_the_last_decode(zoo: Zoo, n_rejected: int) -> None:
    draft = tokens(7, seed=3)
    with target(zoo("qwen35"), n_rs_seq=6) as opened:
        feed(opened, PROMPT, rows=1)
        feed(opened, draft)
        kept = draft[: 7 - n_rejected]
        opened.truncate(0, len(PROMPT) + len(kept))
        after = continuation(opened)
        opened.clear(0)
        feed(opened, PROMPT, rows=1)
        feed(opened, kept)
        np.testing.assert_allclose(after, continuation(opened), rtol=0, atol=1e-3)


def test_bounded_refuses_what_llama_would_get_wrong(zoo: Zoo) -> None:
    """After single-token decodes llama.cpp says yes, and the state is wrong."""
    with target(zoo("qwen35"), n_rs_seq=6) as opened:
        feed(opened, PROMPT, rows=1)
        for token in WRONG:
            feed(opened, [token])
        with pytest.raises(RollbackError, match="left 0 that can be taken back"):
            opened.truncate(0, len(PROMPT) + 5)
        feed(opened, tokens(9))
        with pytest.raises(RollbackError, match="left 6"):
            opened.truncate(0, len(PROMPT) + len(WRONG) + 2)
        assert opened.n_past(0) == len(PROMPT) + len(WRONG) + 9


def test_sequences_do_not_touch_each_other(zoo: Zoo) -> None:
    for name in ("llama", "gemma4", "qwen35"):
        with target(zoo(name), n_seq=2) as opened:
            feed(opened, PROMPT, seq=1, rows=1)
            alone = feed(opened, AHEAD[:1], seq=1)
            opened.clear(1)
            feed(opened, WRONG, seq=0)
            feed(opened, PROMPT, seq=1, rows=1)
            opened.clear(0)
            np.testing.assert_array_equal(feed(opened, AHEAD[:1], seq=1), alone)


def test_impossible_lengths(zoo: Zoo) -> None:
    with target(zoo("llama")) as opened:
        feed(opened, WRONG)
        opened.truncate(0, len(WRONG))
        for n_past in (len(WRONG) + 1, -1):
            with pytest.raises(RollbackError, match=f"cannot be cut to {n_past}"):
                opened.truncate(0, n_past)
        opened.truncate(0, 0)
        assert opened.n_past(0) == 0
        for call in (opened.n_past, opened.clear, opened.checkpoint):
            with pytest.raises(ConfigError, match="sequence 1 does not exist"):
                call(1)


def test_foreign_or_outdated_checkpoints_are_refused(zoo: Zoo) -> None:
    with target(zoo("qwen35"), n_seq=2) as opened, target(zoo("qwen35")) as other:
        feed(opened, WRONG)
        feed(other, WRONG)
        empty, full = opened.checkpoint(1), opened.checkpoint(0)
        with pytest.raises(RollbackError, match="another memory"):
            opened.restore(other.checkpoint(0))
        with pytest.raises(ConfigError, match="no checkpoint of a llama"):
            opened.restore(object())  # type: ignore[arg-type]
        opened.clear(0)
        with pytest.raises(RollbackError, match="outdated"):
            opened.restore(full)
        feed(opened, WRONG, seq=1)
        opened.restore(empty)
        assert opened.n_past(1) == 0


def test_short_state_is_refused(zoo: Zoo) -> None:
    with target(zoo("qwen35")) as opened:
        feed(opened, WRONG)
        checkpoint = opened.checkpoint(0)
        assert checkpoint.state is not None
        checkpoint.state = checkpoint.state[:-8].copy()
        feed(opened, WRONG)
        with pytest.raises(RollbackError, match="bytes"):
            opened.restore(checkpoint)
        opened.clear(0)
        feed(opened, WRONG)


def test_info_and_vocabulary(zoo: Zoo) -> None:
    with target(zoo("llama"), n_ctx=100, n_batch=32, n_seq=2) as opened:
        info = opened.info
        assert (info.n_vocab, info.n_ctx, info.n_batch, info.n_seq, info.max_outputs) == (288, 100, 32, 2, 32)
        assert info.provides == opened.model.facts.provides
        assert opened.vocab is opened.model.vocab
        assert attrs.asdict(info)["n_vocab"] == opened.vocab.n_tokens


def test_context_room_is_what_was_asked_for(zoo: Zoo) -> None:
    """Cells are reserved in steps of 256, but a sequence holds n_ctx tokens."""
    with target(zoo("llama"), n_ctx=64) as opened:
        feed(opened, tokens(56), rows=1)
        with pytest.raises(ConfigError, match="9 more do not fit into n_ctx 64"):
            opened.decode([BatchEntry(0, 56, tokens(9), 1)])
        feed(opened, tokens(8))
        assert opened.n_past(0) == 64


@pytest.mark.parametrize("n_before", [9, 230, 600])
def test_width_does_not_change_logits_of_the_real_model(smollm2: Any, n_before: int) -> None:
    """What exactness rests on: a token gets the same bits alone and in a draft, on a short memory and on a long one."""
    with target(smollm2, n_ctx=1024, n_threads=2) as opened:
        text = "def fib(n):\n    if n < 2:\n        return n\n    return fib(n - 1) + fib(n - 2)\n" * 30
        ids = opened.vocab.tokenize(text, add_special=False)
        first, rest = ids[:n_before], ids[n_before : n_before + 63]
        feed(opened, first, rows=1)
        single = np.concatenate([feed(opened, [token]) for token in rest])
        for width in (2, 3, 5, 8, 16, 63):
            opened.truncate(0, n_before)
            np.testing.assert_array_equal(feed(opened, rest[:width]), single[:width])


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma4", "step35-mtp3", "qwen35", "qwen35-mtp"])
def test_metadata_alone_says_how_drafts_are_taken_back(zoo: Zoo, name: str) -> None:
    found = []
    for n_rs_seq in (2, 0):
        with target(zoo(name), n_rs_seq=n_rs_seq) as opened:
            found.append(opened.info.rollback)
    assert tuple(dict.fromkeys(found)) == rollback_means(inspect(zoo(name)).arch)


def test_a_ring_that_was_full_many_times_holds_the_committed_tokens(zoo: Zoo) -> None:
    """Which cells of a ring are taken depends on rollbacks, and with them the order of sums: near ties are allowed."""
    options: dict[str, Any] = {"n_ctx": 768, "n_ubatch": 64}  # 256 cells in the ring
    asked = Request(prompt=PROMPT, max_tokens=600, sampling=SamplingParams(temperature=0.0))
    with target(zoo("gemma4"), **options) as whole:
        right = tape(whole, asked)
        spec = StrategySpec.of(Poison, {"tape": right, "length": 5, "k": 2})
        with target(zoo("gemma4"), **options, swa_full=False) as ring, Engine(ring, scheduler=Unlimited) as engine:
            completion = engine.submit(attrs.evolve(asked, strategy=spec)).result()
        assert completion.stats.rollbacks["snapshot"] > 100
        report = replay(whole, asked, completion, margin=0.05)
    report.check()
    assert report.n_tokens == 600
