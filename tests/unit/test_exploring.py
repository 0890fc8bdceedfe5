"""What may be spent on trying out what does not pay as far as is known."""

from __future__ import annotations

from specframe.core.exploring import CATCHING_UP, EXPLORING, ExploringBudget

PLAIN_S = 0.01


def after(n_steps: int) -> ExploringBudget:
    budget = ExploringBudget()
    for _ in range(n_steps):
        budget.earn(PLAIN_S, plain_s=PLAIN_S)
    return budget


def spent(budget: ExploringBudget, seconds: float) -> int:
    """How often so much could be spent in a row."""
    n = 0
    while budget.spend(seconds):
        n += 1
    return n


def test_nothing_is_tried_before_anything_was_measured() -> None:
    budget = ExploringBudget()
    budget.passed(10.0)
    assert not budget.spend(0.0)
    assert not budget.may_try(0.0, plain_s=PLAIN_S)


def test_a_few_plain_steps_may_be_spent_at_first() -> None:
    assert spent(after(1), PLAIN_S) == 3


def test_a_share_of_the_time_is_earned() -> None:
    budget = after(1)
    spent(budget, PLAIN_S)
    n_steps = round(2 / EXPLORING)
    for _ in range(n_steps):
        budget.earn(PLAIN_S, plain_s=PLAIN_S)
    assert spent(budget, PLAIN_S) in {1, 2}


def test_what_is_saved_up_has_a_limit() -> None:
    assert spent(after(100_000), PLAIN_S) == 10


def test_what_brings_more_than_it_costs_earns_nothing() -> None:
    budget = after(1)
    assert budget.spend(-1.0)
    assert not budget.spend(4 * PLAIN_S)


def test_a_try_that_was_dear_has_to_be_earned_before_the_next_one() -> None:
    budget = after(1)
    budget.pay(4 * PLAIN_S)
    assert not budget.may_try(0.0, plain_s=PLAIN_S)
    for _ in range(round(1.1 / EXPLORING)):
        budget.earn(PLAIN_S, plain_s=PLAIN_S)
    assert budget.may_try(0.0, plain_s=PLAIN_S)


def test_catching_up_takes_no_more_than_its_share() -> None:
    budget = after(1)
    assert budget.may_try(9 * PLAIN_S, plain_s=PLAIN_S)
    budget.caught_up(9 * PLAIN_S)
    assert not budget.may_try(9 * PLAIN_S, plain_s=PLAIN_S)
    assert budget.may_try(0.0, plain_s=PLAIN_S), "one that follows the text may be tried all the same"
    budget.passed(9 * PLAIN_S / CATCHING_UP)
    assert budget.may_try(9 * PLAIN_S, plain_s=PLAIN_S)
