"""The second turn of a chat: what is shared with the first must not be evaluated again, with a strategy or without."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

import specframe
from specframe.bench.settings import Settings, Variant
from specframe.bench.statistics import Summary, paired


@attrs.frozen(kw_only=True)
class TurnCost:
    """Time to first token of a second turn."""

    strategy: str
    shared_tokens: int
    """Tokens of the second turn's prompt that memory already held."""
    new_tokens: int
    ttft_s: Summary
    first_turn_s: Summary
    """Time to first token of the first turn, which evaluates everything."""
    ratio: Summary
    """Against plain decoding, in pairs."""


def measure(settings: Settings, strategies: Sequence[Variant], *, shared: int, repeat: int) -> list[TurnCost]:
    """Run two turns ``repeat`` times for plain decoding and for each of ``strategies``, alternately."""
    plain = Variant()
    order = [plain, *(v for v in strategies if v != plain)]
    first: dict[Variant, list[float]] = {v: [] for v in order}
    second: dict[Variant, list[float]] = {v: [] for v in order}
    cached: dict[Variant, tuple[int, int]] = {}
    with specframe.load(
        settings.model,
        library=settings.library,
        n_ctx=settings.n_ctx,
        n_batch=settings.n_batch,
        n_ubatch=settings.n_ubatch,
        threads=settings.n_threads,
    ) as llm:
        words = llm.tokenize(_CHAPTER * (1 + shared // 50))
        llm.generate(words[:64], max_tokens=4, temperature=0.0)
        for i in range(repeat):
            for variant in order if i % 2 == 0 else order[::-1]:
                one, two = _two_turns(llm, variant, words[:shared])
                first[variant].append(one.ttft_s or 0.0)
                second[variant].append(two.ttft_s or 0.0)
                cached[variant] = (two.cached_tokens, two.prompt_tokens - two.cached_tokens)
    return [
        TurnCost(
            strategy=variant.label,
            shared_tokens=cached[variant][0],
            new_tokens=cached[variant][1],
            ttft_s=Summary.of(second[variant]),
            first_turn_s=Summary.of(first[variant]),
            ratio=paired(second[variant], second[plain]),
        )
        for variant in order
    ]


def _two_turns(
    llm: specframe.LLM, variant: Variant, prompt: list[int]
) -> tuple[specframe.RequestStats, specframe.RequestStats]:
    said = prompt[:-_ANSWER]
    one = llm.generate(
        said,
        max_tokens=_ANSWER,
        temperature=0.0,
        reuse_prefix=False,
        strategy=variant.strategy,
        options=variant.options,
    )
    question = llm.tokenize("\nAnd what happened then?")
    two = llm.generate(
        [*said, *one.tokens, *question],
        max_tokens=2,
        temperature=0.0,
        strategy=variant.strategy,
        options=variant.options,
    )
    return one.stats, two.stats


#: Tokens of the first turn's answer.
_ANSWER = 16

_CHAPTER = """The caravan left the salt flats before sunrise and followed the dry river to the north. By noon the wind
had covered the tracks, and the guide walked ahead with a long pole to test the ground. Nobody spoke of the well that
they had not found. In the evening they counted the water skins twice and drew lots for the first watch.
"""
