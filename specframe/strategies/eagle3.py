"""Drafting with EAGLE-3 (arXiv:2503.01840): a small decoder that reads what several layers of the target computed.

llama.cpp drafts with it as ``draft-eagle3``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from specframe.core.ports import Decoded, Need, Rows
from specframe.strategies.autoregressive import Autoregressive

if TYPE_CHECKING:
    from specframe.backends.llama.eagle3_context import Eagle3Context
    from specframe.backends.llama.gguf import GgufFile
    from specframe.backends.llama.services import LlamaServices

#: Tokens that may be evaluated together with a draft even when drafts are shorter: plain steps in between.
MIN_JOINED = 9


class Eagle3(Autoregressive):
    """A draft file of one layer, trained to go on from features of its target.

    **Input.** The features of a position are the inputs of three layers of the target, side by side. An encoder turns
    them into one state. The decoder reads a token and the state of the position before it, and predicts the token
    after it; its memory (KV cache) follows the committed text.

    **Draft.** The last committed token first, then each drafted token with the decoder's own output as state, up to
    ``n_max`` tokens or to the first one less probable than ``p_min``. All sequences are drafted for in one evaluation
    per token. A smaller vocabulary of the draft is mapped to the target's by the file itself (``d2t``).

    **Cost.** One evaluation of the decoder per drafted token, and the encoder for each committed one. What the target
    accepted is evaluated in the first one of the next draft; prompts and what many steps without drafts left, in wide
    batches before it. While nothing is drafted nothing is evaluated: features are kept.
    """

    name = "eagle3"
    kind = "eagle3"
    needs = Need.LAYER_INPUTS
    uses_draft_file = True
    lag = 1

    _context: Eagle3Context

    @classmethod
    @override
    def _check(cls, target: GgufFile, draft: GgufFile | None) -> None:
        from specframe.backends.llama.draft_files import check_draft  # noqa: PLC0415 -- native

        check_draft(target, draft, cls.kind)

    @override
    def _open(self, services: LlamaServices, **settings: Any) -> Eagle3Context:
        return services.open_eagle3(self._model, n_joined=max(self.options.n_max + 1, MIN_JOINED), **settings)

    @property
    @override
    def layers(self) -> Sequence[int]:
        return self._context.layers

    @property
    @override
    def _n_held(self) -> int:
        return self._context.n_features

    @override
    def _featured(self, batch: Sequence[Decoded]) -> Sequence[Decoded]:
        layers = self._context.layers
        return [Decoded(each.seq, each.pos, each.tokens, each.concatenated(layers)) for each in batch]

    @override
    def _states(self, held: Sequence[Rows]) -> Sequence[Rows]:
        if len(held) < 2:  # noqa: PLR2004 -- nothing to put together
            return [self._context.encode(rows) for rows in held]
        states = self._context.encode(np.concatenate(held))
        return np.split(states, np.cumsum([len(rows) for rows in held])[:-1])
