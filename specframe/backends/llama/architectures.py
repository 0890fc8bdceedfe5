"""What llama.cpp's architectures can do, where no call tells.

Mirrors the graphs in upstream ``src/models``: which of them set ``t_h_nextn`` and ``t_layer_inp``.
"""

from __future__ import annotations

from specframe.core.ports import Need

#: Not usable as a target: they lean on another model's tensors, memory or hidden states.
DRAFT_ONLY = frozenset({"dflash", "eagle3", "gemma4-assistant"})

#: Files without a language model.
PROJECTORS = frozenset({"clip"})

#: Architectures that hand out the hidden state after the last layer; elsewhere it reads as zeros, with no error.
HIDDEN = frozenset(
    {
        "bailingmoe3",
        "cohere2moe",
        "deepseek2",
        "deepseek32",
        "deepseek4",
        "gemma4",
        "glm-dsa",
        "glm4-moe",
        "glm5-next",
        "hy-v3",
        "mimo2",
        "nemotron-h",
        "nemotron-h-moe",
        "openai-moe",
        "qwen35",
        "qwen35moe",
        "qwen3next",
        "step35",
    }
)

#: Architectures that hand out layer inputs; on others asking for them ends the process.
LAYER_INPUTS = frozenset(
    {
        "bailingmoe3",
        "deepseek4",
        "gemma4",
        "hunyuan-vl",
        "lfm2",
        "llama",
        "mimo2",
        "minimax-01",
        "minimax-m2",
        "muse-glimmer",
        "nanbeige",
        "nemotron-h",
        "openai-moe",
        "qwen3",
        "qwen35",
        "qwen35moe",
        "qwen3moe",
        "qwen3next",
        "qwen4exp",
    }
)

#: Of those, the ones that also hand out what comes out of the last layer, as the input of one after it.
LAST_LAYER_INPUTS = frozenset({"deepseek4", "mimo2", "nemotron-h"})


def provides(arch: str) -> Need:
    """What a target of this architecture can give a strategy beyond tokens."""
    need = Need.NONE
    if arch in HIDDEN:
        need |= Need.HIDDEN
    if arch in LAYER_INPUTS:
        need |= Need.LAYER_INPUTS
    return need
