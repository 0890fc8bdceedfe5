"""EAGLE-3: features become states, rows are those of their tokens, and drafts are right as often as the weights say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

import specframe
from specframe.backends.llama.autoregressive_context import DraftEntry
from specframe.backends.llama.context import Context
from specframe.backends.llama.eagle3_context import ENCODED_AT_ONCE, Eagle3Context
from specframe.backends.llama.model import Model
from specframe.core.errors import ClosedError, ConfigError
from specframe.core.ports import Decoded
from specframe.core.stats import RequestStats
from specframe.strategies.eagle3 import Eagle3
from specframe.testing.zoo import Own, Vocabulary, World, corrupt, drafts, targets
from specframe.testing.zoo.world import linear, side_by_side
from tests.support.acceptance import ERRORS, expected
from tests.support.drafting import PROMPTS, engine, request, spec, strategy_of
from tests.support.llama import Zoo
from tests.support.recorded import recording

#: Targets of each kind; drafts of the zoo share their vocabulary's tokens, not always its pre-tokenizer.
WORLDS = {"llama": World(), "gemma4": World(), "qwen35": World(vocabulary=Vocabulary.byte_level(pre="qwen35"))}


def bigram(path: Path, name: str) -> Path:
    """A target that recites the cycle and nothing else."""
    if name == "llama":
        return targets.dense(path, world=WORLDS[name], strength=0.0)
    make = targets.hybrid if name == "qwen35" else targets.sliding_window
    return make(path, world=WORLDS[name], strength=0.0)


def reading(path: Path, layers: Sequence[int], shares: Sequence[float]) -> Path:
    """A draft that goes by features alone: so much of the input of each layer."""
    drafts.eagle3(path, mix=1.0, error=0.0, target_layers=layers)
    return corrupt.edit(path, path, tensors={"fc.weight": side_by_side(*(share * np.eye(64) for share in shares))})


def stats_of(target: Path, draft: Path, **options: Any) -> list[RequestStats]:
    """What the statistics say of each prompt."""
    with engine(target, draft, n_rs_seq=4) as (running, _):
        return [running.submit(request(p, spec(draft, Eagle3, **options))).result().stats for p in PROMPTS]


def rate(stats: Sequence[RequestStats]) -> float:
    """Share of the verified tokens that were accepted."""
    return sum(s.accepted for s in stats) / sum(s.verified for s in stats)


# -- acceptance -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("name", WORLDS)
def test_acceptance_is_what_the_weights_say(tmp_path: Path, name: str, error: float) -> None:
    world = WORLDS[name]
    target = bigram(tmp_path / "target.gguf", name)
    draft = drafts.eagle3(tmp_path / "draft.gguf", world=world, error=error, strength=0.0)
    wanted = [expected(world, prompt, 96, world.wrong(error), 4) for prompt in PROMPTS]
    assert [(s.verified, s.accepted) for s in stats_of(target, draft, n_max=4)] == wanted


@pytest.mark.parametrize(
    "own",
    [Own(mapped=True), Own(embeddings=False), Own(head=False), Own(embeddings=False, mapped=True)],
    ids=["reduced vocabulary", "shared embeddings", "shared head", "shared embeddings, reduced vocabulary"],
)
def test_whatever_a_draft_carries_itself(tmp_path: Path, own: Own) -> None:
    target = bigram(tmp_path / "target.gguf", "llama")
    whole = drafts.eagle3(tmp_path / "whole.gguf", error=0.25, strength=0.0)
    draft = drafts.eagle3(tmp_path / "draft.gguf", error=0.25, strength=0.0, own=own)
    for backend_sampling in (True, False):
        options = {"n_max": 4, "p_min": 0.5, "backend_sampling": backend_sampling}
        counts = [[(s.verified, s.accepted) for s in stats_of(target, file, **options)] for file in (whole, draft)]
        assert counts[0] == counts[1]


def test_a_draft_may_be_wider_than_its_target(tmp_path: Path) -> None:
    world, wide = World(), World(width=96)
    target = bigram(tmp_path / "target.gguf", "llama")
    draft = drafts.eagle3(tmp_path / "draft.gguf", world=wide, error=0.0, mix=0.0, strength=0.0, target_width=64)
    reshaped = corrupt.edit(draft, tmp_path / "wide.gguf", tensors={"fc.weight": np.ones((96, 3 * 64))})
    assert world.active == wide.active
    assert rate(stats_of(target, reshaped, n_max=4)) == 1.0  # it reads the tokens, and its features are constant


# -- the wiring -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "qwen35", "gemma4"])
def test_shifted_features_are_noticed(zoo: Zoo, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A draft that reads nothing but the features is right with those before its token, and only with them."""
    right = stats_of(zoo(name), zoo("eagle3-g"), n_max=1)
    featured = Eagle3._featured

    def shifted(self: Eagle3, batch: Sequence[Decoded]) -> list[Decoded]:
        return [attrs.evolve(each, hidden=np.roll(np.array(each.hidden), 1, axis=0)) for each in featured(self, batch)]

    monkeypatch.setattr(Eagle3, "_featured", shifted)
    wrong = stats_of(zoo(name), zoo("eagle3-g"), n_max=1)
    assert rate(right) > 0.35
    assert rate(wrong) < 0.5 * rate(right)


