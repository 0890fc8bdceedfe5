"""One task in a process of its own: a job as JSON on stdin, what was measured as JSON on stdout.

``python -m specframe.bench.worker``
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from typing import Any

from specframe.bench.settings import Job
from specframe.core.errors import BackendError

_TIMEOUT_S = 1800


class WorkerError(BackendError):
    """A worker process failed; the first line of the message says how, the others are the end of what it printed."""


def run_process(job: Job) -> Any:
    """Do ``job`` in a new process. Raises WorkerError with the end of what it printed when it fails."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "specframe.bench.worker"],
            input=json.dumps(job.to_dict()),
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=_TIMEOUT_S,
            env={**os.environ, **job.settings.environment},
        )
    except subprocess.TimeoutExpired as error:
        raise WorkerError(f"{job.side.label} ({job.task}) took more than {_TIMEOUT_S} seconds") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [""]
        what = f"{job.side.label} ({job.task}) failed with exit code {done.returncode}: {lines[-1]}"
        raise WorkerError("\n".join([what, *lines[-40:]]))
    return json.loads(done.stdout)


def main() -> None:
    """Do the job on stdin."""
    # Native code prints to descriptor 1 as it likes; the answer must be alone there.
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    job = Job.from_dict(json.load(sys.stdin))
    # By name: each side loads the native library in its own way, and only one of them may in a process.
    name = f"side_{job.side.engine}" if job.task == "generate" else job.task
    json.dump(importlib.import_module(f"specframe.bench.{name}").measure(job), answer)
    answer.close()


if __name__ == "__main__":
    main()
