"""``dspark``: each drafted token depends on the one before it, and the draft knows where it is in doubt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

import specframe
from specframe.backends.llama.gguf import inspect
from specframe.core.errors import ConfigError
from specframe.strategies.dspark import Dspark
from specframe.testing.zoo import Block, Markov, Own, Reads, World, corrupt, dflash, targets
from tests.support.acceptance import expected
from tests.support.drafting import PROMPTS, engine, request, spec, strategy_of
from tests.support.exact import quantized
from tests.support.llama import Zoo
from tests.support.recorded import recording

#: Share of errors in the weights -> share of a draft of four that llama.cpp's server accepts, by layout.
UPSTREAM = {
    "anchor": {0.0: 1.0, 0.1: 0.93, 0.25: 0.61, 0.5: 0.30, 0.75: 0.13, 1.0: 0.09},
    "bonus": {0.0: 1.0, 0.1: 0.77, 0.25: 0.61, 0.5: 0.25, 0.75: 0.08, 1.0: 0.0},
}
LAYOUTS = ("anchor", "bonus")
ERRORS = tuple(UPSTREAM["bonus"])


def drafter(path: Path, layout: str, *, own: Own | None = None, error: float = 0.2, **markov: Any) -> Path:
    """A draft for ``World()`` whose tokens come from the Markov head alone."""
    block = Block(backbone=False, strength=0.0, error=error, own=own or Own())
    dflash(path, block=block, markov=Markov(from_anchor=layout == "anchor", **markov))
    if layout == "bonus":
        return path
    # The row of the anchor is the anchor itself, in which the head would see the right successor.
    return corrupt.edit(path, path, tensors={"output.weight": 0.01 * _tensor(path, "output.weight")})


def _tensor(path: Path, name: str) -> Any:
    file = inspect(path)
    return np.frombuffer(file.data(name), np.float32).reshape(file.tensors[name].shape[::-1])


# -- acceptance -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "own", "error"),
    [
        *((layout, Own(), error) for layout in LAYOUTS for error in ERRORS),
        *((layout, own, 0.25) for layout in LAYOUTS for own in (Own(mapped=True), Own(embeddings=False))),
        ("bonus", Own(embeddings=False, head=False), 0.25),
    ],
)
def test_acceptance_is_what_the_weights_say(tmp_path: Path, layout: str, own: Own, error: float) -> None:
    target = targets.dense(tmp_path / "target.gguf", strength=0.0)
    draft = drafter(tmp_path / "draft.gguf", layout, error=error, own=own)
    with engine(target, draft, n_seq=3) as (running, _):
        wanted = spec(draft, Dspark, n_max=4)
        for prompt, generation in [(p, running.submit(request(p, wanted))) for p in PROMPTS]:
            stats = generation.result().stats
            assert (stats.verified, stats.accepted) == expected(World(), prompt, 96, World().wrong(error), 4)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_acceptance_is_upstreams(tmp_path: Path, layout: str, error: float) -> None:
    target = targets.dense(tmp_path / "target.gguf", strength=0.0)
    markov = Markov(from_anchor=layout == "anchor")
    draft = dflash(tmp_path / "draft.gguf", block=Block(backbone=False, error=error), markov=markov)
    with engine(target, draft, n_seq=3) as (running, _):
        wanted = spec(draft, Dspark, n_max=4)
        done = [generation.result().stats for generation in [running.submit(request(p, wanted)) for p in PROMPTS]]
    rate = sum(stats.accepted for stats in done) / sum(stats.verified for stats in done)
    assert rate == pytest.approx(UPSTREAM[layout][error], abs=0.03)


@pytest.mark.parametrize("kind", ["Q8_0", "F16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_quantized_drafts_draft_the_same(zoo: Zoo, tmp_path: Path, layout: str, kind: str) -> None:
    draft = zoo(f"dspark-{layout}")
    smaller = quantized(draft, tmp_path / "smaller.gguf", kind=kind)
    with engine(zoo("llama-bigram"), draft, n_seq=2) as (running, _):
        wanted = [spec(path, Dspark, n_max=4, p_min=0.5) for path in (draft, smaller)]
        full, small = (running.submit(request(PROMPTS[0], each)).result().stats for each in wanted)
    assert 0 < full.accepted == small.accepted
    assert full.accepted_per_position == small.accepted_per_position


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_whole_block_is_drafted(zoo: Zoo, layout: str) -> None:
    """One token more where the anchor's row predicts too."""
    draft, n_block = zoo(f"dspark-{layout}"), {"anchor": 8, "bonus": 7}[layout]
    with engine(zoo("llama-bigram"), draft) as (running, _):
        wanted = spec(draft, recording(Dspark), n_max=20)
        running.submit(request(PROMPTS[0], wanted)).result()
        strategy = strategy_of(running, wanted)
    assert strategy.max_draft == n_block
    assert max(len(ids) for _, ids in strategy.drafts) == n_block


