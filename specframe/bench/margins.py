"""How clear each token of a plain run was: the gap between the two most probable tokens."""

from __future__ import annotations

from specframe.bench import side_specframe
from specframe.bench.settings import Job


def measure(job: Job) -> list[float]:
    """For each token of the plain run, the log probability of the best token minus that of the second best."""
    with side_specframe.load(job) as llm:
        llm.generate(job.warm_up, **side_specframe.request(job, max_tokens=job.settings.warm_up_tokens))
        run = llm.generate(job.prompt, **side_specframe.request(job, logprobs=2))
    return [entry.top[0][1] - entry.top[1][1] for entry in run.logprobs]
