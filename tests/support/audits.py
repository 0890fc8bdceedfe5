"""Made-up audits, for tests of what is done with them."""

from __future__ import annotations

from specframe.backends.llama.audit import Audit, WidthAudit


def at(width: int, *, exact: bool = True, difference: float = 0.0, context: int = 1, cost_s: float = 0.1) -> WidthAudit:
    """What was found at one width."""
    return WidthAudit(
        context=context, width=width, positions=1, exact=exact, max_difference=difference, flips=0, cost_s=cost_s
    )


def verdict(*rows: WidthAudit, flash_attn: bool = True, exact_kernels: bool = False) -> Audit:
    """An audit that found ``rows``."""
    return Audit(
        model="m",
        library="l",
        flash_attn=flash_attn,
        type_k="f16",
        type_v="f16",
        n_threads=1,
        n_threads_batch=1,
        n_ubatch=512,
        use_extra_bufts=True,
        exact_kernels=exact_kernels,
        smallest_margin=0.5,
        rows=rows,
    )
