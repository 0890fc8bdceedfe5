"""A strategy that is always wrong: what is left of plain decoding's speed with it is what drafting can cost at most."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import attrs
from typing_extensions import override

from specframe import plugins
from specframe.core.strategy import DraftRequest, Strategy, StrategyContext


@attrs.frozen(kw_only=True)
class WrongOptions:
    """Options of ``always-wrong``."""

    length: int = attrs.field(
        default=8,
        validator=[attrs.validators.instance_of(int), attrs.validators.ge(1)],
        metadata={"doc": "tokens to draft"},
    )


class AlwaysWrong(Strategy):
    """Random tokens, whatever the text; for measuring."""

    name = "always-wrong"
    Options = WrongOptions

    def __init__(self, options: Any, context: StrategyContext) -> None:
        super().__init__(options, context)
        self._random = random.Random(0)  # noqa: S311 -- noise, not secrets

    @override
    def draft(self, request: DraftRequest) -> Sequence[int]:
        vocabulary = range(self.context.target.n_vocab)
        return self._random.choices(vocabulary, k=min(self.options.length, request.budget))


def register() -> None:
    """Make the strategy known in this process, so that it can be named. Doing so twice is allowed."""
    plugins.register(AlwaysWrong)
