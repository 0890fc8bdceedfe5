"""Drafting whole blocks along the best path through a lattice of candidates.

DFlash 2 (https://inco.ai/blog/dflash2/) adds a selector to DFlash: each position of a block has a few candidates, and
each pair of neighbouring candidates a score. llama.cpp drafts with such models as ``draft-dflash`` too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from typing_extensions import override

from specframe.core.ports import Rows
from specframe.strategies.block_drafting import BlockDrafter, BlockOptions


class Dflash2(BlockDrafter):
    """A block drafter whose masks agree with each other: tokens are chosen one after the other from scored pairs.

    **Input.** As of ``dflash``: inputs of some of the target's layers, in the draft's memory.

    **Draft.** One evaluation of the last committed token and the masks leaves, for each mask, its best candidates and
    the score of each behind each candidate of the mask before. From the first mask on, the best candidate behind the
    one chosen before is drafted, up to the first whose share among the candidates is below ``p_min``.

    **Cost.** That of ``dflash``, and a little for the selector; no logits leave the evaluation.
    """

    name = "dflash2"
    kind = "dflash2"
    Options = BlockOptions

    @override
    def _reading(self) -> Mapping[str, Any]:
        return {"chooses": False, "hands_out_rows": True}

    @override
    def _read(self) -> Sequence[Sequence[int]]:
        # The first row belongs to the last committed token.
        return walk(self._context.rows()[:, 1:], self._facts.top_k, self.options.p_min)


def walk(lattice: Rows, top_k: int, p_min: float = 0.0) -> list[list[int]]:
    """The tokens along the best path through each of several lattices.

    Args:
        lattice: ``(lattices, positions, width)`` float32; of each row the first ``top_k`` values are token ids, the
            next ``top_k * top_k`` scores: of each candidate behind each candidate of the position before. Before the
            first position there is one token, so that all its rows of scores are alike.
        top_k: candidates of each position.
        p_min: a path ends before the first token whose probability, among the candidates at that place, is lower.
    """
    n_lattices, n_positions = lattice.shape[:2]
    tokens = lattice[:, :, :top_k].astype(np.int64)
    scores = lattice[:, :, top_k : top_k * (top_k + 1)].reshape(n_lattices, n_positions, top_k, top_k)
    every = np.arange(n_lattices)
    chosen = np.zeros(n_lattices, np.intp)
    ids = np.empty((n_lattices, n_positions), np.int64)
    ends = np.full(n_lattices, n_positions)
    for position in range(n_positions):
        behind = scores[every, position, chosen]
        chosen = behind.argmax(axis=1)
        ids[:, position] = tokens[every, position, chosen]
        if p_min > 0:
            probability = 1 / np.exp(behind - behind.max(axis=1, keepdims=True)).sum(axis=1)
            ends[(probability < p_min) & (ends > position)] = position
    return [path[:end] for path, end in zip(ids.tolist(), ends.tolist(), strict=True)]
