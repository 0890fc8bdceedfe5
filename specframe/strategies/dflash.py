"""Drafting whole blocks by diffusion: one evaluation fills in masks behind the text, reading the target's features.

DFlash (arXiv:2602.06036); llama.cpp drafts with such models as ``draft-dflash``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from typing_extensions import override

from specframe.strategies.block_drafting import BlockDrafter, ChoosingOptions


class Dflash(BlockDrafter):
    """A draft model that fills in a block of masked tokens at once.

    **Input.** The inputs of some of the target's layers, at every committed position, go into the draft's memory (KV
    cache) as keys and values. They tell more than tokens would, so a few layers are enough.

    **Draft.** One evaluation of the last committed token and a mask for each token to draft. The most probable token of
    each mask is drafted, up to the first one less probable than ``p_min``. All sequences are in that evaluation.

    **Cost.** One small evaluation for the features since the last draft, and one for the block, however long it is.
    """

    name = "dflash"
    kind = "dflash"
    Options = ChoosingOptions

    @override
    def _read(self) -> Sequence[Sequence[int]]:
        # The first row belongs to the last committed token.
        blocks = [block[1:] for block in self._context.choices()]
        if p_min := self.options.p_min:
            blocks = [list(takewhile(lambda choice: choice[1] >= p_min, block)) for block in blocks]
        return [[token for token, _ in block] for block in blocks]
