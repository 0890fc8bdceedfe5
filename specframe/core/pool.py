"""The drafters of one engine: one per strategy, however many combinations it is a member of."""

from __future__ import annotations

from contextlib import ExitStack

import attrs

from specframe.core.combination import AnySpec, combined_drafter
from specframe.core.drafting import Drafter, build_drafter
from specframe.core.ports import Target
from specframe.core.strategy import StrategyContext, StrategySpec


class DrafterPool:
    """Builds drafters when they are asked for first, and closes them."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._context = StrategyContext(target=target.info, vocab=target.vocab, services=target.services)
        self.members: dict[StrategySpec, Drafter] = {}
        """What was built, combinations left out: they hold nothing of their own."""
        self._combined: dict[AnySpec, Drafter] = {}

    def get(self, spec: AnySpec) -> Drafter | str:
        """The drafter of ``spec``, or why there is none for this target.

        Raises:
            ConfigError: it cannot be set up with its options and files.
            StrategyError: its set-up failed.
        """
        if isinstance(spec, StrategySpec):
            return self._member(spec)
        if spec not in self._combined:
            members = [self._member(member) for member in spec.members]
            if all(isinstance(member, str) for member in members):
                return "; ".join(map(str, members))
            self._combined[spec] = combined_drafter(spec, members)
        return self._combined[spec]

    def _member(self, spec: StrategySpec) -> Drafter | str:
        lacking = spec.needs & ~self._target.info.provides
        if lacking:
            return f"{spec.name} needs {', '.join(lacking.names)}"
        if spec not in self.members:
            drafter = build_drafter(spec, attrs.evolve(self._context, draft_path=spec.draft_path))
            try:
                self._target.enable(spec.needs, drafter.layers)
            except BaseException:
                drafter.close()
                raise
            self.members[spec] = drafter
        return self.members[spec]

    def save(self, seq: int) -> dict[str, bytes]:
        """What the strategies keep of ``seq``, which no request uses, by ``strategy_key``."""
        return {key: data for drafter in self.members.values() for key, data in drafter.save(seq).items()}

    def close(self) -> None:
        """Close every drafter; one that is interrupted does not keep the others open."""
        with ExitStack() as stack:
            for drafter in self.members.values():
                stack.callback(drafter.close)
            stack.callback(self.members.clear)
            stack.callback(self._combined.clear)
