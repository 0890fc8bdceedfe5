"""What loading makes of audits: numerics="exact"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

import specframe
from specframe.backends.llama import audit as auditor
from specframe.backends.llama import exact_numerics
from specframe.backends.llama.audit import Audit
from specframe.backends.llama.exact_numerics import audited, open_exact
from specframe.backends.llama.model import Model
from specframe.core.errors import ConfigError
from specframe.testing import Noisy
from tests.support.audits import at, verdict
from tests.support.exact import ExactZoo, quantized


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Verdicts of this test's own."""
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path))
    return tmp_path


def test_a_verdict_is_kept_for_these_settings_and_no_others(
    exact_zoo: ExactZoo, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def measured(_model: Model, **options: Any) -> Audit:
        asked.append(options)
        return verdict(at(1), at(2))

    monkeypatch.setattr(auditor, "audit", measured)
    model = exact_zoo("llama")
    assert audited(model, n_threads=1) == audited(model, n_threads=1) == verdict(at(1), at(2))
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
    monkeypatch.setattr(auditor, "audit", lambda _model, **_: verdict(at(1), at(2, exact=False, difference=0.25)))
    with pytest.raises(ConfigError, match=r"numerics='exact' cannot be had .* rounded differently"):
        specframe.load(zoo("llama"), numerics="exact", n_ctx=256, threads=1)
    with pytest.raises(ConfigError, match="'auto', 'exact' or 'fast', not 'nice'"):
        specframe.load(zoo("llama"), numerics="nice")  # type: ignore[arg-type]


def test_plain_decoding_is_exact_where_no_draft_would_be(
    zoo: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditor, "audit", lambda _model, **_: verdict(at(1), at(2, exact=False, difference=0.25)))
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "ignore_eos": True, "reuse_prefix": False}
    with specframe.load(zoo("llama"), strategy="none", numerics="exact", n_ctx=256, threads=1) as llm:
        plain = llm.generate("abc", **options)
        tape = (*llm.tokenize("abc", add_special=True), *plain.tokens)
        drafted = llm.generate("abc", strategy=Noisy, options={"tape": tape}, draft_length=4, **options)
    assert drafted.tokens == plain.tokens
    assert (drafted.stats.verified, drafted.stats.steps) == (0, plain.stats.steps)
    monkeypatch.setattr(auditor, "audit", lambda _model, **_: verdict(at(1, exact=False, difference=0.25)))
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
    monkeypatch.setattr(
        auditor,
        "audit",
        lambda _model, **_: verdict(at(1), at(2), at(4), at(8, exact=False)),
    )
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
        found = verdict(*(at(width, exact=width in exact) for width in (1, 2, 4)))
        return attrs.evolve(found, use_extra_bufts=model.repack)

    monkeypatch.setattr(exact_numerics, "audited", judge)
    model, width = open_exact(Opened, {})  # type: ignore[arg-type]
    assert (opened[-1].repack is usual, width) == expected
    assert id(model) == id(opened[-1])
    assert [each.closed for each in opened] == [True] * (len(opened) - 1) + [False]
    monkeypatch.setattr(exact_numerics, "audited", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        open_exact(Opened, {})  # type: ignore[arg-type]
    assert opened[-1].closed


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
