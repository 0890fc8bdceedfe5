"""Native builds of llama.cpp for this machine, from the pinned source, kept in the user's cache."""

from __future__ import annotations

from specframe.runtime.archive import Progress
from specframe.runtime.building import Plan, build
from specframe.runtime.errors import BuildError
from specframe.runtime.installed import remove, unfinished, use

__all__ = ["BuildError", "Plan", "Progress", "build", "remove", "unfinished", "use"]
