"""The drafters of one engine: one per strategy, however many combinations it is a member of."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack

import attrs

from specframe.core.combination import AnySpec, combined_drafter
from specframe.core.drafting import Drafter, build_drafter
from specframe.core.ports import Target
from specframe.core.strategy import StrategyContext, StrategySpec

#: Drafters that stay open though nobody uses them: the latest ones. A model may be behind each.
MAX_IDLE = 4


class DrafterPool:
    """Builds drafters when they are asked for first, and closes them: all in the end, and before that the idle ones."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._context = StrategyContext(target=target.info, vocab=target.vocab, services=target.services)
        self.members: dict[StrategySpec, Drafter] = {}
        """What was built, the latest used last; combinations left out: they hold nothing of their own."""
        self._combined: dict[AnySpec, Drafter] = {}

    def get(self, spec: AnySpec, *, used: Collection[AnySpec] = ()) -> Drafter | str:
        """The drafter of ``spec``, or why there is none for this target.

        Args:
            spec: What is asked for.
            used: What else must stay open.

        Raises:
            ConfigError: it cannot be set up with its options and files.
            StrategyError: its set-up failed.
        """
        self._close_idle({spec, *used})
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
        drafter = self.members[spec] = self.members.pop(spec)
        return drafter

    def _close_idle(self, used: Collection[AnySpec]) -> None:
        needed = {member for spec in used for member in spec.members}
        self._combined = {spec: drafter for spec, drafter in self._combined.items() if spec in used}
        for spec in [spec for spec in self.members if spec not in needed][:-MAX_IDLE]:
            self.members.pop(spec).close()

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
