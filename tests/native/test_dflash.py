"""Block drafters: the drafts are what the weights say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from specframe.backends.llama.gguf import inspect
from specframe.core.errors import ConfigError
from specframe.core.ports import Decoded
from specframe.core.strategy import BatchStrategy
from specframe.strategies.dflash import Dflash
from specframe.strategies.dflash2 import Dflash2
from specframe.strategies.held_features import HeldFeatures
from specframe.testing.zoo import Block, Lattice, Own, Reads, World, corrupt, dflash, targets
from tests.support.acceptance import expected
from tests.support.drafting import BLOCKS, PROMPTS, Case, engine, request, spec, strategy_of
from tests.support.exact import quantized
from tests.support.llama import Zoo
from tests.support.nvfp4 import nvfp4_copy

ERRORS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
NOTHING = Own(embeddings=False, head=False)

#: Both strategies, with a lattice that leaves the choice to the logits.
both_kinds = pytest.mark.parametrize(
    ("cls", "lattice"), [(Dflash, None), (Dflash2, Lattice(weight=0.0))], ids=["dflash", "dflash2"]
)


# -- the wiring -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sections", [(), (16, 0, 0, 0)], ids=["rope", "mrope"])
@both_kinds
def test_a_drafter_that_reads_features_alone_needs_them_at_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cls: type[BatchStrategy], lattice: Lattice | None, sections: Any
) -> None:
    target = targets.dense(tmp_path / "target.gguf", strength=0.0)
    block = Block(reads=Reads.FEATURES, error=0.0, rope_sections=sections)
    draft = dflash(tmp_path / "draft.gguf", block=block, lattice=lattice)

    def rate() -> float:
        with engine(target, draft, n_seq=3) as (running, _):
            # Features reach up to the position before the last token, so the first head finds nothing.
            started = [running.submit(request(p, spec(draft, cls, n_max=6))) for p in PROMPTS]
            stats = [generation.result().stats for generation in started]
            return sum(s.accepted for s in stats) / sum(s.verified for s in stats)

    assert rate() > 0.95
    seen = HeldFeatures.seen

    def spoiled(self: HeldFeatures, decoded: Decoded) -> None:
        seen(self, attrs.evolve(decoded, layer_inputs={k: v * 0 for k, v in decoded.layer_inputs.items()}))

    def shifted(self: HeldFeatures, decoded: Decoded) -> None:
        inputs = {layer: np.roll(rows, 1, axis=0) for layer, rows in decoded.layer_inputs.items()}
        seen(self, attrs.evolve(decoded, layer_inputs=inputs))

    for wrong in (spoiled, shifted):
        monkeypatch.setattr(HeldFeatures, "seen", wrong)
        assert rate() < 0.3


@pytest.mark.parametrize("layers", [(2, 0), (1,), (0, 1, 2, 3)], ids=str)
def test_each_layer_goes_where_it_belongs(tmp_path: Path, zoo: Zoo, layers: tuple[int, ...]) -> None:
    """Only one part of the projection is not zero: the features of the layer it reads are needed."""
    block = Block(reads=Reads.FEATURES, error=0.0, target_layers=layers)
    whole = dflash(tmp_path / "draft.gguf", block=block)
    weights = inspect(whole).data("fc.weight")
    matrix = np.frombuffer(weights, np.float32).reshape(64, len(layers), 64)
    rates = []
    for i in range(len(layers)):
        part = np.zeros_like(matrix)
        part[:, i] = matrix[:, i] * len(layers)
        draft = corrupt.edit(whole, tmp_path / f"{i}.gguf", tensors={"fc.weight": part.reshape(64, -1)})
        with engine(zoo("llama-bigram"), draft) as (running, _):
            stats = running.submit(request(PROMPTS[0], spec(draft, Dflash, n_max=4))).result().stats
        rates.append(stats.accepted / stats.verified)
    assert min(rates) > 0.95


# -- causality --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expects", [True, False], ids=["expects-causal", "expects-both-ways"])
@pytest.mark.parametrize("declared", [True, False, None], ids=["causal", "not-causal", "undeclared"])
def test_attention_is_of_the_kind_that_the_file_declares(
    zoo: Zoo, tmp_path: Path, declared: bool | None, expects: bool
) -> None:
    draft = dflash(tmp_path / "draft.gguf", block=Block(causal=declared, expects_causal=expects))
    with engine(zoo("llama-bigram"), draft) as (running, _):
        stats = running.submit(request(PROMPTS[0], spec(draft, Dflash))).result().stats
    rate = stats.accepted_per_position[0] / stats.verified_per_position[0]
    assert rate == 1 if bool(declared) is expects else rate < 0.1


# -- acceptance -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ERRORS)
@both_kinds
def test_acceptance_is_what_the_weights_say(
    tmp_path: Path, cls: type[BatchStrategy], lattice: Lattice | None, error: float
) -> None:
    target = targets.dense(tmp_path / "target.gguf", strength=0.0)
    draft = dflash(tmp_path / "draft.gguf", block=Block(error=error, strength=0.0), lattice=lattice)
    wrong = World().wrong(error)
    with engine(target, draft, n_seq=3) as (running, _):
        started = [(p, running.submit(request(p, spec(draft, cls, n_max=4)))) for p in PROMPTS]
        for prompt, generation in started:
            stats = generation.result().stats
            assert (stats.verified, stats.accepted) == expected(World(), prompt, 96, wrong, 4)


@pytest.mark.parametrize("more", [{"window": 16}, {"sinks": True}, {"n_layer": 3}], ids=str)
def test_drafters_of_other_shapes_draft_the_same(tmp_path: Path, more: dict[str, Any]) -> None:
    target = targets.dense(tmp_path / "target.gguf", strength=0.0)
    blocks = Block(error=0.25, strength=0.0), Block(error=0.25, strength=0.0, **more)
    paths = [dflash(tmp_path / f"{i}.gguf", block=block) for i, block in enumerate(blocks)]
    with engine(target, paths[0]) as (running, _):
        usual, other = (running.submit(request(PROMPTS[0], spec(path, Dflash))).result() for path in paths)
    assert 0 < usual.stats.accepted == other.stats.accepted
    assert usual.stats.accepted_per_position == other.stats.accepted_per_position


@pytest.mark.parametrize("kind", ["Q8_0", "F16", "NVFP4"])
@both_kinds
def test_quantized_drafts_draft_the_same(
    tmp_path: Path, cls: type[BatchStrategy], lattice: Lattice | None, kind: str
) -> None:
    target = targets.dense(tmp_path / "target.gguf", strength=0.0)
    draft = dflash(tmp_path / "draft.gguf", block=Block(error=0.25), lattice=lattice)
    path = tmp_path / "smaller.gguf"
    smaller = nvfp4_copy(draft, path) if kind == "NVFP4" else quantized(draft, path, kind=kind)
    with engine(target, draft) as (running, _):
        full, small = (running.submit(request(PROMPTS[0], spec(path, cls))).result().stats for path in (draft, smaller))
    assert 0 < full.accepted == small.accepted
    assert full.accepted_per_position == small.accepted_per_position


@both_kinds
def test_scales_beside_weights_are_applied(tmp_path: Path, cls: type[BatchStrategy], lattice: Lattice | None) -> None:
    """As in NVFP4 files: a weight is what is stored times one number."""
    target = targets.dense(tmp_path / "target.gguf", strength=0.0)
    draft = dflash(tmp_path / "draft.gguf", block=Block(error=0.25), lattice=lattice)
    file = inspect(draft)
    names = ["fc", *(f"blk.0.{name}" for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_down"))]
    tensors: dict[str, Any] = {}
    for name in names:
        shape = file.tensors[f"{name}.weight"].shape[::-1]
        tensors[f"{name}.weight"] = 4 * np.frombuffer(file.data(f"{name}.weight"), np.float32).reshape(shape)
        tensors[f"{name}.scale"] = np.full(1, 0.25)
    scaled = corrupt.edit(draft, tmp_path / "scaled.gguf", tensors=tensors)
    spoiled = corrupt.edit(scaled, tmp_path / "spoiled.gguf", tensors={"blk.0.attn_output.scale": np.zeros(1)})
    with engine(target, draft) as (running, _):
        one, same, other = (
            running.submit(request(PROMPTS[0], spec(path, cls))).result().stats for path in (draft, scaled, spoiled)
        )
    assert one.accepted_per_position == same.accepted_per_position
    assert other.accepted < one.accepted


def test_the_selector_decides_between_candidates(tmp_path: Path) -> None:
    """The head prefers another token to the right one; only pairs of tokens tell which of the two follows."""
    target = targets.dense(tmp_path / "target.gguf", strength=0.0)
    world = World()
    confused = world.head.copy()
    for i, token in enumerate(world.active):
        confused[token] += 1.2 * world.head[world.active[i - 7]]
    rates = {}
    for weight in (0.0, 20.0):
        path = tmp_path / f"{weight}.gguf"
        dflash(path, block=Block(error=0.0, strength=0.0), lattice=Lattice(weight=weight))
        corrupt.edit(path, path, tensors={"output.weight": confused})
        with engine(target, path, n_seq=3) as (running, _):
            started = [running.submit(request(p, spec(path, Dflash2))) for p in PROMPTS]
            stats = [generation.result().stats for generation in started]
        rates[weight] = sum(s.accepted for s in stats) / sum(s.verified for s in stats)
    assert rates[0.0] < 0.1
    assert rates[20.0] == 1.0


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [BLOCKS[0], BLOCKS[3], BLOCKS[4]], ids=str)
def test_memory_formats_are_taken(zoo: Zoo, case: Case) -> None:
    with case.engine(zoo) as (running, _):
        plain, *drafted = (
            running.submit(request(PROMPTS[0], strategy)).result()
            for strategy in (None, case.spec(zoo), case.spec(zoo, type_k="q8_0", type_v="q8_0", threads=1))
        )
        sizes = [
            strategy_of(running, case.spec(zoo, **types))._context.save_state(0).nbytes
            for types in ({}, {"type_k": "q8_0", "type_v": "q8_0", "threads": 1})
        ]
    assert [each.tokens for each in drafted] == [plain.tokens] * 2
    assert drafted[1].stats.accepted > 0.5 * drafted[0].stats.accepted > 0
    assert sizes[1] < 0.7 * sizes[0]


def test_options_that_cannot_work_are_refused(zoo: Zoo) -> None:
    with pytest.raises(ConfigError, match=r"n_min=5 .*n_max=4"):
        spec(zoo("dflash"), Dflash, n_min=5, n_max=4)
    with pytest.raises(ConfigError, match="no option 'backend_sampling'"):
        spec(zoo("dflash2"), Dflash2, backend_sampling=True)
    with engine(zoo("llama"), zoo("dflash")) as (running, _):
        for options, named in (({"type_k": "q3_k"}, "type_k 'q3_k'"), ({"type_v": "f64"}, "type_v 'f64'")):
            with pytest.raises(ConfigError, match=named):
                running.submit(request(PROMPTS[0], spec(zoo("dflash"), Dflash, **options)))
        with pytest.raises(ConfigError, match="'dflash2', not for 'dflash'"):
            running.submit(request(PROMPTS[0], spec(zoo("dflash2"), Dflash)))
        assert running.submit(request(PROMPTS[0], spec(zoo("dflash"), Dflash))).result().stats.accepted > 0