@pytest.mark.parametrize("n_keep", [0, 1, 5])
def test_states_stay_with_their_tokens_when_the_context_shifts(tmp_path: Path, n_keep: int) -> None:
    target = bigram(tmp_path / "target.gguf", "llama")
    draft = drafts.eagle3(tmp_path / "draft.gguf", mix=1.0, error=0.0, strength=0.0)
    with engine(target, draft, n_ctx=64) as (running, _):
        for n_max in (1, 4):
            wanted = request(PROMPTS[0], spec(draft, Eagle3, n_max=n_max), n=200, context_full="shift", n_keep=n_keep)
            stats = running.submit(wanted).result().stats
            assert stats.accepted == stats.verified > 90


def made(target: Path, draft: Path) -> list[Any]:
    """Drafts for each prompt, with what they continue."""
    with engine(target, draft) as (running, _):
        wanted = spec(draft, recording(Eagle3), n_max=4)
        for prompt in PROMPTS:
            running.submit(request(prompt, wanted)).result()
        return list(strategy_of(running, wanted).drafts)


@pytest.mark.parametrize("name", ["llama", "qwen35"])
def test_layers_come_in_the_order_of_the_file(zoo: Zoo, tmp_path: Path, name: str) -> None:
    drafted = []
    for i, (layers, shares) in enumerate([((3, 0, 2), (0.7, 0.0, 0.3)), ((0, 2, 3), (0.0, 0.3, 0.7))]):
        drafted.append(made(zoo(name), reading(tmp_path / f"{i}.gguf", layers, shares)))
    assert drafted[0] == drafted[1]
    assert made(zoo(name), reading(tmp_path / "other.gguf", (0, 2, 3), (0.7, 0.0, 0.3))) != drafted[0]


@pytest.mark.parametrize("name", ["qwen35", "gemma4"])
def test_what_leaves_the_last_layer_knows_the_next_token(zoo: Zoo, tmp_path: Path, name: str) -> None:
    rates = []
    for last in (3, 4):
        path = reading(tmp_path / f"{last}.gguf", (0, 1, last), (0.0, 0.0, 1.0))
        rates.append(rate(stats_of(zoo(name), path, n_max=1)))
    assert rates[1] > max(0.5, rates[0])


# -- the context ------------------------------------------------------------------------------------------------------


@contextmanager
def contexts(zoo: Zoo, draft: Path, *variants: dict[str, Any], **options: Any) -> Iterator[list[Eagle3Context]]:
    with (
        Model(zoo("llama")) as model,
        Model(draft) as draft_model,
        Context(model, **{"n_ctx": 256, "n_threads": 1, **options}) as target,
    ):
        yield [Eagle3Context(draft_model, target, n_joined=5, **variant) for variant in variants]


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("n_ubatch", [512, 8])
def test_features_are_encoded_in_chunks(zoo: Zoo, tmp_path: Path, normed: bool, n_ubatch: int) -> None:
    rng = np.random.default_rng(3)
    path, matrix, scale = tmp_path / "draft.gguf", linear(rng, 64, 192), rng.uniform(0.5, 2.0, 192)
    drafts.eagle3(path, norm_before_fc=normed)
    tensors = {"fc.weight": matrix, **({"enc.output_norm.weight": scale} if normed else {})}
    corrupt.edit(path, path, tensors=tensors)
    with contexts(zoo, path, {}, n_ubatch=n_ubatch) as [context]:
        assert context.layers == (0, 1, 2)
        for n in (1, 2 * ENCODED_AT_ONCE + 3):
            context.decode([DraftEntry(0, context.n_past(0), [1, 2], np.zeros((2, 64), np.float32))])
            features = rng.standard_normal((n, 192), np.float32)
            held = context.n_past(0)
            states = context.encode(features)
            assert context.n_past(0) == held
            x = features.astype(np.float64)
            if normed:
                x = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-6) * scale
            np.testing.assert_allclose(states, x @ matrix.T, atol=1e-3)
        with pytest.raises(ConfigError, match="rows of 192 features are needed"):
            context.encode(np.zeros((3, 64), np.float32))
        context.close()
        with pytest.raises(ClosedError):
            context.encode(np.zeros((3, 192), np.float32))


