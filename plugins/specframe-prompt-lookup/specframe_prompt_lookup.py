"""Prompt-lookup drafting (Saxena 2023): what followed the last n tokens the last time they appeared."""

from collections.abc import Sequence
from typing import Any

import attrs

import specframe


@attrs.frozen(kw_only=True)
class LookupOptions:
    """Options of ``prompt-lookup``."""

    ngram: int = attrs.field(default=3, validator=attrs.validators.ge(1), metadata={"doc": "tokens that must match"})


class PromptLookup(specframe.Strategy):
    """Propose what followed the last n-gram the last time it appeared."""

    name = "prompt-lookup"
    Options = LookupOptions

    def __init__(self, options: LookupOptions, context: specframe.StrategyContext) -> None:
        """One object per request: nothing is carried from one request to the next."""
        super().__init__(options, context)
        self.ends: dict[tuple[int, ...], int] = {}
        self.indexed = options.ngram

    def draft(self, request: specframe.DraftRequest) -> Sequence[int]:
        """Index the tokens that are new, then look the last n-gram up: the cost does not grow with the context."""
        history, n = request.history, self.options.ngram
        for end in range(self.indexed, len(history)):
            self.ends[tuple(history[end - n : end])] = end
        self.indexed = max(self.indexed, len(history))
        match = self.ends.get(tuple(history[-n:]))
        return history[match : match + request.budget] if match else ()


@specframe.hookimpl
def specframe_register_strategies(register: Any) -> None:
    """Offer the strategy to specframe."""
    register(PromptLookup)
