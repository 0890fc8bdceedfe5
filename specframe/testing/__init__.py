"""Public test kit: a scripted target, adversarial drafters and conformance checks.

``specframe.testing.generators`` (hypothesis strategies) is not imported here, so the kit needs nothing but the core.
"""

from specframe.testing.errors import ContractError, StrategyContractError
from specframe.testing.faults import Call, Fault, When
from specframe.testing.scripted import ScriptedTarget
from specframe.testing.vocabulary import UTF8_PIECES, ScriptedVocab, letter_pieces

__all__ = [
    "UTF8_PIECES",
    "Call",
    "ContractError",
    "Fault",
    "ScriptedTarget",
    "ScriptedVocab",
    "StrategyContractError",
    "When",
    "letter_pieces",
]
