"""Verification: the target decides, the draft only chose which rows were computed."""

from __future__ import annotations

from specframe.core.ports import Logits
from specframe.core.sequence import ActiveRequest
from specframe.core.transaction import InFlight


def verify(active: ActiveRequest, item: InFlight, rows: Logits, first: int) -> None:
    """Sample and commit one token per row until the draft is contradicted, used up, or the request ends.

    ``rows``, ``(rows of the batch, n_vocab)`` float32; row ``first + i`` is conditioned on the committed tokens and
    ``draft[:i]``. Each token is drawn once, from a row whose whole condition is committed, so the text has the target's
    distribution and equals plain decoding with the same seed (Leviathan et al. 2023, arXiv:2211.17192, for the sampling
    of a deterministic draft). The token after the last accepted one (the correction or the bonus token) costs nothing
    extra.
    """
    draft = item.draft
    emitted_before = active.stats.emitted
    try:
        for i in range(item.n_outputs):
            token = active.step(rows[first + i])
            matched = i < len(draft) and token == draft[i]
            if matched:
                item.n_matched += 1
            if active.finish is not None or not matched:
                break
    finally:
        # Also when a processor or the sampler raised: what was committed counts.
        emitted = item.n_committed = active.stats.emitted - emitted_before
        if emitted:
            active.stats.steps += 1
            active.stats.accepted_emitted += emitted - 1
        if draft:
            active.stats.count_verified(item.parts, len(draft), item.n_matched)
