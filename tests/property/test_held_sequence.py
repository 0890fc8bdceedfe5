"""What draft memory knows of a sequence, against a model that knows everything: pairs are right or not offered."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from specframe.core.ports import Decoded, Rows
from specframe.strategies.drafting import HeldSequence

WIDTH, N_ROWS = 2, 4
TOKENS = st.integers(0, 2)


def state_of(text: list[int]) -> list[float]:
    """The hidden state behind ``text``: depends on all of it."""
    return [float(len(text)), float(hash(tuple(text)) % 1000003)]


def states_of(text: list[int], start: int) -> Rows:
    """Hidden states of the positions from ``start`` on."""
    return np.array([state_of(text[: i + 1]) for i in range(start, len(text))], np.float32).reshape(-1, WIDTH)


class Machine(RuleBasedStateMachine):
    """One sequence of a target: requests, prompt chunks, verifications, replays, interrupts."""

    def __init__(self) -> None:
        super().__init__()
        self.held = HeldSequence(WIDTH, N_ROWS)
        self.text: list[int] = []
        self.n_past = 0
        self.memory: list[tuple[int, tuple[float, ...]]] = []
        self.missed = False
        self.decoded = False
        """The target evaluated something of this request: nothing is drafted before that."""

    def decode(self, tokens: list[int], *, lost: bool = False) -> None:
        """The target evaluates ``tokens`` behind what it holds."""
        whole = self.text[: self.n_past] + tokens
        self.missed |= lost
        self.decoded = True
        if not lost:
            self.held.seen(Decoded(0, self.n_past, tokens, states_of(whole, self.n_past)))

    @initialize(prompt=st.lists(TOKENS, min_size=1, max_size=6))
    def first(self, prompt: list[int]) -> None:
        self.begin(prompt, 0, 0)

    @rule(prompt=st.lists(TOKENS, min_size=1, max_size=8), kept=st.integers(0, 12), back=st.integers(0, 3))
    def begin(self, prompt: list[int], kept: int, back: int) -> None:
        """A request whose prompt shares ``kept`` tokens with what the target holds."""
        shared = self.text[: min(kept, self.n_past)]
        self.text = shared + prompt
        answer = self.held.begin(self.text[: len(shared)])
        assert 0 <= answer <= len(shared)
        self.n_past = max(0, answer - back) if back else answer
        self.missed = self.decoded = False

    @precondition(lambda self: len(self.text) - self.n_past > 1)
    @rule(n=st.integers(1, 4))
    def chunk(self, n: int) -> None:
        """A part of a prompt, or of what is replayed."""
        n = min(n, len(self.text) - self.n_past - 1)
        self.decode(self.text[self.n_past : self.n_past + n])
        self.n_past += n

    @rule(
        draft=st.lists(TOKENS, max_size=N_ROWS - 1),
        token=TOKENS,
        n_back=st.integers(0, 3),
        lost=st.integers(0, 9).map(lambda n: n == 0),
    )
    def verify(self, draft: list[int], token: int, n_back: int, lost: bool) -> None:
        """Everything pending and a draft; the draft is accepted until ``token`` decides otherwise."""
        pending = self.text[self.n_past :]
        accepted = draft[: sum(1 for _ in range(min(token, len(draft))))]
        self.decode(pending + draft, lost=lost)
        self.text += [*accepted, token]
        self.held.committed(len(self.text))
        # Memory that cannot be cut goes back to a checkpoint.
        self.n_past = max(0, len(self.text) - 1 - n_back)

    @rule(commit=st.booleans())
    def evaluate(self, commit: bool) -> None:
        """The heads evaluate what waits, and perhaps the last committed token with it."""
        n = len(self.text) - 1
        found = self.held.waiting(n)
        if found is None:
            return
        tokens, states = found
        start = self.held.evaluated
        assert tokens == self.text[start:n]
        before = states_of(self.text, 0)
        wanted = np.concatenate([np.zeros((1, WIDTH), np.float32), before])[start : n + 1]
        np.testing.assert_array_equal(states, wanted)
        inputs = [*tokens, self.text[-1]] if commit else tokens
        del self.memory[start:]
        self.memory += [(t, tuple(s.tolist())) for t, s in zip(inputs, states, strict=False)]
        self.held.evaluated = start + len(inputs)

    @invariant()
    def evaluated_pairs_are_right(self) -> None:
        known: Any = [*self.held.tokens, *self.text[len(self.held.tokens) :]]
        for pos in range(min(self.held.evaluated, len(known))):
            token, state = self.memory[pos]
            assert token == known[pos]
            assert state == (tuple(np.float32(v) for v in state_of(known[:pos])) if pos else (0.0, 0.0))

    @precondition(lambda self: self.decoded and not self.missed and self.n_past == len(self.text) - 1 > 0)
    @invariant()
    def what_was_seen_can_be_drafted_from(self) -> None:
        assert self.held.waiting(self.n_past) is not None


TestHeldSequence = Machine.TestCase


@given(st.data())
def test_tokens_keep_their_states_when_others_are_dropped(data: st.DataObject) -> None:
    text = data.draw(st.lists(TOKENS, min_size=4, max_size=12))
    held, n = HeldSequence(WIDTH, N_ROWS), len(text)
    held.begin([])
    first = data.draw(st.integers(1, n - 1))
    for start, end in ((0, first), (first, n)):
        held.seen(Decoded(0, start, text[start:end], states_of(text, 0)[start:end]))
    held.evaluated = data.draw(st.integers(max(2, n - N_ROWS + 1), n))
    n_drop = data.draw(st.integers(1, held.evaluated - 1))
    n_keep = data.draw(st.integers(0, held.evaluated - 1 - n_drop))
    waiting = held.evaluated
    held.drop(n_keep, n_drop)
    assert held.tokens == text[:n_keep] + text[n_keep + n_drop :]
    found = held.waiting(len(held.tokens))
    assert found is not None
    assert held.evaluated == waiting - n_drop
    assert found[0] == text[waiting:]
    np.testing.assert_array_equal(found[1], states_of(text, waiting - 1))
    again = held.begin([*held.tokens[: n_keep + 1], 9])
    assert again <= n_keep + 1
