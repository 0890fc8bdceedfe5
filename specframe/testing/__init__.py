"""Public test kit: a scripted target, adversarial drafters and conformance checks.

``specframe.testing.generators`` (hypothesis strategies) and ``specframe.testing.zoo`` (tiny GGUF models) are not
imported here, so the kit needs nothing but the core.
"""

from specframe.testing.backend_check import BackendReport, check_backend
from specframe.testing.drafters import ALL_JUNK, Arbitrary, AsBatch, Crash, Junk, Noisy, Oracle, Poison
from specframe.testing.errors import ContractError, StrategyContractError
from specframe.testing.faults import Call, Fault, When
from specframe.testing.reference import Output, reference, tape
from specframe.testing.replay import Divergence, ReplayReport, replay
from specframe.testing.scripted import ScriptedTarget
from specframe.testing.strategy_check import StrategyReport, check_strategy
from specframe.testing.vocabulary import UTF8_PIECES, ScriptedVocab, letter_pieces

__all__ = [
    "ALL_JUNK",
    "UTF8_PIECES",
    "Arbitrary",
    "AsBatch",
    "BackendReport",
    "Call",
    "ContractError",
    "Crash",
    "Divergence",
    "Fault",
    "Junk",
    "Noisy",
    "Oracle",
    "Output",
    "Poison",
    "ReplayReport",
    "ScriptedTarget",
    "ScriptedVocab",
    "StrategyContractError",
    "StrategyReport",
    "When",
    "check_backend",
    "check_strategy",
    "letter_pieces",
    "reference",
    "replay",
    "tape",
]
