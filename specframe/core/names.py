"""Names that were mistyped."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def resembling(name: object, known: Iterable[str], otherwise: str = "") -> str:
    """``did you mean 'this' or 'that'?`` for names in ``known`` that ``name`` is close to; else ``otherwise``."""
    close = difflib.get_close_matches(str(name), list(known), n=3)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else otherwise
