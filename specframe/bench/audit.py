"""Whether, and at what cost, the target evaluates several tokens at once: what decides which drafts pay."""

from __future__ import annotations

from typing import Any

from specframe.backends.llama import audit
from specframe.backends.llama.library import load_library
from specframe.backends.llama.model import Model
from specframe.bench.settings import Job


def measure(job: Job) -> dict[str, Any]:
    """``Audit.to_dict()`` of the model with the settings of the job."""
    settings = job.settings
    with Model(settings.model, library=load_library(settings.library), n_gpu_layers=settings.n_gpu_layers) as model:
        return audit.audit(model, n_threads=settings.n_threads, n_ubatch=settings.n_ubatch).to_dict()
