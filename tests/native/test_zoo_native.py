"""llama.cpp agrees with the zoo: every target loads, and says what its world says."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from specframe.backends.llama.context import Context
from specframe.backends.llama.gguf import inspect
from specframe.backends.llama.model import Model
from specframe.backends.llama.validation import validate_target
from specframe.core.errors import ConfigError
from specframe.core.ports import BatchEntry
from specframe.testing import zoo as kit

Zoo = Callable[[str], Path]

BIGRAM = ["llama-bigram", "qwen35-mtp-bigram"]
CONTEXTUAL = ["llama", "llama-chat", "qwen3", "qwen35", "qwen35-mtp", "qwen35-mtp-h", "step35-mtp3", "gemma4"]
DRAFTS = [
    *("mtp-qwen35", "gemma4-assistant", "dflash", "dflash-shared", "dflash-inject", "dflash-anchor"),
    *(
        "dflash-qwen35",
        "dflash2",
        "dflash2-qwen35",
        "dflash2-shared",
        "dspark-anchor",
        "dspark-bonus",
        "eagle3",
        "eagle3-g",
        "eagle3-shared",
    ),
]


def greedy(path: Path, prompt: list[int], n: int) -> list[int]:
    """Plain decoding, one token at a time."""
    ids = list(prompt)
    with Model(path) as model, Context(model, n_ctx=256, n_threads=1) as context:
        entry = BatchEntry(0, 0, prompt, 1)
        for _ in range(n):
            context.decode([entry])
            token = int(context.logits()[-1].argmax())
            entry = BatchEntry(0, len(ids), [token], 1)
            ids.append(token)
    return ids[len(prompt) :]


def test_every_model_of_the_zoo_is_tried_here() -> None:
    assert {*BIGRAM, *CONTEXTUAL, *DRAFTS, "llama-utf8", "draft-simple"} == {*kit.NAMES}


@pytest.mark.parametrize("name", BIGRAM)
@pytest.mark.parametrize("prompt", [b"a", b"hello world", b"0!"])
def test_a_bigram_model_recites_its_world(name: str, prompt: bytes, zoo: Zoo) -> None:
    assert greedy(zoo(name), list(prompt), 50) == kit.World().recite(prompt[-1], 50)


def test_a_bigram_model_of_many_layers_recites_its_world(tmp_path: Path) -> None:
    world = kit.World(width=128, seed=3)
    shape = kit.Shape(n_layer=9, n_ff=160, n_head=8, n_kv=4, head=16)
    path = kit.targets.dense(tmp_path / "deep.gguf", world=world, shape=shape, strength=0.0)
    assert greedy(path, [97], 30) == world.recite(97, 30)


@pytest.mark.parametrize("name", CONTEXTUAL)
def test_context_overrides_the_bigram_now_and_then(name: str, zoo: Zoo) -> None:
    world = kit.World()
    said = greedy(zoo(name), list(b"the quick brown fox"), 96)
    assert set(said) <= set(world.active)
    follows = sum(world.successor(a) == b for a, b in itertools.pairwise(said))
    assert 5 < follows < 95


def test_a_simple_draft_errs_where_it_should(zoo: Zoo) -> None:
    world = kit.World()
    wrong = {world.active[i] for i in world.wrong(0.2)}
    for token in world.active:
        right = greedy(zoo("draft-simple"), [token], 1) == [world.successor(token)]
        assert right == (token not in wrong)


def test_byte_fallback_recites_emoji_and_cjk(zoo: Zoo) -> None:
    ids = kit.Vocabulary.byte_fallback().tokens_of(kit.UTF8_CYCLE)
    said = greedy(zoo("llama-utf8"), [ids[-1]], 48)
    with Model(zoo("llama-utf8")) as model:
        assert model.vocab.tokenize(kit.UTF8_CYCLE, add_special=False) == ids
        pieces = [model.vocab.piece(token) for token in said]
    assert max(map(len, pieces)) == 1
    assert b"".join(pieces).decode() == kit.UTF8_CYCLE * 2


@pytest.mark.parametrize("name", DRAFTS)
def test_a_draft_is_refused_as_a_target(name: str, zoo: Zoo) -> None:
    with pytest.raises(ConfigError, match=re.escape(str(zoo(name)))):
        validate_target(inspect(zoo(name)))
