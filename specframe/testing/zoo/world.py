"""The analytic heart of the zoo: a bigram (Markov) model expressed as embeddings and an output head.

Every token ``x`` is embedded as ``E[x] = bias * e0 + scale * u_x`` with ``|E[x]|**2 == width``, so that an RMS norm
leaves it alone; the ``u`` of the *active* tokens (and of the mask) are orthonormal. The head reads ``u_x`` as "the next
token is the successor of x". A transformer whose blocks add nothing is then exactly the bigram model: it recites the
cycle of active tokens for ever. Blocks that add something inside the active subspace make the context matter, by as
much as wanted.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from specframe.core.errors import ConfigError
from specframe.testing.zoo.tokenizer import Vocabulary
from specframe.testing.zoo.writer import Array

CYCLE_LETTERS = "abcdefghijklmnopqrstuvw "
WRONG_STEP = 7  # where a wrong draft points: so many places along the cycle from the right token


class World:
    """One cycle of tokens and the vectors that stand for it; models meant to work together share a world.

    Args:
        vocabulary: what the tokens are.
        width: embedding width; holds two orthonormal sets for the cycle besides ``e0`` and the mask.
        cycle: the text whose tokens succeed each other, each token once. Its order is shuffled unless ``ordered``.
        ordered: keep the order of ``cycle``, so that the model recites it.
        gain: logit of the right successor; all others are near 0.
        bias: the ``e0`` part of each embedding.
        seed: of everything random in here.

    Attributes:
        active: the token ids in cycle order.
        basis: ``u`` of the active tokens.  # (n_active, width)
        spare_basis: a second orthonormal set, orthogonal to the first, for features that must not mix with tokens.
        behaves_like: for each token the index of the active token it acts like.  # (n_vocab,)
        embeddings: ``E``.  # (n_vocab, width)
        head: output weights.  # (n_vocab, width)
    """

    def __init__(
        self,
        *,
        vocabulary: Vocabulary | None = None,
        width: int = 64,
        cycle: str = CYCLE_LETTERS,
        ordered: bool = False,
        gain: float = 14.0,
        bias: float = 3.0,
        seed: int = 7,
    ) -> None:
        self.vocabulary = vocabulary or Vocabulary.byte_level()
        self.width, self.gain, self.bias = width, gain, bias
        self.scale = float(np.sqrt(width - bias**2))
        tokens = self.vocabulary.tokens_of(cycle)
        n = len(tokens)
        if len(set(tokens)) != n:
            raise ConfigError(f"the cycle {cycle!r} uses a token twice: {tokens}")
        if width < 2 * n + 2:
            raise ConfigError(f"width is {width}; a cycle of {n} tokens needs at least {2 * n + 2}")
        rng = np.random.default_rng(seed)
        self.active: list[int] = tokens if ordered else [int(t) for t in rng.permutation(tokens)]
        self._index = {token: i for i, token in enumerate(self.active)}
        self._make_bases(rng, seed)
        self.behaves_like = np.array(
            [self._index[t] if t in self._index else int(rng.integers(n)) for t in range(self.n_vocab)]
        )
        self.embeddings = self._make_embeddings(rng)
        self.head = rng.standard_normal((self.n_vocab, width)) * 0.002
        for i, token in enumerate(self.active):
            self.head[token] = gain / self.scale * self.basis[(i - 1) % n]

    def _make_bases(self, rng: np.random.Generator, seed: int) -> None:
        n, width = len(self.active), self.width
        q, _ = np.linalg.qr(rng.standard_normal((width - 1, n + 1)))
        vectors = np.zeros((n + 1, width))
        vectors[:, 1:] = q.T  # no e0 part
        self.basis, self.mask_vector = vectors[:n], vectors[n]
        fill = np.random.default_rng(seed + 1000).standard_normal((width, n))
        q, _ = np.linalg.qr(np.concatenate([vectors.T, np.eye(width)[:, :1], fill], axis=1))
        self.spare_basis: Array = q[:, n + 2 : 2 * n + 2].T

    def _make_embeddings(self, rng: np.random.Generator) -> Array:
        table = np.zeros((self.n_vocab, self.width))
        for token in range(self.n_vocab):
            if token in self._index:
                u = self.basis[self._index[token]]
            elif token == self.vocabulary.mask:
                u = self.mask_vector
            else:  # close to an active token, but not the same as it
                noise = np.zeros(self.width)
                noise[1:] = rng.standard_normal(self.width - 1)
                noise /= np.linalg.norm(noise)
                u = 0.85 * self.basis[self.behaves_like[token]] + 0.5 * noise
                u = u / np.linalg.norm(u)
            table[token] = self.scale * u
        table[:, 0] = self.bias
        return table

    @property
    def n_vocab(self) -> int:
        """Number of tokens."""
        return len(self.vocabulary)

    @property
    def n_active(self) -> int:
        """Number of tokens in the cycle."""
        return len(self.active)

    def successor(self, token: int) -> int:
        """What the bigram model says after ``token``."""
        return self.active[(int(self.behaves_like[token]) + 1) % self.n_active]

    def recite(self, token: int, n: int) -> list[int]:
        """The ``n`` tokens the bigram model says after ``token``."""
        said: list[int] = []
        for _ in range(n):
            token = self.successor(token)
            said.append(token)
        return said

    def wrong(self, error: float, seed: int = 11) -> frozenset[int]:
        """The cycle positions that a draft with this share of errors gets wrong."""
        n = round(error * self.n_active)
        return frozenset(np.random.default_rng(seed).permutation(self.n_active)[:n].tolist())

    def target_of(self, i: int, wrong: Collection[int]) -> int:
        """Cycle position ``i``, or where a draft wanders off to if that one is ``wrong``."""
        i %= self.n_active
        return (i + WRONG_STEP) % self.n_active if i in wrong else i

    def shift(self, k: int, wrong: Collection[int] = ()) -> Array:
        """The (width, width) matrix that turns a token into the one ``k`` further on, ``wrong`` results replaced."""
        matrix = np.zeros((self.width, self.width))
        matrix[0, 0] = 1.0
        for i in range(self.n_active):
            matrix += np.outer(self.basis[self.target_of(i + k, wrong)], self.basis[i])
        return matrix

    def wrong_embeddings(self, wrong: Collection[int]) -> Array:
        """The (n_vocab, width) embedding table with the ``wrong`` tokens looking like others."""
        table = self.embeddings.copy()
        for token in range(self.n_vocab):
            i = int(self.behaves_like[token])
            if token != self.vocabulary.mask and i in wrong:
                table[token] = self.embeddings[self.active[self.target_of(i, wrong)]]
        return table

    def into_active(self, rng: np.random.Generator, n_in: int, strength: float) -> Array:
        """A random (width, n_in) map into the active subspace, coefficients of about ``strength`` for unit inputs."""
        return np.asarray(strength * self.scale * (self.basis.T @ linear(rng, self.n_active, n_in)))


def linear(rng: np.random.Generator, n_out: int, n_in: int, std: float = 1.0) -> Array:
    """A random (n_out, n_in) matrix that keeps the variance of its input, times ``std``."""
    return np.asarray(rng.standard_normal((n_out, n_in)) * std / np.sqrt(n_in))


def side_by_side(*blocks: Array) -> Array:
    """One linear map that reads several inputs at once, each through its own block."""
    return np.concatenate(blocks, axis=1)
