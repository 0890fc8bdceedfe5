"""The audit of numerics: its verdicts against a loop of its own, and what loading makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pytest
from typing_extensions import Self

import specframe
from specframe.backends.llama import audit as auditor
from specframe.backends.llama.audit import Audit, WidthAudit, audit, audited, open_exact
from specframe.backends.llama.context_options import ContextOptions
from specframe.backends.llama.model import Model
from specframe.core.errors import ConfigError
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
def rounding(zoo: Callable[[str], Path]) -> Any:
    """A tiny model whose products are rounded differently for one row and for several."""
    with Model(zoo("llama")) as model:
        yield model


def slow_rows(model: Model, tokens: list[int], width: int, **options: Any) -> npt.NDArray[np.float32]:
    """Rows of the tokens behind CONTEXT others, ``width`` at a time: llama.cpp's own calls and nothing of ours."""
    ffi, lib, n_vocab = model.library.ffi, model.library.lib, model.facts.n_vocab
    params = ContextOptions(**{"n_ctx": 256, "n_threads": 1, **options}).native(model)
    context = lib.llama_init_from_model(model.handle, params)
    batch = lib.llama_batch_init(256, 0, 1)
    rows = []
    for start, end in [(0, CONTEXT), *((at, at + width) for at in range(CONTEXT, len(tokens) - width + 1, width))]:
        batch.n_tokens = end - start
        for i, at in enumerate(range(start, end)):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = tokens[at], at, 1, 1
            batch.seq_id[i][0] = 0
        assert lib.llama_decode(context, batch) == 0
        raw = ffi.buffer(lib.llama_get_logits(context), (end - start) * n_vocab * 4)
        rows.append(np.frombuffer(bytes(raw), np.float32).reshape(end - start, n_vocab))
    lib.llama_batch_free(batch)
    lib.llama_free(context)
    return np.concatenate(rows[1:])


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", ["exact", "rounding"])
def test_the_verdicts_are_those_of_a_loop_without_specframe(
    kind: str, settings: dict[str, Any], exact_zoo: ExactZoo, rounding: Model
) -> None:
    model = exact_zoo("llama") if kind == "exact" else rounding
    found = audit(model, widths=WIDTHS, contexts=(CONTEXT,), n_threads=1, **settings)
    text = model.vocab.tokenize(auditor._TEXT)
    tokens = (text * 9)[: CONTEXT + 24]
    alone = slow_rows(model, tokens, 1, **settings)
    for row in found.rows:
        wide = slow_rows(model, tokens, row.width, **settings)
        assert row.positions == len(wide)
        difference = float(np.abs(wide - alone[: len(wide)]).max())
        assert row.exact == (difference == 0)
        assert row.max_difference == pytest.approx(difference, abs=1e-6)
        assert row.flips == int((wide.argmax(axis=1) != alone[: len(wide)].argmax(axis=1)).sum())
        assert row.cost_s > 0
    first, second = np.sort(alone, axis=1)[:, -1], np.sort(alone, axis=1)[:, -2]
    assert found.smallest_margin == pytest.approx(float((first - second).min()), abs=1e-6)


def test_the_two_models_are_told_apart(exact_zoo: ExactZoo, rounding: Model) -> None:
    exact = audit(exact_zoo("llama"), widths=WIDTHS, contexts=(CONTEXT,), n_threads=1)
    assert (exact.exact_width, exact.max_difference) == (16, 0.0)
    assert 'numerics="exact" works here' in exact.recommendation
    rounded = audit(rounding, widths=WIDTHS, contexts=(CONTEXT,), n_threads=1)
    assert rounded.exact_width == 1
    assert rounded.max_difference > 0
    assert "rounded differently" in rounded.recommendation


@pytest.mark.parametrize("memory", ["qwen35", "gemma4"])
def test_memory_that_cannot_be_cut_is_audited_too(memory: str, exact_zoo: ExactZoo) -> None:
    found = audit(exact_zoo(memory), widths=(1, 2, 4), contexts=(CONTEXT,), n_threads=1, swa_full=False)
    assert [row.width for row in found.rows] == [1, 2, 4]
    assert found.rows[0].exact  # memory was really brought back


