"""What a batch must be like, as a scripted target demands it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from specframe.core.errors import ConfigError
from specframe.core.ports import BatchEntry, TargetInfo


def check_batch(info: TargetInfo, batch: Sequence[BatchEntry], n_past: Callable[[int], int]) -> None:
    """Raise ConfigError for everything that can be wrong with a batch, before anything changes.

    Args:
        info: of the target.
        batch: the batch.
        n_past: tokens that a sequence holds.
    """
    wrong: str | None = None
    seqs = [entry.seq for entry in batch]
    n_tokens = sum(len(entry.tokens) for entry in batch)
    n_rows = sum(entry.n_outputs for entry in batch)
    if not batch or not all(len(entry.tokens) for entry in batch):
        wrong = "a batch and each of its entries need at least one token"
    elif len(set(seqs)) != len(seqs):
        wrong = f"a sequence appears twice in one batch: {seqs}"
    elif n_tokens > info.n_batch:
        wrong = f"{n_tokens} tokens in one batch, n_batch is {info.n_batch}"
    elif n_rows > info.max_outputs:
        wrong = f"{n_rows} logits rows in one batch, at most {info.max_outputs} are possible"
    else:
        wrong = next((fault for entry in batch if (fault := _entry_fault(info, entry, n_past(entry.seq)))), None)
    if wrong is not None:
        raise ConfigError(wrong)


def _entry_fault(info: TargetInfo, entry: BatchEntry, n_past: int) -> str | None:
    n = len(entry.tokens)
    if entry.pos != n_past:
        return f"sequence {entry.seq} holds {n_past} tokens, but the batch starts at position {entry.pos}"
    if entry.pos + n > info.n_ctx:
        return f"sequence {entry.seq}: {entry.pos} + {n} tokens do not fit n_ctx {info.n_ctx}"
    if not 0 <= entry.n_outputs <= n:
        return f"sequence {entry.seq}: {entry.n_outputs} logits rows wanted of {n} tokens"
    for token in entry.tokens:
        if not _is_token(token, info.n_vocab):
            return f"sequence {entry.seq}: {token!r} is not a token of a vocabulary of {info.n_vocab}"
    return None


def _is_token(token: object, n_vocab: int) -> bool:
    return isinstance(token, int | np.integer) and not isinstance(token, bool) and bool(0 <= token < n_vocab)
