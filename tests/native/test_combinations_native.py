"""Prediction heads and n-grams in one request, on llama.cpp's own memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import attrs
import pytest

import specframe
from specframe.backends.llama.model import Model
from specframe.backends.llama.services import LlamaServices
from specframe.backends.llama.target import LlamaTarget
from specframe.core.combination import Combination, Join
from specframe.core.errors import BackendError
from specframe.core.session import Session
from specframe.core.strategy import StrategySpec
from specframe.strategies.ngram_k import NgramK
from specframe.testing import replay
from tests.support.drafting import GREEDY, PROMPTS, SEEDED, engine, request, spec
from tests.support.lossless import SCHEDULERS, check_stats

Zoo = Callable[[str], Path]

NGRAM = StrategySpec.of(NgramK, {"n": 3, "m": 4})
#: Heads in the target's file and in one of their own, on memory that is restored, cut a little, cut at will.
TARGETS = [("qwen35-mtp", None, {}), ("qwen35", "mtp-qwen35", {"n_rs_seq": 8}), ("step35-mtp3", None, {})]


def combinations(heads: StrategySpec) -> list[Combination]:
    return [
        Combination(Join.FIRST_OF, (NGRAM, heads)),
        Combination(Join.EXTEND, (heads, NGRAM)),
        Combination(Join.FIRST_OF, (NGRAM, Combination(Join.EXTEND, (heads, NGRAM)))),
    ]


@pytest.mark.parametrize(("target", "draft", "options"), TARGETS, ids=str)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_three_sequences_equal_plain_decoding_and_every_member_is_credited(
    zoo: Zoo, target: str, draft: str | None, options: dict[str, Any], scheduler: Any
) -> None:
    file = None if draft is None else zoo(draft)
    heads = spec(file, n_max=3)
    with engine(zoo(target), file, n_seq=3, scheduler=scheduler, **options) as (running, _):
        plain = [running.submit(request(p, sampling=s)).result() for p in PROMPTS for s in (GREEDY, SEEDED)]
        for wanted in combinations(heads):
            asked = [request(p, wanted, sampling=s) for p in PROMPTS for s in (GREEDY, SEEDED)]
            done = [generation.result() for generation in [running.submit(each) for each in asked]]
            assert [each.tokens for each in done] == [each.tokens for each in plain]
            for each in done:
                check_stats(each.stats, each)
                assert each.stats.inactive_reason is None
                assert not [own.ended for own in each.stats.strategies.values() if own.ended]
            for member in (heads, NGRAM):
                assert sum(each.stats.of(member.label).accepted for each in done) > 0
        assert len(running._drafters.members) == 2


def test_heads_draft_the_same_alone_and_behind_an_ngram_that_never_has_a_guess(zoo: Zoo) -> None:
    """Not being asked, and hearing of commits without a draft, leaves nothing wrong in the heads' memory."""
    silent = StrategySpec.of(NgramK, {"n": 64})
    with engine(zoo("qwen35-mtp"), n_rs_seq=8) as (running, _):
        for prompt in PROMPTS:
            alone = running.submit(request(prompt, spec(n_max=3))).result().stats
            behind = running.submit(request(prompt, Combination(Join.FIRST_OF, (silent, spec(n_max=3))))).result().stats
            assert (behind.verified, behind.accepted) == (alone.verified, alone.accepted)
            assert alone.accepted > 0


def test_session_of_a_combination_keeps_the_memory_of_the_heads(zoo: Zoo, tmp_path: Path) -> None:
    heads = spec(n_max=3)
    both = Combination(Join.FIRST_OF, (NGRAM, heads))
    path = tmp_path / "session"
    with engine(zoo("step35-mtp3")) as (running, _):
        first = running.submit(request(PROMPTS[0], both, n=24)).result()
        running.save_session().write(path)
        text = [*PROMPTS[0], *first.tokens]
        kept = running.submit(request(text, both, n=48, reuse_prefix=True)).result()
    for wanted in (both, heads):  # by member: another combination of it, or it alone, finds it too
        with engine(zoo("step35-mtp3")) as (running, _):
            held = running.load_session(Session.read(path))
            again = running.submit(request(text, wanted, n=48, reuse_prefix=True)).result()
            assert again.stats.cached_tokens >= held - 1 > 0
            assert again.tokens == kept.tokens
            assert again.stats.of(heads.label).accepted > 0


@pytest.mark.parametrize("name", ["qwen35-mtp", "llama"])
def test_answers_are_plain_decodings_own_token_by_token(zoo: Zoo, name: str) -> None:
    wanted = combinations(spec(n_max=3))[2] if name == "qwen35-mtp" else NGRAM
    with engine(zoo(name)) as (running, _):
        asked = [request(prompt, wanted) for prompt in PROMPTS]
        done = [running.submit(each).result() for each in asked]
    with Model(zoo(name), load_mtp=False) as model, LlamaTarget(model, n_ctx=512, n_threads=1) as plain:
        for each, completion in zip(asked, done, strict=True):
            report = replay(plain, each, completion)
            report.check()
            assert report.n_tokens >= len(completion.tokens) > 0
            wrong = attrs.evolve(completion, tokens=(*completion.tokens[:9], 7, *completion.tokens[10:]))
            assert [d.at for d in replay(plain, each, wrong).faults][:1] == [9]


def test_auto_takes_the_heads_that_are_there(zoo: Zoo) -> None:
    prompt = bytes(PROMPTS[2]).decode()
    with specframe.load(zoo("qwen35-mtp"), n_ctx=512) as llm:
        assert llm.info.strategy == "first-of(ngram-k(n=4),mtp)"
        done = llm.generate(prompt, max_tokens=64, temperature=0)
        assert done.strategy == "first-of(ngram-k(n=4),mtp)"
        assert done.stats.strategy_reason.endswith("before mtp, whose layers are in the model's file")
        off = llm.generate(prompt, max_tokens=64, temperature=0, draft_length="off")
        fixed = llm.generate(prompt, max_tokens=64, temperature=0, draft_length=2)
        assert off.tokens == fixed.tokens == done.tokens
        assert (off.stats.drafted, off.stats.inactive_reason) == (0, "switched-off")
        assert max(fixed.stats.scheduler.lengths) == 2
        assert fixed.stats.accepted > 0
    with specframe.load(zoo("qwen35"), draft=zoo("mtp-qwen35"), n_ctx=512) as llm:
        assert llm.generate(prompt, max_tokens=8, temperature=0).strategy == "first-of(ngram-k(n=4),mtp)"


def test_heads_that_cannot_be_set_up_are_done_without_unless_they_were_asked_for(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object, **__: object) -> NoReturn:
        raise BackendError("no room for the heads")

    monkeypatch.setattr(LlamaServices, "open_heads", no_room)
    prompt = bytes(PROMPTS[2]).decode()
    with specframe.load(zoo("qwen35-mtp"), n_ctx=512) as llm:
        plain = llm.generate(prompt, max_tokens=24, temperature=0, strategy="none")
        done = llm.generate(prompt, max_tokens=24, temperature=0, draft_length=4)
        assert done.tokens == plain.tokens
        assert done.stats.inactive_reason in {None, "nothing-proposed"}
        assert "no room for the heads" in str(done.stats.strategies["mtp"].ended)
        with pytest.raises(specframe.StrategyError, match="no room for the heads"):
            llm.generate(prompt, strategy="mtp")
