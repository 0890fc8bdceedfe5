"""A language model as the draft: right as often as its weights say, and only where it can be one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specframe
from specframe.backends.llama.autoregressive_context import DraftEntry
from specframe.backends.llama.context import Context
from specframe.backends.llama.gguf import inspect
from specframe.backends.llama.model import Model
from specframe.backends.llama.plain_context import PlainContext
from specframe.backends.llama.plain_files import check_plain
from specframe.core.errors import ConfigError
from specframe.plugins import Registry
from specframe.strategies.draft_model import DraftModel
from specframe.testing.zoo import World, drafts, targets
from tests.support.acceptance import ERRORS, expected
from tests.support.drafting import PROMPTS, engine, request, spec, strategy_of
from tests.support.llama import Zoo
from tests.support.recorded import recording


@pytest.mark.parametrize("error", ERRORS)
def test_acceptance_is_what_the_weights_say(tmp_path: Path, error: float) -> None:
    target = targets.dense(tmp_path / "target.gguf", strength=0.0)
    draft = drafts.simple(tmp_path / "draft.gguf", error=error)
    with engine(target, draft) as (running, _):
        for prompt in PROMPTS:
            stats = running.submit(request(prompt, spec(draft, DraftModel, n_max=4))).result().stats
            assert (stats.verified, stats.accepted) == expected(World(), prompt, 96, World().wrong(error), 4)


def test_a_model_drafts_for_itself(zoo: Zoo) -> None:
    """What it would say anyway is accepted whole, so the two memories hold the same text."""
    with engine(zoo("llama"), zoo("llama"), n_seq=3) as (running, _):
        wanted = spec(zoo("llama"), DraftModel, n_max=8)
        for generation in [running.submit(request(prompt, wanted)) for prompt in PROMPTS]:
            stats = generation.result().stats
            assert stats.accepted >= 0.95 * stats.verified > 0  # widths of batches decide near ties


def test_both_memories_shift_alike(zoo: Zoo) -> None:
    with engine(zoo("llama"), zoo("llama"), n_ctx=64) as (running, _):
        shifting: dict[str, Any] = {"context_full": "shift", "n_keep": 4}
        done = running.submit(request(PROMPTS[0], spec(zoo("llama"), DraftModel), n=200, **shifting)).result()
        assert done.stats.shifts > 2
        assert done.stats.accepted >= 0.95 * done.stats.verified > 100


def test_the_target_evaluates_nothing_again_for_it(zoo: Zoo) -> None:
    """A draft model that comes late reads by itself what the target holds."""
    draft = zoo("draft-simple")
    with engine(zoo("llama"), draft) as (running, _):
        wanted = spec(draft, recording(DraftModel), n_max=4)
        first = running.submit(request(PROMPTS[2] * 3, n=20, reuse_prefix=True)).result()
        history = [*PROMPTS[2] * 3, *first.tokens, *b" and then"]
        second = running.submit(request(history, wanted, n=40, reuse_prefix=True)).result()
        late = dict(strategy_of(running, wanted).drafts)
        fresh = running.submit(request(history, wanted, n=40)).result()
        assert second.tokens == fresh.tokens
        assert second.stats.cached_tokens >= len(PROMPTS[2] * 3) + len(first.tokens) - 1
        assert late.items() <= dict(strategy_of(running, wanted).drafts).items()
        assert second.stats.accepted > 0


BAD: dict[str, tuple[Any, str]] = {
    "nothing": (lambda _: None, "name it with draft="),
    "an eagle3 file": (lambda zoo: zoo("eagle3"), "made for strategy 'eagle3', not for 'draft-model'"),
    "a dflash file": (lambda zoo: zoo("dflash"), "made for strategy 'dflash', not for 'draft-model'"),
    "heads alone": (lambda zoo: zoo("mtp-qwen35"), "made for strategy 'mtp', not for 'draft-model'"),
    "recurrent layers": (lambda zoo: zoo("qwen35"), "recurrent layers"),
    "another tokenizer": (lambda zoo: zoo("llama-utf8"), "another vocabulary"),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_a_draft_is_refused(zoo: Zoo, make: Any, message: str) -> None:
    draft = make(zoo)
    with pytest.raises(ConfigError, match=message):
        check_plain(inspect(zoo("llama")), None if draft is None else inspect(draft))
    with pytest.raises(ConfigError, match=message):
        specframe.load(zoo("llama"), strategy="draft-model", draft=draft).close()


def test_memory_that_cannot_be_cut_is_refused(zoo: Zoo) -> None:
    with (
        Model(zoo("llama")) as model,
        Model(zoo("qwen35")) as hybrid,
        Context(model, n_ctx=256, n_threads=1) as target,
        pytest.raises(ConfigError, match="recurrent layers"),
    ):
        PlainContext(hybrid, target)


def test_tokens_it_does_not_have_are_refused(zoo: Zoo) -> None:
    """Vocabularies may be padded differently; a token beyond its own would be read from elsewhere."""
    with (
        Model(zoo("llama")) as model,
        Context(model, n_ctx=256, n_threads=1) as target,
        PlainContext(model, target) as context,
        pytest.raises(ConfigError, match="with ids from 0 to"),
    ):
        context.decode([DraftEntry(0, 0, [model.facts.n_vocab], np.empty((1, 0), np.float32), output=True)])


def test_it_volunteers_for_files_that_were_made_for_nothing_else(zoo: Zoo) -> None:
    registry = Registry.discover(load="")
    assert registry.suitable(zoo("llama"), zoo("draft-simple"))[0][0].name == "draft-model"
    assert registry.suitable(zoo("llama"), zoo("eagle3"))[0][0].name == "eagle3"
