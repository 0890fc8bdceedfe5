"""A session carries what a draft model knows of a text: another process drafts on without evaluating it again."""

from __future__ import annotations

import pytest

from tests.support import blocks
from tests.support.llama import Zoo
from tests.support.mtp import CASES, EAGLES, PLAIN, PROMPTS, Case, engine, request, spec, strategy_of


@pytest.mark.parametrize("case", [*CASES, *EAGLES, *PLAIN, *blocks.CASES], ids=str)
def test_a_session_goes_on_in_another_engine(zoo: Zoo, case: Case | blocks.BlockCase) -> None:
    draft = None if case.draft is None else zoo(case.draft)
    wanted = spec(draft, case.cls, n_max=3)
    with engine(zoo(case.target), draft, **case.options) as (running, _):
        first = running.submit(request(PROMPTS[2] * 3, wanted, n=20)).result()
        session = running.save_session()
        prompt = [*PROMPTS[2] * 3, *first.tokens, *b" and then"]
        here = running.submit(request(prompt, wanted, n=40, reuse_prefix=True)).result()
        made_here = dict(strategy_of(running, wanted).drafts)
    assert session.strategies
    with engine(zoo(case.target), draft, **case.options) as (running, _):
        running.load_session(session)
        there = running.submit(request(prompt, wanted, n=40, reuse_prefix=True)).result()
        made_there = dict(strategy_of(running, wanted).drafts)
        assert there.tokens == here.tokens
        assert there.stats.cached_tokens >= here.stats.cached_tokens > 40
        assert made_there.items() <= made_here.items()
        assert there.stats.accepted_per_position == here.stats.accepted_per_position
