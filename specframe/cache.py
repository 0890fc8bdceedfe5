"""Where specframe keeps what it can make or fetch again: models, native builds, measurements."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_directory(kind: str) -> Path:
    """The directory for one kind of thing: below ``SPECFRAME_CACHE``, or below the platform's cache directory.

    It need not exist yet.
    """
    override = os.environ.get("SPECFRAME_CACHE")
    return Path(override or platformdirs.user_cache_dir("specframe", appauthor=False)).expanduser() / kind