def test_a_model_too_short_to_audit_is_refused(rounding: Model) -> None:
    with pytest.raises(ConfigError, match="too few to audit"):
        audit(rounding, contexts=(10**6,))


def row(width: int, *, exact: bool = True, difference: float = 0.0) -> WidthAudit:
    return WidthAudit(context=1, width=width, positions=1, exact=exact, max_difference=difference, flips=0, cost_s=0.1)


def verdict(*rows: WidthAudit, flash_attn: bool = True) -> Audit:
    return Audit(
        model="m",
        library="l",
        flash_attn=flash_attn,
        n_threads=1,
        n_ubatch=512,
        use_extra_bufts=True,
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
    for path in (cache / "audits").iterdir():
        path.write_text("{}")
    audited(model, n_threads=1)
    assert len(asked) == 3
    monkeypatch.setenv("SPECFRAME_CACHE", str(next((cache / "audits").iterdir())))
    assert audited(model, n_threads=1).exact_width == 2  # a cache that cannot be written costs time only
    assert len(asked) == 4


def test_exact_is_refused_with_the_reason(zoo: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match=r"numerics='exact' cannot be had .* rounded differently"):
        specframe.load(zoo("llama"), numerics="exact", n_ctx=256, threads=1)
    with pytest.raises(ConfigError, match="'fast' or 'exact', not 'nice'"):
        specframe.load(zoo("llama"), numerics="nice")  # type: ignore[arg-type]


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
    ("repacked", "plain", "expected"),
    [
        ((1, 2, 4), None, (True, 4)),  # all that was looked at: plain weights need no look
        ((1, 2), (1, 2, 4), (False, 4)),
        ((1, 2), (1, 2), (True, 2)),
        ((1,), (1, 2), (False, 2)),
    ],
)
def test_weights_stay_as_they_are_where_repacked_ones_allow_for_less(
    repacked: tuple[int, ...],
    plain: tuple[int, ...] | None,
    expected: tuple[bool, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[Any] = []

    class Opened:
        def __init__(self, *, use_extra_bufts: bool) -> None:
            self.repack, self.closed = use_extra_bufts, False
            opened.append(self)

        def close(self) -> None:
            self.closed = True

    def judge(model: Opened, **_options: Any) -> Audit:
        exact = repacked if model.repack else plain
        assert exact is not None
        found = verdict(*(row(width, exact=width in exact) for width in (1, 2, 4)))
        return attrs.evolve(found, use_extra_bufts=model.repack)

    monkeypatch.setattr(auditor, "audited", judge)
    model, width = open_exact(Opened, {})  # type: ignore[arg-type]
    assert (opened[-1].repack, width) == expected
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


@pytest.mark.sweep
@pytest.mark.timeout(1200)
def test_ten_thousand_tokens_are_the_same_with_drafting(smollm2: Path) -> None:
    # Five at once take a third of the time of one after another.
    prompts = [f"Write a long story about the number {i}, and repeat every sentence twice." for i in range(5)]
    with specframe.load(smollm2, strategy="none", numerics="exact", n_ctx=2200, parallel=len(prompts)) as llm:

        def answers(**options: Any) -> list[specframe.Completion]:
            streams = [
                llm.stream(
                    prompt, seed=seed, max_tokens=2000, temperature=0.8, ignore_eos=True, reuse_prefix=False, **options
                )
                for seed, prompt in enumerate(prompts)
            ]
            return [stream.result() for stream in streams]

        plain = answers(strategy="none")
        drafted = answers(strategy="ngram-k", options={"n": 2, "m": 12})
    assert [run.tokens for run in drafted] == [run.tokens for run in plain]
    assert sum(run.completion_tokens for run in plain) == 10_000
    assert sum(run.stats.accepted for run in drafted) > 500
