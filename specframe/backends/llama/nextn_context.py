"""A context for NextN layers, which predict tokens from the hidden states of a target."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from specframe.backends.llama.autoregressive_context import AutoregressiveContext, DraftEntry, autoregressive_options
from specframe.backends.llama.draft_context import DraftSettings, needs_flash_attn
from specframe.backends.llama.draft_kinds import ASSISTANT
from specframe.backends.llama.model import Model
from specframe.backends.llama.mtp_files import CHAINED
from specframe.core.errors import ConfigError

if TYPE_CHECKING:
    from specframe.backends.llama.context import Context


class NextnContext(AutoregressiveContext):
    """Runs the NextN layers of a model: the target's own, or those of another one."""

    def __init__(
        self,
        model: Model,
        target: Context,
        **settings: Any,
    ) -> None:
        """Create the native context.

        Args:
            model: with NextN layers that were loaded; the target's own, or another one that stays the caller's.
            target: the context it drafts for; outlives this one.
            **settings: see :class:`~specframe.backends.llama.draft_context.DraftSettings`.

        Raises:
            ConfigError: the model has no layers to run, or an option cannot work.
            BackendError: llama.cpp could not create the context; the message quotes its reason.
        """
        _check_model(model, target.model)
        assists = model.gguf.arch == ASSISTANT
        asked = DraftSettings(**settings)
        options = autoregressive_options(
            target,
            asked,
            swa_full=not assists or target.options.swa_full,
            flash_attn=None if assists else needs_flash_attn(target, asked),
        )
        with _kept_memory(target) if assists else contextlib.nullcontext():
            super().__init__(model, target, options, ctx_type=model.library.lib.LLAMA_CONTEXT_TYPE_MTP)
        with self._opening():
            self._set_up(asked)

    def _set_up(self, asked: DraftSettings) -> None:
        lib, handle = self.library.lib, self.handle
        self.shares_memory = lib._Z19llama_get_ctx_otherP13llama_context(handle) == self.target.handle  # noqa: SLF001
        chained = self.model.gguf.arch in CHAINED and not self.shares_memory
        self.n_heads = self.model.facts.n_layer_nextn if chained else 1
        self._set_head = lib._Z28llama_set_nextn_layer_offsetP13llama_contexti  # noqa: SLF001
        self._head = 0
        self._prepare(asked)
        if not self.shares_memory:
            self._probe()

    def _probe(self) -> None:
        """Find out which rows of hidden states a batch leaves when not all of its tokens are outputs.

        llama.cpp hands out as many rows as there are outputs, but some graphs (``t_h_nextn`` in ``src/models``) compute
        those of every token, and then the first ones are taken. There, every row has to be asked for.
        """
        states = np.random.default_rng(0).standard_normal((2, self.width), np.float32)
        self.decode([DraftEntry(0, 0, [0, 1], states, output=True)])
        found = self.states()[0].copy()
        self.clear(0)
        alone = []
        for pos in range(2):
            self.decode([DraftEntry(0, pos, [pos], states[pos : pos + 1], output=True)])
            alone.append(self.states()[0].copy())
        self.clear(0)
        first, last = (float(np.abs(found - row).max()) for row in alone)
        if first < last:
            self._every_row = True
            self._set_states(self.handle, True, False)

    @override
    def use_head(self, head: int) -> None:
        super().use_head(head)
        if head != self._head:
            self._set_head(self.handle, head)
            self._head = head


def _check_model(model: Model, target: Model) -> None:
    name, width = model.path.name, target.facts.n_embd_out
    if model.facts.n_layer_nextn < 1:
        raise ConfigError(f"{name} has no NextN layers to draft with")
    if not model.load_mtp:
        raise ConfigError(f"the NextN layers of {name} were not loaded; open the model with load_mtp=True")
    if model.facts.n_embd_out != width:
        raise ConfigError(
            f"{name} reads hidden states of {model.facts.n_embd_out} values, but {target.path.name} has "
            f"{width}; take the draft that was made for this target"
        )


@contextlib.contextmanager
def _kept_memory(target: Context) -> Iterator[None]:
    """Keep what ``target`` holds: llama.cpp empties a memory when another context that will share it is made.

    It does not notice that it may begin at the first cell again, and attention rounds differently when the cells of a
    sequence are in another order: so each sequence is taken out before.
    """
    memory = target.memory
    held = [(seq, n_past, memory.pack(seq)) for seq in range(target.n_seq) if (n_past := memory.n_past(seq))]
    with contextlib.ExitStack() as stack:  # one that cannot be brought back does not keep the others out
        for seq, n_past, state in reversed(held):
            stack.callback(memory.unpack, seq, state, n_past)
        for seq, _, _ in held:
            memory.vacate(seq)
        yield
