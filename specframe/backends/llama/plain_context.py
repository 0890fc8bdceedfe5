"""A context for draft models that are ordinary language models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from specframe.backends.llama.autoregressive_context import AutoregressiveContext, autoregressive_options
from specframe.backends.llama.draft_context import DraftSettings
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
        **settings: Any,
    ) -> None:
        """Create the native context.

        Args:
            model: that can generate by itself.
            target: the context it drafts for; outlives this one.
            **settings: see :class:`~specframe.backends.llama.draft_context.DraftSettings`.

        Raises:
            ConfigError: the model cannot write on by itself, or its memory cannot be cut, or an option cannot work.
            BackendError: llama.cpp could not create the context; the message quotes its reason.
        """
        if not model.facts.has_decoder or model.facts.has_encoder:
            raise ConfigError(f"{model.path.name} is an encoder, or has one; it cannot write on by itself")
        if rollback_kind(model.facts, n_rs_seq=0, swa_full=True) is not Rollback.TRUNCATE:
            raise ConfigError(f"{model.path.name}: {RECURRENT}")
        asked = DraftSettings(**settings)
        super().__init__(model, target, autoregressive_options(target, asked))
        with self._opening():
            self._prepare(asked)

    @override
    def _prepare(self, asked: DraftSettings, *, n_joined: int | None = None) -> None:
        self.width = 0
        super()._prepare(asked, n_joined=n_joined)

    @override
    def states(self) -> Rows:
        return np.empty((len(self._outputs), 0), np.float32)
