"""The second turn of a chat: what is shared with the first must not be evaluated again, with a strategy or without."""

from __future__ import annotations

from typing import Any

from specframe.bench import side_specframe
from specframe.bench.settings import Job
from specframe.core.errors import ConfigError

#: Tokens of the first turn's prompt, as far as the context holds them.
SHARED = 1_300
#: Tokens of the first turn's answer.
ANSWER = 16


def measure(job: Job) -> dict[str, Any]:
    """Time to first token of both turns, in seconds, and how much of the second one's prompt memory already held."""
    with side_specframe.load(job) as llm:
        llm.generate(job.warm_up, **side_specframe.request(job, max_tokens=4))
        question = llm.tokenize("\nAnd what happened then?")
        room = llm.info.n_ctx - len(question) - ANSWER - 4
        if room < 1:
            raise ConfigError(f"two turns of a chat do not fit into {llm.info.n_ctx} tokens of context; raise --ctx")
        said = llm.tokenize(_CHAPTER * (1 + SHARED // 50))[: min(SHARED, room)]
        options = side_specframe.request(job)
        del options["parse_special"]  # these prompts are token ids
        one = llm.generate(said, **{**options, "max_tokens": ANSWER})
        two = llm.generate([*said, *one.tokens, *question], **{**options, "max_tokens": 2, "reuse_prefix": True})
    return {
        "first_s": one.stats.ttft_s or 0.0,
        "second_s": two.stats.ttft_s or 0.0,
        "shared_tokens": two.stats.cached_tokens,
        "new_tokens": two.prompt_tokens - two.stats.cached_tokens,
    }


_CHAPTER = """The caravan left the salt flats before sunrise and followed the dry river to the north. By noon the wind
had covered the tracks, and the guide walked ahead with a long pole to test the ground. Nobody spoke of the well that
they had not found. In the evening they counted the water skins twice and drew lots for the first watch.
"""
