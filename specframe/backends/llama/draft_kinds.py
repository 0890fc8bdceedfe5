"""Which strategy a draft file is made for, and what its metadata say about it."""

from __future__ import annotations

import attrs

from specframe.backends.llama.gguf import GgufFile, LongArray
from specframe.core.errors import ConfigError

#: The draft that reads the memory of its target instead of keeping one of its own.
ASSISTANT = "gemma4-assistant"

#: What upstream takes when ``block_size`` is not there.
_DEFAULT_BLOCK = 16


def n_heads(file: GgufFile) -> int:
    """NextN blocks that the metadata of ``file`` declares."""
    return file.integer("{arch}.nextn_predict_layers") or 0


def draft_kind(file: GgufFile) -> str | None:
    """Name of the strategy that drafts with ``file``; None when it is a model of another sort.

    The three kinds of block drafters share an architecture and are told apart by their tensors, as llama.cpp does:
    run as another kind, they load and draft noise.
    """
    if file.arch == "dflash":
        if "markov_w1.weight" in file.tensors:
            return "dspark"
        return "dflash2" if "selector_hidden.weight" in file.tensors else "dflash"
    if file.arch == "eagle3":
        return "eagle3"
    return "mtp" if file.arch == ASSISTANT or n_heads(file) else None


def check_kind(draft: GgufFile, wanted: str) -> None:
    """Raise ConfigError, naming the right strategy, when ``draft`` is for another one than ``wanted``."""
    kind = draft_kind(draft)
    if kind == wanted:
        return
    if kind is None:
        raise ConfigError(
            f"{draft.path} is a {draft.arch} model, no draft for strategy {wanted!r}; name a file that was made for it"
        )
    raise ConfigError(f"{draft.path} is made for strategy {kind!r}, not for {wanted!r}; choose strategy {kind!r}")


@attrs.frozen(kw_only=True)
class BlockFile:
    """What the metadata and tensors of a block drafter say; ``check_draft`` has made sure that they say it."""

    kind: str
    """``dflash``, ``dflash2`` or ``dspark``."""
    block_size: int
    """Most tokens of a block in one decode, the last committed token included."""
    target_layers: tuple[int, ...]
    """Layers of the target whose inputs are injected, in the order in which they are concatenated."""
    mask_token: int
    """Stands for the tokens to be drafted."""
    causal: bool
    """Tokens of a block see only those before them; otherwise all see each other."""
    from_anchor: bool
    """The row of the last committed token predicts the first drafted one; otherwise the first mask's does."""
    confidence: bool
    """There is a head that says how sure it is of each token."""
    top_k: int
    """Candidates per position of the lattice; 0 without one."""

    @property
    def max_draft(self) -> int:
        """Most tokens one block drafts."""
        return self.block_size if self.from_anchor else self.block_size - 1

    @classmethod
    def of(cls, file: GgufFile) -> BlockFile:
        """Read them. Raises ConfigError when a value has the wrong type."""
        kind = draft_kind(file) or ""
        dspark, dflash2 = kind == "dspark", kind == "dflash2"
        size, mask = file.integer("{arch}.block_size"), file.integer("tokenizer.ggml.mask_token_id")
        return cls(
            kind=kind,
            block_size=_DEFAULT_BLOCK if size is None else size,
            target_layers=target_layers(file),
            mask_token=-1 if mask is None else mask,
            causal=flag(file, "{arch}.attention.causal", default=False),
            from_anchor=dspark and flag(file, "{arch}.sample_from_anchor", default=True),
            confidence=dspark
            and "conf_proj.weight" in file.tensors
            and flag(file, "{arch}.has_confidence_head", default=True),
            top_k=(file.integer("{arch}.selector_top_k") or 0) if dflash2 else 0,
        )


def target_layers(file: GgufFile) -> tuple[int, ...]:
    """Layers of the target that a draft reads. Raises ConfigError when the key is not there or no list of integers."""
    value = file.get("{arch}.target_layers")
    if not isinstance(value, tuple) or not all(isinstance(x, int) and not isinstance(x, bool) for x in value):
        found = "is missing" if value is None else f"is {value!r}"
        raise ConfigError(
            f"{file.path}: {file.arch}.target_layers {found} and must list layers of the target; "
            "convert the draft again, with the configuration of its target"
        )
    return tuple(int(x) for x in value)


def flag(file: GgufFile, key: str, *, default: bool) -> bool:
    """A boolean of the metadata. Raises ConfigError when it is none."""
    value = file.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ConfigError(f"{file.path}: {key.replace('{arch}', file.arch)} is {value!r} and should be true or false")
    return value


def n_vocab(file: GgufFile) -> int:
    """Number of tokens of a file's vocabulary; 0 when it has none."""
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, LongArray):
        return tokens.length
    return len(tokens) if isinstance(tokens, tuple) else file.integer("{arch}.vocab_size") or 0
