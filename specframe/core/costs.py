"""What things cost in seconds, learnt from what they took.

Timings are noisy and drift: other programs run, processors change their clock, contexts grow. So every quantity is
estimated on a logarithmic scale by a small Kalman filter (Kalman 1960) whose residuals are clipped: an outlier moves it
little, and a lasting change is followed within some steps. The cost of a batch has two parts that change at different
speeds: how fast the machine is now (``scale``), and how much more a wide batch takes than a single row (``shape``).
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import attrs

from specframe.core.errors import ConfigError

_T = TypeVar("_T")

#: Variance of the logarithm of one timing: a tenth, as timings of a machine in use are.
_NOISE = 0.1**2
#: The same for a first timing, which often includes some warming up, and for what an earlier process knew.
_UNSETTLED = 0.2**2
#: How much the speed of the machine wanders from step to step.
_DRIFT = 0.02**2
#: Standard deviations that a residual counts for at most: a disturbed timing is too long, hardly ever too short.
_CLIP_ABOVE, _CLIP_BELOW = 1.5, 6.0
#: The same for a width whose timing before was as expected: a sudden slowness has to be seen twice to be believed.
_CLIP_ONCE = 0.5
#: What is not known of the cost of a width that was never measured, given the widths that were.
_UNKNOWN = 0.3**2
#: A width turns out at most this much better than expected, as far as can be hoped.
MOST_HOPE = math.exp(math.sqrt(_UNKNOWN))
#: Standard deviation of a logarithm below which there is nothing to find out by trying: a timing says no more.
_KNOWN = 0.075
#: Knowledge of a width fades by this much per step, so that it is looked at again some day.
_FADING = 1e-5
#: The same for single rows, which everything is compared with.
_FADING_FIRST = 2e-4
#: Plain batches to measure before anything is compared with them: one may be disturbed, the first warms things up.
_PLAIN = 3
#: Cost of one more row in units of the first one, until something is known about it.
_DEFAULT_SLOPE = 0.2
#: The same for one more token of a draft. Rather too much: a short draft that is thought to be cheap is tried.
_SLOPE_OF_DRAFTS = 0.5
#: Verified rows have logits and are computed a few at a time: they cost more than the rows of a long prompt.
_ROW_OF_PROMPT = 1.25
#: Strategies, as named with their options, that something is remembered of.
MOST_STRATEGIES = 64
#: Logarithms of costs are far from this.
_FAR = 50.0
#: Prompts shorter than this say little about the cost of a row.
_LONG_PROMPT = 8


@attrs.define
class Level:
    """A positive quantity that is measured again and again."""

    log: float = 0.0
    """Logarithm of the estimate."""
    variance: float = math.inf
    """Of ``log``; infinite: never measured."""

    @property
    def known(self) -> bool:
        """It was measured at least once."""
        return self.variance < math.inf

    @property
    def value(self) -> float:
        """The estimate; 0 while nothing was measured."""
        return math.exp(self.log) if self.known else 0.0

    def measure(self, value: float) -> None:
        """Take one measurement into account; 0 or less, which a coarse clock can say, is none."""
        if value <= 0:
            return
        log = math.log(value)
        if not self.known or (self.variance >= _UNSETTLED and log < self.log):  # hardly ever is a timing too short
            self.log, self.variance = log, _UNSETTLED
            return
        self.variance += _DRIFT
        spread = self.variance + _NOISE
        gain = self.variance / spread
        self.log += gain * _clipped(log - self.log, spread)
        self.variance *= 1 - gain


@attrs.define
class _Point:
    """What is known about one width: the logarithm of its cost in units of a single row."""

    log: float
    variance: float
    step: int
    """When it was measured last, counted in measurements of the curve."""
    n: int = 0
    """How often it was measured."""
    surprised: bool = False
    """It took much longer than expected when it was measured last."""


@attrs.define
class _Table:
    """The shape of a curve as far as anybody asked; ``[i]`` is width ``i + 1``, in units of the first."""

    step: int
    """When it was begun, counted in measurements of the curve."""
    rest: Iterator[tuple[float, float]]
    """What comes behind its end."""
    mean: list[float] = attrs.field(factory=list)
    low: list[float] = attrs.field(factory=list)
    """The least it can reasonably be expected to cost: at least as much as any narrower batch that was measured."""


@attrs.define
class Curve:
    """Seconds by width (rows of a batch, tokens of a draft): at no width less than at a narrower one.

    Widths between measured ones are interpolated along a straight line whose slope comes from prompts, or else is a
    guess, bent so that it goes through the measured points.
    """

    scale: Level = attrs.field(factory=Level)
    """Seconds of width 1."""
    slope: float | None = None
    """Cost of one more row in units of the first, from prompts."""
    _prompt: tuple[int, float] | None = None
    """Rows and seconds of a prompt that was measured before any single row was."""
    _points: dict[int, _Point] = attrs.field(factory=dict)
    _step: int = 0
    _n_singles: int = 0
    _single_step: int = 0
    """When width 1 was measured last."""
    _table: _Table | None = None

    @property
    def known(self) -> bool:
        """Something was measured."""
        return self.scale.known

    def comparable(self, width: int) -> bool:
        """It is known well enough what this width takes, or narrower ones, for wider ones to be compared with it."""
        return self._n_singles + sum(point.n for w, point in self._points.items() if w <= width) >= _PLAIN

    def measure(self, width: int, seconds: float) -> None:
        """A batch of ``width`` took ``seconds``."""
        if seconds <= 0:
            return
        self._step += 1
        if width == 1:
            self.scale.measure(seconds)
            self._n_singles += 1
            if _FADING_FIRST * (self._step - self._single_step) >= _KNOWN**2:
                self._table = None
            self._single_step = self._step
            if self._prompt is not None:
                self.measure_prompt(*self._prompt)
                self._prompt = None
            return
        if not self.scale.known:
            self.scale.measure(seconds / self._prior(width))
        point = self._points.get(width)
        if point is None:
            log = math.log(self._shape(width).mean[width - 1])
            point = self._points[width] = _Point(log, _UNKNOWN, self._step)
        before, known = point.log, self._faded(point) < _KNOWN**2
        scale = self.scale
        scale.variance += _DRIFT
        point.variance = self._faded(point)
        point.step = self._step
        point.n += 1
        spread = scale.variance + point.variance + _NOISE
        surprise = math.log(seconds) - scale.log - point.log
        residual = _clipped(surprise, spread, _CLIP_ABOVE if point.surprised else _CLIP_ONCE)
        point.surprised = residual < surprise
        of_scale, of_point = scale.variance / spread, point.variance / spread
        scale.log += of_scale * residual
        point.log = max(0.0, point.log + of_point * residual)
        if not point.surprised:  # else it was disturbed, or something changed, and has to be looked at again
            scale.variance *= 1 - of_scale
            point.variance *= 1 - of_point
        # A percent does not change decisions, but that there is nothing left to find out does.
        if abs(point.log - before) > 0.01 or known != (point.variance < _KNOWN**2):  # noqa: PLR2004
            self._table = None

    def measure_prompt(self, n_rows: int, seconds: float) -> None:
        """A chunk of a prompt took ``seconds``: wide, with logits for its last row at most."""
        if n_rows < _LONG_PROMPT or seconds <= 0:
            return
        if not self.scale.known:
            self._prompt = (n_rows, seconds)
            return
        slope = max(0.0, (seconds / self.scale.value - 1) / (n_rows - 1)) * _ROW_OF_PROMPT
        # A disturbed measurement is too large, never too small.
        if self.slope is None or slope < self.slope or slope > 4 * self.slope:
            self.slope, self._table = slope, None

    def at(self, width: int) -> float:
        """Expected seconds of one width."""
        return self._shape(width).mean[width - 1] * self.scale.value

    def least(self, width: int) -> float:
        """Seconds that one width may take if it turns out well."""
        return self._shape(width).low[width - 1] * self.scale.value

    def _faded(self, point: _Point) -> float:
        return min(_UNKNOWN, point.variance + _FADING * (self._step - point.step))

    def _prior(self, width: int) -> float:
        return 1 + (_DEFAULT_SLOPE if self.slope is None else self.slope) * (width - 1)

    def _shape(self, widest: int) -> _Table:
        table = self._table
        if table is None or self._step - table.step > 64:  # noqa: PLR2004 -- see _FADING
            table = self._table = _Table(self._step, self._widths())
        while len(table.mean) < widest:
            mean, low = next(table.rest)
            table.mean.append(mean)
            table.low.append(low)
        return table

    def _widths(self) -> Iterator[tuple[float, float]]:
        """What width 1, 2, 3, ... is expected to cost, and the least, as known when the first one is asked for."""
        slope = _DEFAULT_SLOPE if self.slope is None else self.slope
        known = sorted(self._points)
        single = min(_UNKNOWN, _FADING_FIRST * (self._step - self._single_step))
        at = [1, *known]
        variances = [single, *(self._faded(self._points[w]) for w in known)]
        logs = [0.0, *_rising([self._points[w].log for w in known], [1 / v for v in variances[1:]])]
        bends = [log - math.log1p(slope * (w - 1)) for w, log in zip(at, logs, strict=True)]
        mean = floor = -math.inf
        i = -1
        for width in itertools.count(1):
            measured = i + 1 < len(at) and at[i + 1] == width
            i += measured
            bend, variance = bends[i], variances[i]
            if not measured and i + 1 < len(at):
                # What is measured on both sides leaves less open in between: a Brownian bridge over octaves.
                gap = math.log2(at[i + 1] / at[i])
                share = math.log2(width / at[i]) / gap
                bend += share * (bends[i + 1] - bend)
                variance += share * (variances[i + 1] - variance) + _UNKNOWN * share * (1 - share) * gap
            elif not measured:  # of widths beyond all that were measured nothing is known
                variance = _UNKNOWN
            mean = max(mean, math.log1p(slope * (width - 1)) + bend)
            deviation = math.sqrt(min(_UNKNOWN, variance))
            low = mean - (0.0 if deviation < _KNOWN else deviation)
            if measured:
                floor = low
            yield math.exp(mean), math.exp(max(floor, low))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        points = [[w, p.log, self._faded(p)] for w, p in sorted(self._points.items())]
        return {"scale": [self.scale.log, self.scale.variance], "slope": self.slope, "points": points}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Curve:
        """What :meth:`to_dict` returned. Raises ConfigError when it cannot be that."""
        try:
            scale = _kept_level(data["scale"])
            slope = None if data["slope"] is None else _number(data["slope"], 0, 1e6)
            points = {
                int(_number(w, 2, 1e6)): _Point(
                    _number(log, 0, _FAR), min(_UNKNOWN, _number(variance, 1e-9, _FAR)), 0, _PLAIN
                )
                for w, log, variance in data["points"]
            }
        except (KeyError, TypeError, ValueError) as error:
            msg = f"not a cost curve: {error!r}"
            raise ConfigError(msg) from error
        # So plain steps are looked at again soon: everything is compared with them.
        return cls(scale, slope, points=points, n_singles=_PLAIN, single_step=-round(_UNKNOWN / _FADING_FIRST))

    def copy(self) -> Curve:
        """Another one to start from the same knowledge."""
        points = {w: _Point(p.log, self._faded(p), 0, p.n) for w, p in self._points.items()}
        return Curve(attrs.evolve(self.scale), self.slope, self._prompt, points, n_singles=self._n_singles)


def _kept_level(data: Sequence[object]) -> Level:
    """From its logarithm and variance; how fast the machine is now is not what it was then."""
    log, variance = data
    return Level(_number(log, -_FAR, _FAR), max(_number(variance, 0, _FAR), _UNSETTLED))


def _number(value: object, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        msg = f"{value!r} is not a number in [{low}, {high}]"
        raise ValueError(msg)
    return value


def _clipped(residual: float, variance: float, above: float = _CLIP_ABOVE) -> float:
    deviation = math.sqrt(variance)
    return max(-_CLIP_BELOW * deviation, min(above * deviation, residual))


def _rising(values: list[float], weights: list[float]) -> list[float]:
    """The nearest sequence that never falls: pool adjacent violators (Ayer et al. 1955)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        pool = (value, weight, 1)
        while pools and pools[-1][0] > pool[0]:
            v, w, n = pools.pop()
            pool = ((v * w + pool[0] * pool[1]) / (w + pool[1]), w + pool[1], n + pool[2])
        pools.append(pool)
    return [v for v, _, n in pools for _ in range(n)]


