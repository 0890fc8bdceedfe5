"""Does a strategy keep the contract of :mod:`specframe.core.strategy`? For authors of plugins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from specframe.core.combination import AnySpec, Combination, Join
from specframe.core.engine import Engine
from specframe.core.errors import ConfigError
from specframe.core.ports import Rollback
from specframe.core.request import Completion, Request
from specframe.core.sampling import SamplingParams
from specframe.core.scheduler import Unlimited
from specframe.core.strategy import AnyStrategyClass, DraftRequest, StrategySpec
from specframe.plugin_info import check_strategy_class
from specframe.testing.drafters import Arbitrary
from specframe.testing.errors import StrategyContractError
from specframe.testing.probe import Probe, Record
from specframe.testing.reference import Output, reference
from specframe.testing.scripted import ScriptedTarget

_GREEDY = SamplingParams(temperature=0.0)
_SEEDED = SamplingParams(seed=11, temperature=0.7)

#: Every kind of memory, with limits that make drafts of ordinary length hit them.
_MEMORIES: tuple[dict[str, Any], ...] = (
    {"rollback": Rollback.TRUNCATE},
    {"rollback": Rollback.BOUNDED, "rollback_depth": 3},
    {"rollback": Rollback.SNAPSHOT, "newest_checkpoint_only": True},
)


@attrs.frozen(kw_only=True)
class StrategyReport:
    """What :func:`check_strategy` saw."""

    strategy: str
    requests: int
    """Requests that were compared with plain decoding."""
    draft_calls: int
    drafted: int
    verified: int
    accepted: int
    reads_per_draft_short: float
    """Committed tokens the strategy looked at per step, with a short context."""
    reads_per_draft_long: float
    """The same with a context ten times as long."""

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over verified, on the repetitive texts of the check; says nothing about real ones."""
        return self.accepted / self.verified if self.verified else None


def check_strategy(
    strategy: AnyStrategyClass | AnySpec,
    options: Mapping[str, Any] | None = None,
    *,
    draft_path: Path | None = None,
    shares_state: bool = False,
    make_target: Callable[..., ScriptedTarget] = ScriptedTarget,
) -> StrategyReport:
    """Run a strategy against scripted targets and check every promise it makes.

    Checked: the declarations; that output equals plain decoding for every kind of memory, one and three sequences,
    greedy and seeded; that nothing raises; that drafts are token ids of the vocabulary and no longer than the budget;
    prompts of one token; cancelled, repeated and interleaved requests; that nothing drafted depends on an earlier
    request; that the work per step does not grow with the context; all of that also behind the guesses of another
    strategy, if it says that it continues them.

    Args:
        strategy: The class, a spec with options, or a combination.
        options: Options of the class.
        draft_path: Its draft file, if it uses one.
        shares_state: Set for a strategy that learns from earlier requests on purpose.
        make_target: Makes the targets; takes the keyword arguments of :class:`ScriptedTarget`.

    Raises:
        StrategyContractError: A rule is broken; the message names it.
        ConfigError: The options are wrong, or the strategy needs what scripted targets cannot provide.
    """
    if isinstance(strategy, StrategySpec | Combination):
        spec: AnySpec = strategy
    else:
        spec = StrategySpec.of(strategy, options, draft_path)
    for member in spec.members:
        try:
            check_strategy_class(member.cls)
        except ConfigError as error:
            raise StrategyContractError(str(error)) from error
    check = _Check(spec, make_target)
    check.lossless_everywhere()
    if spec.continues:
        check.lossless_behind_another()
    check.cancelled_requests_leave_no_trace()
    if not shares_state:
        check.requests_do_not_see_each_other()
    short, long = check.work_per_step(200), check.work_per_step(2000)
    if long > 2 * short + 64:
        raise StrategyContractError(
            f"strategy {spec.name!r}: the work per step must not grow with the context, but it reads {short:.0f} "
            f"committed tokens in a context of 200 and {long:.0f} in one of 2000; keep an index, extend it in observe()"
        )
    return check.report(short, long)


