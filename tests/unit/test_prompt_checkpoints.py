"""Checkpoints of prompts, for memory that cannot be cut: where they are, how many, and what they save."""

from __future__ import annotations

import logging
from typing import Any

import attrs
import pytest

from specframe.core.engine import Engine
from specframe.core.errors import ConfigError
from specframe.core.ports import Rollback
from specframe.core.request import Completion, Request
from specframe.core.scheduler import Unlimited
from specframe.core.slot import PromptCheckpoints, Slot
from specframe.testing import Fault, ScriptedTarget, tape
from specframe.testing.generators import as_batch
from tests.support.lossless import GREEDY, ask, assert_plain, check_strategies, oracle

KINDS: list[dict[str, Any]] = [
    {"rollback": Rollback.SNAPSHOT},
    {"rollback": Rollback.SNAPSHOT, "newest_checkpoint_only": True},
    {"rollback": Rollback.BOUNDED, "rollback_depth": 3, "silent_cuts": True},
    {"rollback": Rollback.BOUNDED, "rollback_depth": 0, "silent_cuts": True},
]
uncuttable = pytest.mark.parametrize("memory", KINDS, ids=["snapshot", "newest", "bounded", "bounded-0"])
every_kind = pytest.mark.parametrize(
    "memory", [{}, *KINDS], ids=["truncate", "snapshot", "newest", "bounded", "bounded-0"]
)

LONG = tuple((i * i + i // 5) % 29 for i in range(60))
SMALL = PromptCheckpoints(count=3, interval=16, tail=4)


def _chunks(target: ScriptedTarget) -> list[tuple[int, int]]:
    """Position and length of everything decoded."""
    return [(e.pos, len(e.tokens)) for call in target.calls if call.operation == "decode" for e in call.detail]


def _evaluated(target: ScriptedTarget, engine: Engine, request: Request) -> tuple[Completion, int]:
    """The request's answer, and how many tokens were evaluated for it."""
    before = target.n_decoded
    completion = engine.submit(request).result()
    return completion, target.n_decoded - before


def _kept(engine: Engine) -> list[int]:
    return [checkpoint.n_past for checkpoint in engine._free[0].checkpoints]


@uncuttable
def test_they_lie_at_intervals_and_near_the_end(memory: dict[str, Any]) -> None:
    target = ScriptedTarget(**memory)
    with Engine(target, checkpoints=PromptCheckpoints(count=9, interval=16, tail=4)) as engine:
        completion = engine.submit(ask(1, prompt=LONG)).result()
        assert _kept(engine) == [16, 32, 48, 56]
        assert _chunks(target) == [(0, 16), (16, 16), (32, 16), (48, 8), (56, 4)]
        assert completion.stats.checkpoints == 4
        assert completion.stats.checkpoint_bytes == 64
        assert completion.stats.seconds["checkpoint"] > 0


def test_memory_that_can_be_cut_keeps_none_and_is_not_cut_into_pieces() -> None:
    target = ScriptedTarget()
    with Engine(target, checkpoints=SMALL) as engine:
        engine.submit(ask(1, prompt=LONG)).result()
        assert _kept(engine) == []
        assert _chunks(target) == [(0, 60)]


@uncuttable
@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({"count": 2}, [48, 56]),  # the oldest make room
        ({"count": 1}, [56]),
        ({"max_bytes": 130}, [48, 56]),
        ({"max_bytes": 63}, []),  # not even one
        ({"tail": 60}, []),  # nothing before the tail
        ({"tail": 59}, [1]),
    ],
)
def test_limits_hold(memory: dict[str, Any], limits: dict[str, Any], kept: list[int]) -> None:
    target = ScriptedTarget(**memory)
    with Engine(target, checkpoints=PromptCheckpoints(**({"count": 9, "interval": 16, "tail": 4} | limits))) as engine:
        request = ask(8, prompt=LONG)
        assert_plain(ScriptedTarget(), request, engine.submit(request).result())
        assert _kept(engine) == kept


