"""Block drafters of the zoo, and drafts recorded with the text they continue."""

from __future__ import annotations

from typing import Any

import attrs

from specframe.core.strategy import StrategySpec
from specframe.strategies.dflash import Dflash
from specframe.strategies.dflash2 import Dflash2
from specframe.strategies.dspark import Dspark
from tests.support.llama import Zoo
from tests.support.mtp import spec
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


#: Own and shared embeddings; multi-axis rope; every kind of rollback.
CASES = [
    BlockCase("llama", "dflash"),
    BlockCase("qwen35", "dflash-qwen35"),
    BlockCase("qwen35", "dflash-qwen35", options={"n_rs_seq": 8}),
    BlockCase("gemma4", "dflash-shared", options={"swa_full": False}),
    BlockCase("llama", "dflash2-shared", RecordingDflash2),
    BlockCase("qwen35", "dflash2-qwen35", RecordingDflash2, {"n_rs_seq": 8}),
    BlockCase("gemma4", "dflash2", RecordingDflash2),
    BlockCase("llama", "dflash2", RecordingDflash2, {"kv_unified": True}),
    BlockCase("llama", "dspark-bonus", RecordingDspark),
    BlockCase("qwen35", "dspark-anchor", RecordingDspark, {"n_rs_seq": 8}),
    BlockCase("gemma4", "dspark-anchor", RecordingDspark, {"swa_full": False}),
]


def wanted_of(zoo: Zoo, case: BlockCase, **options: Any) -> StrategySpec:
    """The strategy of a case, with options."""
    return spec(zoo(case.draft), case.cls, **options)
