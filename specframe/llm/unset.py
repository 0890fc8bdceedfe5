"""A value that says "not given", where None means something."""

from __future__ import annotations

import enum
from typing import Final


class Unset(enum.Enum):
    """Type of :data:`UNSET`."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


#: "Not given", where None means something.
UNSET: Final = Unset.UNSET
