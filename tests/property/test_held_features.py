"""What a block drafter knows of a sequence, against a model that knows everything: features are right or not there."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from specframe.core.ports import Decoded, Rows
from specframe.strategies.held_features import HeldFeatures

LAYERS = (3, 1)
TOKENS = st.integers(0, 2)


def features_of(text: list[int], start: int) -> Rows:
    """Rows of the positions from ``start`` on: they depend on all of the text up to there."""
    rows = [[i, hash(tuple(text[: i + 1])) % 1000003] for i in range(start, len(text))]
    return np.array(rows, np.float32).reshape(-1, 2)


class Machine(RuleBasedStateMachine):
    """One sequence of a target: requests, prompt chunks, verifications, replays, interrupts."""

    def __init__(self) -> None:
        super().__init__()
        self.held = HeldFeatures(LAYERS, 2)
        self.text: list[int] = []
        self.n_past = 0
        self.memory: Rows = np.empty((0, 2), np.float32)
        """What was injected."""
        self.missed = False

    def decode(self, tokens: list[int], *, lost: bool = False) -> None:
        """The target evaluates ``tokens`` behind what it holds."""
        whole = self.text[: self.n_past] + tokens
        self.missed |= lost
        if not lost:
            rows = features_of(whole, self.n_past)
            self.held.seen(Decoded(0, self.n_past, tokens, None, {1: rows[:, 1:], 3: rows[:, :1]}))

    @initialize(prompt=st.lists(TOKENS, min_size=1, max_size=6))
    def first(self, prompt: list[int]) -> None:
        self.begin(prompt, 0, 0)

    @rule(prompt=st.lists(TOKENS, min_size=1, max_size=8), kept=st.integers(0, 12), back=st.integers(0, 3))
    def begin(self, prompt: list[int], kept: int, back: int) -> None:
        """A request whose prompt shares ``kept`` tokens with what the target holds."""
        shared = self.text[: min(kept, self.n_past)]
        known = min(len(shared), len(self.held.tokens))
        self.text = shared + prompt
        answer = self.held.begin(self.text[: len(shared)])
        assert self.missed or answer == known, "nothing is evaluated again without need"
        assert 0 <= answer <= len(shared)
        self.n_past = max(0, answer - back)
        self.missed = False

    @precondition(lambda self: not self.missed and len(self.text) - self.n_past > 1)
    @rule(n=st.integers(1, 4))
    def chunk(self, n: int) -> None:
        """A part of a prompt, or of what is replayed."""
        n = min(n, len(self.text) - self.n_past - 1)
        self.decode(self.text[self.n_past : self.n_past + n])
        self.n_past += n

    # Who missed a batch is told nothing more until the next request.
    @precondition(lambda self: not self.missed)
    @rule(
        draft=st.lists(TOKENS, max_size=4),
        token=TOKENS,
        n_accepted=st.integers(0, 4),
        n_back=st.integers(0, 3),
        lost=st.integers(0, 9).map(lambda n: n == 0),
        failed=st.integers(0, 9).map(lambda n: n == 0),
    )
    def verify(self, draft: list[int], token: int, n_accepted: int, n_back: int, lost: bool, failed: bool) -> None:
        """Everything pending and a draft; nothing is committed when the step is given up."""
        self.decode(self.text[self.n_past :] + draft, lost=lost)
        if not failed:
            self.text += [*draft[:n_accepted], token]
            if len(self.held.tokens) >= len(self.text):
                self.held.keep(len(self.text) - 1)
        # Memory that cannot be cut goes back to a checkpoint.
        self.n_past = max(0, min(self.n_past, len(self.text) - 1) if failed else len(self.text) - 1 - n_back)

    @rule(partly=st.booleans())
    def take_over(self, partly: bool) -> None:
        """The drafter's memory gets what waits, or a part of it before something goes wrong."""
        held = self.held
        self.memory = np.concatenate([self.memory[: held.injected], held.waiting[: 1 if partly else None]])
        if not partly:
            held.took_over(len(held.tokens))

    @rule()
    def saved_and_loaded(self) -> None:
        other = HeldFeatures(LAYERS, 2)
        other.load(self.held.save())
        self.held = other

    @invariant()
    def what_is_known_is_right(self) -> None:
        held = self.held
        assert held.usable
        rows = features_of(held.tokens, 0)
        np.testing.assert_array_equal(self.memory[: held.injected], rows[: held.injected])
        np.testing.assert_array_equal(held.waiting, rows[held.injected :])

    @precondition(lambda self: not self.missed and self.n_past == len(self.text) - 1)
    @invariant()
    def what_was_seen_is_known(self) -> None:
        assert self.held.tokens[: self.n_past] == self.text[: self.n_past]


TestHeldFeatures = Machine.TestCase