@pytest.mark.parametrize("bad", [{"count": -1}, {"interval": 0}, {"tail": 0}, {"max_bytes": -1}, {"count": 1.5}])
def test_limits_are_checked(bad: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        PromptCheckpoints(**bad)


@every_kind
def test_a_second_turn_evaluates_only_what_is_new(memory: dict[str, Any]) -> None:
    target = ScriptedTarget(**memory)
    with Engine(target, checkpoints=SMALL) as engine:
        first = engine.submit(ask(6, prompt=LONG)).result()
        second = ask(6, prompt=(*LONG, *first.tokens, 3, 4, 5))
        completion, n_evaluated = _evaluated(target, engine, second)
        # Memory holds all but the last token of the answer, which is what no later row needed.
        assert completion.stats.cached_tokens == len(LONG) + 5
        assert n_evaluated == 1 + 3 + 5
        assert_plain(ScriptedTarget(), second, completion)


@uncuttable
@pytest.mark.parametrize(
    ("n_shared", "n_cached"), [(60, 56), (57, 56), (56, 56), (55, 48), (48, 48), (47, 32), (31, 0), (0, 0)]
)
def test_a_diverging_turn_starts_from_the_best_checkpoint(memory: dict[str, Any], n_shared: int, n_cached: int) -> None:
    target = ScriptedTarget(**memory)
    with Engine(target, checkpoints=SMALL) as engine:
        engine.submit(ask(6, prompt=LONG)).result()
        other = ask(6, prompt=(*LONG[:n_shared], *(30 for _ in range(5))))
        completion, n_evaluated = _evaluated(target, engine, other)
        assert completion.stats.cached_tokens == n_cached
        assert n_evaluated == len(other.prompt) - n_cached + 5
        assert_plain(ScriptedTarget(), other, completion)
        # What is kept now are prefixes of this prompt.
        assert _kept(engine) == sorted(set(_kept(engine)))
        assert all(n <= n_cached or n <= len(other.prompt) - SMALL.tail for n in _kept(engine))
        again = ask(6, prompt=LONG)
        assert_plain(ScriptedTarget(), again, engine.submit(again).result())


@uncuttable
def test_the_same_prompt_twice_evaluates_its_tail(memory: dict[str, Any]) -> None:
    target = ScriptedTarget(**memory)
    with Engine(target, checkpoints=SMALL) as engine:
        request = ask(6, prompt=LONG)
        first = engine.submit(request).result()
        for _ in range(3):
            completion, n_evaluated = _evaluated(target, engine, request)
            assert completion.tokens == first.tokens
            assert completion.stats.cached_tokens == 56
            assert n_evaluated == 4 + 5


@every_kind
def test_a_count_of_zero_works_more_slowly(memory: dict[str, Any]) -> None:
    target = ScriptedTarget(**memory)
    with Engine(target, checkpoints=PromptCheckpoints(count=0)) as engine:
        request = ask(6, prompt=LONG)
        for n_cached in (0, 0 if memory else 59):
            completion = engine.submit(request).result()
            assert completion.stats.checkpoints == 0
            assert completion.stats.cached_tokens == n_cached
            assert_plain(ScriptedTarget(), request, completion)
        assert _chunks(target)[0] == (0, 60)


@uncuttable
def test_no_room_degrades_with_a_warning(memory: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    target = ScriptedTarget(**memory, checkpoint_room=2)
    with Engine(target, checkpoints=PromptCheckpoints(count=9, interval=16, tail=4)) as engine:
        request = ask(6, prompt=LONG)
        with caplog.at_level(logging.WARNING):
            completion = engine.submit(request).result()
        assert_plain(ScriptedTarget(), request, completion)
        assert completion.stats.checkpoints == 2
        assert [r.getMessage().startswith("no room for a prompt checkpoint") for r in caplog.records] == [True, True]
        again, _ = _evaluated(target, engine, request)
        assert again.tokens == completion.tokens
        assert again.stats.cached_tokens == 32


@uncuttable
def test_a_checkpoint_that_cannot_be_restored_costs_time_only(memory: dict[str, Any]) -> None:
    target = ScriptedTarget(**memory)
    with Engine(target, checkpoints=SMALL) as engine:
        request = ask(6, prompt=LONG)
        engine.submit(request).result()
        target.inject(Fault(call="restore"))
        completion = engine.submit(request).result()
        assert completion.stats.cached_tokens == 0
        assert_plain(ScriptedTarget(), request, completion)
        assert _kept(engine) == [32, 48, 56]


@uncuttable
def test_drafts_do_not_disturb_them(memory: dict[str, Any]) -> None:
    """Checkpoints of verifications come and go; the lasting ones stay good, also where only the newest is kept."""
    right = tape(ScriptedTarget(), ask(prompt=LONG))
    target = ScriptedTarget(**memory)
    with Engine(target, scheduler=Unlimited, checkpoints=SMALL) as engine:
        request = ask(20, prompt=LONG, strategy=oracle(right, 5))
        for n_cached in (0, 56, 56):
            completion = engine.submit(request).result()
            assert completion.stats.accepted > 0
            assert completion.stats.cached_tokens == n_cached
            assert_plain(ScriptedTarget(), request, completion)


@every_kind
def test_plain_and_drafted_prompts_are_cut_at_the_same_places(memory: dict[str, Any]) -> None:
    right = tape(ScriptedTarget(), ask(prompt=LONG))
    seen = []
    for strategy in (None, oracle(right, 4), as_batch(oracle(right, 4))):
        target = ScriptedTarget(**memory, n_batch=20)
        with Engine(target, checkpoints=SMALL) as engine:
            first = engine.submit(ask(6, prompt=LONG, strategy=strategy)).result()
            engine.submit(ask(6, prompt=(*LONG, *first.tokens, *LONG[:30]), strategy=strategy)).result()
            engine.submit(ask(6, prompt=(*LONG[:50], *LONG[:30]), strategy=strategy)).result()
        seen.append([(pos, n) for pos, n in _chunks(target) if n > 6])
    assert seen[0] == seen[1] == seen[2]


@every_kind
@pytest.mark.parametrize("forgets", [0, 1, 5, 1000])
def test_a_strategy_sees_again_what_it_asks_for(memory: dict[str, Any], forgets: int) -> None:
    """It answers at the begin of a request how much it still knows; memory goes back at least as far."""
    right = tape(ScriptedTarget(), ask(prompt=LONG))
    target = ScriptedTarget(**memory)
    with Engine(target, scheduler=Unlimited, checkpoints=SMALL) as engine:
        request = ask(6, prompt=LONG, strategy=as_batch(oracle(right, 4), forgets))
        longer = attrs.evolve(request, prompt=right[:64])
        n_known = max(0, (56 if memory else 63) - forgets)
        places = (0, 32, 48, 56) if memory else (n_known,)
        for asked, n_cached in ((request, 0), (longer, max(n for n in places if n <= n_known))):
            completion = engine.submit(asked).result()
            assert completion.stats.inactive_reason is None
            check_strategies(engine)
            assert_plain(ScriptedTarget(), asked, completion)
            assert completion.stats.cached_tokens == n_cached


def test_a_slot_falls_back_to_the_longest_prefix_that_is_short_enough() -> None:
    target = ScriptedTarget(rollback=Rollback.SNAPSHOT)
    with Engine(target, checkpoints=SMALL) as engine:
        engine.submit(Request(prompt=LONG, max_tokens=1, sampling=GREEDY)).result()
        slot: Slot = engine._free[0]
        slot.shrink(200)
        assert slot.n_past == 60
        assert slot.fall_back(50) == "snapshot"
        assert (slot.n_past, target.n_past(0), _kept(engine)) == (48, 48, [32, 48])
        assert slot.fall_back(31) == "replay"
        assert (slot.n_past, target.n_past(0), _kept(engine)) == (0, 0, [])


@pytest.mark.parametrize(
    ("field", "value"), [("count", -1), ("count", True), ("interval", 0), ("tail", 0), ("max_bytes", -1 << 20)]
)
def test_limits_that_make_no_sense_are_named(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{field} must be a whole number in .*, not {value!r}; .* (default|none)"):
        PromptCheckpoints(**{field: value})
