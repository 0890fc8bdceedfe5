"""Draft models of all sorts, on targets whose logits are the same at every width, when decoding fails."""

from __future__ import annotations

import pytest

from specframe.core.engine import Engine
from specframe.core.errors import BackendError
from specframe.core.request import Request
from specframe.core.sampling import SamplingParams
from specframe.core.scheduler import Unlimited
from specframe.core.strategy import BatchStrategy
from specframe.strategies.dflash import Dflash
from specframe.strategies.dflash2 import Dflash2
from specframe.strategies.draft_model import DraftModel
from specframe.strategies.eagle3 import Eagle3
from specframe.testing import Output
from tests.support.exact import ExactZoo, Memory, every_memory, fresh, once, watched
from tests.support.llama import Zoo
from tests.support.lossless import SCHEDULERS, drafted
from tests.support.mtp import spec

SAMPLING = SamplingParams(seed=21, temperature=1.2, top_k=0, repeat_penalty=1.05, logprobs=1)
REQUEST = Request(prompt=tuple(b"the cat the cat the "), max_tokens=30, sampling=SAMPLING)
OTHER = Request(prompt=tuple(b"a bad dog had "), max_tokens=20, sampling=SAMPLING)

each_draft = pytest.mark.parametrize(
    ("draft", "cls"),
    [("eagle3", Eagle3), ("draft-simple", DraftModel), ("dflash", Dflash), ("dflash2-shared", Dflash2)],
)


@every_memory
@each_draft
def test_the_output_is_that_of_plain_decoding_to_the_last_bit(
    exact_zoo: ExactZoo, zoo: Zoo, memory: Memory, draft: str, cls: type[BatchStrategy]
) -> None:
    model = exact_zoo(memory.model)
    right = [fresh(model, each, **memory.options) for each in (REQUEST, OTHER)]
    for scheduler in SCHEDULERS:
        with watched(model, n_seq=2, **memory.options) as target, Engine(target, scheduler=scheduler) as running:
            for n_max in (2, 7):
                wanted = spec(zoo(draft), cls, n_max=n_max)
                both = [running.submit(drafted(each, wanted)) for each in (REQUEST, OTHER)]
                for expected, generation in zip(right, both, strict=True):
                    done = generation.result()
                    expected.check_equals(Output.of(done), f"n_max={n_max}")
                    assert done.stats.verified > 0


@every_memory
@pytest.mark.parametrize("error", [KeyboardInterrupt(), BackendError("broken")], ids=["interrupt", "error"])
@each_draft
def test_a_decode_that_fails(
    exact_zoo: ExactZoo, zoo: Zoo, memory: Memory, error: BaseException, draft: str, cls: type[BatchStrategy]
) -> None:
    """Before it began or after it was done. An interrupted request can be taken up again where it was."""
    model, wanted = exact_zoo(memory.model), spec(zoo(draft), cls, n_max=5)
    right = [fresh(model, each, **memory.options) for each in (REQUEST, OTHER)]
    with watched(model, **memory.options) as target, Engine(target, scheduler=Unlimited) as running:
        reference = running.submit(drafted(REQUEST, wanted)).result().stats.accepted_per_position
        for at in (1, 2, 4):
            for place in ("before_decode", "after_decode"):
                target.clear(0)
                setattr(target, place, once(error, at=at))
                generation = running.submit(drafted(REQUEST, wanted))
                with pytest.raises(type(error)):
                    generation.result()
                if isinstance(error, KeyboardInterrupt):
                    right[0].check_equals(Output.of(generation.result()), f"resumed, {place} {at}")
                setattr(target, place, None)
                right[1].check_equals(Output.of(running.submit(drafted(OTHER, wanted)).result()), "another request")
                again = running.submit(drafted(REQUEST, wanted)).result()
                right[0].check_equals(Output.of(again), "the same again")
                assert again.stats.accepted_per_position == reference
