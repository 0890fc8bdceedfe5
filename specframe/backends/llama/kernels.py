"""Kernels that give the same bits however many tokens are evaluated together.

ggml's kernels for CPUs differ with the number of rows, and round differently:

* flash attention works row by row; from 64 rows of a sequence on in tiles; and for one row on a memory of 512 cells or
  more it splits that memory over the threads; both unless keys or values are kept in blocks, as Q8_0 is
  (``ggml_compute_forward_flash_attn_ext_f16``, ``ggml-cpu/ops.cpp``);
* products with F32, F16 and BF16 weights are summed in another order from two rows on (``llamafile_sgemm``);
* products with K-quants and IQ quants work in tiles from 8 rows on (``ggml-cpu/tiled``).

And what is kept in blocks is turned by a matrix before (``attn_rot_k``), row by row, but rounded otherwise in reference
mode.

So a token verified in a draft would not get the logits it gets alone. Reference mode (``use_ref``) keeps to rows one by
one, at the price of a few fused operations; it is used where the width would matter, and where it is cheaper. Only
models of nothing but BF16 and F32, for which it is slower in wide batches, take it there when they are told to.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import Any

from specframe.backends.llama.context_options import IN_BLOCKS, ContextOptions
from specframe.backends.llama.library import Library
from specframe.core.ports import BatchEntry

#: From this many rows of one sequence on, attention works in tiles (``GGML_FA_TILE_Q``).
TILED_ROWS = 64
#: Attention may split a memory that holds more tokens than this: it counts cells in steps of 256, and 512 are enough.
#: Cells of drafts that were just dropped may still be counted, so this stays a draft's width below the step.
SPLIT_TOKENS = 256 - TILED_ROWS
#: Weights whose products are the same in ordinary mode, whatever the number of rows.
STEADY_WEIGHTS = frozenset({"q4_0", "q4_1", "q5_0", "q5_1", "q8_0"})
#: Weights whose products are the same in ordinary mode for a single row only.
FLOATING_WEIGHTS = frozenset({"f32", "f16", "bf16"})
#: Those of them that reference mode is slower with from six rows on: a quarter at 16, with F32 half as much at 63.
SLOW_IN_REFERENCE = frozenset({"f32", "bf16"})
#: Up to this many rows ``llamafile_sgemm`` costs more than as many single rows, with weights of several of these types.
NARROW_ROWS = 5
#: Weights whose repacked form is multiplied otherwise from four rows on, in any mode (``ggml-cpu/repack.cpp``).
#: Not all of them are repacked on every processor.
UNSTEADY_REPACKED = frozenset({"q2_K", "q4_K", "q5_K", "q6_K"})


def repacks_steadily(weights: Collection[str]) -> bool:
    """Whether products with weights of these types stay independent of the number of rows when ggml repacks them."""
    return UNSTEADY_REPACKED.isdisjoint(weights)


class Kernels:
    """Chooses the kernels of one context, decode by decode.

    Args:
        library: the native library.
        context: ``struct llama_context *``, borrowed.
        weights: types of the model's matrices.
        options: of the context.
    """

    def __init__(self, library: Library, context: Any, weights: Collection[str], options: ContextOptions) -> None:
        lib = library.lib
        scheduler = lib._ZNK13llama_context9get_schedEv(context)  # noqa: SLF001 -- the mangled name of a public member
        backends = [
            lib.ggml_backend_sched_get_backend(scheduler, i)
            for i in range(lib.ggml_backend_sched_get_n_backends(scheduler))
        ]
        self._cpus = [backend for backend in backends if lib.ggml_backend_is_cpu(backend)]
        self._set_use_ref = lib.ggml_backend_cpu_set_use_ref
        self._turned = not IN_BLOCKS.isdisjoint({options.type_k, options.type_v})
        self._always = _referenced(weights, exact=options.exact, turned=self._turned)
        self._reference: bool | None = None

    def choose(self, batch: Sequence[BatchEntry]) -> None:
        """Set up for a decode of ``batch``."""
        width = max([len(entry.tokens) for entry in batch])
        if width >= TILED_ROWS:
            reference = False
        else:
            # Several sequences are cut into pieces of equal length, which can leave a single row over.
            single = width == 1 or len(batch) > 1
            late = single and not self._turned and max([entry.pos for entry in batch]) >= SPLIT_TOKENS
            reference = late or sum([len(entry.tokens) for entry in batch]) in self._always
        if reference is not self._reference:
            for cpu in self._cpus:
                self._set_use_ref(cpu, reference)
            self._reference = reference


def _referenced(weights: Collection[str], *, exact: bool, turned: bool) -> range:
    """Rows of a batch, without wide pieces in it, that reference mode is for, however much is in memory.

    Where keys or values are ``turned``, the mode is the same for all of them.
    """
    if not (STEADY_WEIGHTS | FLOATING_WEIGHTS).issuperset(weights):
        return range(1, sys.maxsize)
    if FLOATING_WEIGHTS.isdisjoint(weights):
        return range(0) if turned else range(2, NARROW_ROWS + 1)
    if SLOW_IN_REFERENCE.issuperset(weights) and not exact:
        return range(0)  # as the server of llama.cpp does
    return range(1 if turned else 2, sys.maxsize)
