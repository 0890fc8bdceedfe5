"""Base of the strategies that draft with a llama.cpp model: where it comes from, its context, what is saved of it."""

from __future__ import annotations

import abc
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from specframe.core.history import History
from specframe.core.strategy import BatchStrategy, StrategyContext, Suitability
from specframe.strategies.drafting import draft_model, llama_services, suits_file

if TYPE_CHECKING:
    from specframe.backends.llama.draft_context import DraftContext
    from specframe.backends.llama.gguf import GgufFile
    from specframe.backends.llama.services import LlamaServices


class ModelBacked(BatchStrategy):
    """Opens a model and a context for it beside the target's, and closes both unless the model is the target's own.

    A subclass sets ``_n_max``, the longest draft, and ``_held``, what it knows of each sequence, in its constructor.
    """

    kind: ClassVar[str]
    """Of draft files that are for this strategy."""
    load_mtp: ClassVar[bool] = False
    """Load the NextN layers of the draft file."""

    _context: DraftContext
    _held: Sequence[Any]
    _n_max: int

    @classmethod
    @override
    def rollback_depth(cls, options: Any) -> int:
        return int(options.n_max)

    @classmethod
    @override
    def check_files(cls, target: Path, draft: Path | None) -> None:
        from specframe.backends.llama.gguf import inspect  # noqa: PLC0415 -- native

        cls._check(inspect(target), None if draft is None else inspect(draft))

    @classmethod
    @override
    def suitability(cls, target: Path, draft: Path | None) -> Suitability:
        return suits_file(cls.kind, target, draft)

    def __init__(self, options: Any, context: StrategyContext) -> None:
        super().__init__(options, context)
        services, path = llama_services(self.name, context), context.draft_path
        self._check(services.model.gguf, None if path is None else services.inspect(path))
        self._model, self._owned = draft_model(
            services, path, load_mtp=self.load_mtp, devices=options.devices, n_gpu_layers=options.n_gpu_layers
        )
        try:
            self._context = self._open(services, **self._settings(context))
        except BaseException:
            if self._owned:
                self._model.close()
            raise

    @classmethod
    @abc.abstractmethod
    def _check(cls, target: GgufFile, draft: GgufFile | None) -> None:
        """Raise ConfigError when ``draft``, or the target's own layers without one, cannot draft for ``target``."""

    def _settings(self, context: StrategyContext) -> dict[str, Any]:
        """What is asked of the draft context; see ``DraftSettings``."""
        options = self.options
        return {
            "n_ctx": None if options.n_ctx is None else min(options.n_ctx, context.target.n_ctx),
            "n_batch": options.n_batch,
            "type_k": options.type_k,
            "type_v": options.type_v,
            "n_threads": options.threads,
        }

    @abc.abstractmethod
    def _open(self, services: LlamaServices, **settings: Any) -> DraftContext:
        """The context that drafts with the model."""

    @abc.abstractmethod
    def _saved(self, seq: int) -> dict[str, npt.NDArray[Any]] | None:
        """What is known of ``seq``, whose memory is cut to what goes with it; None: nothing to keep."""

    @abc.abstractmethod
    def _restore(self, seq: int, saved: Mapping[str, npt.NDArray[Any]]) -> int:
        """Take over what :meth:`_saved` returned; returns how many tokens the memory has to hold for it."""

    @property
    @override
    def max_draft(self) -> int:
        return self._n_max

    @override
    def begin(self, seq: int, history: History, n_held: int) -> int:
        n_known: int = self._held[seq].begin(history[:n_held])
        return n_known

    @override
    def save(self, seq: int) -> bytes | None:
        if (arrays := self._saved(seq)) is None:
            return None
        buffer = io.BytesIO()
        np.savez(buffer, memory=self._context.save_state(seq), **arrays)  # type: ignore[arg-type]
        return buffer.getvalue()

    @override
    def load(self, seq: int, data: bytes) -> None:
        with np.load(io.BytesIO(data), allow_pickle=False) as saved:
            try:  # an interrupt in between would leave tokens that memory does not hold
                n_in_memory = self._restore(seq, saved)
                self._context.load_state(seq, saved["memory"], n_in_memory)
            except BaseException:
                self._held[seq].keep(0)
                raise

    @override
    def close(self) -> None:
        self._context.close()
        if self._owned:
            self._model.close()