class _Check:
    """One run of the check: engines, requests, and what the probe wrote down."""

    def __init__(self, spec: AnySpec, make_target: Callable[..., ScriptedTarget]) -> None:
        self._make = make_target
        self._probe = Probe(spec)
        self._spec = self._probe.spec
        self._completions: list[Completion] = []
        lacking = spec.needs & ~self._target().info.provides
        if lacking:
            names = ", ".join(lacking.names)
            raise ConfigError(f"strategy {spec.name!r} needs {names}, which scripted targets do not provide")

    def _target(self, **arguments: Any) -> ScriptedTarget:
        # Of order 2: texts repeat themselves, so that there is something to guess.
        return self._make(**{"n_vocab": 12, "n_ctx": 160, "n_batch": 24, "order": 2, **arguments})

    def _request(self, prompt: Sequence[int], sampling: SamplingParams = _GREEDY, max_tokens: int = 60) -> Request:
        return Request(prompt=prompt, sampling=sampling, max_tokens=max_tokens, strategy=self._spec)

    def lossless_everywhere(self) -> None:
        """Every memory, one and three sequences at once, greedy and seeded, prompts from one token on."""
        prompts = [(1,), (1, 2, 3, 1, 2, 3, 1, 2), tuple(range(11)) * 3]
        for memory in _MEMORIES:
            for sampling in (_GREEDY, _SEEDED):
                requests = [self._request(prompt, sampling) for prompt in prompts]
                for n_seq in (1, 3):
                    self._compare(memory | {"n_seq": n_seq}, requests)
        # Ends everywhere: an end token inside drafts, a stop string, a full context.
        ending = [attrs.evolve(self._request(p, max_tokens=400), max_tokens=None, stop=("cab", "a")) for p in prompts]
        self._compare({"eog": (3, 7), "n_ctx": 48}, ending)

    def _compare(self, arguments: Mapping[str, Any], requests: Sequence[Request]) -> None:
        with Engine(self._target(**arguments), scheduler=Unlimited) as engine:
            generations = [engine.submit(request) for request in requests]
            for request, generation in zip(requests, generations, strict=True):
                self._finish(generation.result(), request, arguments)

    def _finish(self, completion: Completion, request: Request, arguments: Mapping[str, Any]) -> None:
        self._probe.raise_broken()
        plain = reference(self._target(**arguments), attrs.evolve(request, strategy=None))
        plain.check_equals(Output.of(completion), f"output drafted by {self._spec.name!r}")
        self._completions.append(completion)

    def lossless_behind_another(self) -> None:
        """Continue guesses that are wrong more often than not."""

        def guess(request: DraftRequest) -> Sequence[int]:
            return [request.history[-1], request.history[0]][: request.budget]

        probed, another = self._spec, StrategySpec.of(Arbitrary, {"choose": guess})
        self._spec = Combination(Join.EXTEND, (another, probed))
        try:
            requests = [self._request(prompt) for prompt in ((1,), (1, 2, 3, 1, 2, 3, 1, 2), tuple(range(11)) * 3)]
            self._compare({"n_seq": 3}, requests)
        finally:
            self._spec = probed

    def cancelled_requests_leave_no_trace(self) -> None:
        """Requests that end in the middle, followed by a whole one."""
        for n_chunks in (0, 1, 3):
            with Engine(self._target(), scheduler=Unlimited) as engine:
                generation = engine.submit(self._request((1, 2, 3)))
                for _ in range(n_chunks):
                    next(generation)
                generation.cancel()
                request = self._request((1, 2, 3))
                self._finish(engine.submit(request).result(), request, {})

    def requests_do_not_see_each_other(self) -> None:
        """A request drafts the same whatever ran before it on the engine."""
        first, other = self._request((1, 2, 3, 4, 1, 2)), self._request((5, 6, 7, 8) * 6, _SEEDED)
        drafts: list[list[tuple[int, ...]]] = []
        with Engine(self._target(), scheduler=Unlimited) as engine:
            for request in (first, other, first):
                self._probe.records.clear()
                self._finish(engine.submit(request).result(), request, {})
                drafts.append([record.ids for record in self._probe.records])
        if drafts[0] != drafts[2]:
            raise StrategyContractError(
                f"strategy {self._spec.name!r}: an earlier request must not change what is drafted, but the same "
                "request drafted otherwise the second time; keep state in the object or per sequence, and forget it"
            )

    def work_per_step(self, n_prompt: int) -> float:
        """Committed tokens looked at per step once the prompt is known."""
        prompt = tuple((i * i + i // 7) % 11 for i in range(n_prompt))
        request = self._request(prompt, _SEEDED, max_tokens=40)
        arguments = {"n_ctx": n_prompt + 64, "n_batch": 512}
        self._probe.records.clear()
        with Engine(self._target(**arguments), scheduler=Unlimited) as engine:
            self._finish(engine.submit(request).result(), request, arguments)
        # The first draft may index the prompt.
        steady: list[Record] = self._probe.records[1:]
        return sum(record.n_reads for record in steady) / len(steady) if steady else 0.0

    def report(self, short: float, long: float) -> StrategyReport:
        """Totals over everything that ran."""
        stats = [completion.stats for completion in self._completions]
        return StrategyReport(
            strategy=self._spec.name,
            requests=len(stats),
            draft_calls=self._probe.n_calls,
            drafted=sum(s.drafted for s in stats),
            verified=sum(s.verified for s in stats),
            accepted=sum(s.accepted for s in stats),
            reads_per_draft_short=short,
            reads_per_draft_long=long,
        )
