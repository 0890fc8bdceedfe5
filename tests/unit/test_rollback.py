"""Which means takes a rejected draft back: the cheapest that is sufficient, whatever the backend claims."""

from __future__ import annotations

import logging
from typing import Any

import attrs
import pytest

from specframe.core.engine import Engine
from specframe.core.ports import Rollback
from specframe.core.scheduler import Unlimited
from specframe.testing import ScriptedTarget, tape
from specframe.testing.memory import Memory
from tests.support.lossless import PROMPT, ask, assert_plain, oracle, poison, run

_LIAR: dict[str, Any] = {"rollback": Rollback.BOUNDED, "rollback_depth": 3, "silent_cuts": True}
_TAPE = tape(ScriptedTarget(), ask())


def _in_step(target: ScriptedTarget) -> list[tuple[str, Any]]:
    """What was done to memory once the prompt was there, decodes left out."""
    first = next(i for i, call in enumerate(target.calls) if call.operation == "logits")
    kept = ("truncate", "checkpoint", "restore", "clear")
    return [(call.operation, call.detail) for call in target.calls[first:] if call.operation in kept]


def test_a_lying_target_lies() -> None:
    """What the other tests rely on: a cut that is too deep passes, and everything after it is wrong."""
    memory = Memory(0, Rollback.BOUNDED, 3, 0, silent=True)
    memory.push([1], 1)
    memory.push([2], 1)
    honest = memory.states[1]
    memory.truncate(1)
    assert memory.tokens == [1]
    assert memory.states[1] != honest
    memory.clear()
    memory.push([1], 1)
    assert memory.states[1] == honest


@pytest.mark.parametrize(
    ("length", "k", "means"),
    [
        (3, 0, "bounded"),  # all three of the draft: as deep as can be cut
        (3, 2, "bounded"),
        (4, 0, "snapshot"),  # one more than can be cut
        (4, 1, "bounded"),
        (8, 5, "bounded"),
        (8, 4, "snapshot"),
    ],
)
def test_the_bound_decides_not_the_answer_of_the_backend(length: int, k: int, means: str) -> None:
    target = ScriptedTarget(**_LIAR)
    request = ask(10, strategy=poison(_TAPE, k, length))
    completion = run(target, request)
    assert_plain(ScriptedTarget(), request, completion)
    first = next(iter(completion.stats.rollbacks))
    assert first == means
    assert "replay" not in completion.stats.rollbacks


@pytest.mark.parametrize("length", [1, 2, 3, 4, 9])
def test_a_checkpoint_is_taken_only_for_drafts_longer_than_the_depth(length: int) -> None:
    target = ScriptedTarget(**_LIAR)
    request = ask(24, strategy=oracle(_TAPE, length))
    completion = run(target, request)
    assert_plain(ScriptedTarget(), request, completion)
    verified = completion.stats.verified_per_position
    # One of the prompt; each of the others guards a draft.
    assert target.count("checkpoint") == completion.stats.checkpoints == 1 + (verified[3] if length > 3 else 0)


def test_memory_that_can_be_cut_needs_no_checkpoint_at_all() -> None:
    target = ScriptedTarget()
    completion = run(target, ask(24, strategy=poison(_TAPE, 1, 6)))
    assert target.count("checkpoint") == completion.stats.checkpoints == completion.stats.checkpoint_bytes == 0
    assert set(completion.stats.rollbacks) == {"truncate"}
    assert target.n_redecoded == 0


def test_snapshot_memory_takes_a_checkpoint_for_every_draft_and_none_for_plain_steps() -> None:
    target = ScriptedTarget(rollback=Rollback.SNAPSHOT)
    plain = run(target, ask(24))
    assert plain.stats.checkpoints == 1
    completion = run(target, ask(24, reuse_prefix=False, strategy=poison(_TAPE, 0, 4)))
    assert completion.stats.checkpoints == 1 + completion.stats.draft_steps
    assert completion.stats.rollbacks == {"snapshot": completion.stats.draft_steps}
    assert completion.stats.checkpoint_bytes == 64


def test_without_checkpoints_drafts_end_where_cutting_does() -> None:
    target = ScriptedTarget(**_LIAR, checkpoints=False)
    request = ask(24, strategy=poison(_TAPE, 0, 9))
    completion = run(target, request)
    assert_plain(ScriptedTarget(), request, completion)
    assert len(completion.stats.verified_per_position) == 3
    assert completion.stats.rollbacks == {"bounded": completion.stats.draft_steps}
    assert [call for call, _ in _in_step(target)] == ["truncate"] * completion.stats.draft_steps


