"""What llama.cpp's architectures can do, where no call tells.

Mirrors the graphs in upstream ``src/models``: which of them set ``t_h_nextn`` and ``t_layer_inp``. The names are those
of ``general.architecture``, which differ from the names of the files there.
"""

from __future__ import annotations

from specframe.core.ports import Need, Rollback

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
        "glm4moe",
        "glm5-next",
        "gpt-oss",
        "hy_v3",
        "mimo2",
        "nemotron_h",
        "nemotron_h_moe",
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
        "gpt-oss",
        "hunyuan_vl",
        "lfm2",
        "llama",
        "mimo2",
        "minimax-01",
        "minimax-m2",
        "muse-glimmer",
        "nanbeige",
        "nemotron_h",
        "nemotron_h_moe",
        "qwen3",
        "qwen35",
        "qwen35moe",
        "qwen3moe",
        "qwen3next",
        "qwen4exp",
    }
)

#: Of those, the ones that also hand out what comes out of the last layer, as the input of one after it.
LAST_LAYER_INPUTS = frozenset({"deepseek4", "mimo2", "nemotron_h", "nemotron_h_moe"})

#: Architectures with recurrent layers, whose state cannot be cut (``llm_arch_is_recurrent``, ``llm_arch_is_hybrid``).
RECURRENT = frozenset(
    {
        "arwkv7",
        "bailingmoe3",
        "deepseek4",
        "falcon-h1",
        "glm5-next",
        "granitehybrid",
        "jamba",
        "kimi-k3",
        "kimi-linear",
        "lfm2",
        "lfm2moe",
        "mamba",
        "mamba2",
        "minimax-01",
        "nemotron_h",
        "nemotron_h_moe",
        "plamo2",
        "qwen35",
        "qwen35moe",
        "qwen3next",
        "qwen4exp",
        "rwkv6",
        "rwkv6qwen2",
        "rwkv7",
    }
)

#: Of those, the ones that can keep the states of the last tokens (``llm_arch_supports_rs_rollback``).
KEEPS_STATES = frozenset(
    {
        "bailingmoe3",
        "deepseek4",
        "glm5-next",
        "kimi-k3",
        "lfm2",
        "lfm2moe",
        "nemotron_h",
        "nemotron_h_moe",
        "qwen35",
        "qwen35moe",
        "qwen4exp",
    }
)


def rollback_means(arch: str) -> tuple[Rollback, ...]:
    """How drafts for a target of this architecture are taken back, the cheapest means first."""
    if arch not in RECURRENT:
        return (Rollback.TRUNCATE,)
    return (Rollback.BOUNDED, Rollback.SNAPSHOT) if arch in KEEPS_STATES else (Rollback.SNAPSHOT,)


def provides(arch: str) -> Need:
    """What a target of this architecture can give a strategy beyond tokens."""
    need = Need.NONE
    if arch in HIDDEN:
        need |= Need.HIDDEN
    if arch in LAYER_INPUTS:
        need |= Need.LAYER_INPUTS
    return need
