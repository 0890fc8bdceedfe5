"""Block drafters of the zoo, and drafts recorded with the text they continue."""

from __future__ import annotations

from typing import Any

import attrs

from specframe.strategies.dflash import Dflash
from specframe.strategies.dflash2 import Dflash2
from specframe.strategies.dspark import Dspark
from tests.support.recorded import Recording


class RecordingDflash(Recording, Dflash):
    """``dflash``, recorded."""

    name = "recording-dflash"


class RecordingDflash2(Recording, Dflash2):
    """``dflash2``, recorded."""

    name = "recording-dflash2"


class RecordingDspark(Recording, Dspark):
    """``dspark``, recorded."""

    name = "recording-dspark"


@attrs.frozen
class BlockCase:
    """A target of the zoo and a drafter for it."""

    target: str
    draft: str
    cls: type[Recording] = RecordingDflash
    options: dict[str, Any] = attrs.field(factory=dict)

    def __str__(self) -> str:
        extra = [f"{key}={value}" for key, value in self.options.items()]
        return "-".join([self.target, self.draft, *extra])
