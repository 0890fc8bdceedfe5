"""Every token of an answer judged by plain decoding: the oracle of the test kit, on a model as it is benchmarked."""

from __future__ import annotations

from typing import Any

from specframe.backends.llama.target import LlamaTarget
from specframe.bench import side_specframe
from specframe.bench.opened import open_model
from specframe.bench.settings import Job
from specframe.core.request import Request
from specframe.core.sampling import SamplingParams
from specframe.testing import replay


def measure(job: Job) -> dict[str, Any]:
    """Generate as the side does, close it, and replay the answer token by token."""
    settings = job.settings
    with side_specframe.load(job) as llm:
        answer = llm.generate(job.prompt, **side_specframe.request(job))
        info = llm.info
    model, options = open_model(settings)
    with model, LlamaTarget(model, n_ctx=info.n_ctx, **options) as target:
        prompt = model.vocab.tokenize_prompt(job.prompt, parse_special=True)
        asked = Request(prompt=prompt, max_tokens=settings.max_tokens, sampling=SamplingParams(temperature=0.0))
        report = replay(target, asked, answer)
    return {"n_tokens": report.n_tokens, "margins": [[d.at, d.margin] for d in report.divergences]}
