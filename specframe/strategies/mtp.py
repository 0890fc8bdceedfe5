"""Drafting with multi-token prediction heads: layers trained to predict further tokens from the target's hidden states.

DeepSeek-V3 (arXiv:2412.19437, section 2.2) calls them MTP modules; llama.cpp calls them NextN layers and drafts with
them as ``draft-mtp``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from specframe.core.errors import ConfigError
from specframe.core.ports import Need
from specframe.strategies.autoregressive import Autoregressive

if TYPE_CHECKING:
    from specframe.backends.llama.gguf import GgufFile
    from specframe.backends.llama.nextn_context import NextnContext
    from specframe.backends.llama.services import LlamaServices


class Mtp(Autoregressive):
    """The model's own prediction heads, from the target's file or from a draft file.

    **Input.** A head reads a token and the hidden state of the target one position before it, and predicts the token
    after it. It has a memory (KV cache) of its own that follows the committed text, or attends to the target's
    (``gemma4-assistant``).

    **Draft.** The last committed token first, then each drafted token with the head's own hidden state, up to
    ``n_max`` tokens or to the first one less probable than ``p_min``. Models with several chained heads (``step35``)
    use head i for the i-th token. All sequences are drafted for in one evaluation per token.

    **Cost.** One evaluation of the head per drafted token. What the target accepted is evaluated with the target's
    hidden states in the first one of the next draft; prompts and what many steps without drafts left, in wide batches
    before it. While nothing is drafted nothing is evaluated: hidden states are kept.
    """

    name = "mtp"
    kind = "mtp"
    needs = Need.HIDDEN
    uses_draft_file = True
    load_mtp = True

    @classmethod
    @override
    def model_options(cls, options: Any, draft_path: Path | None) -> Mapping[str, Any]:
        return {"load_mtp": True} if draft_path is None else {}

    @classmethod
    @override
    def _check(cls, target: GgufFile, draft: GgufFile | None) -> None:
        from specframe.backends.llama.mtp_files import check_mtp  # noqa: PLC0415 -- native

        check_mtp(target, draft)

    @override
    def _open(self, services: LlamaServices, **settings: Any) -> NextnContext:
        if not self._model.load_mtp:
            msg = (
                f"the NextN layers of {self._model.path.name} were not loaded; choose strategy {self.name!r} when "
                "the model is loaded"
            )
            raise ConfigError(msg)
        return services.open_heads(self._model, **settings)
