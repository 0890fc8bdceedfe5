"""What a loaded model is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class LLMInfo:
    """What was loaded, and how it runs."""

    path: Path
    architecture: str
    description: str
    n_params: int
    size_bytes: int
    """Of all tensors."""
    n_vocab: int
    n_ctx: int
    """Tokens of one sequence, prompt and answer together."""
    n_ctx_train: int
    """Tokens of one sequence that the model was trained with; 0: unknown."""
    n_batch: int
    """Most tokens in one decode, over all sequences."""
    n_seq: int
    """Requests that run at once; more are queued."""
    type_k: str
    """Format of the keys in memory."""
    type_v: str
    """Of the values."""
    rollback: str
    """How memory can be brought back after a rejection: ``truncate``, ``bounded`` or ``snapshot``."""
    rollback_depth: int
    """Rejected tokens that ``bounded`` memory takes back by itself; 0 for the others."""
    checkpoints: str | None
    """Where a checkpoint for longer rejections is kept: ``host`` or ``device``; None: memory needs none."""
    library: str
    """Where llama.cpp comes from, and its path."""
    chat_templates: tuple[str, ...]
    """Names of the templates in the file."""
    strategy: str
    """What drafts for requests that choose nothing else, as ``strategy=`` takes it; ``none``: plain decoding."""
    strategy_reason: str
    """Why."""

    def to_dict(self) -> dict[str, Any]:
        """Everything, JSON-ready."""
        return {**attrs.asdict(self), "path": str(self.path), "chat_templates": list(self.chat_templates)}
