"""Owning a native context: what is freed with it, in which order, and when views of its memory allow it."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from specframe.backends.llama.context_options import ContextOptions
from specframe.backends.llama.library import Library
from specframe.backends.llama.log import native_log
from specframe.backends.llama.model import Model
from specframe.backends.llama.status import failure
from specframe.core.ports import Rows

_FLOAT32 = np.dtype(np.float32)


class NativeContext:
    """What has to be freed, and in which order."""

    def __init__(self, model: Model, options: ContextOptions, params: Any) -> None:
        """Create it.

        Args:
            model: stays open at least until :meth:`free`.
            options: for the message when that fails.
            params: ``struct llama_context_params``.

        Raises:
            BackendError: llama.cpp could not; the message quotes its reason.
        """
        self._free = model.library.lib.llama_free
        self.before: list[Callable[[], None]] = []
        """What has to be released before the context, in this order."""
        native_log.take()
        self.context = model.library.lib.llama_init_from_model(model.handle, params)
        if not self.context:
            raise failure(
                "creating a context", meaning="llama.cpp cannot make one with these options", model=model.path.name,
                n_ctx=options.n_ctx, n_seq=options.n_seq, type_k=options.type_k, type_v=options.type_v,
            )  # fmt: skip
        self._release: Callable[[], None] = model.hold()

    def free(self) -> None:
        """Free everything, and let go of the weights."""
        if sys.is_finalizing():
            return
        while self.before:
            self.before.pop(0)()
        context, self.context = self.context, None
        if context is not None:
            self._free(context)
            self._release()

    def free_after(self, views: list[npt.NDArray[Any]]) -> None:
        """Free once none of these views of native memory, nor any slice of them, is referenced any more.

        Empties ``views``, which must hold the only references of the caller.
        """
        # Slices of a view keep the array under it alive, not the view itself: numpy skips what is in between.
        bases = [weakref.ref(view.base if isinstance(view.base, np.ndarray) else view) for view in views]
        views.clear()
        alive = [base for reference in bases if (base := reference()) is not None]
        if not alive:
            self.free()
            return
        left = len(alive)

        def gone() -> None:
            nonlocal left
            left -= 1
            if not left:
                self.free()

        for base in alive:
            weakref.finalize(base, gone).atexit = False


def native_rows(library: Library, pointer: Any, n_rows: int, width: int) -> Rows:
    """A read-only view ``(n_rows, width)`` of float32 in native memory; not valid beyond its next evaluation."""
    view = memoryview(library.ffi.buffer(pointer, n_rows * width * _FLOAT32.itemsize)).toreadonly()
    return np.frombuffer(view, _FLOAT32).reshape(n_rows, width)
