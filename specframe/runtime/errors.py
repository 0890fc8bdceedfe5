"""What goes wrong outside the program: the network, the compiler, the disk."""

from __future__ import annotations

from specframe.core.errors import SpecframeError


class BuildError(SpecframeError):
    """A library could not be built; the message says what stopped it, quotes the compiler, and says what to do."""
