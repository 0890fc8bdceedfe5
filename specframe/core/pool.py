"""The drafters of one engine: one per strategy, however many combinations it is a member of."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack

import attrs

from specframe.core.combination import AnySpec, combined_drafter
from specframe.core.drafting import Drafter, build_drafter
from specframe.core.errors import ConfigError, StrategyError
from specframe.core.ports import Target
from specframe.core.strategy import StrategyContext, StrategySpec

#: Drafters that stay open though nobody uses them: the latest ones. A model may be behind each.
MAX_IDLE = 4
#: Strategies whose set-up failed of which the reason is kept: the latest ones.
MAX_FAILED = 64


class DrafterPool:
    """Builds drafters when they are asked for first, and closes them: all in the end, and before that the idle ones."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._context = StrategyContext(target=target.info, vocab=target.vocab, services=target.services)
        self.members: dict[StrategySpec, Drafter] = {}
        """What was built, the latest used last; combinations left out: they hold nothing of their own."""
        self._combined: dict[tuple[AnySpec, tuple[bool, ...]], Drafter] = {}
        """By combination, and which of its members are missing."""
        self._failed: dict[StrategySpec, str] = {}
        """Why; what took time and memory to fail is not tried for every request."""

    def get(self, spec: AnySpec, *, used: Collection[AnySpec] = (), required: bool = True) -> Drafter | str:
        """The drafter of ``spec``, or the reason why there is none, as statistics have it.

        Args:
            spec: What is asked for.
            used: What else must stay open.
            required: Raise what its set-up, or that of a member, raises, instead of answering with it or doing without
                the member.

        Raises:
            ConfigError: it cannot be set up with its options and files.
            StrategyError: its set-up failed.
        """
        self._close_idle({spec, *used})
        if isinstance(spec, StrategySpec):
            return self._member(spec, required=required)
        members = [self._member(member, required=required) for member in spec.members]
        missing = [member for member in members if isinstance(member, str)]
        if len(missing) == len(members):
            return "; ".join(missing)
        key = (spec, tuple(isinstance(member, str) for member in members))
        if key not in self._combined:
            self._combined[key] = combined_drafter(spec, members)
        return self._combined[key]

    def _member(self, spec: StrategySpec, *, required: bool) -> Drafter | str:
        lacking = spec.needs & ~self._target.info.provides
        if lacking:
            return f"target-lacks-needs: {spec.name} needs {', '.join(lacking.names)}"
        if spec in self.members:
            drafter = self.members[spec] = self.members.pop(spec)
            return drafter
        if not required and spec in self._failed:
            return self._failed[spec]
        try:
            self.members[spec] = self._set_up(spec)
        except (ConfigError, StrategyError) as error:
            if required:
                raise
            if len(self._failed) >= MAX_FAILED:
                del self._failed[next(iter(self._failed))]
            self._failed[spec] = f"strategy-error: {error}"
            return self._failed[spec]
        return self.members[spec]

    def _close_idle(self, used: Collection[AnySpec]) -> None:
        needed = {member for spec in used for member in spec.members}
        self._combined = {key: drafter for key, drafter in self._combined.items() if key[0] in used}
        for spec in [spec for spec in self.members if spec not in needed][:-MAX_IDLE]:
            self.members.pop(spec).close()

    def _set_up(self, spec: StrategySpec) -> Drafter:
        drafter = build_drafter(spec, attrs.evolve(self._context, draft_path=spec.draft_path))
        try:
            self._target.enable(spec.needs, drafter.layers)
        except BaseException:
            drafter.close()
            raise
        return drafter

    def save(self, seq: int, specs: Collection[StrategySpec]) -> dict[str, bytes]:
        """What ``specs``, those that are still open, keep of ``seq``, which no request uses, by ``strategy_key``."""
        drafters = [self.members[spec] for spec in specs if spec in self.members]
        return {key: data for drafter in drafters for key, data in drafter.save(seq).items()}

    def close(self) -> None:
        """Close every drafter; one that is interrupted does not keep the others open."""
        with ExitStack() as stack:
            for drafter in self.members.values():
                stack.callback(drafter.close)
            stack.callback(self.members.clear)
            stack.callback(self._combined.clear)
