"""Kernels that give the same bits however many tokens are evaluated together.

ggml's CPU flash attention has three ways: rows one by one; from 64 rows of a sequence on, tiles; and for one row on a
longer memory (512 cells), that memory split over the threads. They round differently, so a token verified in a draft
would not get the logits it gets alone. Its reference mode keeps to rows one by one
(``ggml_compute_forward_flash_attn_ext_f16`` in ``ggml/src/ggml-cpu/ops.cpp``, ``use_ref``).
"""

from __future__ import annotations

from typing import Any

from specframe.backends.llama.library import Library

#: From this many rows of one sequence on, attention works in tiles (``GGML_FA_TILE_Q``).
TILED_ROWS = 64


class Kernels:
    """Chooses the kernels of one context, decode by decode.

    Args:
        library: the native library.
        context: ``struct llama_context *``, borrowed.
    """

    def __init__(self, library: Library, context: Any) -> None:
        lib = library.lib
        scheduler = lib._ZNK13llama_context9get_schedEv(context)  # noqa: SLF001 -- the mangled name of a public member
        backends = [
            lib.ggml_backend_sched_get_backend(scheduler, i)
            for i in range(lib.ggml_backend_sched_get_n_backends(scheduler))
        ]
        self._cpus = [backend for backend in backends if lib.ggml_backend_is_cpu(backend)]
        self._set_use_ref = lib.ggml_backend_cpu_set_use_ref
        self._row_by_row: bool | None = None

    def choose(self, width: int) -> None:
        """Set up for a decode whose longest entry has ``width`` tokens: tiles for prompts, rows one by one below."""
        row_by_row = width < TILED_ROWS
        if row_by_row is not self._row_by_row:
            for cpu in self._cpus:
                self._set_use_ref(cpu, row_by_row)
            self._row_by_row = row_by_row
