"""What is checked before a file is handed to llama.cpp, because there it would end the process or work wrongly."""

from __future__ import annotations

import math
import re

from specframe.backends.llama.architectures import DRAFT_ONLY, PROJECTORS
from specframe.backends.llama.gguf import GgufFile, LongArray
from specframe.core.errors import ConfigError

#: ``LLAMA_MAX_LAYERS`` and ``LLAMA_MAX_EXPERTS``: larger counts hit an assertion.
MAX_LAYERS = 512
MAX_EXPERTS = 1024

#: Types that nothing is multiplied with, and what may be of them: ids of tokens and of experts.
_NO_WEIGHTS = frozenset({"i8", "i16", "i32", "i64", "f64"})
_INDICES = ("d2t", "tid2eid")

#: What states are multiplied with, added to or turned by element by element, or what slides over them.
_ELEMENTWISE = re.compile(r"norm|conv1d|scale|rope_f|ssm_[ad]$|\.bias$")

#: Architectures that always turn by several axes, and those with gated delta networks.
_MULTI_AXIS = frozenset({"qwen2vl", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"})
_DELTA_NETS = frozenset({"qwen3next", "qwen35", "qwen35moe"})

_ROPE_SCALING = ("none", "linear", "yarn", "longrope")


def validate_loadable(file: GgufFile) -> None:
    """Check what any file must satisfy so that loading it returns, with a model or with an error.

    Raises:
        ConfigError: names the file, the key, its value and the way out.
    """
    if not file.arch:
        raise wrong(file, "general.architecture", None, "be the name of an architecture", "convert the model again")
    if file.arch in PROJECTORS:
        raise ConfigError(f"{file.path} holds an image or audio projector, no language model; name the model's file")
    _check_layers(file)
    _check_experts(file)
    scaling = file.get("{arch}.rope.scaling.type")
    if scaling is not None and scaling not in _ROPE_SCALING:
        raise wrong(file, "{arch}.rope.scaling.type", scaling, f"be one of {', '.join(_ROPE_SCALING)}")
    _check_range(file, "{arch}.full_attention_interval", 1, None)  # a divisor
    for key in ("{arch}.attention.layer_norm_rms_epsilon", "{arch}.attention.layer_norm_epsilon"):
        value = file.get(key)
        if isinstance(value, int | float) and not 0 <= value < math.inf:
            raise wrong(file, key, value, "be a number from 0 on")
    _check_rotation(file)
    _check_recurrence(file)
    _check_types(file)
    _check_feed_forward(file)
    _check_vocabulary(file)


def validate_target(file: GgufFile) -> None:
    """Check that a file can be the model that decides every token.

    Raises:
        ConfigError: names the file, what is wrong with it, and the way out.
    """
    validate_loadable(file)
    if file.arch in DRAFT_ONLY:
        raise ConfigError(
            f"{file.path} is a {file.arch} draft model: it cannot generate by itself. "
            "Name the model it was made for as the target, and this file as the draft"
        )
    layers = file.integer("{arch}.block_count")
    if layers is not None:
        _check_range(file, "{arch}.nextn_predict_layers", 0, layers - 1)  # the rest is the trunk
        if file.get("{arch}.attention.shared_kv_layers"):  # they read the memory of two layers before them
            _check_range(file, "{arch}.attention.shared_kv_layers", 0, max(layers - 2, 0))
    if not file.tensors:
        raise ConfigError(f"{file.path} holds a vocabulary and no weights; name a file with weights")
    if not any(name.startswith("blk.0.") for name in file.tensors):
        nextn = file.integer("{arch}.nextn_predict_layers") or 0
        if nextn:
            raise ConfigError(
                f"{file.path} holds only the {nextn} multi-token prediction block(s) of a model (there is no "
                "blk.0.attn_norm.weight): it cannot be a target. Name it as the draft of the full model"
            )
        raise ConfigError(f"{file.path} has no tensors of layer 0 (blk.0.*); convert or download it again")
    if file.metadata.get("tokenizer.ggml.model") in {None, "none", "no_vocab"}:
        raise wrong(
            file,
            "tokenizer.ggml.model",
            file.metadata.get("tokenizer.ggml.model"),
            "name a tokenizer",
            "use a file that was converted with its tokenizer",
        )


def _check_layers(file: GgufFile) -> None:
    layers = _check_range(file, "{arch}.block_count", 1, MAX_LAYERS)
    if layers is not None:
        _check_range(file, "{arch}.nextn_predict_layers", 0, layers)


def _check_experts(file: GgufFile) -> None:
    experts = _check_range(file, "{arch}.expert_count", 0, MAX_EXPERTS) or 0
    if experts <= 1 and file.arch.startswith("hunyuan"):
        return  # dense: upstream drops the expert keys
    least = 1 if experts else 0
    used_key = "{arch}.expert_used_count"
    used = file.get(used_key)
    if isinstance(used, tuple):
        highest = max((value for value in used if isinstance(value, int)), default=0)
        if not least <= highest <= experts:
            raise wrong(file, used_key, highest, f"have its maximum between {least} and {experts} (expert_count)")
    else:
        _check_range(file, used_key, least, experts)
        if experts and used is None:
            raise wrong(file, used_key, None, f"be between 1 and {experts} (expert_count)")
    groups = _check_range(file, "{arch}.expert_group_count", 0, max(experts - 1, 0)) or 0
    if groups > 1:
        if experts % groups:
            raise wrong(file, "{arch}.expert_group_count", groups, f"divide {experts} (expert_count)")
        if file.get("{arch}.expert_group_used_count") is None:
            raise wrong(file, "{arch}.expert_group_used_count", None, f"be between 1 and {groups - 1}")
        _check_range(file, "{arch}.expert_group_used_count", 1, groups - 1)


def _check_rotation(file: GgufFile) -> None:
    """Position is rotated into pairs of values of a head; more than it has ends the first computation."""
    width, n_head = file.get("{arch}.embedding_length"), file.get("{arch}.attention.head_count")
    plain = width // n_head if isinstance(width, int) and isinstance(n_head, int) and n_head > 0 else None
    for suffix in ("", "_swa"):
        key = f"{{arch}}.rope.dimension_count{suffix}"
        n_rot = file.get(key)
        size = file.get(f"{{arch}}.attention.key_length{suffix}") or file.get("{arch}.attention.key_length") or plain
        if isinstance(n_rot, int) and isinstance(size, int) and (n_rot % 2 or not 0 < n_rot <= size):
            raise wrong(file, key, n_rot, f"be even and at most the size of an attention head ({size}), and above 0")
    key, size = "{arch}.rope.dimension_sections", file.get("{arch}.attention.key_length") or plain
    sections = file.get(key)
    if isinstance(sections, tuple) and isinstance(size, int):
        whole = [section for section in sections if isinstance(section, int)]
        if sum(whole) > size or min(whole, default=0) < 0:
            raise wrong(file, key, list(sections), f"be sizes that fit into an attention head ({size}) together")
        if file.arch in _MULTI_AXIS and not any(whole):
            raise wrong(file, key, list(sections), "have at least one that is above 0")


def _check_recurrence(file: GgufFile) -> None:
    """Sizes that gated delta networks take for granted."""
    inner, state, heads = (
        file.integer(f"{{arch}}.ssm.{name}") for name in ("inner_size", "state_size", "time_step_rank")
    )
    if file.arch in _DELTA_NETS and None not in {inner, state, heads} and inner != (state or 0) * (heads or 0):
        raise wrong(
            file, "{arch}.ssm.inner_size", inner, f"be ssm.state_size ({state}) times ssm.time_step_rank ({heads})"
        )


def _check_types(file: GgufFile) -> None:
    """Ggml ends the process at an operation between types for which it has no kernel."""
    for name, tensor in file.tensors.items():
        if tensor.kind == "f32" or any(index in name for index in _INDICES):
            continue
        elementwise = _ELEMENTWISE.search(name) is not None
        if elementwise or tensor.kind in _NO_WEIGHTS:
            wanted = "must be f32" if elementwise else "holds no weights"
            raise ConfigError(
                f"{file.path}: the tensor {name} is of type {tensor.kind} and {wanted}; convert the model again or "
                "take another file"
            )


def _check_feed_forward(file: GgufFile) -> None:
    """Layers of step35 may have experts instead; one with neither is noticed when it is run."""
    if file.arch != "step35":
        return
    for block in range(file.integer("{arch}.block_count") or 0):
        prefix = f"blk.{block}."
        if f"{prefix}attn_norm.weight" not in file.tensors or f"{prefix}ffn_gate_inp.weight" in file.tensors:
            continue
        for name in (f"{prefix}ffn_up.weight", f"{prefix}ffn_down.weight"):
            if name not in file.tensors:
                raise ConfigError(f"{file.path}: the tensor {name} is not there; convert or download it again")


def _check_vocabulary(file: GgufFile) -> None:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, tuple | LongArray):
        return
    every = file.array("tokenizer.ggml.tokens") or ()
    seen: set[object] = set()
    # llama.cpp gives an empty token a name of its own, so only spelled-out ones can collide.
    for index, token in enumerate(every):
        if token in seen and token != "":
            raise ConfigError(
                f"{file.path}: tokenizer.ggml.tokens has {token!r} twice, the second time at {index}; "
                "convert the model again"
            )
        seen.add(token)


def _check_range(file: GgufFile, key: str, low: int, high: int | None) -> int | None:
    """The integer under ``key``, or None when it is absent or one value per layer."""
    if isinstance(file.get(key), tuple):
        return None
    value = file.integer(key)
    if value is not None and (value < low or (high is not None and value > high)):
        wanted = f"be at least {low}" if high is None else f"be between {low} and {high}"
        raise wrong(file, key, value, wanted)
    return value


def wrong(
    file: GgufFile,
    key: str,
    value: object,
    wanted: str,
    way_out: str = "convert the model again or take another file",
) -> ConfigError:
    """An error that names the file, the key, its value, what it ``wanted`` to be, and the way out."""
    name = key.replace("{arch}", file.arch)
    found = "is missing" if value is None else f"is {value!r}"
    return ConfigError(f"{file.path}: {name} {found} and must {wanted}; {way_out}")
