"""Which files work together for multi-token prediction; what does not would end the process, or predict noise."""

from __future__ import annotations

from specframe.backends.llama.architectures import provides
from specframe.backends.llama.draft_kinds import ASSISTANT, check_kind, draft_kind, n_heads
from specframe.backends.llama.gguf import GgufFile
from specframe.backends.llama.validation import validate_loadable, validate_target
from specframe.backends.llama.vocab_difference import check_vocabulary
from specframe.core.errors import ConfigError
from specframe.core.ports import Need

#: What an assistant is made for.
ASSISTED = "gemma4"

#: Architectures whose files may hold several heads, one for each position ahead; elsewhere more than one is fatal.
CHAINED = frozenset({"step35"})

_HEAD_TENSORS = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm")


def check_mtp(target: GgufFile, draft: GgufFile | None) -> None:
    """Check that the heads in ``draft``, or without one those in ``target``, can draft for ``target``.

    Raises:
        ConfigError: names the file, what is wrong with it, and the way out.
    """
    validate_target(target)
    if Need.HIDDEN not in provides(target.arch):
        raise ConfigError(
            f"{target.path}: llama.cpp does not hand out the hidden states of {target.arch} models, which prediction "
            "heads read; use another strategy"
        )
    if draft is None:
        if not n_heads(target):
            raise ConfigError(
                f"{target.path} has no NextN layers ({target.arch}.nextn_predict_layers); name a file that has them "
                "with draft= (--draft FILE), or use another strategy"
            )
        _check_heads(target)
        return
    validate_loadable(draft)
    if draft_kind(draft) is not None:
        check_kind(draft, "mtp")
    if draft.arch == ASSISTANT:
        _check_assistant(target, draft)
    else:
        _check_family(target, draft)
        _check_heads(draft)
    _check_width(target, draft)
    check_vocabulary(target, draft)


def _check_family(target: GgufFile, draft: GgufFile) -> None:
    if draft.arch != target.arch:
        raise ConfigError(
            f"{draft.path} is a {draft.arch} file and {target.path} a {target.arch} one; NextN layers only fit the "
            "architecture they were trained with"
        )
    if not n_heads(draft):
        raise ConfigError(
            f"{draft.path} has no NextN layers ({draft.arch}.nextn_predict_layers): it is no draft for this strategy"
        )


def _check_width(target: GgufFile, draft: GgufFile) -> None:
    one, other = width_out(target), width_out(draft)
    if one != other:
        raise ConfigError(
            f"{draft.path} reads hidden states of {other} values and {target.path} has {one}; "
            "take the draft that was made for this target"
        )


def width_out(file: GgufFile) -> int | None:
    """Width of the hidden states that a model hands out, and that its heads read."""
    return file.integer("{arch}.embedding_length_out") or file.integer("{arch}.embedding_length")


def _check_heads(file: GgufFile) -> None:
    """Every head is whole: llama.cpp only notices when it runs them, by ending the process."""
    heads, blocks = n_heads(file), file.integer("{arch}.block_count") or 0
    if heads > 1 and file.arch not in CHAINED:
        raise ConfigError(
            f"{file.path} has {heads} NextN layers, but llama.cpp runs only one in {file.arch} models; use another file"
        )
    if heads >= blocks:
        raise ConfigError(
            f"{file.path}: {file.arch}.nextn_predict_layers is {heads} and must be below block_count ({blocks}); "
            "convert the model again"
        )
    has = file.tensors.__contains__
    for block in range(blocks - heads, blocks):
        prefix = f"blk.{block}."
        missing = [f"{prefix}{name}.weight" for name in _HEAD_TENSORS if not has(f"{prefix}{name}.weight")]
        if not has(f"{prefix}nextn.shared_head_norm.weight") and not has("output_norm.weight"):
            missing.append("output_norm.weight")
        if not has(f"{prefix}nextn.shared_head_head.weight") and not has("output.weight"):
            missing += [] if has("token_embd.weight") else ["output.weight"]
        if missing:
            raise ConfigError(
                f"{file.path} declares {heads} NextN layer(s), but the tensor {missing[0]} is not there; the layers "
                "were left out when it was converted: name a file that has them with draft= (--draft FILE)"
            )


def _check_assistant(target: GgufFile, draft: GgufFile) -> None:
    if target.arch != ASSISTED:
        raise ConfigError(
            f"{draft.path} is an assistant for {ASSISTED} models and reads their memory; {target.path} is a "
            f"{target.arch} model"
        )
    if (target.integer("{arch}.block_count") or 0) < 2:  # noqa: PLR2004 -- it reads the last two layers
        raise ConfigError(f"{target.path} has a single layer, and {draft.path} reads two")
    if not n_heads(draft):
        raise ConfigError(f"{draft.path}: {ASSISTANT}.nextn_predict_layers is missing; convert the draft again")
    # It attends to keys and values of the target's last two layers, so they must have the shape of its own.
    for key in ("key_length", "value_length", "key_length_swa", "value_length_swa", "head_count_kv"):
        one, other = (_shared(file, key) for file in (target, draft))
        if one is not None and other is not None and one != other:
            raise ConfigError(
                f"{draft.path}: attention.{key} is {other} and {target.path} has {one}; "
                "take the assistant that was made for this target"
            )


def _shared(file: GgufFile, key: str) -> object:
    """The value of the layers that are shared: the last two, where there is one for each."""
    value = file.get(f"{{arch}}.attention.{key}")
    if value is None and key == "head_count_kv":  # what llama.cpp takes instead
        value = file.get("{arch}.attention.head_count")
    elif value is None and key in {"key_length", "value_length"}:
        width, n_head = file.get("{arch}.embedding_length"), file.get("{arch}.attention.head_count")
        value = width // n_head if isinstance(width, int) and isinstance(n_head, int) and n_head > 0 else None
    return value[-2:] if isinstance(value, tuple) else value
