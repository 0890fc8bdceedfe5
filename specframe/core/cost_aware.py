"""The scheduler that knows what rows cost: never slower than plain decoding, and as much faster as drafts allow.

Before each batch it weighs what is expected to be emitted (how likely the positions of each draft are to be accepted)
against what is expected to be spent (the target at every width, drafting, checkpoints, undoing), over all sequences at
once, and takes the lengths with the most tokens per second; none, when plain decoding is best. Everything it learns
from happens anyway, except for what it spends on purpose, which has a budget (:mod:`specframe.core.exploring`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from specframe.core.acceptance import LONGEST, SHORTEST_REST, Experience, Kind, Track
from specframe.core.costs import MOST_HOPE, CostModel, Curve, recent
from specframe.core.exploring import ExploringBudget
from specframe.core.planning import Batch, Seat
from specframe.core.scheduler import Candidate, DraftCall, Reason, SchedulerStats, StepReport, reason_without_choice

#: A draft model that missed so few tokens has nothing to catch up with: a step may commit as many.
_CLOSE = 8
#: Drafting that takes less than this share of a plain step is not worth thinking about.
_CHEAP = 0.01
#: Tokens to ask a strategy for until it is known what its drafts take.
_FIRST_ASKED = 8
#: Drafting begins where it promises more than this, in units of plain decoding, and ends where it promises less.
_BEGIN, _END = 1.03, 0.99
#: Drafts that cost next to nothing and promise less than this, in units of plain decoding, pause: weighing takes time.
_HOPELESS = 0.9
#: So many plain steps are measured one by one, and one of so many afterwards: little is new in them.
_ALL, _FEW = 64, 4
#: A width is tried out when it might be this much better than the best one known.
_PROMISING = 1.05


class CostAware:
    """Verifies what pays. One object per engine.

    Args:
        costs: What is known about costs from earlier; it goes on learning.
    """

    def __init__(self, costs: CostModel | None = None) -> None:
        self.costs = CostModel() if costs is None else costs
        self._known: dict[str, Experience] = {}
        self._tracks: dict[int, Track] = {}
        self._budget = ExploringBudget()
        self._asked: dict[int, int] = {}
        """Sequences of the coming batch whose strategies were asked, and for how many tokens."""
        self._costly: set[str] = set()
        """Strategies that were asked although drafting takes its time."""
        self._paying: set[str] = set()
        """Those of them that are expected to bring more than that."""
        self._all_cheap = True
        """Strategies asked for the coming batch are known to cost next to nothing."""
        self._n_plain = 0

    def begin(self, seq: int, strategy: str, stats: SchedulerStats) -> None:
        """Start from what is known of the strategy."""
        known = recent(self._known, strategy, Experience)
        self._tracks[seq] = Track(strategy, known, stats, self.costs.call(strategy), self.costs.draft(strategy))

    def end(self, seq: int) -> None:
        """Forget the request; what was learnt of its strategy stays."""
        self._tracks.pop(seq, None)

    # -- before drafting ----------------------------------------------------------------------------------------------

    def limits(self, batch: Sequence[Candidate]) -> list[int]:
        """Ask strategies whose guesses cost next to nothing, and others where that is expected to pay."""
        limits = [0] * len(batch)
        costly: dict[str, list[int]] = {}
        self._costly.clear()
        self._all_cheap = True
        self._paying.clear()
        cheap_s = _CHEAP * self._target(batch).scale.value
        for i, c in enumerate(batch):
            track = self._tracks.get(c.seq)
            if track is None:
                continue
            if track.n_behind is None:
                track.n_behind = c.n_past + c.n_rows
            if c.budget == 0:
                continue
            if c.fixed is not None:
                limits[i] = min(c.budget, c.fixed, LONGEST)
            elif track.call.known or track.drafts.known:  # from an earlier process only those by length are
                if (track.call.value if track.call.known else track.drafts.at(2)) > cheap_s:
                    costly.setdefault(track.key, []).append(i)
                elif track.pause and not track.comparing:
                    track.pause -= 1
                else:
                    limits[i] = min(c.budget, LONGEST)
            else:
                limits[i] = min(c.budget, _FIRST_ASKED)
                self._all_cheap = False
        for key, group in costly.items():
            self._all_cheap = False
            for i, n in zip(group, self._worth_asking(batch, key, [batch[i] for i in group]), strict=True):
                limits[i] = n
        self._asked = {c.seq: n for c, n in zip(batch, limits, strict=True) if n}
        return limits

    def _worth_asking(self, batch: Sequence[Candidate], key: str, group: Sequence[Candidate]) -> list[int]:
        """The limit for each of ``group``, whose strategy takes its time; considered now and then while it pauses."""
        tracks = [self._tracks[c.seq] for c in group]
        limits = [0] * len(group)
        if all(track.pause for track in tracks):
            for track in tracks:
                track.pause -= 1
            return limits
        whole = self._batch(batch, {})
        if whole.comparable:  # else plain steps come first, to know what a row costs
            self._costly.add(key)
            limits = self._expected_best(whole, key, group, tracks)
            pays = key in self._paying
            for track in tracks:
                track.considered(pays=pays)
        return limits

    def _expected_best(self, whole: Batch, key: str, group: Sequence[Candidate], tracks: Sequence[Track]) -> list[int]:
        """What is worth asking for, or worth trying."""
        offering = tracks[0].strategy.offering(max(c.budget for c in group))
        drafts = tracks[0].drafts
        drafting_s = [drafts.at(round(n_drafted) + 1) for n_drafted in offering.gained]

        def seats(*, hopeful: bool = False) -> list[Seat]:
            return [
                Seat(track.survival_if(offering, hopeful=hopeful), min(len(drafting_s), c.budget), c.checkpoint_over)
                for c, track in zip(group, tracks, strict=True)
            ]

        likely = seats()
        best = whole.best(likely, drafting_s=drafting_s)
        takes_s = drafting_s[max(best.lengths) - 1]
        if best.speed <= _margin(tracks) * whole.plain().speed:
            catching_up_s = self.costs.catching_up(key).value * _n_behind(tracks)
            if not self._budget.may_try(catching_up_s, plain_s=whole.target.scale.value):
                return [0] * len(group)
            self._budget.pay(takes_s)
            return list(best.lengths)
        self._paying.add(key)
        # Another length may be better than is known: as widths may cost less, as guesses may be right more often where
        # few were made, or as the machine does single rows faster by now.
        idle = whole.plain(hopeful=True)
        hopes = [
            whole.best(likely, drafting_s=drafting_s, hopeful=True),
            whole.best(seats(hopeful=True), drafting_s=drafting_s),
        ]
        hope = max(hopes, key=lambda plan: plan.speed)
        promising = _PROMISING * best.speed
        if idle.speed > max(hope.speed, promising) and self._budget.spend(whole.regret(idle, best)):
            return [0] * len(group)
        more_s = drafting_s[max(hope.lengths) - 1] - takes_s
        return list(hope.lengths if hope.speed > promising and self._budget.spend(more_s) else best.lengths)

    # -- after drafting -----------------------------------------------------------------------------------------------

    def cut(self, batch: Sequence[Candidate]) -> list[int]:
        """Verify the prefixes that are expected to pay."""
        fixed: list[Candidate] = []
        choice: list[Candidate] = []
        for c in batch:
            if c.seq in self._tracks:
                (choice if c.proposal and c.fixed is None else fixed).append(c)
        lengths = {c.seq: len(c.proposal) for c in fixed}
        for c in fixed:
            asked = c.fixed is not None or c.budget == 0 or c.seq in self._asked
            self._follow(c, len(c.proposal), reason_without_choice(c) if asked else "not-asked")
        if choice:
            reason, chosen = self._choose(self._batch(batch, lengths), choice)
            for c, n in zip(choice, chosen, strict=True):
                lengths[c.seq] = n
                self._follow(c, n, reason if n or reason == "explores" else "does-not-pay")
        return [lengths.get(c.seq, 0) for c in batch]

    def _choose(self, whole: Batch, choice: Sequence[Candidate]) -> tuple[Reason, Sequence[int]]:
        """Lengths for ``choice``, and the reason for those that are not 0."""
        nothing = [0] * len(choice)
        if not whole.comparable:
            return "does-not-pay", nothing
        tracks = [self._tracks[c.seq] for c in choice]
        seats = [
            Seat(track.survival(len(c.proposal), _kind(c), _matched(c)), len(c.proposal), c.checkpoint_over)
            for c, track in zip(choice, tracks, strict=True)
        ]
        spent = 0.0
        for key in self._paying:
            longest = [len(c.proposal) for c, track in zip(choice, tracks, strict=True) if track.key == key]
            spent += self.costs.draft(key).at(1 + max(longest)) if longest else 0.0
        plain, best = whole.plain(spent), whole.best(seats, overhead_s=spent)
        for c, track in zip(choice, tracks, strict=True):
            track.stats.expected_plain, track.stats.expected_drafted = plain.speed, best.speed
            hopeless = track.key not in self._costly and best.speed < _HOPELESS * plain.speed
            if hopeless and not _matched(c):  # a passage that is repeated may begin now
                track.pause = SHORTEST_REST - 1
        pays = best.speed > _margin(tracks) * plain.speed
        wanted = _PROMISING * (best if pays else plain).speed
        if pays and plain.speed * MOST_HOPE > wanted:
            hope = whole.plain(spent, hopeful=True)
            if hope.speed > wanted and self._budget.spend(whole.regret(hope, best)):
                return "explores", nothing
        if best.speed * MOST_HOPE > wanted:
            hope = whole.best(seats, overhead_s=spent, hopeful=True)
            if hope.speed > wanted and self._budget.spend(whole.regret(hope, best if pays else plain)):
                return "explores", hope.lengths
        return "pays", best.lengths if pays else nothing

    def _follow(self, candidate: Candidate, n: int, reason: Reason) -> None:
        """Count the decision, and compare the guess with what will be committed."""
        track = self._tracks[candidate.seq]
        track.stats.count(n, reason)
        track.drafting = n > 0
        if track.key in self._costly and candidate.seq in self._asked:
            track.strategy.offered(self._asked[candidate.seq], len(candidate.proposal))
        if candidate.proposal and (n or not track.comparing):
            track.guess(candidate.proposal, _kind(candidate), _matched(candidate))

    # -- afterwards ---------------------------------------------------------------------------------------------------

    def record(self, report: StepReport) -> None:
        """Learn what it took and what was right."""
        costs = self.costs
        if not report.verified:
            costs.batch(report.n_context + report.n_rows).measure_prompt(report.n_rows, report.target_s)
            self._budget.passed(report.target_s)
            return
        curve = costs.batch(report.n_context / len(report.verified))
        if learns := report.n_rows > len(report.verified) or not self._all_cheap or self._is_due():
            curve.measure(report.n_rows, report.target_s)
            costs.accept.measure(report.accept_s / max(1, sum(len(v.committed) for v in report.verified)))
        if report.n_checkpoints:
            costs.checkpoint.measure(report.checkpoint_s / report.n_checkpoints)
            costs.rollback.measure(report.rollback_s)
        if report.process_s > _CHEAP * report.target_s and (using := self._using(v.seq for v in report.verified)):
            costs.processing(using).measure(report.n_rows, report.process_s)
        took_s = report.target_s + report.process_s + report.accept_s + report.rollback_s
        self._budget.earn(took_s, plain_s=curve.scale.value)
        for call in report.drafts if learns else ():
            self._learn_drafting(call)
        asked = {seq for call in report.drafts for seq in call.seqs}
        for v in report.verified:
            if (track := self._tracks.get(v.seq)) is not None:
                track.n_behind = len(v.committed) + (0 if v.seq in asked else track.n_behind or 0)
                track.committed(v.committed)

    def _is_due(self) -> bool:
        """Whether another plain step is measured."""
        self._n_plain += 1
        return self._n_plain <= _ALL or self._n_plain % _FEW == 0

    def _learn_drafting(self, call: DraftCall) -> None:
        tracks = [track for seq in call.seqs if (track := self._tracks.get(seq)) is not None]
        if not tracks:
            return
        key, seconds, level, curve = tracks[0].key, call.seconds, tracks[0].call, tracks[0].drafts
        # The first draft, of a request or after a pause, also goes through all that was committed before it. That is
        # not what drafts cost, only a limit to it.
        n_behind = _n_behind(tracks)
        if n_behind:
            catching_up, draft_s = self.costs.catching_up(key), curve.at(call.longest + 1)
            # The first one of all may have set things up, and a small difference says little.
            if level.known and seconds > 2 * draft_s:
                catching_up.measure((seconds - draft_s) / n_behind)
            self._budget.caught_up(catching_up.value * n_behind if catching_up.known else seconds)
        if not n_behind or seconds < level.value:
            level.measure(seconds)
        if not n_behind or seconds < curve.at(call.longest + 1):
            curve.measure(call.longest + 1, seconds)

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _target(self, batch: Sequence[Candidate]) -> Curve:
        return self.costs.batch(sum([c.n_past for c in batch]) / len(batch))

    def _using(self, seqs: Iterable[int]) -> str:
        """The strategies of these sequences."""
        return "+".join(sorted({track.key for seq in seqs if (track := self._tracks.get(seq)) is not None}))

    def _batch(self, batch: Sequence[Candidate], fixed: Mapping[int, int]) -> Batch:
        """The batch with drafts of the ``fixed`` lengths in it."""
        n_rows = sum([c.n_rows for c in batch])
        tokens = float(len(batch))
        for seq, n in fixed.items():
            if n:
                n_rows += n
                tokens += sum(self._tracks[seq].survival(n).all_right)
        return Batch(
            n_rows=n_rows,
            tokens=tokens,
            target=self._target(batch),
            processing=self.costs.processing(self._using(c.seq for c in batch)),
            costs=self.costs,
        )


def _n_behind(tracks: Sequence[Track]) -> int:
    """Tokens that a draft model has to catch up with; 0 when it follows the text."""
    n_behind = sum(track.n_behind or 0 for track in tracks)
    return n_behind if n_behind > _CLOSE * len(tracks) else 0


def _kind(candidate: Candidate) -> Kind:
    return tuple(part.strategy for part in candidate.parts)


def _matched(candidate: Candidate) -> int:
    return candidate.parts[0].matched if candidate.parts else 0


def _margin(tracks: Sequence[Track]) -> float:
    """What drafting has to promise, in units of plain decoding; it goes on more easily than it begins."""
    return _END if any(track.drafting for track in tracks) else _BEGIN
