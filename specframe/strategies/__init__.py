"""The strategies that come with specframe, offered through the same hook as everyone else's."""

from __future__ import annotations

from collections.abc import Callable

from specframe.core.strategy import AnyStrategyClass
from specframe.hookspecs import hookimpl
from specframe.strategies.dflash import Dflash
from specframe.strategies.dflash2 import Dflash2
from specframe.strategies.draft_model import DraftModel
from specframe.strategies.dspark import Dspark
from specframe.strategies.eagle3 import Eagle3
from specframe.strategies.mtp import Mtp
from specframe.strategies.ngram_k import NgramK
from specframe.strategies.ngram_k4v import NgramK4V


@hookimpl
def specframe_register_strategies(register: Callable[[AnyStrategyClass], None]) -> None:
    """Offer the built-in strategies. Importing this module loads no native code."""
    register(Dflash)
    register(Dflash2)
    register(DraftModel)
    register(Dspark)
    register(Eagle3)
    register(Mtp)
    register(NgramK)
    register(NgramK4V)
