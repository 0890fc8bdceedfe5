"""The test kit's own target: its rows reveal the context, its limits are real, it fails when told to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specframe.core.errors import BackendError, ClosedError, ConfigError, RollbackError
from specframe.core.ports import BatchEntry
from specframe.core.request import FinishReason, Request, TokenLogprob
from specframe.core.sampling import SamplingParams
from specframe.testing import (
    UTF8_PIECES,
    ContractError,
    Fault,
    Output,
    ScriptedTarget,
    ScriptedVocab,
    When,
    letter_pieces,
    reference,
)


def test_any_change_of_the_context_changes_the_row() -> None:
    target = ScriptedTarget(n_vocab=8)
    right = target.row([1, 2, 3])
    for other in ([1, 2], [2, 1, 3], [0, 1, 2, 3], [1, 2, 3, 3], [1, 1, 3]):
        assert not np.array_equal(right, target.row(other))
    assert not np.array_equal(right, ScriptedTarget(n_vocab=8, seed=1).row([1, 2, 3]))
    np.testing.assert_array_equal(right, ScriptedTarget(n_vocab=8).row([1, 2, 3]))


def test_order_makes_rows_alike_but_not_equal() -> None:
    target = ScriptedTarget(n_vocab=8, order=2, spread=6.0)
    gap = np.abs(target.row([1, 2, 3]) - target.row([5, 2, 3])).max()
    assert 0 < gap < 0.07
    assert np.abs(target.row([1, 2, 3]) - target.row([1, 3, 2])).max() > 1


def test_scripts_are_followed_while_the_context_fits_them() -> None:
    target = ScriptedTarget(n_vocab=8, scripts=[(1, 2, 3), (1, 5)])
    assert int(target.row([1]).argmax()) == 2
    assert int(target.row([1, 2]).argmax()) == 3
    np.testing.assert_array_equal(target.row([2, 2]), ScriptedTarget(n_vocab=8).row([2, 2]))


def test_logits_function_decides_rows_and_its_shape_is_checked() -> None:
    target = ScriptedTarget(n_vocab=3, logits_fn=lambda context: [float(len(context)), 0, 0])
    assert target.row([1, 1]).tolist() == [2, 0, 0]
    with pytest.raises(ContractError, match="vocabulary of 3"):
        ScriptedTarget(n_vocab=3, logits_fn=lambda _: [0.0]).row([1])


def test_rows_of_an_earlier_decode_are_worthless() -> None:
    target = ScriptedTarget(n_vocab=4)
    target.decode([BatchEntry(0, 0, [1], 1)])
    old = target.logits()
    target.decode([BatchEntry(0, 1, [2], 0)])
    assert np.isnan(old).all()
    assert target.logits().shape == (0, 4)


def test_pieces_and_size_must_agree() -> None:
    with pytest.raises(ConfigError, match="n_vocab is 3 but 2 pieces"):
        ScriptedTarget(n_vocab=3, pieces=(b"a", b"b"))


def test_checkpoints_are_refused_when_stale_strange_or_without_room() -> None:
    target = ScriptedTarget(n_vocab=4, checkpoint_room=1)
    target.decode([BatchEntry(0, 0, [1, 2], 1)])
    saved = target.checkpoint(0)
    with pytest.raises(BackendError, match="no room"):
        target.checkpoint(0)
    target.truncate(0, 1)
    with pytest.raises(RollbackError, match="stale"):
        target.restore(saved)
    with pytest.raises(RollbackError, match="not a checkpoint of this target"):
        ScriptedTarget().restore(saved)
    newest = ScriptedTarget(n_vocab=4, newest_checkpoint_only=True)
    old, new = newest.checkpoint(0), newest.checkpoint(0)
    with pytest.raises(RollbackError, match="invalidated"):
        newest.restore(old)
    newest.restore(new)


@pytest.mark.parametrize(("when", "n_held"), [(When.BEFORE, 0), (When.PARTIAL, 2), (When.AFTER, 3)])
def test_failing_decodes_get_as_far_as_they_were_told(when: When, n_held: int) -> None:
    target = ScriptedTarget(faults=[Fault(call="decode", when=when, error=OSError("unplugged"), n_tokens=2)])
    with pytest.raises(OSError, match="unplugged"):
        target.decode([BatchEntry(0, 0, [1, 2, 3], 1)])
    assert (target.n_past(0), target.armed) == (n_held, 0)
    with pytest.raises(BackendError, match="without a successful decode"):
        target.logits()


def test_closed_targets_and_samplers_say_so() -> None:
    target = ScriptedTarget(n_vocab=4)
    sampler = target.make_sampler(SamplingParams(), (1,))
    sampler.close()
    row = np.zeros(4, np.float32)
    with pytest.raises(ClosedError):
        sampler.sample(row)
    with pytest.raises(ClosedError):
        sampler.accept(1)
    target.close()
    with pytest.raises(ClosedError, match="n_past"):
        target.n_past(0)


@pytest.mark.parametrize(
    "parameters",
    [
        {"typical_p": 0.5},
        {"top_n_sigma": 1.0},
        {"xtc_probability": 0.5},
        {"dynatemp_range": 0.5},
        {"dry_multiplier": 0.8},
        {"mirostat": 2},
        {"logit_bias": {99: 1.0}},
        {"grammar": "unknown"},
    ],
    ids=str,
)
def test_sampling_parameters_it_does_not_know_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(parameters))):
        ScriptedTarget().make_sampler(SamplingParams(**parameters), (1,))


def test_nothing_left_to_choose_is_an_error() -> None:
    target = ScriptedTarget(n_vocab=2)
    sampler = target.make_sampler(SamplingParams(logit_bias={0: float("-inf"), 1: float("-inf")}), (1,))
    with pytest.raises(BackendError, match="no token is left"):
        sampler.sample(target.row([1]))
    with pytest.raises(ContractError, match="one float32 row of 2"):
        sampler.sample(np.zeros(3, np.float32))


def test_vocabularies_spell_texts_and_keep_special_tokens_silent() -> None:
    vocab = ScriptedVocab(UTF8_PIECES, eog=(9,), control=(0,))
    assert vocab.ids("\N{GRINNING FACE} b\N{LATIN SMALL LETTER E WITH ACUTE}") == (8, 1, 2, 3)
    assert (vocab.piece(9), vocab.piece(0), vocab.n_tokens) == (b"", b"", 10)
    with pytest.raises(ConfigError, match="no piece"):
        vocab.ids("z")
    with pytest.raises(ConfigError, match="outside the vocabulary"):
        vocab.piece(10)
    with pytest.raises(ConfigError, match="declared special"):
        ScriptedVocab((b"a",), eog=(1,))
    assert len(set(letter_pieces(2000))) == 2000


def _output(**changes: Any) -> Output:
    fields: dict[str, Any] = {
        "tokens": (1, 2),
        "text": "ab",
        "finish_reason": FinishReason.LENGTH,
        "stop_detail": "max-tokens",
        "logprobs": (TokenLogprob(1, -0.5, ((1, -0.5),)), TokenLogprob(2, -1.0, ((2, -1.0),))),
    }
    return Output(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": (1, 3)}, "tokens is"),
        ({"text": "a"}, "text is"),
        ({"finish_reason": FinishReason.STOP}, "finish_reason is"),
        ({"stop_detail": "context-full"}, "stop_detail is"),
        ({"logprobs": ()}, "0 logprobs instead of 2"),
        ({"logprobs": (TokenLogprob(1, -0.5, ((1, -0.5),)), TokenLogprob(2, -1.1, ((2, -1.0),)))}, "at token 1"),
        ({"logprobs": (TokenLogprob(1, -0.5, ((1, -0.6),)), TokenLogprob(2, -1.0, ((2, -1.0),)))}, "at token 0"),
        ({"logprobs": (TokenLogprob(1, -0.5, ((2, -0.5),)), TokenLogprob(2, -1.0, ((2, -1.0),)))}, "at token 0"),
    ],
)
def test_every_difference_between_outputs_is_named(changes: dict[str, Any], message: str) -> None:
    _output().check_equals(_output())
    with pytest.raises(ContractError, match=message):
        _output().check_equals(_output(**changes))


def test_reference_needs_nothing_but_the_contracts() -> None:
    target = ScriptedTarget(scripts=[(1, 2, 3, 4, 5, 6)])
    greedy = SamplingParams(temperature=0.0)
    output = reference(target, Request(prompt=(1, 2), max_tokens=3, sampling=greedy))
    assert (output.tokens, output.text) == ((3, 4, 5), "def")
    cut = reference(target, Request(prompt=(1, 2), max_tokens=9, sampling=greedy, stop=("ef",)))
    assert (cut.tokens, cut.text, cut.stop_detail) == ((3, 4, 5), "d", "stop-string")
    assert target.memory(0) == (1, 2, 3, 4), "the last token is never evaluated"
