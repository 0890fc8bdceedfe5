"""How many threads this process can keep busy."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")

#: ``GGML_MAX_N_THREADS``: more hit an assertion.
MAX_THREADS = 512


def default_threads(*, cpus: Path = _CPUS, quota: Path = _QUOTA) -> int:
    """Physical cores among the processors this process may run on, within its CPU quota.

    Two hyperthreads share the vector units that a matrix product keeps busy, so a second one only adds waiting.
    """
    allowed: Iterable[int]
    try:
        allowed = os.sched_getaffinity(0)
    except AttributeError:  # not on macOS and Windows
        allowed = range(os.cpu_count() or 1)
    cores = {_core(cpus, cpu) for cpu in allowed}
    return max(1, min(len(cores), _quota(quota), MAX_THREADS))


def _core(cpus: Path, cpu: int) -> str:
    """What processors on the same core have in common; the number itself where the topology is not told."""
    with contextlib.suppress(OSError):
        return (cpus / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text(encoding="ascii").strip()
    return str(cpu)


def _quota(path: Path) -> int:
    """Processors' worth of time that a container may use, rounded up (cgroup v2, ``cpu.max``)."""
    with contextlib.suppress(OSError, ValueError):
        granted, period = path.read_text(encoding="ascii").split()
        return math.ceil(int(granted) / int(period))
    return MAX_THREADS
