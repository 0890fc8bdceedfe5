"""Hidden states and layer inputs: a row for every token, in batch order, of what was enabled and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specframe.backends.llama import architectures
from specframe.backends.llama.architectures import HIDDEN, LAYER_INPUTS
from specframe.backends.llama.context import Context
from specframe.backends.llama.library import load_library
from specframe.backends.llama.model import Model
from specframe.backends.llama.target import LlamaTarget
from specframe.core.errors import BackendError, ClosedError, ConfigError
from specframe.core.ports import BatchEntry, Decoded, Need, Rows
from tests.support.llama import Zoo, target, tokens
from tests.support.numpy_llama import layer_inputs, tensors_of

BOTH = Need.HIDDEN | Need.LAYER_INPUTS
#: Hybrid memory divides batches by sequence, sliding windows and plain attention do not.
CASES: list[tuple[str, Need, dict[str, Any]]] = [
    ("qwen35", BOTH, {}),
    ("qwen35", BOTH, {"n_ubatch": 4}),
    ("qwen35-mtp", BOTH, {"n_rs_seq": 2, "n_ubatch": 4}),
    ("gemma4", BOTH, {"n_ubatch": 3}),
    ("step35-mtp3", Need.HIDDEN, {"n_ubatch": 5}),
    ("llama", Need.LAYER_INPUTS, {"n_ubatch": 4}),
]


def features(decoded: Decoded) -> list[Rows]:
    """Copies of everything in it."""
    rows = [] if decoded.hidden is None else [decoded.hidden]
    return [np.array(part) for part in [*rows, *decoded.layer_inputs.values()]]


def alone(opened: LlamaTarget, seq: int, ids: list[int]) -> list[Rows]:
    """The features of ``ids`` evaluated one at a time in an empty sequence, which is empty again afterwards."""
    parts = []
    for pos, token in enumerate(ids):
        opened.decode([BatchEntry(seq, pos, [token], 0)])
        parts.append(features(opened.decoded()[0]))
    opened.clear(seq)
    return [np.concatenate(rows) for rows in zip(*parts, strict=True)]


@pytest.mark.parametrize(("name", "needs", "options"), CASES)
def test_rows_are_those_of_their_tokens(zoo: Zoo, name: str, needs: Need, options: dict[str, Any]) -> None:
    """Whatever the sequences, their lengths, the outputs and the division of the batch."""
    with target(zoo(name), n_seq=3, **options) as opened:
        layers = (0, 2) if Need.LAYER_INPUTS in needs else ()
        opened.enable(needs, layers)
        texts = [tokens(n, seed=n) for n in (9, 2, 5)]
        reference = [alone(opened, 0, text) for text in texts]
        for order, n_outputs in [((0, 1, 2), 1), ((2, 0, 1), 2), ((1, 2, 0), 0)]:
            opened.decode([BatchEntry(seq, 0, texts[seq], n_outputs) for seq in order])
            opened.logits() if n_outputs else None
            decoded = opened.decoded()
            assert [(d.seq, d.pos, list(d.tokens)) for d in decoded] == [(seq, 0, texts[seq]) for seq in order]
            for entry in decoded:
                assert set(entry.layer_inputs) == set(layers)
                assert (entry.hidden is not None) == (Need.HIDDEN in needs)
                for rows, wanted in zip(features(entry), reference[entry.seq], strict=True):
                    assert rows.shape == wanted.shape
                    np.testing.assert_allclose(rows, wanted, atol=5e-3)  # keys are kept in 16 bits
                    assert np.abs(np.diff(rows, axis=0)).max() > 0.01, "rows of different tokens differ"
            for seq in range(3):
                opened.clear(seq)


@pytest.mark.parametrize(("name", "pairs"), [("llama", "neighbours"), ("qwen3", "halves")])
@pytest.mark.parametrize("n_ubatch", [512, 4])
def test_layer_inputs_are_what_the_layers_compute(zoo: Zoo, name: str, pairs: str, n_ubatch: int) -> None:
    layers = (3, 0, 2)
    texts = [tokens(n, seed=n) for n in (23, 2, 9)]
    with target(zoo(name), n_seq=3, n_ubatch=n_ubatch) as opened:
        opened.enable(Need.LAYER_INPUTS, layers)
        opened.decode([BatchEntry(seq, 0, texts[seq][:-1], 1) for seq in (1, 0, 2)])
        parts = {entry.seq: [entry.concatenated(layers)] for entry in opened.decoded()}
        opened.decode([BatchEntry(seq, len(texts[seq]) - 1, texts[seq][-1:], 1) for seq in (2, 1, 0)])
        for entry in opened.decoded():
            parts[entry.seq].append(entry.concatenated(layers))
        with pytest.raises(KeyError):
            opened.decoded()[0].concatenated((0, 1))
    for seq, text in enumerate(texts):
        wanted = layer_inputs(zoo(name), text, pairs=pairs)
        rows = np.concatenate(parts[seq])
        assert rows.shape == (len(text), 3 * 64)
        np.testing.assert_allclose(rows, np.concatenate([wanted[i] for i in layers], axis=1), atol=0.02)


@pytest.mark.parametrize(("name", "cap"), [("qwen35", None), ("qwen35-mtp", None), ("gemma4", 30.0)])
@pytest.mark.parametrize("needs", [Need.LAYER_INPUTS, BOTH])
def test_beyond_the_last_layer_is_the_hidden_state(zoo: Zoo, name: str, cap: float | None, needs: Need) -> None:
    """Which the output head turns into the logits of the same token."""
    head = tensors_of(zoo(name))["output.weight"]
    texts = [tokens(n, seed=n) for n in (11, 3, 6)]
    with target(zoo(name), n_seq=3, n_ubatch=4) as opened:
        opened.enable(needs, [4, 1])
        opened.decode([BatchEntry(seq, 0, texts[seq], len(texts[seq])) for seq in (2, 0, 1)])
        logits = np.array(opened.logits(), np.float64)
        decoded = opened.decoded()
        assert [set(entry.layer_inputs) for entry in decoded] == [{1, 4}] * 3
        assert all((entry.hidden is not None) == (Need.HIDDEN in needs) for entry in decoded)
        computed = np.concatenate([entry.concatenated([4]) for entry in decoded]) @ head.T
    if cap is not None:
        computed = cap * np.tanh(computed / cap)
    np.testing.assert_allclose(computed, logits, atol=1e-3)


def test_features_change_no_logits(zoo: Zoo) -> None:
    ids = tokens(20)
    with target(zoo("qwen35")) as opened:
        opened.decode([BatchEntry(0, 0, ids, 3)])
        without = np.array(opened.logits())
        opened.clear(0)
        opened.enable(BOTH, [1])
        opened.decode([BatchEntry(0, 0, ids, 3)])
        np.testing.assert_allclose(opened.logits(), without, atol=1e-4)


def test_only_what_was_enabled_before_the_decode_is_read(zoo: Zoo) -> None:
    """The native calls would end the process, or answer with rows of something else."""
    with target(zoo("qwen35")) as opened:
        assert list(opened.decoded()) == []
        opened.decode([BatchEntry(0, 0, [1, 2], 1)])
        opened.enable(Need.LAYER_INPUTS, [1])
        assert opened.decoded()[0] == Decoded(0, 0, [1, 2])
        opened.decode([BatchEntry(0, 2, [3], 1)])
        assert set(opened.decoded()[0].layer_inputs) == {1}
        opened.enable(BOTH, [0, 1])
        opened.enable(Need.NONE, [3])
        opened.decode([BatchEntry(0, 3, [4], 1)])
        entry = opened.decoded()[0]
        assert set(entry.layer_inputs) == {0, 1}
        assert entry.hidden is not None
        assert opened.decoded()[0] is entry, "views are made once"


@pytest.mark.parametrize(
    ("name", "needs", "layers", "named"),
    [
        ("llama", Need.HIDDEN, [], "llama models do not hand out hidden"),
        ("qwen3", BOTH, [0], "qwen3 models do not hand out hidden"),
        ("step35-mtp3", Need.LAYER_INPUTS, [0], "step35 models do not hand out layer_inputs"),
        ("llama", Need.LAYER_INPUTS, [4], "layer 4 has no input .*: 0 to 3 have"),
        ("qwen35-mtp", Need.LAYER_INPUTS, [0, 99], "layer 99"),
        ("gemma4", Need.LAYER_INPUTS, [-1], "layer -1"),
        ("qwen35", Need.LAYER_INPUTS, [5], "layer 5 has no input .*: 0 to 4 have"),
    ],
)
def test_what_a_model_lacks_is_refused(zoo: Zoo, name: str, needs: Need, layers: list[int], named: str) -> None:
    with target(zoo(name)) as opened:
        with pytest.raises(ConfigError, match=named):
            opened.enable(needs, layers)
        opened.decode([BatchEntry(0, 0, [1], 1)])
        assert opened.decoded()[0] == Decoded(0, 0, [1]), "nothing was enabled"


def test_the_lists_agree_with_what_targets_say(zoo: Zoo) -> None:
    for name in ("llama", "qwen3", "qwen35", "step35-mtp3", "gemma4"):
        with target(zoo(name)) as opened:
            arch = opened.model.facts.arch
            assert (Need.HIDDEN in opened.info.provides) == (arch in HIDDEN)
            assert (Need.LAYER_INPUTS in opened.info.provides) == (arch in LAYER_INPUTS)


def test_rows_are_read_only_views_that_outlive_the_context(zoo: Zoo) -> None:
    with Model(zoo("qwen35")) as model:
        context = Context(model, n_ctx=256, n_threads=1)
        context.enable(BOTH, [2])
        context.decode([BatchEntry(0, 0, [1, 2, 3], 1)])
        entry = context.decoded()[0]
        hidden, layer = entry.hidden, entry.layer_inputs[2]
        assert hidden is not None
        copies = hidden.copy(), layer.copy()
        last = hidden[2:]
        with pytest.raises(ValueError, match=r"read-only|WRITEABLE"):
            hidden[0, 0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            layer.flags.writeable = True
        del entry, hidden
        context.close()
        model.close()
        np.testing.assert_array_equal(last, copies[0][2:])
        np.testing.assert_array_equal(layer, copies[1])
        with pytest.raises(ClosedError):
            context.enable(Need.HIDDEN)


def test_a_failed_decode_leaves_no_features(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    with target(zoo("qwen35")) as opened:
        opened.enable(Need.HIDDEN)
        with monkeypatch.context() as patch:
            patch.setattr(opened.context, "_process", lambda *_: -3)
            with pytest.raises(BackendError):
                opened.decode([BatchEntry(0, 0, [1], 1)])
        with pytest.raises(BackendError, match="last decode failed"):
            opened.decoded()


def test_every_architecture_that_is_named_exists() -> None:
    """A name of a source file instead of one of ``general.architecture`` would match no model."""
    binary = load_library().path.read_bytes()
    named = frozenset[str]().union(*(v for v in vars(architectures).values() if isinstance(v, frozenset)))
    assert {"nemotron_h", "qwen35", "mamba2"} < named
    assert {name for name in named if f"{name}\0".encode() not in binary} == set()