def test_without_room_for_checkpoints_bounded_drafts_get_short(caplog: pytest.LogCaptureFixture) -> None:
    target = ScriptedTarget(**_LIAR, checkpoint_room=0)
    request = ask(24, strategy=poison(_TAPE, 1, 9))
    with caplog.at_level(logging.WARNING):
        completion = run(target, request)
    assert_plain(ScriptedTarget(), request, completion)
    assert len(completion.stats.verified_per_position) == 3
    assert completion.stats.inactive_reason is None
    assert [r.getMessage()[:24] for r in caplog.records] == ["no room for a prompt che", "no room for a checkpoint"]
    # Asked for once in the prompt and once for a draft, not at every step.
    assert target.count("checkpoint") == 2


def test_without_room_for_checkpoints_snapshot_memory_decodes_plainly(caplog: pytest.LogCaptureFixture) -> None:
    target = ScriptedTarget(rollback=Rollback.SNAPSHOT, checkpoint_room=0)
    request = ask(24, strategy=oracle(_TAPE, 4))
    completion = run(target, request)
    assert_plain(ScriptedTarget(), request, completion)
    assert completion.stats.verified == 0
    assert completion.stats.inactive_reason is not None
    assert completion.stats.inactive_reason.startswith("checkpoint-failed: no room")
    assert target.count("checkpoint") == 2


def test_what_the_prompt_kept_is_cheaper_than_everything() -> None:
    """Nothing of the step can bring memory back: it falls back to the checkpoint of the prompt, not to nothing."""

    def broken(history: Any, row: Any) -> Any:
        if len(history) == len(PROMPT) + 5:
            raise LookupError(history)
        return row

    target = ScriptedTarget(rollback=Rollback.SNAPSHOT)
    with Engine(target, scheduler=Unlimited) as engine:
        generation = engine.submit(ask(logits_processors=[broken]))
        with pytest.raises(LookupError):
            generation.result()
        assert target.count("clear") == 1  # at the start
        assert generation._active.stats.rollbacks == {"snapshot": 1}
        assert target.memory(0) == PROMPT[:1]
        assert_plain(ScriptedTarget(), ask(), engine.submit(ask()).result())


def test_a_step_that_commits_nothing_cannot_be_cut_away() -> None:
    """All tokens of the last decode but the first can be cut, and a plain step has no other."""

    def broken(history: Any, row: Any) -> Any:
        if len(history) == len(PROMPT) + 5:
            raise LookupError(history)
        return row

    target = ScriptedTarget(**_LIAR)
    with Engine(target, scheduler=Unlimited) as engine:
        with pytest.raises(LookupError):
            engine.submit(ask(logits_processors=[broken])).result()
        following = ask(prompt=(*_TAPE[: len(PROMPT) + 5], 3))
        assert_plain(ScriptedTarget(), following, engine.submit(following).result())


@pytest.mark.parametrize(
    ("memory", "means", "place"),
    [
        ({}, "truncate", None),
        (_LIAR, "bounded (3 tokens), snapshot (host)", "host"),
        ({**_LIAR, "checkpoints": False}, "bounded (3 tokens)", None),
        ({"rollback": Rollback.SNAPSHOT}, "snapshot (host)", "host"),
    ],
)
def test_the_means_of_a_target_are_told(memory: dict[str, Any], means: str, place: str | None) -> None:
    target = ScriptedTarget(**memory)
    assert target.info.rollback_means == means
    assert target.info.checkpoint_place == place
    assert run(target, ask(2)).stats.rollback_means == means


def test_checkpoints_in_device_memory_are_told() -> None:
    info = attrs.evolve(ScriptedTarget(rollback=Rollback.SNAPSHOT).info, checkpoint_on_device=True)
    assert info.rollback_means == "snapshot (device)"


def test_restores_are_counted_and_timed_per_request() -> None:
    target = ScriptedTarget(rollback=Rollback.SNAPSHOT)
    with Engine(target, scheduler=Unlimited) as engine:
        drafted = engine.submit(ask(24, strategy=poison(_TAPE, 1, 4))).result().stats
        assert drafted.restores == drafted.rollbacks["snapshot"] == target.count("restore") > 3
        assert 0 < drafted.restore_s < drafted.seconds["rollback"]
        # The next one begins like it and departs inside the prompt: it starts from the checkpoint there.
        following = engine.submit(ask(2, prompt=(*PROMPT[:2], 9, 9))).result().stats
        assert (following.restores, following.cached_tokens, following.rollbacks) == (1, 1, {})
        assert following.restore_s > 0
        unrelated = engine.submit(ask(2, prompt=(9, 8, 7))).result().stats
        assert (unrelated.restores, unrelated.restore_s) == (0, 0.0)