@pytest.mark.parametrize("layout", LAYOUTS)
def test_drafts_read_what_the_target_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    """With a head that says nothing and masks that see nothing but the injected features."""
    target = targets.dense(tmp_path / "target.gguf", strength=0.0)
    markov = Markov(from_anchor=layout == "anchor", scores=False)
    draft = dflash(tmp_path / "draft.gguf", block=Block(reads=Reads.FEATURES, error=0.0), markov=markov)
    with engine(target, draft, n_seq=3) as (running, _):
        wanted = spec(draft, Dspark, n_max=4)
        right = [running.submit(request(p, wanted)).result().stats for p in PROMPTS]
        context = strategy_of(running, wanted)._context
        inject = context.inject
        nothing = lambda entries: inject([attrs.evolve(e, rows=np.zeros_like(e.rows)) for e in entries])  # noqa: E731
        monkeypatch.setattr(context, "inject", nothing)
        blind = [running.submit(request(p, wanted)).result().stats for p in PROMPTS]
    assert [stats.accepted for stats in right] == [stats.verified for stats in right]
    # The row of the anchor knows the first token by itself.
    accepted, verified = (sum(getattr(stats, name) for stats in blind) for name in ("accepted", "verified"))
    assert accepted < {"anchor": 0.3, "bonus": 0.05}[layout] * verified


# -- confidence -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_seq", [1, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_drafts_end_where_the_confidence_head_says(tmp_path: Path, layout: str, n_seq: int) -> None:
    """It is right about every wrong token here, so nothing is rejected, and a lower bar changes nothing."""
    target = targets.dense(tmp_path / "target.gguf", strength=0.0)
    draft, wrong = drafter(tmp_path / "draft.gguf", layout, error=0.25), World().wrong(0.25)
    with engine(target, draft, n_seq=n_seq) as (running, _):
        for p_min in (0.5, 0.9):  # sigmoid(3) is 0.95, sigmoid(-5) is 0.007
            wanted = spec(draft, Dspark, n_max=4, p_min=p_min)
            for prompt, generation in [(p, running.submit(request(p, wanted))) for p in PROMPTS]:
                stats = generation.result().stats
                assert stats.verified == stats.accepted == expected(World(), prompt, 96, wrong, 4)[1] > 0
        lenient = spec(draft, Dspark, n_max=4, p_min=0.001)
        stats = running.submit(request(PROMPTS[0], lenient)).result().stats
        assert (stats.verified, stats.accepted) == expected(World(), PROMPTS[0], 96, wrong, 4)
        strict = running.submit(request(PROMPTS[0], spec(draft, Dspark, p_min=0.96))).result().stats
        assert (strict.drafted, strict.inactive_reason) == (0, "nothing-proposed")


@pytest.mark.parametrize("markov", [{"confidence": False}, {"confidence": False, "declare_confidence": False}])
def test_a_probability_without_a_confidence_head_is_refused(tmp_path: Path, markov: dict[str, Any]) -> None:
    target = targets.dense(tmp_path / "target.gguf", strength=0.0)
    draft = drafter(tmp_path / "draft.gguf", "anchor", error=0.25, **markov)
    with engine(target, draft) as (running, _):
        with pytest.raises(ConfigError, match=r"draft\.gguf has no confidence head .* p_min=0\.5 .* leave p_min at 0"):
            running.submit(request(PROMPTS[0], spec(draft, Dspark, p_min=0.5)))
        stats = running.submit(request(PROMPTS[0], spec(draft, Dspark, n_max=4))).result().stats
        assert (stats.verified, stats.accepted) == expected(World(), PROMPTS[0], 96, World().wrong(0.25), 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"p_min": 0.5}, r"no confidence head .* leave p_min at 0"),
        ({"devices": "CUDA9"}, "no device 'CUDA9'"),
        ({"type_k": "f17"}, "f17"),
    ],
)
def test_options_that_cannot_work_are_refused_when_the_model_is_loaded(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    target = targets.dense(tmp_path / "target.gguf", strength=0.0)
    draft = drafter(tmp_path / "draft.gguf", "anchor", confidence=False)
    with pytest.raises(ConfigError, match=message):
        specframe.load(target, strategy="dspark", draft=draft, options=options, n_ctx=256, threads=1)


def test_short_drafts_are_dropped(tmp_path: Path) -> None:
    target = targets.dense(tmp_path / "target.gguf", strength=0.0)
    draft = drafter(tmp_path / "draft.gguf", "bonus", error=0.25)
    with engine(target, draft) as (running, _):
        wanted = spec(draft, recording(Dspark), n_max=4, n_min=3, p_min=0.5)
        stats = running.submit(request(PROMPTS[0], wanted)).result().stats
        lengths = {len(ids) for history, ids in strategy_of(running, wanted).drafts if len(history) < 19 + 90}
    assert lengths == {0, 3, 4}
    assert stats.accepted == stats.verified > 0