def recent(known: dict[str, _T], strategy: str, make: Callable[[], _T]) -> _T:
    """What is known of ``strategy``, made when it is new; what was not asked for in a long time is forgotten."""
    value = known.pop(strategy) if strategy in known else make()
    known[strategy] = value  # the latest one is the last
    if len(known) > MOST_STRATEGIES:
        del known[next(iter(known))]
    return value


#: Upper ends of the ranges of context length that have curves of their own; the last one has none.
_BUCKETS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)


@attrs.define
class CostModel:
    """Everything a scheduler knows about time. Nothing in it depends on what is generated."""

    _batches: dict[int, Curve] = attrs.field(factory=dict)
    _drafts: dict[str, Curve] = attrs.field(factory=dict)
    _processing: dict[str, Curve] = attrs.field(factory=dict)
    _calls: dict[str, Level] = attrs.field(factory=dict)
    _catching_up: dict[str, Level] = attrs.field(factory=dict)
    accept: Level = attrs.field(factory=Level)
    """Sampling and committing a token."""
    checkpoint: Level = attrs.field(factory=Level)
    """Taking a checkpoint."""
    rollback: Level = attrs.field(factory=Level)
    """Dropping rejected tokens of one batch."""

    def batch(self, n_context: float) -> Curve:
        """Of the target, by rows, with ``n_context`` tokens in memory per sequence."""
        bucket = bisect.bisect_left(_BUCKETS, n_context)
        curve = self._batches.get(bucket)
        if curve is None:
            curve = Curve()
            if self._batches:  # until it is measured: like the nearest
                curve = self._batches[min(self._batches, key=lambda b: abs(b - bucket))].copy()
            self._batches[bucket] = curve
        return curve

    def draft(self, strategy: str) -> Curve:
        """Of one call of a strategy, by the tokens of its longest proposal and one."""
        return recent(self._drafts, strategy, lambda: Curve(slope=_SLOPE_OF_DRAFTS))

    def call(self, strategy: str) -> Level:
        """Of one call of a strategy, whatever it proposes."""
        return recent(self._calls, strategy, Level)

    def catching_up(self, strategy: str) -> Level:
        """Of a call behind a pause: for each token that was committed meanwhile."""
        return recent(self._catching_up, strategy, Level)

    def processing(self, strategies: str) -> Curve:
        """Of what strategies do with the rows of a batch, by rows."""
        return recent(self._processing, strategies, lambda: Curve(slope=_DEFAULT_SLOPE))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; what was never measured is left out."""

        def curves(known: Mapping[Any, Curve]) -> dict[str, Any]:
            return {str(key): curve.to_dict() for key, curve in known.items() if curve.known}

        return {
            "batches": curves(self._batches),
            "drafts": curves(self._drafts),
            "processing": curves(self._processing),
            "catching_up": {
                key: [level.log, level.variance] for key, level in self._catching_up.items() if level.known
            },
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CostModel:
        """What :meth:`to_dict` returned. Raises ConfigError when it cannot be that."""
        try:
            parts = [dict(data[name]) for name in ("batches", "drafts", "processing")]
            batches, drafts, processing = ({k: Curve.from_dict(v) for k, v in part.items()} for part in parts)
            catching_up = {key: _kept_level(level) for key, level in dict(data.get("catching_up", {})).items()}
            by_bucket = {int(bucket): curve for bucket, curve in batches.items()}
        except (KeyError, TypeError, ValueError) as error:
            msg = f"not a cost model: {error!r}"
            raise ConfigError(msg) from error
        return cls(by_bucket, drafts, processing, catching_up=catching_up)
