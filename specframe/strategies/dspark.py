"""Drafting blocks whose tokens know their predecessor, and how sure the draft is of each.

DSpark (arXiv:2607.05147); llama.cpp drafts with such models as ``draft-dspark``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from specframe.core.errors import ConfigError
from specframe.strategies.block_drafting import BlockDrafter, ChoosingOptions


class Dspark(BlockDrafter):
    """A draft model that fills in a block at once, with each token depending on the one before it.

    **Input.** As for ``dflash``: inputs of some of the target's layers go into the draft's memory.

    **Draft.** One evaluation of the last committed token and masks. A small head, the Markov head, adds to the scores
    of each token what it thinks of it after the one drafted before it, so that a block does not mix several
    continuations. Depending on how the draft was trained, the first token comes from the last committed one's row
    (anchor first), or from the first mask's (bonus anchor). All sequences are in that evaluation.

    **Confidence.** With ``p_min``, a draft ends before the first token that the confidence head expects to be accepted
    with a smaller probability. A draft without such a head is refused then.

    **Cost.** One small evaluation for the features since the last draft, and one for the block, however long it is.
    """

    name = "dspark"
    kind = "dspark"
    Options = ChoosingOptions

    @override
    def _reading(self) -> Mapping[str, Any]:
        p_min = self.options.p_min
        if p_min > 0 and not self._facts.confidence:
            path = self._model.gguf.path
            msg = (
                f"{path} has no confidence head (conf_proj.weight), which option p_min={p_min} needs; leave p_min at 0"
            )
            raise ConfigError(msg)
        return {"backend_sampling": self.options.backend_sampling, "hands_out_rows": p_min > 0}

    @override
    def _read(self) -> Sequence[Sequence[int]]:
        first = 0 if self._facts.from_anchor else 1
        blocks = [[token for token, _ in block[first:]] for block in self._context.choices()]
        if not self.options.p_min:
            return blocks
        # Every value of a row is the confidence of its token.
        doubtful = self._context.rows()[:, first:, 0] < self.options.p_min
        ends = [int(row.argmax()) if row.any() else len(row) for row in doubtful]
        return [block[:end] for block, end in zip(blocks, ends, strict=True)]
