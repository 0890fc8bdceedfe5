"""A target in pure Python whose logits reveal every bookkeeping error.

The row of a token is a pure function of the tokens that are really in memory up to it (and of a seed): one token at a
wrong position, one rejected token left behind or one token missing changes every later row, and with it the output.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from specframe.core.errors import BackendError, ClosedError, ConfigError, RollbackError
from specframe.core.ports import BatchEntry, Checkpoint, Decoded, Logits, Need, Rollback, Target, TargetInfo
from specframe.core.sampling import SamplingParams
from specframe.testing.batch_rules import check_batch
from specframe.testing.errors import ContractError
from specframe.testing.faults import Call, Fault, FaultPlan, When
from specframe.testing.memory import Memory, MemoryCheckpoint, extend_hash
from specframe.testing.rows import LogitsFunction, Rows
from specframe.testing.sampler import Grammar, ScriptedSampler
from specframe.testing.vocabulary import ScriptedVocab, letter_pieces


class ScriptedTarget(Target):
    """A :class:`specframe.core.ports.Target` for tests: deterministic, strict, and able to fail on demand.

    Args:
        n_vocab: Size of the vocabulary; by default that of ``pieces``.
        pieces: Bytes of each token; letters by default.
        eog: End-of-generation tokens.
        control: Other tokens without text.
        n_ctx: Tokens one sequence can hold.
        n_batch: Tokens of one decode, all sequences together.
        n_seq: Number of sequences.
        n_outputs: Logits rows of one decode; ``n_batch`` by default.
        rollback: How memory can be rolled back.
        rollback_depth: For BOUNDED memory.
        seed: Selects the model: another seed gives unrelated logits.
        spread: Logits lie in ``[0, spread)``; small is a flat distribution, large a sharp one.
        order: None: a row depends on the whole context. A number: mostly on the last ``order`` tokens, so that texts
            repeat themselves and n-gram drafts are accepted; one percent of it still depends on the whole context.
        logits_fn: Replaces the built-in rows.
        scripts: Whole sequences (prompt and continuation) the target follows: while a context is a proper prefix of
            one, its next token is the clear favourite. The first script that fits counts.
        grammars: Tiny grammars by the text a request names them with.
        checkpoints: Whether checkpoints are supported; asking for one then is an error of the caller.
        silent_cuts: A cut that is too deep is not refused but leaves a wrong state, as llama.cpp does it.
        newest_checkpoint_only: A new checkpoint of a sequence invalidates its earlier ones that are not lasting, as
            on-device ones do.
        checkpoint_room: Checkpoints that can be alive at once; one more raises BackendError.
        exact_width: Decodes of more tokens of one sequence leave another memory and give other rows, as kernels for
            wide batches do; :meth:`row` and scripts speak of single tokens.
        faults: Failures to inject; see also :meth:`inject`.
        provides: What strategies can ask for.
        can_shift: Whether a full context can be shifted, where memory can be cut.
    """

    def __init__(  # noqa: PLR0913 -- knobs of a test double, keyword-only and independent of each other
        self,
        *,
        n_vocab: int | None = None,
        pieces: Sequence[bytes] | None = None,
        eog: Iterable[int] = (),
        control: Iterable[int] = (),
        n_ctx: int = 256,
        n_batch: int = 64,
        n_seq: int = 1,
        n_outputs: int | None = None,
        rollback: Rollback = Rollback.TRUNCATE,
        rollback_depth: int = 0,
        seed: int = 0,
        spread: float = 6.0,
        order: int | None = None,
        logits_fn: LogitsFunction | None = None,
        scripts: Iterable[Sequence[int]] = (),
        grammars: Mapping[str, Grammar] | None = None,
        checkpoints: bool = True,
        silent_cuts: bool = False,
        newest_checkpoint_only: bool = False,
        checkpoint_room: int | None = None,
        faults: Iterable[Fault] = (),
        exact_width: int | None = None,
        provides: Need = Need.NONE,
        can_shift: bool = True,
    ) -> None:
        if pieces is None:
            pieces = letter_pieces(32 if n_vocab is None else n_vocab)
        if n_vocab is not None and n_vocab != len(pieces):
            msg = f"n_vocab is {n_vocab} but {len(pieces)} pieces were given"
            raise ConfigError(msg)
        self._vocab = ScriptedVocab(pieces, eog=eog, control=control)
        self._info = TargetInfo(
            n_vocab=len(pieces),
            n_ctx=n_ctx,
            n_batch=n_batch,
            n_seq=n_seq,
            n_outputs=n_outputs,
            rollback=rollback,
            rollback_depth=rollback_depth,
            checkpoints=checkpoints,
            exact_width=exact_width,
            provides=provides,
            can_shift=can_shift and rollback is Rollback.TRUNCATE,
        )
        depth = rollback_depth if rollback is Rollback.BOUNDED else 0
        self._memories = [Memory(seq, rollback, depth, seed, exact_width, silent_cuts) for seq in range(n_seq)]
        self._model = Rows(
            n_vocab=len(pieces), seed=seed, spread=spread, order=order, logits_fn=logits_fn, scripts=scripts
        )
        self._grammars = dict(grammars or {})
        self._newest_only = newest_checkpoint_only
        self._room = checkpoint_room
        self._alive: weakref.WeakSet[MemoryCheckpoint] = weakref.WeakSet()
        self._lasting: weakref.WeakSet[MemoryCheckpoint] = weakref.WeakSet()
        self._enabled = Need.NONE
        self._layers: set[int] = set()
        self._newest: dict[int, weakref.ref[MemoryCheckpoint]] = {}
        self._rows: npt.NDArray[np.float32] | None = None
        self._closed = False
        self._faults = FaultPlan()
        for fault in faults:
            self._faults.inject(fault)
        self.calls: list[Call] = []
        """Every call that changed or read the memory, in order."""
        self.samplers: list[ScriptedSampler] = []
        """Every sampler made, in order."""

    # -- what tests look at ------------------------------------------------------------------------------------------

    @property
    def n_decoded(self) -> int:
        """Tokens evaluated so far, all sequences together."""
        return sum(len(entry.tokens) for call in self.calls if call.operation == "decode" for entry in call.detail)

    @property
    def n_redecoded(self) -> int:
        """Tokens evaluated again although the sequence had evaluated them before, with the same prefix."""
        return sum(memory.n_redecoded for memory in self._memories)

    def count(self, operation: str) -> int:
        """Number of calls of ``operation`` so far."""
        return sum(call.operation == operation for call in self.calls)

    def memory(self, seq: int) -> tuple[int, ...]:
        """Tokens that are really in the memory of ``seq``."""
        return tuple(self._memory(seq).tokens)

    def inject(self, fault: Fault) -> None:
        """Arm a failure; its count starts now."""
        self._faults.inject(fault)

    def disarm(self) -> None:
        """Forget failures that have not struck."""
        self._faults.disarm()

    @property
    def armed(self) -> int:
        """Failures that have not struck yet."""
        return self._faults.armed

    def row(self, context: Sequence[int]) -> Logits:
        """The row this target gives after ``context``, without touching any memory."""
        state = self._memories[0].states[0]
        for token in context:
            state = extend_hash(state, token)
        return self._model.of(context, state)

    # -- the Target protocol -----------------------------------------------------------------------------------------

    @property
    @override
    def info(self) -> TargetInfo:
        return self._info

    @property
    @override
    def vocab(self) -> ScriptedVocab:
        return self._vocab

    @override
    def decode(self, batch: Sequence[BatchEntry]) -> None:
        self._open("decode")
        check_batch(self._info, batch, lambda seq: self._memory(seq).n_past)
        self.calls.append(Call("decode", None, tuple(batch)))
        # A view handed out before is worthless from here on: make every use of it visible.
        if self._rows is not None:
            self._rows.fill(np.nan)
        self._rows = None
        fault = self._faults.due("decode")
        if fault is not None and fault.when is When.BEFORE:
            raise fault.make()
        room = fault.n_tokens if fault is not None and fault.when is When.PARTIAL else self._info.n_batch
        rows: list[Logits] = []
        for entry in batch:
            written = min(room, len(entry.tokens))
            room -= written
            memory = self._memories[entry.seq]
            if written:
                memory.push(entry.tokens[:written], len(entry.tokens))
            first = entry.pos + len(entry.tokens) - entry.n_outputs
            rows += [
                self._model.of(memory.tokens[: pos + 1], memory.states[pos + 1])
                for pos in range(first, entry.pos + written)
            ]
        if fault is not None:
            raise fault.make()
        self._rows = np.stack(rows) if rows else np.empty((0, self._info.n_vocab), np.float32)

    @override
    def logits(self) -> Logits:
        self._open("logits")
        self.calls.append(Call("logits", None))
        fault = self._faults.due("logits")
        if fault is not None:
            raise fault.make()
        if self._rows is None:
            msg = "logits() without a successful decode before it"
            raise BackendError(msg)
        frozen = np.frombuffer(self._rows.data.toreadonly(), dtype=np.float32)
        return frozen.reshape(self._rows.shape)

    @property
    @override
    def services(self) -> object:
        return None

    @override
    def enable(self, needs: Need, layers: Sequence[int] = ()) -> None:
        self._open("enable")
        if needs & ~self._info.provides:
            msg = f"this target does not provide {needs & ~self._info.provides}"
            raise ConfigError(msg)
        self._enabled |= needs
        self._layers |= set(layers)

    @override
    def decoded(self) -> Sequence[Decoded]:
        """Feature rows are ``(token, position, low and high 16 bits of the context's hash)``, plus the layer id."""
        self._open("decoded")
        batch = next(call.detail for call in reversed(self.calls) if call.operation == "decode")
        return [self._features(entry) for entry in batch]

    def _features(self, entry: BatchEntry) -> Decoded:
        states = self._memories[entry.seq].states
        positions = range(entry.pos, entry.pos + len(entry.tokens))
        rows = np.array(
            [
                (token, pos, int(states[pos + 1]) & 0xFFFF, int(states[pos + 1]) >> 16 & 0xFFFF)
                for token, pos in zip(entry.tokens, positions, strict=True)
            ],
            dtype=np.float32,
        )
        layers = {layer: rows + np.float32(layer) for layer in sorted(self._layers)}
        for array in (rows, *layers.values()):
            array.setflags(write=False)
        return Decoded(entry.seq, entry.pos, entry.tokens, rows if Need.HIDDEN in self._enabled else None, layers)

    @override
    def n_past(self, seq: int) -> int:
        self._open("n_past")
        return self._memory(seq).n_past

    @override
    def truncate(self, seq: int, n_past: int) -> None:
        self._open("truncate")
        memory = self._memory(seq)
        self.calls.append(Call("truncate", seq, n_past))
        self._struck("truncate", lambda: memory.truncate(n_past))

    @override
    def shift(self, seq: int, n_keep: int, n_drop: int) -> None:
        self._open("shift")
        memory = self._memory(seq)
        self.calls.append(Call("shift", seq, (n_keep, n_drop)))
        if not self._info.can_shift or n_drop < 1 or n_keep + n_drop > memory.n_past:
            msg = f"cannot drop {n_drop} of the {memory.n_past} tokens of sequence {seq} behind the first {n_keep}"
            raise BackendError(msg)
        self._struck("shift", lambda: memory.shift(n_keep, n_drop))

    @override
    def clear(self, seq: int) -> None:
        self._open("clear")
        memory = self._memory(seq)
        self.calls.append(Call("clear", seq))
        self._struck("clear", memory.clear)

    @override
    def checkpoint(self, seq: int, *, lasting: bool = False) -> Checkpoint:
        self._open("checkpoint")
        memory = self._memory(seq)
        self.calls.append(Call("checkpoint", seq, memory.n_past))
        if not self._info.checkpoints:
            msg = "checkpoint() of a target whose info says that it has none"
            raise ContractError(msg)
        if self._room is not None and len(self._alive) >= self._room:
            msg = f"no room for another checkpoint: {len(self._alive)} are alive"
            raise BackendError(msg)
        saved = memory.save()
        self._struck("checkpoint", lambda: self._keep(saved, lasting=lasting))
        return saved

    @override
    def restore(self, checkpoint: Checkpoint) -> None:
        self._open("restore")
        if not isinstance(checkpoint, MemoryCheckpoint) or checkpoint not in self._alive:
            msg = f"not a checkpoint of this target: {checkpoint!r}"
            raise RollbackError(msg)
        self.calls.append(Call("restore", checkpoint.seq, checkpoint.n_past))
        superseded = checkpoint not in self._lasting and self._newest[checkpoint.seq]() is not checkpoint
        if self._newest_only and superseded:
            msg = f"the checkpoint of sequence {checkpoint.seq} was invalidated by a newer one"
            raise RollbackError(msg)
        memory = self._memory(checkpoint.seq)
        self._struck("restore", lambda: memory.restore(checkpoint))

    @property
    @override
    def identity(self) -> Mapping[str, object]:
        model = self._model
        return {
            "seed": model.seed,
            "spread": model.spread,
            "order": model.order,
            "n_vocab": model.n_vocab,
            "n_ctx": self._info.n_ctx,
        }

    @override
    def save_state(self, seq: int) -> bytes:
        self._open("save_state")
        memory = self._memory(seq)
        self.calls.append(Call("save_state", seq, memory.n_past))
        self._struck("save_state", lambda: None)
        return json.dumps([memory.tokens, memory.states]).encode()

    @override
    def load_state(self, seq: int, data: bytes, n_past: int) -> None:
        self._open("load_state")
        memory = self._memory(seq)
        self.calls.append(Call("load_state", seq, n_past))
        tokens, states = json.loads(data)
        if len(tokens) != n_past:
            msg = f"the state holds {len(tokens)} tokens instead of {n_past}"
            raise RollbackError(msg)
        self._struck("load_state", lambda: memory.load(tokens, states))

    @override
    def make_sampler(self, params: SamplingParams, prompt: Sequence[int]) -> ScriptedSampler:
        self._open("make_sampler")
        grammar = None
        if params.grammar is not None:
            grammar = self._grammars.get(params.grammar)
            if grammar is None:
                msg = f"unknown grammar {params.grammar!r}; this target knows {sorted(self._grammars)}"
                raise ConfigError(msg)
        sampler = ScriptedSampler(
            params,
            prompt,
            n_vocab=self._info.n_vocab,
            eog=self._vocab.eog,
            grammar=grammar,
            faults=self._faults,
        )
        self.samplers.append(sampler)
        return sampler

    @override
    def close(self) -> None:
        self._closed = True

    # -- inside ------------------------------------------------------------------------------------------------------

    def _open(self, operation: str) -> None:
        if self._closed:
            msg = f"{operation}() on a closed target"
            raise ClosedError(msg)

    def _memory(self, seq: int) -> Memory:
        if not 0 <= seq < self._info.n_seq:
            msg = f"unknown sequence {seq}; there are {self._info.n_seq}"
            raise ConfigError(msg)
        return self._memories[seq]

    def _struck(self, call: str, effect: Callable[[], None]) -> None:
        fault = self._faults.due(call)
        if fault is not None and fault.when is not When.AFTER:
            raise fault.make()
        effect()
        if fault is not None:
            raise fault.make()

    def _keep(self, saved: MemoryCheckpoint, *, lasting: bool) -> None:
        self._alive.add(saved)
        if lasting:
            self._lasting.add(saved)
        else:
            self._newest[saved.seq] = weakref.ref(saved)
