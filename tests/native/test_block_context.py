"""Batches and sizes that would end the process in a block drafter are refused or avoided; one process sees them all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specframe.backends.llama.block_context import BlockContext, BlockEntry, FeatureEntry
from specframe.backends.llama.context import Context
from specframe.backends.llama.draft_context import MAX_SCORED_CELLS
from specframe.backends.llama.model import Model
from specframe.backends.llama.target import LlamaTarget
from specframe.core.errors import BackendError, ClosedError, ConfigError
from specframe.strategies.dflash import Dflash
from specframe.strategies.dspark import Dspark
from tests.support.drafting import PROMPTS, engine, request, spec
from tests.support.llama import Zoo

#: Two layers of 64 values.
WIDTH = 128


def rows(n: int, width: int = WIDTH) -> Any:
    return np.ones((n, width), np.float32)


@contextmanager
def opened(
    zoo: Zoo, draft: str = "dflash", *, n_block: int = 8, of_target: Mapping[str, Any] | None = None, **options: Any
) -> Iterator[BlockContext]:
    with (
        Model(zoo("llama")) as model,
        Model(zoo(draft)) as drafter,
        Context(model, n_ctx=64, n_seq=2, n_threads=1, **(of_target or {})) as target,
        BlockContext(drafter, target, n_block=n_block, **options) as context,
    ):
        yield context


@pytest.mark.parametrize(
    "entries",
    [
        [FeatureEntry(0, 1, rows(1))],
        [FeatureEntry(0, 0, rows(1, WIDTH - 1))],
        [FeatureEntry(0, 0, rows(1, 64))],
        [FeatureEntry(0, 0, rows(2)), FeatureEntry(0, 2, rows(1))],
        [FeatureEntry(2, 0, rows(1))],
        [FeatureEntry(-1, 0, rows(1))],
        [FeatureEntry(0, 0, np.ones(WIDTH, np.float32))],
    ],
)
def test_impossible_features_are_refused(zoo: Zoo, entries: list[FeatureEntry]) -> None:
    with opened(zoo) as context:
        with pytest.raises(ConfigError):
            context.inject(entries)
        context.clear(0)
        context.inject([FeatureEntry(0, 0, rows(5)), FeatureEntry(1, 0, rows(3))])
        assert (context.n_past(0), context.n_past(1)) == (5, 3)


def test_features_past_the_context_are_refused(zoo: Zoo) -> None:
    with opened(zoo) as context:
        n_batch = context.n_batch
        fitting = context.n_cells // n_batch * n_batch
        with pytest.raises(ConfigError, match=rf"position {fitting}, but the memory holds {fitting} of 64 tokens"):
            context.inject([FeatureEntry(0, 0, rows(context.n_cells + 1))])
        context.clear(0)
        context.inject([FeatureEntry(0, 0, rows(64))])


@pytest.mark.parametrize(
    ("of_target", "of_draft", "used"),
    [
        ({}, {}, False),
        ({"flash_attn": False}, {}, False),
        ({}, {"type_v": "q8_0"}, True),
        ({}, {"n_ctx": 2 * MAX_SCORED_CELLS}, True),
    ],
)
def test_flash_attention_is_left_to_what_needs_it(
    zoo: Zoo, of_target: dict[str, Any], of_draft: dict[str, Any], used: bool
) -> None:
    """Where the library may use a GPU, it does as the target does."""
    with opened(zoo, of_target=of_target, **of_draft) as context:
        gpu = context.library.lib.llama_supports_gpu_offload()
        assert context.options.flash_attn is (used or (gpu and context.target.options.flash_attn))
        context.inject([FeatureEntry(0, 0, rows(4))])
        context.draft([BlockEntry(0, 4, 7)])
        assert len(context.choices()[0]) == context.n_block


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [BlockEntry(0, 5, 7)],
        [BlockEntry(0, 3, 7)],
        [BlockEntry(0, 4, -1)],
        [BlockEntry(0, 4, 288)],
        [BlockEntry(0, 4, 7), BlockEntry(0, 12, 7)],
        [BlockEntry(2, 0, 7)],
        [BlockEntry(-1, 0, 7)],
    ],
)
def test_impossible_blocks_are_refused(zoo: Zoo, entries: list[BlockEntry]) -> None:
    with opened(zoo) as context:
        context.inject([FeatureEntry(0, 0, rows(4))])
        with pytest.raises(ConfigError):
            context.draft(entries)
        assert context.n_past(0) == 4
        context.draft([BlockEntry(0, 4, 7), BlockEntry(1, 0, 9)])
        assert [len(block) for block in context.choices()] == [8, 8]


@pytest.mark.parametrize("draft", ["dflash", "dflash-shared"])
def test_nothing_is_evaluated_after_the_target_is_gone(zoo: Zoo, draft: str) -> None:
    with opened(zoo, draft) as context:
        context.target.close()
        with pytest.raises(ClosedError):
            context.inject([FeatureEntry(0, 0, rows(1))])
        with pytest.raises(ClosedError):
            context.draft([BlockEntry(0, 0, 7)])


def test_a_native_failure_is_an_error(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(zoo) as context:
        monkeypatch.setattr(context, "_decode", lambda *_: 1)
        with pytest.raises(BackendError, match="no room for the batch"):
            context.inject([FeatureEntry(0, 0, rows(1))])
        with pytest.raises(BackendError, match="no room for the batch"):
            context.draft([BlockEntry(0, 0, 7)])


@pytest.mark.parametrize(("draft", "cls"), [("dflash", Dflash), ("dspark-anchor", Dspark)])
@pytest.mark.parametrize("n_seq", [1, 3])
def test_small_batches_make_room_for_blocks(zoo: Zoo, draft: str, cls: Any, n_seq: int) -> None:
    """llama.cpp computes a block of each sequence at once, or ends the process."""
    wanted = spec(zoo(draft), cls, n_max=20, n_batch=1)
    with engine(zoo("llama"), zoo(draft), n_seq=n_seq, n_batch=32, n_ubatch=4) as (running, _):
        plain = [running.submit(request(p, n=40)).result().tokens for p in PROMPTS]
        done = [generation.result() for generation in [running.submit(request(p, wanted, n=40)) for p in PROMPTS]]
    assert [each.tokens for each in done] == plain
    assert all(each.stats.accepted > 0 for each in done)


@pytest.mark.parametrize("draft", ["dflash", "dflash2", "dspark-anchor", "eagle3", "gemma4-assistant"])
def test_a_draft_is_no_target(zoo: Zoo, draft: str) -> None:
    with Model(zoo(draft)) as model, pytest.raises(ConfigError, match="draft model"):
        LlamaTarget(model, n_ctx=64, n_threads=1)


def test_files_are_named(zoo: Zoo, tmp_path: Path) -> None:
    missing = tmp_path / "missing.gguf"
    with engine(zoo("llama"), zoo("dflash")) as (running, _), pytest.raises(ConfigError, match=r"missing\.gguf"):
        running.submit(request(PROMPTS[0], spec(missing, Dflash)))
