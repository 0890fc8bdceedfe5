"""How much is drafted and verified, and what a request says about it."""

from __future__ import annotations

from typing import Any

import pytest

from specframe.core.engine import Engine
from specframe.core.errors import ConfigError
from specframe.core.request import Request
from specframe.testing import ScriptedTarget, tape
from tests.support.lossless import SCHEDULERS, ask, assert_plain, drafted, oracle, poison, run


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_length_that_a_request_asked_for_is_kept_to(scheduler: type) -> None:
    request = ask(41, draft_length=3)
    right = tape(ScriptedTarget(), request)
    for spec in (oracle(right), poison(right, 1)):
        completion = run(ScriptedTarget(), drafted(request, spec), scheduler=scheduler)
        assert_plain(ScriptedTarget(), request, completion)
        lengths = completion.stats.scheduler.lengths
        assert set(lengths) <= {0, 1, 2, 3}  # the last ones are cut by the budget
        assert lengths[3] > sum(n for length, n in lengths.items() if length != 3)
        assert set(completion.stats.scheduler.reasons) <= {"fixed", "no-room"}


@pytest.mark.parametrize("length", [-1, 1.5, True, "2", "never"])
def test_impossible_length_is_refused_with_a_way_out(length: Any) -> None:
    with pytest.raises(ConfigError, match=r"draft_length must be a whole number in \[0, inf\].*or 'auto', or 'off'"):
        Request(prompt=(1,), draft_length=length)


@pytest.mark.parametrize("length", [0, "off"])
def test_drafting_is_switched_off_for_one_request(length: Any) -> None:
    request = ask(20, draft_length=length, strategy=oracle(tape(ScriptedTarget(), ask(20))))
    completion = run(ScriptedTarget(), request)
    assert_plain(ScriptedTarget(), ask(20), completion)
    stats = completion.stats
    assert (stats.drafted, stats.inactive_reason, stats.draft_length, stats.steps) == (0, "switched-off", 0, 20)


def test_plain_request_has_nothing_decided_about_it() -> None:
    with Engine(ScriptedTarget()) as engine:
        stats = engine.submit(ask()).result().stats
    assert (stats.scheduler.lengths, stats.scheduler.reasons) == ({}, {})
