"""What strategies with a model of their own build on: the target's model and context."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from specframe.backends.llama.block_context import BlockContext
from specframe.backends.llama.eagle3_context import Eagle3Context
from specframe.backends.llama.gguf import GgufFile, inspect
from specframe.backends.llama.model import Model
from specframe.backends.llama.nextn_context import NextnContext
from specframe.backends.llama.plain_context import PlainContext

if TYPE_CHECKING:
    from specframe.backends.llama.context import Context


@attrs.frozen(eq=False)
class LlamaServices:
    """``Target.services`` of a llama.cpp target. What it opens is the caller's to close."""

    context: Context = attrs.field(repr=False)
    """The target's context."""

    @property
    def model(self) -> Model:
        """The target's model; may be shared, never closed."""
        return self.context.model

    def inspect(self, path: Path) -> GgufFile:
        """Metadata of another file. Raises ConfigError."""
        return inspect(path, library=self.model.library)

    def open_model(self, path: Path, **options: Any) -> Model:
        """Load another model with the same library; see :class:`~specframe.backends.llama.model.Model`.

        It goes to the devices of the target, unless ``devices`` names others. Its weights may be repacked, whatever
        they are: what a draft model says need not be the same at every width.
        """
        if options.get("devices") is None:
            options["devices"] = self.model.devices
        return Model(path, library=self.model.library, **{"use_extra_bufts": True, **options})

    def open_heads(self, model: Model, **options: Any) -> NextnContext:
        """A context for the NextN layers of ``model``; see :class:`NextnContext`."""
        return NextnContext(model, self.context, **options)

    def open_blocks(self, model: Model, **options: Any) -> BlockContext:
        """A context for the block drafter ``model``; see :class:`BlockContext`."""
        return BlockContext(model, self.context, **options)

    def open_eagle3(self, model: Model, **options: Any) -> Eagle3Context:
        """A context for the EAGLE-3 draft ``model``; see :class:`Eagle3Context`."""
        return Eagle3Context(model, self.context, **options)

    def open_plain(self, model: Model, **options: Any) -> PlainContext:
        """A context for the language model ``model``; see :class:`PlainContext`."""
        return PlainContext(model, self.context, **options)
