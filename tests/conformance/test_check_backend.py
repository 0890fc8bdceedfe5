"""The backend check accepts the scripted target and finds every kind of broken one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import pytest
from typing_extensions import override

from specframe.core.errors import ConfigError, RollbackError
from specframe.core.ports import BatchEntry, Checkpoint, Decoded, Logits, Need, Rollback, TokenSampler
from specframe.core.sampling import SamplingParams
from specframe.testing import ContractError, ScriptedTarget, check_backend

_SMALL: dict[str, Any] = {"n_vocab": 20, "n_seq": 3, "n_ctx": 32, "n_batch": 12, "n_outputs": 8, "eog": (19,)}
_KINDS: list[dict[str, Any]] = [
    {"rollback": Rollback.TRUNCATE},
    {"rollback": Rollback.BOUNDED, "rollback_depth": 3},
    {"rollback": Rollback.BOUNDED, "rollback_depth": 0},
    {"rollback": Rollback.BOUNDED, "rollback_depth": 2, "checkpoints": False},
    {"rollback": Rollback.SNAPSHOT},
    {"rollback": Rollback.SNAPSHOT, "newest_checkpoint_only": True},
    {"provides": Need.HIDDEN},
    {"provides": Need.HIDDEN | Need.LAYER_INPUTS},
]


@pytest.mark.parametrize("kind", _KINDS, ids=str)
@pytest.mark.parametrize("n_seq", [1, 3])
def test_scripted_target_conforms(kind: dict[str, Any], n_seq: int) -> None:
    report = check_backend(lambda: ScriptedTarget(**(_SMALL | kind | {"n_seq": n_seq})))
    assert "samplers choose as asked" in report.checks
    assert len(report.checks) == len(set(report.checks)) > 10


class _WritableRows(ScriptedTarget):
    @override
    def logits(self) -> Logits:
        return super().logits().copy()


class _RowsThatCanBeMadeWritable(ScriptedTarget):
    @override
    def logits(self) -> Logits:
        rows = super().logits().copy()
        rows.setflags(write=False)
        return rows


class _DoublePrecision(ScriptedTarget):
    @override
    def logits(self) -> Logits:
        rows: Any = super().logits().astype(np.float64)
        rows.setflags(write=False)
        return rows  # type: ignore[no-any-return]


class _AllRows(ScriptedTarget):
    """Ignores ``n_outputs``."""

    @override
    def decode(self, batch: Sequence[BatchEntry]) -> None:
        super().decode([BatchEntry(e.seq, e.pos, e.tokens, len(e.tokens)) for e in batch])


class _Forgetful(ScriptedTarget):
    """Loses its memory when a batch is refused."""

    @override
    def decode(self, batch: Sequence[BatchEntry]) -> None:
        try:
            super().decode(batch)
        except ConfigError:
            self.clear(0)
            raise


class _LenientAboutPositions(ScriptedTarget):
    @override
    def decode(self, batch: Sequence[BatchEntry]) -> None:
        super().decode([BatchEntry(e.seq, self.n_past(e.seq), e.tokens, e.n_outputs) for e in batch])


class _CutsTooMuch(ScriptedTarget):
    @override
    def truncate(self, seq: int, n_past: int) -> None:
        super().truncate(seq, n_past - 1 if n_past < self.n_past(seq) else n_past)


class _NeverRefusesACut(ScriptedTarget):
    @override
    def truncate(self, seq: int, n_past: int) -> None:
        try:
            super().truncate(seq, n_past)
        except RollbackError:
            return


class _RestoresNothing(ScriptedTarget):
    @override
    def restore(self, checkpoint: Checkpoint) -> None:
        pass


class _OneCheckpointPerSequence(ScriptedTarget):
    """Forgets that some were to last."""

    @override
    def checkpoint(self, seq: int, *, lasting: bool = False) -> Checkpoint:
        return super().checkpoint(seq)


class _EnablesAnything(ScriptedTarget):
    @override
    def enable(self, needs: Need, layers: Sequence[int] = ()) -> None:
        pass


class _LooksAtTheBatchOfBefore(ScriptedTarget):
    @override
    def decoded(self) -> Sequence[Decoded]:
        return [attrs.evolve(entry, tokens=[0, *entry.tokens[1:]]) for entry in super().decoded()]


class _KeepsNoFeatures(ScriptedTarget):
    @override
    def decoded(self) -> Sequence[Decoded]:
        return [attrs.evolve(entry, hidden=None) for entry in super().decoded()]


class _SavesTheLengthOnly(ScriptedTarget):
    @override
    def load_state(self, seq: int, data: bytes, n_past: int) -> None:
        self.clear(seq)
        self.decode([BatchEntry(seq, 0, [0] * n_past, 0)])


class _LoadsAnyLength(ScriptedTarget):
    @override
    def load_state(self, seq: int, data: bytes, n_past: int) -> None:
        super().load_state(seq, data, len(json.loads(data)[0]))


class _ShiftsNothing(ScriptedTarget):
    @override
    def shift(self, seq: int, n_keep: int, n_drop: int) -> None:
        pass


class _ClearsEverySequence(ScriptedTarget):
    @override
    def clear(self, seq: int) -> None:
        for each in range(self.info.n_seq):
            super().clear(each)


class _ClearsNothing(ScriptedTarget):
    @override
    def clear(self, seq: int) -> None:
        pass


class _SeedIgnored(ScriptedTarget):
    @override
    def make_sampler(self, params: SamplingParams, prompt: Sequence[int]) -> Any:
        return super().make_sampler(attrs.evolve(params, seed=1), prompt)


class _BlindToThePrompt(ScriptedTarget):
    @override
    def make_sampler(self, params: SamplingParams, prompt: Sequence[int]) -> Any:
        return super().make_sampler(params, ())


class _GrammarIgnored(ScriptedTarget):
    @override
    def make_sampler(self, params: SamplingParams, prompt: Sequence[int]) -> Any:
        return super().make_sampler(attrs.evolve(params, grammar=None), prompt)


class _EndIgnored(ScriptedTarget):
    @override
    def make_sampler(self, params: SamplingParams, prompt: Sequence[int]) -> Any:
        return super().make_sampler(attrs.evolve(params, min_tokens=0, ignore_eos=False), prompt)


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (_WritableRows, "read only"),
        (_RowsThatCanBeMadeWritable, "read only"),
        (_DoublePrecision, "float32"),
        (_AllRows, "shape"),
        (_Forgetful, "change nothing"),
        (_LenientAboutPositions, "positions must raise ConfigError"),
        (_CutsTooMuch, "cutting 1"),
        (_NeverRefusesACut, "must raise RollbackError"),
        (_RestoresNothing, "after restoring"),
        (_EnablesAnything, r"which info.provides lacks, must raise"),
        (_LooksAtTheBatchOfBefore, r"decoded\(\) says"),
        (_SavesTheLengthOnly, "after loading a state"),
        (_LoadsAnyLength, "as one of another length must raise"),
        (_ShiftsNothing, "after dropping two of five"),
        (_ClearsEverySequence, "clearing another sequence"),
        (_ClearsNothing, "chunks do not matter"),
        (_SeedIgnored, "another seed gives the same"),
        (_BlindToThePrompt, "penalties do not see"),
        (_GrammarIgnored, "a grammar that cannot be parsed"),
        (_EndIgnored, "min_tokens does not hold back"),
    ],
)
def test_broken_backends_are_found(broken: type[ScriptedTarget], rule: str) -> None:
    with pytest.raises(ContractError, match=rule):
        check_backend(lambda: broken(**_SMALL))


@pytest.mark.parametrize(
    ("broken", "more", "rule"),
    [
        (_OneCheckpointPerSequence, {"rollback": Rollback.SNAPSHOT, "newest_checkpoint_only": True}, "invalidated"),
        (_KeepsNoFeatures, {"provides": Need.HIDDEN}, "hidden is missing"),
    ],
)
def test_broken_services_are_found(broken: type[ScriptedTarget], more: dict[str, Any], rule: str) -> None:
    with pytest.raises(ContractError, match=rule):
        check_backend(lambda: broken(**_SMALL, **more))


def test_the_trap_of_recurrent_memory_is_found() -> None:
    """Memory that lets tokens of one-token decodes be cut although its snapshots cannot bring them back."""

    class Trap(ScriptedTarget):
        @override
        def truncate(self, seq: int, n_past: int) -> None:
            memory = self._memories[seq]
            memory.cuttable = max(memory.cuttable, memory.depth)
            super().truncate(seq, n_past)

    with pytest.raises(ContractError, match=r"one-token decode|second cut"):
        check_backend(lambda: Trap(**_SMALL, rollback=Rollback.BOUNDED, rollback_depth=3))


def test_samplers_of_the_scripted_target_watch_the_core() -> None:
    """Out of turn, another token than the sampled one, a row that is no longer valid: each is reported."""
    target = ScriptedTarget(n_vocab=8)
    target.decode([BatchEntry(0, 0, [1, 2], 1)])
    row = target.logits()[0]

    def sampler() -> TokenSampler:
        return target.make_sampler(SamplingParams(temperature=0.0), (1, 2))

    twice = sampler()
    token = twice.sample(row)
    with pytest.raises(ContractError, match="before"):
        twice.sample(row)
    with pytest.raises(ContractError, match=f"accept.{(token + 1) % 8}"):
        twice.accept((token + 1) % 8)
    with pytest.raises(ContractError, match="without a sample"):
        sampler().accept(1)
    target.decode([BatchEntry(0, 2, [3], 1)])
    with pytest.raises(ContractError, match="no longer valid"):
        sampler().sample(row)
