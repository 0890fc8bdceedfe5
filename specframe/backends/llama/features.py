"""What a target computes for strategies beside logits: hidden states, and inputs of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from specframe.backends.llama.architectures import HIDDEN, LAST_LAYER_INPUTS, provides
from specframe.backends.llama.library import Library
from specframe.backends.llama.model import Model
from specframe.backends.llama.native_context import native_rows
from specframe.backends.llama.status import failure
from specframe.core.errors import ConfigError
from specframe.core.ports import BatchEntry, Decoded, Need, Rows


class Owner(Protocol):
    """The context that computes them."""

    @property
    def library(self) -> Library:
        """The native library."""
        ...

    @property
    def model(self) -> Model:
        """The model it runs."""
        ...

    @property
    def handle(self) -> Any:
        """``struct llama_context *``; raises ClosedError when it is gone."""
        ...


class Features:
    """Which features are computed, and views of those of the last decode.

    Reading what was not enabled, or what an architecture lacks, ends the process or reads zeros in llama.cpp; so only
    what was enabled here is ever asked for.

    The input of a layer one past the last is what leaves the last one. Few architectures hand it out as such; for the
    others it is the hidden state, as upstream's EAGLE-3 drafts take it (``common/speculative.cpp``).
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._ffi, lib = owner.library.ffi, owner.library.lib
        self._set_hidden = lib._Z26llama_set_embeddings_nextnP13llama_contextbb  # noqa: SLF001
        self._get_hidden = lib._Z26llama_get_embeddings_nextnP13llama_context  # noqa: SLF001
        self._set_layer = lib._Z30llama_set_embeddings_layer_inpP13llama_contextjb  # noqa: SLF001
        self._get_layer = lib._Z30llama_get_embeddings_layer_inpP13llama_contextj  # noqa: SLF001
        facts = owner.model.facts
        by_hidden = facts.arch in HIDDEN - LAST_LAYER_INPUTS and facts.n_embd_out == facts.n_embd
        self._from_hidden: int | None = facts.n_layer if by_hidden else None
        """The layer whose input is the hidden state."""
        self._hidden = False
        self._layers: tuple[int, ...] = ()
        self._ready: tuple[bool, tuple[int, ...]] = (False, ())
        self._read: list[Decoded] | None = None
        self._views: list[npt.NDArray[np.float32]] = []

    def enable(self, needs: Need, layers: Sequence[int]) -> None:
        """Compute more from the next decode on. Raises ConfigError when the model cannot; nothing changed then."""
        facts = self._owner.model.facts
        lacking = needs & ~provides(facts.arch)
        if lacking:
            names = ", ".join(lacking.names)
            raise ConfigError(f"{facts.arch} models do not hand out {names}; choose a strategy that does without")
        wanted = set(layers) if Need.LAYER_INPUTS in needs else set()
        has_last = facts.arch in LAST_LAYER_INPUTS or self._from_hidden is not None
        last = facts.n_layer if has_last else facts.n_layer - 1
        for layer in wanted:
            if not 0 <= layer <= last:
                raise ConfigError(f"layer {layer} has no input in {facts.arch} models of this size: 0 to {last} have")
        handle = self._owner.handle
        if Need.HIDDEN in needs or self._from_hidden in wanted:
            self._set_hidden(handle, True, False)  # unmasked: a row for every token of a batch
        self._hidden |= Need.HIDDEN in needs
        for layer in sorted(wanted.difference(self._layers, [self._from_hidden])):
            self._set_layer(handle, layer, True)
        self._layers = tuple(sorted(wanted.union(self._layers)))

    def forget(self) -> list[npt.NDArray[np.float32]]:
        """A decode is about to overwrite what was read; returns the views handed out since the one before."""
        self._read = None
        self._ready = (self._hidden, self._layers)
        views, self._views = self._views, []
        return views

    def read(self, entries: Sequence[BatchEntry]) -> Sequence[Decoded]:
        """``entries`` of the last decode with what was enabled when it began; waits for the work."""
        if self._read is not None:
            return self._read
        handle, facts = self._owner.handle, self._owner.model.facts
        hidden, layers = self._ready
        n = sum(len(entry.tokens) for entry in entries)
        # Rows of every token come in batch order, however llama.cpp divided the batch.
        any_hidden = n and (hidden or self._from_hidden in layers)
        states = self._rows(self._get_hidden(handle), n, facts.n_embd_out) if any_hidden else None
        inputs = {layer: self._layer_rows(layer, n, states) for layer in layers if n}
        result, start = [], 0
        for entry in entries:
            end = start + len(entry.tokens)
            result.append(
                Decoded(
                    entry.seq,
                    entry.pos,
                    entry.tokens,
                    states[start:end] if hidden and states is not None else None,
                    {layer: rows[start:end] for layer, rows in inputs.items()},
                )
            )
            start = end
        self._read = result
        return result

    def _layer_rows(self, layer: int, n_rows: int, states: Rows | None) -> Rows:
        if layer == self._from_hidden and states is not None:
            return states
        return self._rows(self._get_layer(self._owner.handle, layer), n_rows, self._owner.model.facts.n_embd)

    def _rows(self, pointer: Any, n_rows: int, width: int) -> Rows:
        if not pointer:
            raise failure("reading features", meaning="the context has none", rows=n_rows)
        rows = native_rows(self._owner.library, pointer, n_rows, width)
        self._views.append(rows)
        return rows
