"""One task in a process of its own: a job as JSON on stdin, what was measured as JSON on stdout."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
from typing import Any

from specframe.bench.settings import Job
from specframe.core.errors import BackendError

_TIMEOUT_S = 1800
_RAISED = re.compile(r"(\w+\.)*\w+(Error|Exception|Interrupt)\b")
#: With modules from where this process has them: not from the current directory, which may have a ``random.py``.
_START = "import sys; sys.path[:] = {path!r}; from specframe.bench.worker import main; main()"


class WorkerError(BackendError):
    """A worker process failed; the first line of the message says how, the others are the end of what it printed."""


def run_process(job: Job) -> Any:
    """Do ``job`` in a new process. Raises WorkerError with the end of what it printed when it fails."""
    try:
        done = subprocess.run(  # noqa: S603 -- our own command
            [sys.executable, "-c", _START.format(path=sys.path)],
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
    lines = done.stderr.strip().splitlines()
    if done.returncode != 0:
        ended = f"failed with exit code {done.returncode}" if done.returncode > 0 else _signalled(-done.returncode)
        # What was raised may be of several lines; behind it native code may have said goodbye.
        said = next(
            (line for line in reversed(lines) if _RAISED.match(line)), lines[-1] if lines else "it said nothing"
        )
        what = f"{job.side.label} ({job.task}) {ended}: {said}"
        raise WorkerError("\n".join([what, *lines[-40:]]))
    try:
        return json.loads(done.stdout)
    except ValueError as error:
        what = f"{job.side.label} ({job.task}) gave no answer, but {done.stdout!r:.80}"
        raise WorkerError("\n".join([what, *lines[-40:]])) from error


def _signalled(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:  # one of the unnamed
        name = f"signal {number}"
    return f"was ended by {name}"


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
