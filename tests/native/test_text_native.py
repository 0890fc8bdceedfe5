"""Characters that are spread over tokens: what is streamed is whole, and is what the buffered answer says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import specframe
from specframe.core.engine import Engine
from specframe.core.request import Request
from specframe.core.sampling import SamplingParams
from specframe.core.scheduler import Unlimited
from specframe.core.strategy import StrategySpec
from specframe.strategies.ngram_k import NgramK
from specframe.testing import Oracle, Poison, tape
from specframe.testing.zoo import UTF8_CYCLE
from tests.support.exact import ExactZoo, watched
from tests.support.lossless import drafted, stream

GREEDY = SamplingParams(temperature=0.0)
CYCLE_BYTES = len(UTF8_CYCLE.encode())


def test_streams_of_split_characters_cut_at_every_token(exact_zoo: ExactZoo) -> None:
    """The model recites emoji, CJK and accents byte by byte; the budget ends inside each of them."""
    model = exact_zoo("llama-utf8")
    prompt = tuple(model.vocab.tokenize("a", add_special=False))
    spoken = (UTF8_CYCLE[1:] + UTF8_CYCLE) * 2
    with watched(model, n_ctx=128) as target:
        right = tape(target, Request(prompt=prompt, sampling=GREEDY))
    specs = (
        None,
        StrategySpec.of(NgramK, {"n": 2, "m": 9}),
        StrategySpec.of(Oracle, {"tape": right, "length": 5}),
        StrategySpec.of(Poison, {"tape": right, "k": 2, "length": 5}),
    )
    with watched(model, n_ctx=128) as target, Engine(target, scheduler=Unlimited) as engine:
        for n in range(1, 2 * CYCLE_BYTES):
            request = Request(prompt=prompt, max_tokens=n, sampling=GREEDY)
            # Bytes of an unfinished character are dropped.
            whole = spoken.encode()[:n].decode("utf-8", "ignore")
            for spec in specs:
                # stream() compares the chunks with the buffered answer.
                output = stream(engine.submit(drafted(request, spec)))
                assert output.text == whole
                assert len(output.tokens) == n


@pytest.mark.parametrize("stop", ["\u65e5", "\U0001f642b", "c\u4e2d", "\u8a9ee\u00e9", "\ufffd"])
def test_stop_strings_of_split_characters(exact_zoo: ExactZoo, stop: str) -> None:
    model = exact_zoo("llama-utf8")
    prompt = tuple(model.vocab.tokenize("a", add_special=False))
    spoken = UTF8_CYCLE[1:] + UTF8_CYCLE
    with watched(model, n_ctx=128) as target:
        right = tape(target, Request(prompt=prompt, sampling=GREEDY))
    for spec in (None, StrategySpec.of(Oracle, {"tape": right, "length": 7})):
        request = Request(prompt=prompt, max_tokens=40, sampling=GREEDY, stop=stop, strategy=spec)
        with watched(model, n_ctx=128) as target, Engine(target, scheduler=Unlimited) as engine:
            output = stream(engine.submit(request))
            if stop in spoken:
                assert output.text == spoken[: spoken.index(stop)]
                assert output.stop_detail == "stop-string"
                n_kept = len(prompt) + len((output.text + stop).encode())
                assert target.n_past(0) == n_kept - 1
            else:
                assert output.stop_detail == "max-tokens"


def test_the_application_sees_whole_characters(zoo: Callable[[str], Path]) -> None:
    with specframe.load(zoo("llama-utf8"), n_ctx=256, strategy="ngram-k", options={"n": 2, "m": 9}) as llm:
        for n in range(1, CYCLE_BYTES + 1):
            with llm.stream("a", max_tokens=n, temperature=0) as chunks:
                texts = [chunk.text for chunk in chunks]
                completion = chunks.result()
            assert "".join(texts) == completion.text
            assert "\ufffd" not in completion.text
            assert completion.completion_tokens == n
            assert UTF8_CYCLE[1:].startswith(completion.text[: len(UTF8_CYCLE) - 1])
