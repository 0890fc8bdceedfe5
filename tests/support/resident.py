"""How much memory this process holds."""

from __future__ import annotations

import os
from pathlib import Path


def resident_bytes() -> int:
    """Bytes of it that are in memory now (RSS)."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
