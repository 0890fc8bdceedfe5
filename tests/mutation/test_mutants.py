"""The tests of losslessness can fail: every deliberately broken core is noticed by the scenarios that ought to."""

from __future__ import annotations

import pytest

from tests.mutation.battery import SCENARIOS, fails
from tests.mutation.mutants import MUTANTS, Mutant


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_real_core_passes(name: str) -> None:
    SCENARIOS[name]()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.fault)
def test_broken_core_is_caught(mutant: Mutant) -> None:
    with mutant.alive():
        missed = [name for name in mutant.caught_by if not fails(name)]
    assert not missed, f"not noticed by: {missed}"


def test_the_core_is_whole_afterwards() -> None:
    function = MUTANTS[0].function()
    code = function.__code__
    with MUTANTS[0].alive():
        assert function.__code__ is not code
    assert function.__code__ is code
