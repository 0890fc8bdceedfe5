"""A context: the memory of some sequences, and the evaluation of batches on it."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from specframe.backends.llama.batch import Batch
from specframe.backends.llama.closable import Closable
from specframe.backends.llama.context_options import ContextOptions
from specframe.backends.llama.features import Features
from specframe.backends.llama.kernels import Kernels
from specframe.backends.llama.library import Library
from specframe.backends.llama.memory import Memory, rollback_kind
from specframe.backends.llama.model import Dependent, Model
from specframe.backends.llama.native_context import NativeContext, native_rows
from specframe.backends.llama.status import check, failure
from specframe.core.errors import BackendError, ClosedError, ConfigError
from specframe.core.ports import BatchEntry, Decoded, Logits, Need, Rollback

log = logging.getLogger("specframe.llama.context")


class Context(Closable):
    """An open context of a model. Close it, or use it as a context manager; closing the model closes it too.

    ``decode`` hands over a batch and may return before the work is done; ``logits`` waits. Calls from several threads
    wait for each other; a sequence of calls is the caller's to protect.

    The rows that ``logits`` returns live in native memory until the next ``decode``. Rows still referenced when the
    context is closed stay readable: the native context is then freed together with the last of them.
    """

    _native: NativeContext | None = None

    def __init__(self, model: Model, **options: Any) -> None:
        """Create the native context.

        Args:
            model: stays open at least as long as this context.
            **options: see :class:`~specframe.backends.llama.context_options.ContextOptions`.

        Raises:
            ConfigError: an option cannot work, or not with this model.
            BackendError: llama.cpp could not create the context; the message quotes its reason.
        """
        self._dependents: weakref.WeakSet[Dependent] = weakref.WeakSet()
        self._rows: Logits | None = None
        """The latest rows that were handed out, and where in native memory they are."""
        self._rows_at: Any = None
        self._n_rows = 0
        self._lock = threading.RLock()
        self.options = ContextOptions(**options)
        self.options.check_model(model)
        if not model.facts.has_decoder or model.facts.has_encoder:
            msg = f"{model.path.name} is an encoder, or has one; only decoder-only models can generate here"
            raise ConfigError(msg)
        self.model = model
        self.library: Library = model.library
        self._native = NativeContext(model, self.options, self.options.native(model))
        with self._opening():
            self._set_up()

    def _set_up(self) -> None:
        lib, native, options = self.library.lib, self.handle, self.options
        self.n_vocab = self.model.facts.n_vocab
        self.n_ctx = options.n_ctx
        """Tokens one sequence may hold, as asked for."""
        self.n_ctx_seq = int(lib.llama_n_ctx_seq(native))
        """Cells that llama.cpp reserved for it, rounded up."""
        self.n_batch = int(lib.llama_n_batch(native))
        self.n_ubatch = int(lib.llama_n_ubatch(native))
        self.n_seq = int(lib.llama_n_seq_max(native))
        self.n_rs_seq = int(lib.llama_n_rs_seq(native))
        """Recurrent states kept per sequence; 0 for models that have none."""
        self.n_outputs_max = options.outputs
        if self.n_ctx_seq < self.n_ctx or self.n_seq != options.n_seq or self.n_batch < self.n_seq:
            raise failure(
                "creating a context", meaning="it is smaller than asked for", n_ctx_seq=self.n_ctx_seq,
                n_seq=self.n_seq, n_batch=self.n_batch,
            )  # fmt: skip
        self.rollback: Rollback = rollback_kind(self.model.facts, n_rs_seq=self.n_rs_seq, swa_full=options.swa_full)
        # Cells of a sliding window may be scattered differently when they are restored, which ends the process.
        self.checkpoint_on_device = options.checkpoint_on_device and not self.model.facts.n_swa
        if options.checkpoint_on_device and not self.checkpoint_on_device and self.rollback is not Rollback.TRUNCATE:
            log.warning(
                "checkpoints of %s are kept on the host: checkpoint_on_device does not work with sliding windows",
                self.model.path.name,
            )
        self.memory = Memory(
            self,
            n_seq=self.n_seq,
            kind=self.rollback,
            depth=self.n_rs_seq,
            window=self.model.facts.n_swa,
            checkpoint_on_device=self.checkpoint_on_device,
        )
        self.batch = Batch(
            self.library,
            native,
            n_vocab=self.n_vocab,
            n_seq=self.n_seq,
            n_ctx=self.n_ctx,
            n_tokens_max=self.n_batch,
            n_rows_max=self.n_outputs_max,
            n_past=self.memory.n_past,
        )
        assert self._native is not None  # noqa: S101 -- for the type checker
        self._native.before.append(self.batch.free)
        self._kernels = Kernels(self.library, native, self.model.gguf.weights, options)
        self._process, self._decode_type = lib.llama_process, lib.LLAMA_PROCESS_TYPE_DECODE
        self._get_logits = lib.llama_get_logits
        self.features = Features(self)
        # Weakly: the model closes what depends on it, it does not keep it alive.
        self.model.adopt(self)

    @property
    def handle(self) -> Any:
        """``struct llama_context *``, valid until ``close``. For the modules of this package."""
        native = self._native
        if native is None:
            msg = "the context is closed"
            raise ClosedError(msg)
        return native.context

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._native is None

    def decode(self, batch: Sequence[BatchEntry]) -> None:
        """Evaluate one batch; may return before the work is done.

        Raises:
            ConfigError: the batch is impossible; nothing changed.
            BackendError: llama.cpp failed; the memory of the sequences in it may hold a part of their tokens.
            ClosedError: the context is closed.
        """
        with self._lock:
            handle = self.handle
            n_rows = self.batch.fill(batch)
            self._n_rows = -1
            self.features.forget()
            self.memory.doubtful(batch)
            self._kernels.choose(batch)
            code = self._process(handle, self._decode_type, self.batch.handle)
            if code:
                check(code, op="decoding a batch", tokens=sum(len(entry.tokens) for entry in batch), n_ctx=self.n_ctx)
            self.memory.written(batch)
            self._n_rows = n_rows

    def logits(self) -> Logits:
        """Rows of the last decode in batch order, ``(rows, n_vocab)`` float32, read-only; waits for the work.

        A view of native memory: valid until the next ``decode``.

        Raises:
            BackendError: the last decode failed, so there are none.
            ClosedError: the context is closed.
        """
        with self._lock:
            handle = self.handle
            n_rows = self._n_rows
            if n_rows < 0:
                msg = "there are no logits: the last decode failed"
                raise BackendError(msg)
            # Sorts the rows into batch order and waits.
            pointer = self._get_logits(handle)
            if not pointer:
                raise failure("reading logits", meaning="the context has none", rows=n_rows)
            rows = self._rows
            if rows is None or len(rows) != n_rows or pointer != self._rows_at:
                rows = native_rows(self.library, pointer, n_rows, self.n_vocab)
                self._rows, self._rows_at = rows, pointer
            return rows

    def enable(self, needs: Need, layers: Sequence[int] = ()) -> None:
        """Keep features of every token from the next decode on; see ``Target.enable``."""
        with self._lock:
            self.features.enable(needs, layers)

    def decoded(self) -> Sequence[Decoded]:
        """The entries of the last decode with their features; waits for the work. See ``Target.decoded``.

        Views of native memory: valid until the next ``decode``.

        Raises:
            BackendError: the last decode failed, so there are none.
            ClosedError: the context is closed.
        """
        with self._lock:
            if self._n_rows < 0:
                msg = "there are no features: the last decode failed"
                raise BackendError(msg)
            return self.features.read(self.batch.entries)

    def adopt(self, dependent: Dependent) -> None:
        """Close ``dependent``, which leans on this context, before it. It is held weakly."""
        self.handle  # noqa: B018 -- refuses when closed
        self._dependents.add(dependent)

    def close(self) -> None:
        """Free the context; closing twice is allowed. Waits for a decode in another thread."""
        with self._lock:
            if self._native is None:
                return
            for dependent in list(self._dependents):
                dependent.close()
            native, self._native = self._native, None
            views = self.features.forget() if hasattr(self, "features") else []
            if self._rows is not None:
                views.append(self._rows)
                self._rows = None
            native.free_after(views)
