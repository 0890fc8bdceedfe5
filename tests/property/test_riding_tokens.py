"""Where a rejection is undone by a restore, accepted tokens ride along, and verifications stay narrow all the same."""

from __future__ import annotations

from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from specframe.core.ports import Rollback
from specframe.core.step import MAX_RIDING
from specframe.testing import Output, ScriptedTarget, reference, tape
from tests.support.lossless import PROMPT, ask, poison, run

#: A budget at whose end no draft is cut short.
N = 120


@given(
    seed=st.integers(0, 50),
    length=st.integers(1, 12),
    k=st.integers(0, 11),
    exact_width=st.sampled_from([None, 63]),
    depth=st.sampled_from([None, 0, 2]),
)
def test_rejected_drafts_do_not_make_verifications_wider(
    seed: int, length: int, k: int, exact_width: int | None, depth: int | None
) -> None:
    """Every draft is rejected at its place ``k``, for ever."""
    k = min(k, length - 1)
    memory: dict[str, Any] = {"rollback": Rollback.SNAPSHOT}
    if depth is not None:
        memory = {"rollback": Rollback.BOUNDED, "rollback_depth": depth}
    target = ScriptedTarget(seed=seed, exact_width=exact_width, **memory)
    request = ask(N)
    right = tape(ScriptedTarget(seed=seed), request)
    completion = run(target, attrs.evolve(request, strategy=poison(right, k, length)))
    reference(ScriptedTarget(seed=seed), request).check_equals(Output.of(completion))
    assert completion.stats.draft_steps > N // (MAX_RIDING + k + 1)
    n_prompt = len(PROMPT)
    steps = [c.detail[0] for c in target.calls if c.operation == "decode" and c.detail[0].pos >= n_prompt]
    assert max(len(entry.tokens) for entry in steps) <= MAX_RIDING + length
    # A verification has 1 to MAX_RIDING riding tokens, each number about as often as another when one is added a time.
    assert sum(len(entry.tokens) - entry.n_outputs for entry in steps) <= len(steps) * (MAX_RIDING + k) / 2 + MAX_RIDING
