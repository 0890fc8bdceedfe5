"""One side, one request, in a process of its own: a job as JSON on stdin, a measurement as JSON on stdout.

``python -m specframe.bench.worker specframe|server``
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Protocol, cast

import attrs

from specframe.bench.settings import Job, Measurement


class Side(Protocol):
    """A module that can do a job."""

    def measure(self, job: Job) -> Measurement:
        """Load, warm up, generate."""
        ...


def main(side: str) -> None:
    """Do the job on stdin."""
    # Native code prints to descriptor 1 as it likes; the answer must be alone there.
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    job = Job.from_dict(json.load(sys.stdin))
    # Imported by name: each side loads the native library in its own way, and only one of them may.
    worker = cast("Side", importlib.import_module(f"specframe.bench.side_{side}"))
    json.dump(attrs.asdict(worker.measure(job)), answer)
    answer.close()


if __name__ == "__main__":
    main(sys.argv[1])
