"""The audit of numerics: its verdicts against those of another program, and what loading makes of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from typing_extensions import Self

import specframe
from specframe.backends.llama import audit as auditor
from specframe.backends.llama import kernels
from specframe.backends.llama.audit import Audit, WidthAudit, audit, audited, open_exact
from specframe.backends.llama.declarations import CONCEPTS, declaration
from specframe.backends.llama.model import Model
from specframe.core.errors import ConfigError
from specframe.testing import Noisy
from specframe.testing.zoo.blocks import Shape
from specframe.testing.zoo.targets import dense
from specframe.testing.zoo.world import World
from tests.support import width_script
from tests.support.exact import ExactZoo, quantized

CONTEXT = 32
WIDTHS = (1, 2, 3, 8, 16)
SETTINGS: tuple[dict[str, Any], ...] = ({"flash_attn": True}, {"flash_attn": False}, {"n_ubatch": 4})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Verdicts of this test's own."""
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path))
    return tmp_path


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


def test_a_model_too_short_to_audit_is_refused(floating: Model) -> None:
    with pytest.raises(ConfigError, match="too few to audit"):
        audit(floating, contexts=(10**6,))


def row(width: int, *, exact: bool = True, difference: float = 0.0) -> WidthAudit:
    return WidthAudit(context=1, width=width, positions=1, exact=exact, max_difference=difference, flips=0, cost_s=0.1)


def verdict(*rows: WidthAudit, flash_attn: bool = True, exact_kernels: bool = False) -> Audit:
    return Audit(
        model="m",
        library="l",
        flash_attn=flash_attn,
        type_k="f16",
        type_v="f16",
        n_threads=1,
        n_threads_batch=1,
        n_ubatch=512,
        use_extra_bufts=True,
        exact_kernels=exact_kernels,
        smallest_margin=0.5,
        rows=rows,
    )


def test_a_width_counts_only_when_all_narrower_ones_are_exact() -> None:
    assert verdict(row(1), row(2), row(3, exact=False), row(4)).exact_width == 2
    assert verdict(row(1), row(2), row(1, exact=False)).exact_width == 0


def test_a_divergence_within_twice_the_difference_is_a_near_tie() -> None:
    found = verdict(row(1), row(2, exact=False, difference=0.25))
    assert found.explains(0.5)
    assert not found.explains(0.51)
    assert not found.explains(-0.1)
    assert verdict(row(1), row(2)).explains(0.0)
    assert "rounded differently" in verdict(row(1), row(2, exact=False)).recommendation
    assert "--exact" in verdict(row(1), row(2, exact=False)).recommendation
    assert "--exact" not in verdict(row(1), row(2, exact=False), exact_kernels=True).recommendation
    assert "turn flash attention on" in verdict(row(1), row(2, exact=False), flash_attn=False).recommendation


