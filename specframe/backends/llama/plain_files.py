"""Which language models can draft for a target as they are."""

from __future__ import annotations

from specframe.backends.llama.draft_kinds import check_kind, draft_kind
from specframe.backends.llama.gguf import GgufFile
from specframe.backends.llama.validation import validate_target
from specframe.backends.llama.vocab_difference import check_vocabulary
from specframe.core.errors import ConfigError

RECURRENT = (
    "the model has recurrent layers: what they remember of rejected tokens cannot be taken back; "
    "draft with a model that has attention only"
)
#: Metadata of recurrent layers.
_RECURRENT = ("ssm.", "wkv.", "shortconv.", "kda.")


def check_plain(target: GgufFile, draft: GgufFile | None) -> None:
    """Check that the language model ``draft`` can draft for ``target``.

    Raises:
        ConfigError: names the file, what is wrong with it, and the way out.
    """
    validate_target(target)
    if draft is None:
        raise ConfigError(
            f"strategy 'draft-model' drafts with a smaller model of the vocabulary of {target.path.name}; "
            "name it with draft= (--draft FILE)"
        )
    has_trunk = any(name.startswith("blk.0.") for name in draft.tensors)
    if draft_kind(draft) not in {None, "mtp"} or (draft_kind(draft) == "mtp" and not has_trunk):
        check_kind(draft, "draft-model")
    validate_target(draft)
    if any(key.startswith(tuple(f"{draft.arch}.{part}" for part in _RECURRENT)) for key in draft.metadata):
        raise ConfigError(f"{draft.path}: {RECURRENT}")
    check_vocabulary(target, draft)
