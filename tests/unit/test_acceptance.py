"""What is learnt of the chances of drafts."""

from __future__ import annotations

import pytest

from specframe.core.acceptance import Experience, Track
from specframe.core.scheduler import SchedulerStats

KIND = ("copies",)


def chance(track: Track, matched: int) -> float:
    """That the first token of a copy behind ``matched`` tokens that agree is right."""
    return track.survival(1, KIND, matched).all_right[0]


def copy(track: Track, matched: int, n_right: int) -> None:
    """A copy behind ``matched`` tokens ends after ``n_right``."""
    track.guess([1] * n_right + [0], KIND, matched)
    track.committed([1] * (n_right + 1))


@pytest.mark.parametrize("same_request", [True, False])
def test_copies_that_end_early_lower_the_chances_of_longer_ones(same_request: bool) -> None:
    strategy = Experience()
    track = Track("k", strategy, SchedulerStats())
    before = chance(track, 20)
    for _ in range(8):
        copy(track, 4, 0)
    after = chance(track if same_request else Track("k", strategy, SchedulerStats()), 20)
    assert after < before - 0.03


def test_long_copies_raise_the_chances_of_shorter_ones() -> None:
    track = Track("k", Experience(), SchedulerStats())
    before = chance(track, 4)
    for _ in range(3):
        copy(track, 30, 40)
    assert chance(track, 4) > before


def test_what_has_agreed_for_longer_goes_on_more_probably() -> None:
    track = Track("k", Experience(), SchedulerStats())
    chances = [chance(track, matched) for matched in (1, 2, 4, 8, 16, 32, 64)]
    assert chances == sorted(set(chances))
    assert 0.3 < chances[0] < 0.6
    assert chances[-1] > 0.95


def test_who_is_asked_is_taken_to_have_something_to_say_until_nothing_comes() -> None:
    strategy = Experience()
    assert strategy.offering(3).all_right[0] > 0.9
    for _ in range(4):
        strategy.offered(3, 0)
    assert strategy.offering(3).all_right[0] < 0.5


def test_little_that_is_known_of_a_draft_leaves_hope() -> None:
    track = Track("k", Experience(), SchedulerStats())
    track.guess([0], KIND, 0)
    track.committed([1])
    likely, hoped = (track.survival(1, hopeful=hopeful).all_right[0] for hopeful in (False, True))
    assert hoped > likely + 0.1
    for _ in range(60):
        track.guess([0], KIND, 0)
        track.committed([1])
    assert track.survival(1, hopeful=True).all_right[0] < 0.1


def test_strategy_that_begins_wrongly_rests_for_longer_until_a_guess_is_right() -> None:
    track = Track("k", Experience(), SchedulerStats())
    rests = []
    for token in (0, 0, 1):
        track.considered(pays=False)
        rests.append(track.pause)
        track.guess([token], KIND, 0)
        track.committed([1])
    assert rests == [7, 15, 31]
    assert track.pause == 0
    track.considered(pays=False)
    assert track.pause == 7
