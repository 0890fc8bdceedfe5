"""What the core needs from the world: a target model, its vocabulary, its samplers.

A backend implements these Protocols; ``specframe.testing.ScriptedTarget`` is the pure Python one and
``specframe.testing.check_backend`` says whether an implementation keeps the contract.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import attrs
import numpy as np
import numpy.typing as npt

from specframe.core.sampling import SamplingParams

#: Rows of numbers ``(rows, width)``, float32, read-only for their readers.
Rows: TypeAlias = npt.NDArray[np.float32]

#: Logits: one row ``(n_vocab,)`` or several ``(rows, n_vocab)``, float32, read-only for the core.
Logits: TypeAlias = npt.NDArray[np.float32]


class Need(enum.Flag):
    """What a strategy needs from the target beyond tokens, and what a target can provide."""

    NONE = 0
    HIDDEN = enum.auto()
    """Hidden state rows after the last layer (MTP, EAGLE)."""
    LAYER_INPUTS = enum.auto()
    """Inputs of chosen layers (DFlash family, EAGLE-3)."""

    @property
    def names(self) -> tuple[str, ...]:
        """The members it is made of, as users read them: lower case, in the order of declaration."""
        return tuple(str(need.name).lower() for need in Need if need and need in self)


class Rollback(enum.Enum):
    """How the memory of a sequence can be brought back to an earlier length."""

    TRUNCATE = "truncate"
    """Any tail can be cut (dense attention)."""
    BOUNDED = "bounded"
    """At most ``rollback_depth`` tokens, and only ones written by the last decode of that sequence, can be cut.

    All but the first token of that decode, to be exact: ``k <= min(rollback_depth, tokens in the last decode - 1)``.
    """
    SNAPSHOT = "snapshot"
    """Nothing can be cut; a checkpoint taken before the decode can be restored."""


@attrs.frozen(kw_only=True)
class TargetInfo:
    """Facts about a target that never change while it is open."""

    n_vocab: int
    n_ctx: int
    """Tokens one sequence can hold."""
    n_batch: int
    """Most tokens in one decode, over all sequences."""
    n_seq: int
    """Sequences that can be held at once; ids are ``range(n_seq)``."""
    rollback: Rollback = Rollback.TRUNCATE
    rollback_depth: int = 0
    """Tokens that can be cut after a decode; only read when ``rollback`` is BOUNDED."""
    checkpoints: bool = True
    """``checkpoint`` and ``restore`` work; always so when ``rollback`` is SNAPSHOT."""
    checkpoint_on_device: bool = False
    """Checkpoints that need not last are kept in device memory."""
    n_outputs: int | None = None
    """Most logits rows in one decode; None means ``n_batch``."""
    exact_width: int | None = None
    """Most tokens of one sequence in one decode that are evaluated as single tokens would be; verifications keep to it.
    None: any number. Kernels for wide batches may round differently.
    """
    provides: Need = Need.NONE
    can_shift: bool = False
    """``shift`` works; only where ``rollback`` is TRUNCATE."""

    @property
    def max_outputs(self) -> int:
        """Most logits rows one decode may ask for."""
        return self.n_batch if self.n_outputs is None else min(self.n_outputs, self.n_batch)

    @property
    def checkpoint_place(self) -> str | None:
        """Where the checkpoint that guards a verification is kept, ``host`` or ``device``; None: none is ever taken."""
        if self.rollback is Rollback.TRUNCATE or not self.checkpoints:
            return None
        return "device" if self.checkpoint_on_device else "host"

    @property
    def rollback_means(self) -> str:
        """How a rejected draft is taken back: ``truncate``, ``bounded (3 tokens), snapshot (host)`` and the like."""
        means = [] if self.rollback is Rollback.SNAPSHOT else [self.rollback.value]
        if self.rollback is Rollback.BOUNDED:
            means[0] += f" ({self.rollback_depth} tokens)"
        if self.checkpoint_place is not None:
            means.append(f"{Rollback.SNAPSHOT.value} ({self.checkpoint_place})")
        return ", ".join(means)


@attrs.frozen
class BatchEntry:
    """Consecutive tokens of one sequence inside one target batch."""

    seq: int
    pos: int
    """Position of ``tokens[0]``; equals the number of tokens the memory of ``seq`` holds."""
    tokens: Sequence[int]
    n_outputs: int
    """Logits rows wanted: those of the last ``n_outputs`` tokens."""


@attrs.frozen
class Decoded:
    """Tokens of one sequence that the target has evaluated, with the features a strategy asked for.

    The arrays are views that are valid during ``process`` only; copy what must last.
    """

    seq: int
    pos: int
    """Position of ``tokens[0]``."""
    tokens: Sequence[int]
    hidden: Rows | None = None
    """Hidden state after the last layer ``(len(tokens), n_embd)``; with Need.HIDDEN."""
    layer_inputs: Mapping[int, Rows] = attrs.field(factory=dict)
    """Input of each layer asked for ``(len(tokens), n_embd)``; with Need.LAYER_INPUTS.

    The layer one past the last, where a model has it, stands for what leaves the last one.
    """

    def concatenated(self, layers: Sequence[int]) -> Rows:
        """The inputs of ``layers`` side by side, in that order: a copy ``(len(tokens), len(layers) * n_embd)``.

        Raises KeyError for a layer that was not asked for when the tokens were evaluated.
        """
        return np.concatenate([self.layer_inputs[layer] for layer in layers], axis=1)


class Vocab(Protocol):
    """Token ids and the bytes they stand for."""

    @property
    def n_tokens(self) -> int:
        """Size of the vocabulary."""
        ...

    @property
    def eog(self) -> frozenset[int]:
        """End-of-generation tokens (EOS, EOT, ...)."""
        ...

    def piece(self, token: int) -> bytes:
        """Bytes of one token as they appear in generated text; control tokens give ``b""``."""
        ...


class TokenSampler(Protocol):
    """Chooses tokens of one sequence from logits; owns its random state.

    ``sample`` consumes exactly one draw of the request's random stream per emitted token and sees every earlier token
    through ``accept``; the core calls them strictly in turn: sample, accept, sample, accept.
    """

    def sample(self, logits: Logits) -> int:
        """Choose from one row ``(n_vocab,)`` float32, not kept. Raises BackendError if nothing is left to choose."""
        ...

    def accept(self, token: int) -> None:
        """``token`` was committed: advance penalties, grammar and the like."""
        ...

    def allowed(self, token: int) -> bool:
        """False when a grammar forbids ``token`` next. Only prunes drafts; never changes the output."""
        ...

    def finished(self) -> bool:
        """True when a hard constraint (a grammar) admits no further token."""
        ...

    def close(self) -> None:
        """Release what it holds; idempotent."""
        ...


class Checkpoint(Protocol):
    """Saved memory of one sequence; only the target that made it understands it."""

    @property
    def seq(self) -> int:
        """The sequence it was taken of."""
        ...

    @property
    def n_past(self) -> int:
        """Tokens the memory held when the checkpoint was taken."""
        ...

    @property
    def n_bytes(self) -> int:
        """Memory it occupies."""
        ...


@runtime_checkable
class Target(Protocol):
    """The model that decides every emitted token, with a memory (KV cache, recurrent state) per sequence."""

    @property
    def info(self) -> TargetInfo:
        """Facts that never change."""
        ...

    @property
    def vocab(self) -> Vocab:
        """The vocabulary of the model."""
        ...

    def decode(self, batch: Sequence[BatchEntry]) -> None:
        """Evaluate one batch: all sequences in it, atomically, each sequence at most once.

        May return before the work is done. On BackendError the memory of any sequence in the batch may hold a part of
        its tokens; the caller reconciles. Token ids, positions, ``n_batch``, ``n_outputs`` and ``n_ctx`` are checked
        before anything native is called (ConfigError, nothing changed).
        """
        ...

    def logits(self) -> Logits:
        """Rows of the last decode ``(sum of n_outputs, n_vocab)`` float32 in batch order; waits until they are there.

        A read-only view valid until the next ``decode``.
        """
        ...

    def enable(self, needs: Need, layers: Sequence[int] = ()) -> None:
        """Compute features from the next decode on; adds to what was enabled before. ConfigError when it cannot."""
        ...

    def decoded(self) -> Sequence[Decoded]:
        """The batch of the last decode with the features that are enabled, entry by entry; waits until they are there.

        Valid until the next ``decode``.
        """
        ...

    @property
    def services(self) -> object:
        """What strategies written for this backend build on (contexts for draft models); opaque to the core."""
        ...

    def n_past(self, seq: int) -> int:
        """Tokens the memory of ``seq`` holds now, asked from the memory itself."""
        ...

    def truncate(self, seq: int, n_past: int) -> None:
        """Cut the memory of ``seq`` to its first ``n_past`` tokens. Raises RollbackError, with nothing done."""
        ...

    def shift(self, seq: int, n_keep: int, n_drop: int) -> None:
        """Forget ``n_drop`` tokens behind the first ``n_keep`` of ``seq`` and move the rest down in their place.

        What moved keeps what it took from the forgotten ones. Raises BackendError when it cannot; clear then.
        """
        ...

    def clear(self, seq: int) -> None:
        """Forget everything of ``seq``; works on every kind of memory and after any failure."""
        ...

    def checkpoint(self, seq: int, *, lasting: bool = False) -> Checkpoint:
        """Save what ``truncate`` cannot bring back. Raises BackendError when there is no room.

        A checkpoint that is not ``lasting`` may become invalid with the next one of the same sequence, which lets a
        backend keep it where it is cheapest (in device memory).
        """
        ...

    def restore(self, checkpoint: Checkpoint) -> None:
        """Bring ``checkpoint.seq`` back to ``checkpoint.n_past`` tokens. Raises RollbackError when it cannot."""
        ...

    @property
    def identity(self) -> Mapping[str, object]:
        """What has to be the same for a saved state to be of use, JSON-ready: the model, settings of its memory."""
        ...

    def save_state(self, seq: int) -> bytes:
        """Everything the memory of ``seq`` holds. Raises BackendError when it cannot be had."""
        ...

    def load_state(self, seq: int, data: bytes, n_past: int) -> None:
        """Make ``seq`` hold what ``save_state`` of a target of the same identity returned: ``n_past`` tokens.

        Raises RollbackError when it cannot; the sequence must be cleared then.
        """
        ...

    def make_sampler(self, params: SamplingParams, prompt: Sequence[int]) -> TokenSampler:
        """A sampler for one request; ``prompt`` feeds the penalties. Raises ConfigError for what it cannot honour."""
        ...

    def close(self) -> None:
        """Release what it holds; idempotent."""
        ...