def test_a_verdict_is_kept_for_these_settings_and_no_others(
    exact_zoo: ExactZoo, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def measured(_model: Model, **options: Any) -> Audit:
        asked.append(options)
        return verdict(row(1), row(2))

    monkeypatch.setattr(auditor, "audit", measured)
    model = exact_zoo("llama")
    assert audited(model, n_threads=1) == audited(model, n_threads=1) == verdict(row(1), row(2))
    assert len(asked) == 1
    audited(model, n_threads=2)
    assert len(asked) == 2
    for i, damaged in enumerate(["{}", "[]", "7", "null", '{"rows": []}', "{"]):
        for path in (cache / "audits").iterdir():
            path.write_text(damaged)
        audited(model, n_threads=1)
        assert len(asked) == 3 + i
    monkeypatch.setenv("SPECFRAME_CACHE", str(next((cache / "audits").iterdir())))
    assert audited(model, n_threads=1).exact_width == 2  # a cache that cannot be written costs time only
    assert len(asked) == 9


def test_exact_is_refused_with_the_reason(zoo: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditor, "audit", lambda _model, **_: verdict(row(1), row(2, exact=False, difference=0.25)))
    with pytest.raises(ConfigError, match=r"numerics='exact' cannot be had .* rounded differently"):
        specframe.load(zoo("llama"), numerics="exact", n_ctx=256, threads=1)
    with pytest.raises(ConfigError, match="'auto', 'exact' or 'fast', not 'nice'"):
        specframe.load(zoo("llama"), numerics="nice")  # type: ignore[arg-type]


def test_plain_decoding_is_exact_where_no_draft_would_be(
    zoo: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditor, "audit", lambda _model, **_: verdict(row(1), row(2, exact=False, difference=0.25)))
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "ignore_eos": True, "reuse_prefix": False}
    with specframe.load(zoo("llama"), strategy="none", numerics="exact", n_ctx=256, threads=1) as llm:
        plain = llm.generate("abc", **options)
        tape = (*llm.tokenize("abc", add_special=True), *plain.tokens)
        drafted = llm.generate("abc", strategy=Noisy, options={"tape": tape}, draft_length=4, **options)
    assert drafted.tokens == plain.tokens
    assert (drafted.stats.verified, drafted.stats.steps) == (0, plain.stats.steps)
    monkeypatch.setattr(auditor, "audit", lambda _model, **_: verdict(row(1, exact=False, difference=0.25)))
    with pytest.raises(ConfigError, match="numerics='exact' cannot be had"):
        specframe.load(zoo("llama"), strategy="none", numerics="exact", n_ctx=256, threads=2)


@pytest.mark.parametrize("kind", ["F32", "BF16"])
def test_drafts_change_no_text_of_floating_point_weights_when_numerics_are_exact(
    kind: str, zoo: Callable[[str], Path], tmp_path: Path
) -> None:
    path = quantized(zoo("llama"), tmp_path / f"{kind}.gguf", kind=kind)
    sampled: dict[str, Any] = {"max_tokens": 200, "temperature": 1.5, "seed": 1, "ignore_eos": True}
    with specframe.load(path, strategy="none", numerics="exact", n_ctx=512, threads=1) as llm:
        plain = llm.generate("abc", reuse_prefix=False, **sampled)
        noisy = {"tape": (*llm.tokenize("abc", add_special=True), *plain.tokens), "accuracy": 0.9}
        drafted = llm.generate(
            "abc", strategy=Noisy, options=noisy, draft_length=40, reuse_prefix=False, logprobs=2, **sampled
        )
        alone = llm.generate("abc", reuse_prefix=False, logprobs=2, **sampled)
    assert drafted.tokens == plain.tokens
    assert drafted.logprobs == alone.logprobs  # to the last bit
    assert drafted.stats.accepted > 100


