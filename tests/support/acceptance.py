"""How much of a draft is accepted when the target recites a cycle."""

from __future__ import annotations

from collections.abc import Sequence

from specframe.testing.zoo import World

#: Shares of errors, as the knob of the zoo's drafts takes them.
ERRORS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)


def expected(world: World, prompt: Sequence[int], n: int, wrong: frozenset[int], n_max: int) -> tuple[int, int]:
    """Drafted and accepted tokens when a cycle is recited and predictions after the ``wrong`` places are.

    Args:
        world: of the target, which adds nothing to its bigrams.
        prompt: whose last token is followed by the first recited one.
        n: tokens of the text.
        wrong: places of the cycle whose successors are predicted wrongly.
        n_max: tokens of a draft.
    """
    at = world.active.index(world.successor(prompt[-1]))  # the first token comes from the prompt
    emitted, drafted, accepted = 1, 0, 0
    while emitted < n:
        length = min(n_max, n - emitted - 1)
        right = 0
        while right < length and (at + right) % world.n_active not in wrong:
            right += 1
        drafted, accepted = drafted + length, accepted + right
        emitted, at = emitted + right + 1, (at + right + 1) % world.n_active
    return drafted, accepted
