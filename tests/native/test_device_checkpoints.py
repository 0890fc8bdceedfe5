"""Checkpoints in device memory: valid until the next one of their sequence, and never asked for afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specframe.core.engine import Engine
from specframe.core.errors import RollbackError
from specframe.core.scheduler import Unlimited
from specframe.core.strategy import StrategySpec
from specframe.strategies.ngram_k import NgramK
from tests.support.drafting import request
from tests.support.llama import Zoo, feed, target, tokens

OPTIONS: list[dict[str, Any]] = [{}, {"n_rs_seq": 3}]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_transient_checkpoint_restores(zoo: Zoo, options: dict[str, Any]) -> None:
    with target(zoo("qwen35"), checkpoint_on_device=True, n_seq=2, **options) as opened:
        feed(opened, tokens(11), seq=1)
        feed(opened, tokens(9))
        expected = feed(opened, tokens(6, seed=1))
        opened.clear(0)
        feed(opened, tokens(9))
        checkpoint = opened.checkpoint(0)
        assert checkpoint.on_device
        assert checkpoint.state is not None
        assert checkpoint.n_bytes > checkpoint.state.nbytes
        for _ in range(2):
            feed(opened, tokens(20, seed=2))
            feed(opened, tokens(3, seed=3), seq=1)
            opened.restore(checkpoint)
            assert opened.n_past(0) == 9
            np.testing.assert_allclose(feed(opened, tokens(6, seed=1)), expected, atol=1e-4)


def test_the_next_one_outdates_it(zoo: Zoo) -> None:
    """llama.cpp would end the process, or bring back the other state."""
    with target(zoo("qwen35"), checkpoint_on_device=True, n_seq=2) as opened:
        feed(opened, tokens(5))
        feed(opened, tokens(4), seq=1)
        first, other = opened.checkpoint(0), opened.checkpoint(1)
        lasting = opened.checkpoint(0, lasting=True)
        assert not lasting.on_device
        feed(opened, tokens(3))
        second = opened.checkpoint(0)
        feed(opened, tokens(2))
        with pytest.raises(RollbackError, match="outdated"):
            opened.restore(first)
        opened.restore(second)
        opened.restore(lasting)
        opened.restore(other)
        assert (opened.n_past(0), opened.n_past(1)) == (5, 4)


def test_sliding_windows_are_saved_on_the_host(zoo: Zoo) -> None:
    with target(zoo("gemma4"), swa_full=False, checkpoint_on_device=True) as opened:
        feed(opened, tokens(9))
        assert not opened.checkpoint(0).on_device


def test_drafting_changes_nothing(zoo: Zoo) -> None:
    spec = StrategySpec.of(NgramK, {"n": 2, "m": 6})
    prompt = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]
    with (
        target(zoo("qwen35"), checkpoint_on_device=True, n_seq=2) as opened,
        Engine(opened, scheduler=Unlimited) as engine,
    ):
        plain = engine.submit(request(prompt)).result()
        both = [engine.submit(request(prompt, spec)) for _ in range(2)]
        for generation in both:
            done = generation.result()
            assert done.tokens == plain.tokens
            assert done.stats.rollbacks["snapshot"] > 0


def test_where_checkpoints_are_is_told(zoo: Zoo, caplog: pytest.LogCaptureFixture) -> None:
    expected = {
        ("llama", False): (None, "truncate"),
        ("qwen35", False): ("host", "snapshot (host)"),
        ("qwen35", True): ("device", "snapshot (device)"),
        ("gemma4", False): ("host", "snapshot (host)"),
        ("gemma4", True): ("host", "snapshot (host)"),
    }
    for (name, on_device), told in expected.items():
        caplog.clear()
        with target(zoo(name), checkpoint_on_device=on_device, swa_full=False) as opened:
            assert (opened.info.checkpoint_place, opened.info.rollback_means) == told
        warned = [r for r in caplog.records if "checkpoint_on_device does not work" in r.getMessage()]
        assert len(warned) == ((name, on_device) == ("gemma4", True))