def test_exact_keeps_verifications_to_what_was_audited(
    zoo: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = quantized(zoo("llama"), tmp_path / "q8.gguf")
    monkeypatch.setattr(auditor, "audit", lambda _model, **_: verdict(row(1), row(2), row(4), row(8, exact=False)))
    drafts: list[int] = []

    class Watch(specframe.Observer):
        def step_finished(self, outcome: specframe.Outcome) -> None:
            drafts.append(len(outcome.drafted))

    class Eager(specframe.Strategy):
        """Always ten more of the same."""

        name = "eager"

        def draft(self, request: specframe.DraftRequest) -> Sequence[int]:
            return [request.history[-1]] * min(10, request.budget)

    with specframe.load(path, numerics="exact", n_ctx=256, threads=1, observers=[Watch()]) as llm:
        llm.generate("abc", max_tokens=24, strategy=Eager, draft_length=10, ignore_eos=True, temperature=0)
    assert max(drafts) == 3  # and the token before them


@pytest.mark.parametrize(
    ("first", "other", "expected"),
    [
        ((1, 2, 4), (), (True, 4)),  # all that was looked at: the other form needs no look
        ((1, 2), (1, 2, 4), (False, 4)),
        ((1, 2), (1, 2), (True, 2)),
        ((1,), (1, 2), (False, 2)),
        ((2, 4), (1, 2), (False, 2)),
    ],
)
@pytest.mark.parametrize("usual", [True, False])
def test_the_form_of_weights_is_the_one_that_allows_for_more(
    usual: bool,
    first: tuple[int, ...],
    other: tuple[int, ...],
    expected: tuple[bool, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[Any] = []

    class Opened:
        def __init__(self, *, use_extra_bufts: bool | None) -> None:
            self.repack, self.closed = usual if use_extra_bufts is None else use_extra_bufts, False
            opened.append(self)

        def close(self) -> None:
            self.closed = True

    def judge(model: Opened, **_options: Any) -> Audit:
        exact = first if model.repack is usual else other
        found = verdict(*(row(width, exact=width in exact) for width in (1, 2, 4)))
        return attrs.evolve(found, use_extra_bufts=model.repack)

    monkeypatch.setattr(auditor, "audited", judge)
    model, width = open_exact(Opened, {})  # type: ignore[arg-type]
    assert (opened[-1].repack is usual, width) == expected
    assert id(model) == id(opened[-1])
    assert [each.closed for each in opened] == [True] * (len(opened) - 1) + [False]
    monkeypatch.setattr(auditor, "audited", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        open_exact(Opened, {})  # type: ignore[arg-type]
    assert opened[-1].closed


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
        found = verdict(attrs.evolve(row(4), cost_s=float(next(costs))), flash_attn=options.get("flash_attn", True))
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
    assert verdict(row(1)).verification_cost_s == float("inf")


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
    found = [verdict(row(1), attrs.evolve(row(4, exact=exact), cost_s=cost)) for cost, exact in [(1.0, True), *others]]
    assert auditor.recommended(found) is found[recommended]


@pytest.mark.sweep
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_ten_thousand_tokens_are_the_same_with_drafting(kind: str, smollm2: Path, tmp_path: Path) -> None:
    """Drafts of every length, right ones and wrong ones, against the text they were made from."""
    path = smollm2 if kind in smollm2.name else quantized(smollm2, tmp_path / f"{kind}.gguf", kind=kind)
    lengths: set[int] = set()

    class Watch(specframe.Observer):
        def step_finished(self, outcome: specframe.Outcome) -> None:
            lengths.add(len(outcome.drafted))

    # Five at once take a third of the time of one after another.
    texts = [f"Write a long story about the number {i}, and repeat every sentence twice." for i in range(5)]
    n_tokens = 10_000 // len(texts)
    with specframe.load(
        path, strategy="none", numerics="exact", n_ctx=2200, parallel=len(texts), observers=[Watch()]
    ) as llm:
        prompts = [llm.tokenize(text, add_special=True) for text in texts]

        def answers(options: Sequence[dict[str, Any]]) -> list[specframe.Completion]:
            streams = [
                llm.stream(
                    prompt,
                    seed=seed,
                    max_tokens=n_tokens,
                    temperature=0.8,
                    ignore_eos=True,
                    reuse_prefix=False,
                    **chosen,
                )
                for seed, (prompt, chosen) in enumerate(zip(prompts, options, strict=True))
            ]
            return [stream.result() for stream in streams]

        plain = answers([{"strategy": "none"}] * len(prompts))
        tapes = [(*prompt, *run.tokens) for prompt, run in zip(prompts, plain, strict=True)]
        drafted = answers(
            [
                {"strategy": Noisy, "options": {"tape": tape, "accuracy": 0.95, "seed": seed}, "draft_length": 62}
                for seed, tape in enumerate(tapes)
            ]
        )
    assert [run.tokens for run in drafted] == [run.tokens for run in plain]
    assert sum(run.completion_tokens for run in plain) == 10_000
    assert sum(run.stats.accepted for run in drafted) > 5_000
    assert lengths == set(range(63))
