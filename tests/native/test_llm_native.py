"""The application API on real llama.cpp models: tiny ones of every memory kind, and SmolLM2."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import specframe
from specframe.backends.llama.model import Model
from specframe.compatibility import describe
from specframe.core.request import FinishReason
from specframe.llm import LLM
from tests.support.resident import resident_bytes
from tests.support.threads import at_once

Zoo = Callable[[str], Path]
NGRAM: dict[str, Any] = {"strategy": "ngram-k", "options": {"n": 3, "m": 8}}
CODE = "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n    return"


@pytest.fixture(scope="module")
def smol(smollm2: Path) -> Iterator[LLM]:
    greedy = specframe.SamplingParams(temperature=0)
    with specframe.load(smollm2, strategy="none", n_ctx=1024, parallel=3, sampling=greedy) as llm:
        yield llm


def test_what_was_loaded_is_told(smol: LLM, smollm2: Path) -> None:
    info = smol.info.to_dict()
    assert info["path"] == str(smollm2)
    assert (info["architecture"], info["n_ctx"], info["n_seq"]) == ("llama", 1024, 3)
    assert info["n_params"] > 1e8
    assert info["chat_templates"] == ["default"]


def test_a_name_of_the_catalogue_is_enough(smollm2: Path) -> None:
    with specframe.load("smollm2-135m", n_ctx=256) as llm:
        assert llm.info.path == smollm2
        assert "Paris" in llm.generate("The capital of France is", max_tokens=6, temperature=0).text


def test_a_template_that_was_given_is_checked_at_load(smollm2: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jinja"
    broken.write_text("{% for m in messages %}{{ m.content }}")
    with pytest.raises(specframe.ConfigError, match=r"broken\.jinja.*syntax error"):
        specframe.load(smollm2, n_ctx=256, template=broken)


def test_drafting_gains_steps_and_changes_nothing(smol: LLM) -> None:
    plain = smol.generate(CODE, max_tokens=48)
    drafted = smol.generate(CODE, max_tokens=48, draft_length=8, **NGRAM)
    assert drafted.tokens == plain.tokens
    assert drafted.text == plain.text
    assert 0 < drafted.stats.accepted <= drafted.stats.verified <= drafted.stats.drafted
    assert drafted.stats.steps < plain.stats.steps
    assert plain.stats.inactive_reason is None


def test_sampled_text_is_the_same_with_and_without_drafting(smol: LLM) -> None:
    options: dict[str, Any] = {"max_tokens": 32, "temperature": 0.8, "seed": 11, "repeat_penalty": 1.1}
    assert smol.generate(CODE, **options, **NGRAM).tokens == smol.generate(CODE, **options).tokens


def test_a_second_chat_turn_evaluates_only_what_is_new(smol: LLM) -> None:
    answers = []
    for extra in ({}, NGRAM):
        messages = [{"role": "user", "content": "Name three colours, one per line, and nothing else."}]
        first = smol.chat(messages, max_tokens=40, reuse_prefix=False, **extra)
        messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And three animals."}]
        second = smol.chat(messages, max_tokens=12, **extra)
        # The last token of the first answer was never evaluated; everything before it is there.
        assert second.stats.cached_tokens >= first.prompt_tokens + first.completion_tokens - 1
        answers.append((first.tokens, second.tokens))
    assert answers[0] == answers[1]


def test_the_same_prompt_twice(smol: LLM) -> None:
    first = smol.generate(CODE, max_tokens=12)
    again = smol.generate(CODE, max_tokens=12)
    assert again.tokens == first.tokens
    assert again.stats.cached_tokens == again.prompt_tokens - 1


def test_streams_cut_at_any_moment_leave_nothing_behind(smol: LLM) -> None:
    expected = smol.generate("Once upon a time", max_tokens=12).text
    for n in (1, 2, 5):
        with smol.stream(CODE, max_tokens=64, **NGRAM) as stream:
            for _ in range(n):
                next(stream)
        assert smol.generate("Once upon a time", max_tokens=12).text == expected


def test_eight_threads(smol: LLM) -> None:
    prompts = [f"{i} plus {i} is" for i in range(8)]
    expected = [smol.generate(p, max_tokens=12).text for p in prompts]

    def work(i: int) -> str:
        return smol.generate(prompts[i], max_tokens=12, **(NGRAM if i % 2 else {})).text

    assert at_once(work) == expected


def test_tasks_run_together_and_can_be_cancelled(smol: LLM) -> None:
    async def main() -> tuple[list[str], FinishReason | None]:
        endless = asyncio.create_task(smol.agenerate(CODE, max_tokens=900, ignore_eos=True))
        texts = await asyncio.gather(*(smol.agenerate(p, max_tokens=8) for p in ("One two", "A B C")))
        assert not endless.done()
        endless.cancel()
        with pytest.raises(asyncio.CancelledError):
            await endless
        async with smol.astream_chat([{"role": "user", "content": "Hi"}], max_tokens=64) as stream:
            async for _ in stream:
                break
        reason = stream.completion.finish_reason if stream.completion else None
        return [t.text for t in texts], reason

    texts, reason = asyncio.run(main())
    assert texts == [smol.generate(p, max_tokens=8).text for p in ("One two", "A B C")]
    assert reason is FinishReason.CANCELLED
    assert not smol.engine.step()


def test_special_tokens_and_round_trips(smol: LLM) -> None:
    assert len(smol.tokenize("<|im_start|>", parse_special=True)) == 1
    assert len(smol.tokenize("<|im_start|>")) > 1
    text = "naïve 你好 😀\n\tx"
    assert smol.detokenize(smol.tokenize(text)) == text
    assert smol.render([{"role": "user", "content": "x"}]).count("<|im_start|>") == 3


@pytest.mark.parametrize("name", ["llama", "qwen35", "gemma4"])
def test_every_kind_of_memory(zoo: Zoo, name: str) -> None:
    prompt = list(range(20, 40)) * 3
    with specframe.load(zoo(name), strategy="none", n_ctx=512, parallel=2) as llm:
        plain = llm.generate(prompt, max_tokens=40, temperature=0, ignore_eos=True)
        drafted = llm.generate(prompt, max_tokens=40, temperature=0, ignore_eos=True, **NGRAM)
        assert drafted.tokens == plain.tokens
        with llm.stream(prompt, max_tokens=40, temperature=0, ignore_eos=True, **NGRAM) as stream:
            next(stream)
            next(stream)
        again = llm.generate(prompt, max_tokens=40, temperature=0, ignore_eos=True, **NGRAM)
        assert again.tokens == plain.tokens


def test_a_draft_model_cannot_be_loaded_as_a_target(zoo: Zoo) -> None:
    with pytest.raises(specframe.ConfigError, match="draft model"):
        specframe.load(zoo("dflash"))


def test_what_fails_behind_the_weights_leaves_nothing_loaded(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Model] = []
    close = Model.close

    def watched(model: Model) -> None:
        closed.append(model)
        close(model)

    monkeypatch.setattr(Model, "close", watched)
    with pytest.raises(specframe.ConfigError, match="n_ctx"):
        specframe.load(zoo("llama"), n_ctx=0)
    assert [model.closed for model in closed] == [True]


def test_a_draft_may_be_named_from_the_home_directory(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = zoo("dflash")
    monkeypatch.setenv("HOME", str(draft.parent))
    with specframe.load(zoo("llama"), draft=f"~/{draft.name}", n_ctx=256, threads=1) as llm:
        assert "dflash" in llm.info.strategy


def test_models_loaded_one_after_the_other_do_not_pile_up(zoo: Zoo) -> None:
    path = zoo("llama")
    for _ in range(3):
        with specframe.load(path, n_ctx=256) as llm:
            llm.generate([5, 6, 7], max_tokens=2)
    before = resident_bytes()
    for _ in range(30):
        with specframe.load(path, n_ctx=256) as llm:
            llm.generate([5, 6, 7], max_tokens=2)
    assert resident_bytes() - before < 20e6


@pytest.mark.parametrize("strategy", ["none", "ngram-k", "mtp"])
@pytest.mark.parametrize(
    ("limits", "n_cached"),
    [
        ({"ctx_checkpoints": 0}, 0),
        ({"checkpoint_mib": 0}, 0),
        ({}, 596),
        ({"ctx_checkpoints": 1, "checkpoint_interval": 200}, 596),
        ({"checkpoint_interval": 200, "checkpoint_on_device": True}, 596),
    ],
    ids=str,
)
def test_prompt_checkpoints_of_a_hybrid_model(zoo: Zoo, limits: dict[str, Any], n_cached: int, strategy: str) -> None:
    """With none of them a prompt that departs from an earlier one is evaluated anew; nothing else changes."""
    prompt = list(b"the quick brown fox " * 30)
    other = [*prompt[:598], *b"a cat"]
    greedy: dict[str, Any] = {"max_tokens": 30, "temperature": 0}
    with specframe.load(zoo("qwen35-mtp"), strategy=strategy, n_ctx=1024, threads=1, parallel=2, **limits) as llm:
        first = llm.generate(prompt, **greedy)
        second = llm.generate(other, **greedy)
        assert abs(second.stats.cached_tokens - n_cached) <= 1
        assert second.tokens == llm.generate(other, **greedy, reuse_prefix=False, strategy="none").tokens
        assert first.tokens == llm.generate(prompt, **greedy, reuse_prefix=False, strategy="none").tokens
        # Nothing is lost for good: both sequences still take requests.
        assert llm.generate(prompt, **greedy).tokens == first.tokens


def test_how_memory_is_brought_back_is_told(zoo: Zoo) -> None:
    seen = {}
    for name, strategy in (("llama", "none"), ("qwen35-mtp", "none"), ("qwen35-mtp", "mtp")):
        with specframe.load(zoo(name), strategy=strategy, n_ctx=256, threads=1) as llm:
            info = llm.info
            seen[name, strategy] = (info.rollback, info.rollback_depth, info.checkpoints)
            document = describe(zoo(name))
            assert info.rollback in document["rollback"]
            assert llm.generate("abc", max_tokens=2).stats.rollback_means
    assert seen == {
        ("llama", "none"): ("truncate", 0, None),
        ("qwen35-mtp", "none"): ("snapshot", 0, "host"),
        ("qwen35-mtp", "mtp"): ("bounded", 3, "host"),
    }
