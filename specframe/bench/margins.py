"""How clear each token of a plain run was: how far others were from being chosen."""

from __future__ import annotations

from specframe.bench import side_specframe
from specframe.bench.settings import Job, Margins

#: Most probable tokens of each place that are told; all others were further away than the last of them.
_MOST = 20


def measure(job: Job) -> Margins:
    """For each token of the plain run: the most probable ones there, and the best log probability minus theirs."""
    with side_specframe.load(job) as llm:
        llm.generate(job.warm_up, **side_specframe.request(job, max_tokens=job.settings.warm_up_tokens))
        run = llm.generate(job.prompt, **side_specframe.request(job, logprobs=min(_MOST, llm.info.n_vocab)))
    return [[(token, entry.top[0][1] - logprob) for token, logprob in entry.top] for entry in run.logprobs]
