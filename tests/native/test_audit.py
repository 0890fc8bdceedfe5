"""The audit of numerics: its verdicts against those of another program, and what it recommends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from typing_extensions import Self

import specframe
from specframe.backends.llama import audit as auditor
from specframe.backends.llama import kernels
from specframe.backends.llama.audit import Audit, audit
from specframe.backends.llama.declarations import CONCEPTS, declaration
from specframe.backends.llama.model import Model
from specframe.core.errors import BackendError, ConfigError
from specframe.testing.zoo import corrupt
from specframe.testing.zoo.blocks import Shape
from specframe.testing.zoo.targets import dense
from specframe.testing.zoo.world import World
from tests.support import width_script
from tests.support.audits import at, verdict
from tests.support.exact import ExactZoo, quantized

CONTEXT = 32
WIDTHS = (1, 2, 3, 8, 16)
SETTINGS: tuple[dict[str, Any], ...] = ({"flash_attn": True}, {"flash_attn": False}, {"n_ubatch": 4})


@pytest.fixture(scope="module")
def floating(zoo: Callable[[str], Path]) -> Any:
    """A tiny model with F32 weights, whose products ggml rounds differently for one row and for several."""
    with Model(zoo("llama")) as model:
        yield model


def script_says(model: Model, found: Audit, *, context: int, reference: bool = True) -> dict[str, Any]:
    """What a program that knows nothing of specframe finds at the widths of ``found``."""
    wanted = {
        "library": str(model.library.path),
        "declarations": [declaration(concept, model.library.version) for concept in CONCEPTS],
        "model": str(model.path),
        "repack": found.use_extra_bufts,
        "text": auditor._TEXT,
        "context": context,
        "tail": max(24, *(row.width for row in found.rows)),
        "widths": [row.width for row in found.rows if row.context == context],
        "n_threads": found.n_threads,
        "n_ubatch": found.n_ubatch,
        "flash_attn": found.flash_attn,
        "reference": reference,
    }
    script = Path(width_script.__file__)
    done = subprocess.run(
        [sys.executable, script], input=json.dumps(wanted), stdout=subprocess.PIPE, text=True, check=True
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def check_verdicts(model: Model, found: Audit, *, reference: bool = True) -> None:
    """Compare each row with what the script says."""
    margins = []
    for context in sorted({row.context for row in found.rows}):
        said = script_says(model, found, context=context, reference=reference)
        margins.append(said["smallest_margin"])
        rows = [row for row in found.rows if row.context == context]
        for row, other in zip(rows, said["rows"], strict=True):
            assert (row.width, row.positions, row.exact, row.flips) == (
                other["width"], other["positions"], other["exact"], other["flips"]
            )  # fmt: skip
            assert row.max_difference == pytest.approx(other["max_difference"], abs=1e-6)
            assert row.cost_s > 0
    assert found.smallest_margin == pytest.approx(min(margins), abs=1e-6)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", ["quantized", "floating"])
def test_the_verdicts_are_those_of_a_program_without_specframe(
    kind: str, settings: dict[str, Any], exact_zoo: ExactZoo, floating: Model
) -> None:
    model = exact_zoo("llama") if kind == "quantized" else floating
    found = audit(model, widths=WIDTHS, contexts=(CONTEXT,), n_threads=1, **settings)
    check_verdicts(model, found, reference=kind == "quantized")


@pytest.mark.parametrize("kind", ["F32", "BF16", "F16"])
def test_floating_point_weights_are_exact_when_told_to_be_and_where_that_costs_nothing(
    kind: str, zoo: Callable[[str], Path], tmp_path: Path
) -> None:
    path = quantized(zoo("llama"), tmp_path / f"{kind}.gguf", kind=kind)
    with Model(path) as model:
        assert model.gguf.weights == {kind.lower()}
        exact = audit(model, widths=WIDTHS, contexts=(CONTEXT,), n_threads=1, exact=True)
        assert (exact.exact_width, exact.exact_kernels) == (max(WIDTHS), True)
        check_verdicts(model, exact)
        usual = audit(model, widths=WIDTHS, contexts=(CONTEXT,), n_threads=1)
        assert usual.exact_width == (max(WIDTHS) if kind == "F16" else 1)
        check_verdicts(model, usual, reference=kind == "F16")


@pytest.mark.parametrize(
    ("weights", "usual", "exact"),
    [
        ({"q4_1", "q8_0"}, {2, 5}, {2, 5}),
        ({"q4_K", "f32"}, {1, 2, 5, 6, 63, 200}, {1, 2, 5, 6, 63, 200}),
        ({"f16", "f32"}, {2, 5, 6, 63, 200}, {2, 5, 6, 63, 200}),
        ({"q8_0", "f32"}, {2, 5, 6, 63, 200}, {2, 5, 6, 63, 200}),  # its few F32 matrices must not change the text
        ({"bf16", "f32"}, set(), {2, 5, 6, 63, 200}),
    ],
    ids=["quantized", "K-quants", "F16", "some F32", "BF16"],
)
def test_reference_mode_is_for_the_widths_that_need_it(weights: set[str], usual: set[int], exact: set[int]) -> None:
    for told, expected in ((False, usual), (True, exact)):
        rows = kernels._referenced(weights, exact=told, turned=False)
        assert {n for n in (1, 2, 5, 6, 63, 200) if n in rows} == expected


@pytest.mark.slow
def test_the_verdicts_on_a_real_model_are_those_of_a_program_without_specframe(smollm2: Path) -> None:
    with Model(smollm2) as model:
        found = audit(model, widths=(1, 3, 24), contexts=(320,), n_threads=2)
        check_verdicts(model, found)
        assert found.exact_width == 24
        # Kernels as llama.cpp chooses them split the memory of a single row over the threads, and round otherwise.
        stock = script_says(model, found, context=320, reference=False)
    assert not any(row["exact"] for row in stock["rows"] if row["width"] > 1)


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_k_quants_are_taken_as_they_are_and_are_exact(kind: str, tmp_path: Path) -> None:
    source = dense(tmp_path / "wide.gguf", world=World(width=256), shape=Shape(n_layer=2, n_ff=512, head=64, n_kv=4))
    path = quantized(source, tmp_path / f"{kind}.gguf", kind=kind)
    with Model(path) as model:
        assert model.gguf.weights == {kind.replace("Q", "q")}
        assert model.use_extra_bufts == (kind == "Q3_K")  # which no processor repacks
        found = audit(model, widths=WIDTHS, contexts=(CONTEXT,), n_threads=1)
        assert found.exact_width == max(WIDTHS)
        check_verdicts(model, found)
    with Model(path, use_extra_bufts=True) as model:
        check_verdicts(model, audit(model, widths=WIDTHS, contexts=(CONTEXT,), n_threads=1))
    with specframe.load(path, n_ctx=256, numerics="fast") as fast, specframe.load(path, n_ctx=256) as usual:
        assert fast.generate("abc", max_tokens=8).tokens
        assert usual.generate("abc", max_tokens=8).tokens


def test_exact_settings_are_recommended(exact_zoo: ExactZoo) -> None:
    exact = audit(exact_zoo("llama"), widths=WIDTHS, contexts=(CONTEXT,), n_threads=1)
    assert (exact.exact_width, exact.max_difference) == (16, 0.0)
    assert 'numerics="exact" works here' in exact.recommendation


@pytest.mark.parametrize("memory", ["qwen35", "gemma4"])
def test_memory_that_cannot_be_cut_is_audited_too(memory: str, exact_zoo: ExactZoo) -> None:
    found = audit(exact_zoo(memory), widths=(1, 2, 4), contexts=(CONTEXT,), n_threads=1, swa_full=False)
    assert [row.width for row in found.rows] == [1, 2, 4]
    assert found.rows[0].exact  # memory was really brought back


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_no_matter_of_rounding(
    value: float, zoo: Callable[[str], Path], tmp_path: Path
) -> None:
    path = corrupt.edit(zoo("llama"), tmp_path / "bad.gguf", tensors={"output.weight": np.full((288, 64), value)})
    with Model(path) as model, pytest.raises(BackendError, match="logits that are no numbers"):
        audit(model, widths=WIDTHS, contexts=(CONTEXT,), n_threads=1)
    with pytest.raises(BackendError, match="logits that are no numbers"):
        specframe.load(path, numerics="exact", n_ctx=256)


def test_a_model_too_short_to_audit_is_refused(floating: Model) -> None:
    with pytest.raises(ConfigError, match="too few to audit"):
        audit(floating, contexts=(10**6,))


def test_a_width_counts_only_when_all_narrower_ones_are_exact() -> None:
    assert verdict(at(1), at(2), at(3, exact=False), at(4)).exact_width == 2
    assert verdict(at(1), at(2), at(1, exact=False)).exact_width == 0


def test_an_audit_is_read_back_and_nothing_else_is() -> None:
    found = verdict(at(1), at(2, exact=False, difference=0.25))
    assert Audit.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    others: tuple[Any, ...] = ({}, [], None, {"rows": [1]}, {"rows": [{}]}, found.to_dict() | {"rows": []})
    for damaged in others:
        with pytest.raises(ConfigError, match="not an audit"):
            Audit.from_dict(damaged)


def test_a_divergence_within_twice_the_difference_is_a_near_tie() -> None:
    found = verdict(at(1), at(2, exact=False, difference=0.25))
    assert found.explains(0.5)
    assert not found.explains(0.51)
    assert not found.explains(-0.1)
    assert verdict(at(1), at(2)).explains(0.0)
    assert "rounded differently" in verdict(at(1), at(2, exact=False)).recommendation
    assert "--exact" in verdict(at(1), at(2, exact=False)).recommendation
    assert "--exact" not in verdict(at(1), at(2, exact=False), exact_kernels=True).recommendation
    assert "turn flash attention on" in verdict(at(1), at(2, exact=False), flash_attn=False).recommendation


def test_a_sweep_changes_one_setting_at_a_time_and_keeps_the_least_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[bool] = []
    costs = iter(range(1000, 0, -1))

    class Opened:
        def __init__(self, *, use_extra_bufts: bool) -> None:
            opened.append(use_extra_bufts)

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            """Nothing to close."""

    def measured(_model: Opened, **options: Any) -> Audit:
        found = verdict(at(4, cost_s=float(next(costs))), flash_attn=options.get("flash_attn", True))
        return attrs.evolve(found, n_threads=options["n_threads"], n_ubatch=options.get("n_ubatch", 512))

    monkeypatch.setattr(auditor, "audit", measured)
    monkeypatch.setattr(auditor, "default_threads", lambda: 4)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    found = auditor.sweep(Opened, rounds=2)  # type: ignore[arg-type]
    assert opened == [True, False]
    assert [(each.n_threads, each.flash_attn, each.n_ubatch) for each in found] == [
        (4, True, 512), (1, True, 512), (2, True, 512), (8, True, 512), (4, False, 512), (4, True, 64), (4, True, 512)
    ]  # fmt: skip
    # The second of two rounds was the cheaper one, for each.
    assert [each.verification_cost_s for each in found] == pytest.approx([994, 993, 992, 991, 990, 989, 987])
    assert verdict(at(1)).verification_cost_s == float("inf")


@pytest.mark.parametrize(
    ("others", "recommended"),
    [
        ([(0.99, True)], 0),  # within what timings scatter
        ([(0.99, True), (0.8, True), (0.9, True)], 2),
        ([(0.5, False), (0.8, True)], 2),  # faster, but drafts would change the text
    ],
)
def test_other_settings_are_recommended_when_they_are_clearly_faster_and_as_exact(
    others: Sequence[tuple[float, bool]], recommended: int
) -> None:
    found = [verdict(at(1), at(4, exact=exact, cost_s=cost)) for cost, exact in [(1.0, True), *others]]
    assert auditor.recommended(found) is found[recommended]
