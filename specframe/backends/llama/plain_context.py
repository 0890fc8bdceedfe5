"""A context for draft models that are ordinary language models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from specframe.backends.llama.autoregressive_context import AutoregressiveContext
from specframe.backends.llama.draft_context import draft_options
from specframe.backends.llama.memory import rollback_kind
from specframe.backends.llama.model import Model
from specframe.backends.llama.plain_files import RECURRENT
from specframe.core.errors import ConfigError
from specframe.core.ports import Rollback, Rows

if TYPE_CHECKING:
    from specframe.backends.llama.context import Context


class PlainContext(AutoregressiveContext):
    """Runs a language model beside the target. Its states have no width: it goes by tokens alone."""

    def __init__(
        self,
        model: Model,
        target: Context,
        *,
        n_ctx: int | None = None,
        n_batch: int | None = None,
        type_k: str = "f16",
        type_v: str = "f16",
        n_threads: int | None = None,
        backend_sampling: bool = True,
        probabilities: bool = False,
    ) -> None:
        """Create the native context.

        Args:
            model: that can generate by itself.
            target: the context it drafts for; outlives this one.
            n_ctx: tokens a sequence can hold; the target's unless given.
            n_batch: most tokens in one decode; the target's unless given.
            type_k: memory format of keys.
            type_v: memory format of values.
            n_threads: processor threads; the target's unless given.
            backend_sampling: choose inside the evaluation where possible, so that no rows of logits are copied.
            probabilities: :meth:`choices` tells them.

        Raises:
            ConfigError: the model cannot write on by itself, or its memory cannot be cut, or an option cannot work.
            BackendError: llama.cpp could not create the context; the message quotes its reason.
        """
        if not model.facts.has_decoder or model.facts.has_encoder:
            raise ConfigError(f"{model.path.name} is an encoder, or has one; it cannot write on by itself")
        if rollback_kind(model.facts, n_rs_seq=0, swa_full=True) is not Rollback.TRUNCATE:
            raise ConfigError(f"{model.path.name}: {RECURRENT}")
        options = draft_options(
            target,
            n_ctx=n_ctx,
            n_batch=max(n_batch or target.n_batch, 2 * target.n_seq),
            n_ubatch=max(target.n_ubatch, 2),
            n_outputs_max=target.n_seq,
            type_k=type_k,
            type_v=type_v,
            n_threads=n_threads,
        )
        super().__init__(model, target, options)
        try:
            self._prepare(backend_sampling=backend_sampling, probabilities=probabilities)
        except BaseException:
            self.close()
            raise

    @override
    def _prepare(self, **settings: Any) -> None:
        self.width = 0
        super()._prepare(**settings)

    @override
    def states(self) -> Rows:
        return np.empty((len(self._outputs), 0), np.float32)
