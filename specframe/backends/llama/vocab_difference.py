"""Whether token ids mean the same in two files."""

from __future__ import annotations

from specframe.backends.llama.gguf import GgufFile
from specframe.core.errors import ConfigError

#: Vocabularies are padded to round sizes; this many surplus tokens at the end are no difference.
PADDING = 512

_KIND = "tokenizer.ggml.model"
_SPECIAL = ("bos", "eos")


def vocabulary_difference(target: GgufFile, draft: GgufFile) -> str | None:
    """What differs between two vocabularies, naming the first differing token; None when token ids mean the same."""
    if (theirs := draft.metadata.get(_KIND)) is None:
        return None  # it has no vocabulary and shares the target's
    if (ours := target.metadata.get(_KIND)) != theirs:
        return f"the target's tokenizer is {ours!r}, the draft's is {theirs!r}"
    a, b = (file.array("tokenizer.ggml.tokens") or () for file in (target, draft))
    for i, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return f"token {i} is {left!r} in the target and {right!r} in the draft"
    if abs(len(a) - len(b)) > PADDING:
        return f"the target has {len(a)} tokens, the draft {len(b)}"
    for name in _SPECIAL:
        key = f"tokenizer.ggml.{name}_token_id"
        one, other = target.integer(key), draft.integer(key)
        if one is not None and other is not None and one != other:
            return f"the {name.upper()} token is {one} in the target and {other} in the draft"
    return None


def check_vocabulary(target: GgufFile, draft: GgufFile) -> None:
    """Raise ConfigError, with the first difference, when token ids do not mean the same in both files."""
    if difference := vocabulary_difference(target, draft):
        raise ConfigError(f"{draft.path} has another vocabulary than {target.path}: {difference}")
