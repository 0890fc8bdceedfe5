"""How much memory this process took."""

from __future__ import annotations

import sys
from pathlib import Path

from specframe.backends.llama.facts import runtime_facts
from specframe.backends.llama.library import load_library


def peak_ram(status: Path = Path("/proc/self/status")) -> int | None:
    """Largest resident size so far, in bytes; None where the system does not tell."""
    if status.is_file():
        for line in status.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return None
    import resource  # noqa: PLC0415 -- not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def free_vram(library: str | None) -> int | None:
    """Free memory of all GPUs in bytes; None when the library sees none."""
    gpus = [device for device in runtime_facts(load_library(library)).devices if device.kind in {"gpu", "igpu"}]
    return sum(device.memory_free for device in gpus) if gpus else None