@pytest.mark.parametrize("kv_unified", [False, True])
@pytest.mark.parametrize("probabilities", [False, True])
def test_rows_are_those_of_the_last_tokens(zoo: Zoo, kv_unified: bool, probabilities: bool) -> None:
    """Whichever sequences draft, with however many tokens, and with features encoded in between."""
    rng = np.random.default_rng(0)
    variants = [{"backend_sampling": inside, "probabilities": probabilities} for inside in (True, False)]
    with contexts(zoo, zoo("eagle3"), *variants, n_seq=3, kv_unified=kv_unified) as (inside, outside):
        for _ in range(150):
            lengths = rng.integers(1, 6, 3) if rng.random() < 0.5 else np.ones(3, int)
            entries = []
            for seq in map(int, rng.permutation(3)[: rng.integers(1, 4)]):
                if inside.n_past(seq) > 100:
                    inside.clear(seq)
                    outside.clear(seq)
                n = int(lengths[seq])
                states = rng.standard_normal((n, 64), np.float32)
                entries.append(DraftEntry(seq, inside.n_past(seq), rng.integers(97, 120, n).tolist(), states, True))
            for context in (inside, outside):
                if rng.random() < 0.5:
                    context.encode(rng.standard_normal((5, 192), np.float32))
                context.decode(entries)
            np.testing.assert_array_equal(inside.states(), outside.states())
            (tokens, shares), (same, wanted) = (zip(*c.choices(), strict=True) for c in (inside, outside))
            assert tokens == same
            np.testing.assert_allclose(shares, wanted, atol=1e-4)


def test_joined_and_single_tokens_say_the_same(zoo: Zoo) -> None:
    rng = np.random.default_rng(1)
    states = rng.standard_normal((5, 64), np.float32)
    with contexts(zoo, zoo("eagle3"), {"probabilities": True}) as [context]:
        context.decode([DraftEntry(0, 0, [97, 98, 99, 100, 101], states, output=True)])
        joined = context.states().copy(), context.choices()
        context.clear(0)
        for pos in range(5):
            context.decode([DraftEntry(0, pos, [97 + pos], states[pos : pos + 1], output=True)])
        np.testing.assert_allclose(context.states(), joined[0], atol=1e-3)
        assert context.choices()[0][0] == joined[1][0][0]
        with pytest.raises(ConfigError, match="6 draft tokens with an output; at most 5"):
            context.decode([DraftEntry(0, 5, [97] * 6, np.zeros((6, 64), np.float32), output=True)])
        with pytest.raises(ConfigError, match="there is no head 1"):
            context.use_head(1)


def test_another_kind_of_model_is_refused(zoo: Zoo, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a llama model, no EAGLE-3 draft"), contexts(zoo, zoo("draft-simple"), {}):
        pass
    other = drafts.eagle3(tmp_path / "other.gguf", target_width=96)
    corrupt.edit(other, other, tensors={"fc.weight": np.zeros((64, 3 * 96))})
    with pytest.raises(ConfigError, match=r"reads features of 96 values, but .* has 64"), contexts(zoo, other, {}):
        pass
    with pytest.raises(ConfigError, match="name it with draft="), specframe.load(zoo("llama"), strategy="eagle3"):
        pass


@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_memory_formats_and_threads(zoo: Zoo, kind: str) -> None:
    plain, formatted = (
        stats_of(zoo("qwen3"), zoo("eagle3"), n_max=4, **options)
        for options in ({}, {"type_k": kind, "type_v": kind, "threads": 2, "n_ctx": 200, "n_batch": 16})
    )
    assert abs(rate(plain) - rate(formatted)) < 0.05
