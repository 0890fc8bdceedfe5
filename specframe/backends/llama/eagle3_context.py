"""A context for EAGLE-3 drafts, which predict tokens from inputs of the target's layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from specframe.backends.llama.autoregressive_context import AutoregressiveContext, autoregressive_options
from specframe.backends.llama.draft_batch import DraftBatch
from specframe.backends.llama.draft_context import DraftSettings, needs_flash_attn
from specframe.backends.llama.draft_kinds import target_layers
from specframe.backends.llama.model import Model
from specframe.core.errors import ConfigError
from specframe.core.ports import Rows

if TYPE_CHECKING:
    from specframe.backends.llama.context import Context

#: Rows encoded at a time. llama.cpp makes room for the logits of each, though there are none.
ENCODED_AT_ONCE = 32
#: Most tokens computed at a time; the graph scores the vocabulary for each of them, wanted or not.
MAX_UBATCH = 128


class Eagle3Context(AutoregressiveContext):
    """Runs an EAGLE-3 draft: an encoder that makes states of features, and a decoder like a prediction head.

    The decoder pairs the token at position p with the state of position p - 1, as NextN layers do, and keeps it at
    position p - 1 of its memory.

    Attributes:
        layers: of the target whose inputs are encoded, in the order in which they are concatenated.
        n_features: width of a row of features.
    """

    _computes_all = True

    def __init__(
        self,
        model: Model,
        target: Context,
        *,
        n_joined: int,
        **settings: Any,
    ) -> None:
        """Create the native context.

        Args:
            model: an EAGLE-3 draft that was checked against the target.
            target: the context it drafts for; outlives this one.
            n_joined: most tokens of an entry with an output; memory for outputs of all of them is reserved.
            **settings: see :class:`~specframe.backends.llama.draft_context.DraftSettings`.

        Raises:
            ConfigError: the model is no such draft, or an option cannot work.
            BackendError: llama.cpp could not create the context; the message quotes its reason.
        """
        if model.gguf.arch != "eagle3":
            raise ConfigError(f"{model.path.name} is a {model.gguf.arch} model, no EAGLE-3 draft")
        self.layers = target_layers(model.gguf)
        width = target.model.facts.n_embd
        if (wanted := model.gguf.integer("{arch}.target_hidden_size")) != width:
            raise ConfigError(
                f"{model.path.name} reads features of {wanted} values, but {target.model.path.name} has {width}; "
                "take the draft that was made for this target"
            )
        self.n_features = len(self.layers) * width
        asked = DraftSettings(**settings)
        options = autoregressive_options(
            target, asked, n_joined=n_joined, max_ubatch=MAX_UBATCH, flash_attn=needs_flash_attn(target, asked)
        )
        super().__init__(model, target, options, n_outputs_max_per_seq=n_joined)
        with self._opening():
            self._features = DraftBatch(
                self.library,
                capacity=min(ENCODED_AT_ONCE, options.ubatch),
                n_seq=1,
                width=self.n_features,
                has_tokens=False,
            )
            self._prepare(asked, n_joined=n_joined)

    def encode(self, features: Rows) -> Rows:
        """States made of features ``(n, n_features)``; a copy ``(n, width)``. The memory is left alone.

        Raises:
            ConfigError: the features have another width.
            BackendError: llama.cpp failed.
            ClosedError: the context is closed.
        """
        if features.ndim != 2 or features.shape[1] != self.n_features:  # noqa: PLR2004 -- rows
            raise ConfigError(f"rows of {self.n_features} features are needed, not {features.shape}")
        states = np.empty((len(features), self.width), np.float32)
        batch = self._features
        with self._lock:
            for start in range(0, len(features), batch.capacity):
                n = min(batch.capacity, len(features) - start)
                batch.clear()
                # The encoder uses no positions, but they are checked to follow what the memory holds.
                place = batch.add(0, self.n_past(0), n)
                batch.rows[place] = features[start : start + n]
                batch.outputs[place] = 1
                self._outputs = []
                self._evaluate(batch, op="encoding features", encode=True)
                states[start : start + n] = self._state_rows(n)
        return states
