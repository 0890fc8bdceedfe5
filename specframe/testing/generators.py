"""Hypothesis strategies for requests, targets and drafters. The one module of the kit that needs hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from specframe.core.combination import AnySpec, Combination, Join
from specframe.core.ports import Rollback
from specframe.core.request import Request
from specframe.core.sampling import SamplingParams
from specframe.core.slot import PromptCheckpoints
from specframe.core.strategy import DraftRequest, StrategySpec
from specframe.testing.drafters import ALL_JUNK, Arbitrary, AsBatch, Crash, Junk, Noisy, Oracle, Poison
from specframe.testing.scripted import ScriptedTarget
from specframe.testing.vocabulary import UTF8_PIECES, letter_pieces

try:
    from hypothesis import strategies as st
except ImportError as error:
    raise ImportError("specframe.testing.generators needs hypothesis: pip install 'specframe[testing]'") from error


@attrs.frozen
class TargetPlan:
    """Keyword arguments of a scripted target, printable in a failing example."""

    arguments: dict[str, Any]

    def __call__(self, **changes: Any) -> ScriptedTarget:
        """One more target of this model, with fresh memory."""
        return ScriptedTarget(**{**self.arguments, **changes})

    @property
    def n_vocab(self) -> int:
        """Size of its vocabulary."""
        return len(self.arguments["pieces"])


def rollbacks() -> st.SearchStrategy[dict[str, Any]]:
    """Arguments for every kind of memory."""
    snapshots = {"newest_checkpoint_only": st.booleans(), "silent_cuts": st.booleans()}
    room = st.one_of(st.none(), st.none(), st.integers(0, 4))
    return st.one_of(
        st.just({"rollback": Rollback.TRUNCATE}),
        st.fixed_dictionaries(
            {"rollback": st.just(Rollback.BOUNDED), "rollback_depth": st.integers(0, 6), "checkpoints": st.booleans()},
            optional={**snapshots, "checkpoint_room": room},
        ),
        st.fixed_dictionaries(
            {"rollback": st.just(Rollback.SNAPSHOT)}, optional={**snapshots, "checkpoint_room": room}
        ),
    )


def prompt_checkpoints() -> st.SearchStrategy[PromptCheckpoints]:
    """Limits of every tightness for the checkpoints of short prompts; one of a scripted target takes 64 bytes."""
    return st.builds(
        PromptCheckpoints,
        count=st.integers(0, 4),
        interval=st.one_of(st.integers(1, 8), st.just(2048)),
        tail=st.integers(1, 6),
        max_bytes=st.sampled_from([0, 64, 200, 1 << 30]),
    )


@st.composite
def targets(draw: st.DrawFn, *, max_seq: int = 4) -> TargetPlan:
    """Small models: letters or split UTF-8, flat or sharp, repetitive or not, tight or roomy limits."""
    n_seq = draw(st.integers(1, max_seq))
    pieces = draw(st.sampled_from([letter_pieces(4), letter_pieces(12), UTF8_PIECES]))
    n_vocab = len(pieces)
    n_batch = draw(st.integers(max(2, n_seq), 24))
    return TargetPlan(
        {
            "pieces": pieces,
            "eog": draw(st.sets(st.integers(0, n_vocab - 1), max_size=2)),
            "n_ctx": draw(st.integers(4, 60)),
            "n_batch": n_batch,
            "n_outputs": draw(st.one_of(st.none(), st.integers(n_seq, n_batch))),
            "n_seq": n_seq,
            "seed": draw(st.integers(0, 2**16)),
            "spread": draw(st.sampled_from([0.5, 4.0, 20.0])),
            "order": draw(st.sampled_from([None, 1, 2])),
            **draw(rollbacks()),
        }
    )


def samplings(n_vocab: int) -> st.SearchStrategy[SamplingParams]:
    """Parameters the scripted sampler honours; always with a seed."""
    return st.builds(
        SamplingParams,
        seed=st.integers(0, 2**32 - 1),
        temperature=st.sampled_from([0.0, 0.0, 0.3, 1.0, 2.0]),
        top_k=st.sampled_from([0, 1, 3, 40]),
        top_p=st.sampled_from([0.5, 0.95, 1.0]),
        min_p=st.sampled_from([0.0, 0.05, 0.3]),
        penalty_last_n=st.sampled_from([-1, 0, 3, 64]),
        repeat_penalty=st.sampled_from([1.0, 1.3]),
        frequency_penalty=st.sampled_from([0.0, 0.4]),
        presence_penalty=st.sampled_from([0.0, 0.7]),
        logit_bias=st.dictionaries(st.integers(0, n_vocab - 1), st.floats(-3, 3), max_size=2),
        ignore_eos=st.booleans(),
        min_tokens=st.integers(0, 6),
        logprobs=st.sampled_from([None, 0, 2]),
    )


@st.composite
def requests(draw: st.DrawFn, plan: TargetPlan) -> Request:
    """Requests that fit ``plan``: prompts up to the whole context, stop strings made of its own pieces."""
    n_vocab, n_ctx = plan.n_vocab, plan.arguments["n_ctx"]
    prompts = st.lists(st.integers(0, n_vocab - 1), min_size=1, max_size=n_ctx)
    pieces: Sequence[bytes] = plan.arguments["pieces"]
    texts = [piece.decode() for piece in pieces if _is_text(piece)]
    stop: st.SearchStrategy[str] = st.lists(st.sampled_from(texts), min_size=1, max_size=3).map(_join)
    return Request(
        prompt=tuple(draw(prompts)),
        max_tokens=draw(st.one_of(st.none(), st.integers(0, 20))),
        sampling=draw(samplings(n_vocab)),
        stop=tuple(draw(st.lists(stop, max_size=2))),
        reuse_prefix=draw(st.booleans()),
    )


def _join(texts: list[str]) -> str:
    return "".join(texts)


def _is_text(piece: bytes) -> bool:
    try:
        return bool(piece.decode())
    except UnicodeDecodeError:
        return False


def drafters(tape: Sequence[int], data: st.DataObject) -> st.SearchStrategy[AnySpec]:
    """Every adversarial drafter, per request, batched and combined; ``tape`` is the whole right sequence."""
    single = _single_drafters(tape, data)
    return st.one_of(single, st.recursive(single, _combinations, max_leaves=4))


def _combinations(parts: st.SearchStrategy[AnySpec]) -> st.SearchStrategy[AnySpec]:
    return st.builds(Combination, st.sampled_from(Join), st.lists(parts, min_size=2, max_size=3).map(tuple))


def _single_drafters(tape: Sequence[int], data: st.DataObject) -> st.SearchStrategy[StrategySpec]:
    tape = tuple(tape)
    length = st.one_of(st.none(), st.integers(1, 8))

    def choose(request: DraftRequest) -> list[int]:
        right = tape[len(request.tokens) : len(request.tokens) + request.budget]
        wrong = st.lists(st.integers(-1, 2 + max(tape, default=0)), max_size=request.budget + 2)
        return data.draw(st.one_of(st.just(list(right)), wrong), label="draft")

    inner = st.one_of(
        st.builds(lambda n: StrategySpec.of(Oracle, {"tape": tape, "length": n}), length),
        st.builds(lambda n, k: StrategySpec.of(Poison, {"tape": tape, "length": n, "k": k}), length, st.integers(0, 5)),
        st.builds(
            lambda seed, accuracy: StrategySpec.of(Noisy, {"tape": tape, "seed": seed, "accuracy": accuracy}),
            st.integers(0, 2**16),
            st.sampled_from([0.0, 0.5, 0.9]),
        ),
        st.builds(
            lambda kinds: StrategySpec.of(Junk, {"kinds": kinds}),
            st.lists(st.sampled_from(ALL_JUNK), min_size=1, max_size=4).map(tuple),
        ),
        st.builds(
            lambda where, at: StrategySpec.of(Crash, {"tape": tape, "where": where, "at": at}),
            st.sampled_from(["init", "begin", "max_draft", "draft", "observe", "close"]),
            st.integers(1, 3),
        ),
        st.just(StrategySpec.of(Arbitrary, {"choose": choose})),
    )
    return st.one_of(inner, st.builds(as_batch, inner.filter(_can_be_batched), st.sampled_from([0, 0, 1, 5, 1000])))


def _can_be_batched(spec: StrategySpec) -> bool:
    # A batched strategy that cannot be built is refused when the request is submitted, by contract.
    return not (spec.name == "crash" and spec.options.where == "init")


def as_batch(spec: StrategySpec, forgets: int = 0) -> StrategySpec:
    """The same strategy in the batched shape."""
    return StrategySpec.of(AsBatch, {"cls": spec.cls, "options": spec.options, "forgets": forgets})
