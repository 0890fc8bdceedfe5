"""What goes wrong outside the program: the network, the package index, the disk."""

from __future__ import annotations

from specframe.core.errors import SpecframeError


class PullError(SpecframeError):
    """A model could not be fetched or stored; the message says what stopped it and what to do."""
