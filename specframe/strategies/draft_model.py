"""Drafting with a smaller language model of the same vocabulary (arXiv:2211.17192).

llama.cpp drafts with it as ``draft-simple``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from typing_extensions import override

from specframe.core.history import History
from specframe.core.ports import Decoded
from specframe.core.strategy import Suitability
from specframe.strategies.autoregressive import Autoregressive

if TYPE_CHECKING:
    from specframe.backends.llama.gguf import GgufFile
    from specframe.backends.llama.plain_context import PlainContext
    from specframe.backends.llama.services import LlamaServices


class DraftModel(Autoregressive):
    """A small model that writes on as it would by itself.

    **Draft.** The most probable token, then the one behind it, up to ``n_max`` tokens or to the first one less probable
    than ``p_min``. Its memory (KV cache) follows the committed text. All sequences are drafted for in one evaluation
    per token.

    **Cost.** One evaluation of the small model per drafted token. What the target accepted is evaluated in the first
    one of the next draft; prompts and what many steps without drafts left, in wide batches before it. While nothing is
    drafted nothing is evaluated.
    """

    name = "draft-model"
    uses_draft_file = True

    @classmethod
    @override
    def suitability(cls, target: Path, draft: Path | None) -> Suitability:
        from specframe.backends.llama.draft_kinds import draft_kind  # noqa: PLC0415 -- native
        from specframe.backends.llama.gguf import inspect  # noqa: PLC0415 -- native

        made_for_none = draft is not None and draft_kind(inspect(draft)) is None
        return Suitability.DRAFT_FILE if made_for_none else Suitability.UNASKED

    @classmethod
    @override
    def _check(cls, target: GgufFile, draft: GgufFile | None) -> None:
        from specframe.backends.llama.plain_files import check_plain  # noqa: PLC0415 -- native

        check_plain(target, draft)

    @override
    def _open(self, services: LlamaServices, **settings: Any) -> PlainContext:
        return services.open_plain(self._model, **settings)

    @override
    def begin(self, seq: int, history: History, n_held: int) -> int:
        n_known = super().begin(seq, history, n_held)
        if n_known < n_held:  # tokens are all it needs, so the target need not evaluate them again
            self.process([Decoded(seq, n_known, history[n_known:n_held])])
        return n_held

    @override
    def _featured(self, batch: Sequence[Decoded]) -> Sequence[Decoded]:
        return [attrs.evolve(each, hidden=np.empty((len(each.tokens), 0), np.float32)) for each in batch]
