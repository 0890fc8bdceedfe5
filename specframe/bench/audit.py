"""Whether, and at what cost, the target evaluates several tokens at once: what decides which drafts pay."""

from __future__ import annotations

from typing import Any

from specframe.backends.llama import audit
from specframe.bench.opened import open_model
from specframe.bench.settings import Job


def measure(job: Job) -> dict[str, Any]:
    """``Audit.to_dict()`` of the model with the settings of the job."""
    model, options = open_model(job.settings)
    with model:
        return audit.audit(model, **options).to_dict()
