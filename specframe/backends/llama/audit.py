"""Do logits depend on how many tokens are evaluated together? Measured, for one model, library, device and settings.

A verification computes the row of a token in a batch of several; plain decoding computes it alone. Whether both are the
same to the last bit is a property of kernels, so it is looked at instead of assumed. Short and long contexts are
looked at separately: behind some hundred tokens llama.cpp's attention takes other kernels for a single row.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from specframe.backends.llama.context_options import IN_BLOCKS, ContextOptions
from specframe.backends.llama.kernels import TILED_ROWS
from specframe.backends.llama.model import Model
from specframe.backends.llama.target import LlamaTarget
from specframe.backends.llama.threads import default_threads
from specframe.core.errors import BackendError, ConfigError
from specframe.core.ports import BatchEntry, Logits, Rollback

#: Tokens evaluated together; 1 again, to see that a repetition gives the same.
WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 48, TILED_ROWS - 1)
#: Tokens before those that are looked at.
CONTEXTS = (32, 640)
#: Positions that are looked at per width, at least.
_POSITIONS = 24
#: Most tokens of the context that are evaluated at once, as in the program that the verdicts are compared with.
_PIECE = 512
#: Widths of verifications of common drafts.
_COMMON = range(2, 17)
#: Rows of the narrowest verification: a draft of one token, and the token before it.
NARROWEST = 2
#: Share of the time of the usual settings that others have to keep below: timings are no better than that.
_CLEARLY = 0.95
_TEXT = """The keeper counted 128 steps to the lamp, as he did every night, and wrote the number down beside the date.
def deposit(self, amount):
    if amount <= 0:
        raise ValueError("amount must be positive")
    self.balance += amount
    return self.balance
Rain came from the west at 4 o'clock; by 5 the harbour was empty, and the only light left was his own.
{"time": "2031-05-01T09:15:00Z", "level": "ERROR", "service": "billing", "code": 503}
"""


@attrs.frozen(kw_only=True)
class WidthAudit:
    """One width behind one context, against one token at a time."""

    context: int
    """Tokens in memory before."""
    width: int
    """Tokens evaluated together."""
    positions: int
    """Rows compared."""
    exact: bool
    """All of them equal to the last bit."""
    max_difference: float
    """Largest difference of two logits."""
    flips: int
    """Rows with another most probable token."""
    cost_s: float
    """Median time of such a batch, all rows output."""


@attrs.frozen(kw_only=True)
class Audit:
    """What was found."""

    model: str
    library: str
    flash_attn: bool
    type_k: str
    type_v: str
    n_threads: int
    n_threads_batch: int
    n_ubatch: int
    use_extra_bufts: bool
    exact_kernels: bool
    """``ContextOptions.exact``: floating-point weights too were kept to kernels that compute rows one by one."""
    smallest_margin: float
    """Smallest distance between the two largest logits of a row of plain decoding."""
    rows: tuple[WidthAudit, ...]

    @property
    def exact_width(self) -> int:
        """The largest audited width up to which every one is exact behind every context; 0: not even repeatable."""
        exact = 0
        for width in sorted({row.width for row in self.rows}):
            if not all(row.exact for row in self.rows if row.width == width):
                break
            exact = width
        return exact

    @property
    def max_difference(self) -> float:
        """The largest of all."""
        return max(row.max_difference for row in self.rows)

    def relative_cost(self, row: WidthAudit) -> float:
        """What ``row`` costs in units of a single token behind the same context."""
        return row.cost_s / next(one.cost_s for one in self.rows if (one.context, one.width) == (row.context, 1))

    def explains(self, margin: float) -> bool:
        """Whether rounding can make a verification choose another token where plain decoding has this margin.

        Args:
            margin: distance between the largest logit of the row and that of the chosen token. Both can be off by
                ``max_difference``.
        """
        return 0 <= margin <= 2 * self.max_difference

    @property
    def settings(self) -> str:
        """For people."""
        batch = "" if self.n_threads_batch == self.n_threads else f" ({self.n_threads_batch} for batches)"
        usual = self.type_k == self.type_v == "f16"
        memory = "" if usual else f"{self.type_k} keys and {self.type_v} values, "
        return (
            f"{self.n_threads} thread{'s' if self.n_threads > 1 else ''}{batch}, "
            f"flash attention {_on(self.flash_attn)}, {memory}"
            f"repacked weights {_on(self.use_extra_bufts)}, {self.n_ubatch} tokens at a time"
            f"{', kernels of exact numerics' if self.exact_kernels else ''}"
        )

    @property
    def verification_cost_s(self) -> float:
        """Geometric mean of what batches of 2 to 16 tokens cost: those of common drafts."""
        costs = [row.cost_s for row in self.rows if row.width in _COMMON]
        return statistics.geometric_mean(costs) if costs else math.inf

    @property
    def recommendation(self) -> str:
        """What to do about it, in a sentence."""
        if self.exact_width >= NARROWEST:
            return f'numerics="exact" works here: verifications of up to {self.exact_width} tokens equal plain decoding'
        if not self.flash_attn:
            return "turn flash attention on: without it a row depends on what it is computed with"
        advice = "" if self.exact_kernels else '; numerics="exact" takes other kernels, which --exact looks at'
        return (
            "a token alone and in a batch are rounded differently here; "
            f"where two tokens are within {2 * self.max_difference:.2g}, drafting may choose the other one{advice}"
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, with what follows from it."""
        return attrs.asdict(self) | {
            "settings": self.settings,
            "exact_width": self.exact_width,
            "max_difference": self.max_difference,
            "verification_cost_s": self.verification_cost_s,
            "recommendation": self.recommendation,
        }

    @classmethod
    def from_dict(cls, raw: Any) -> Audit:
        """Read :meth:`to_dict` back. Raises ConfigError when it is something else."""
        names = {field.name for field in attrs.fields(cls)}
        try:
            kept = {name: value for name, value in raw.items() if name in names}
            found = cls(**{**kept, "rows": tuple(WidthAudit(**row) for row in raw["rows"])})
        except (AttributeError, KeyError, TypeError) as error:
            raise ConfigError(f"not an audit: {error!r}") from error
        if not found.rows:
            raise ConfigError("not an audit: no width was looked at")
        return found


def _on(value: bool) -> str:
    return "on" if value else "off"


def audit(model: Model, *, widths: Sequence[int] = WIDTHS, contexts: Sequence[int] = CONTEXTS, **options: Any) -> Audit:
    """Measure now.

    Args:
        model: open; stays open.
        widths: tokens evaluated together; below ``TILED_ROWS``.
        contexts: tokens before them; those that the model was not trained for are left out.
        **options: of the context, as a target would get them; ``n_ctx`` and ``n_seq`` are set here.

    Raises:
        ConfigError: the model was trained with too few tokens.
        BackendError: its logits are no numbers.
    """
    tail = max(*widths, _POSITIONS)
    trained = model.facts.n_ctx_train
    fitting = [n for n in contexts if not trained or n + tail <= trained]
    if not fitting:
        raise ConfigError(f"{model.path.name} was trained with {trained} tokens, too few to audit {contexts}")
    n_ctx = max(fitting) + tail
    chosen = ContextOptions(**{**options, "n_ctx": n_ctx, "n_seq": 1})
    threads = chosen.n_threads or default_threads()
    widths = [width for width in widths if width <= chosen.batch]  # wider ones do not occur
    rows: list[WidthAudit] = []
    margins: list[float] = []
    with LlamaTarget(model, **attrs.asdict(chosen)) as target:
        tokens = _tokens(target, n_ctx)
        for context in fitting:
            found, margin = _audit_context(target, tokens[: context + tail], context, widths)
            rows += found
            margins.append(margin)
    return Audit(
        model=model.path.name,
        library=f"{model.library.source} ({model.library.path})",
        flash_attn=chosen.flash_attn,
        type_k=chosen.type_k,
        type_v=chosen.type_v,
        n_threads=threads,
        n_threads_batch=chosen.n_threads_batch or threads,
        n_ubatch=chosen.n_ubatch,
        use_extra_bufts=model.use_extra_bufts,
        exact_kernels=chosen.exact,
        smallest_margin=min(margins),
        rows=tuple(rows),
    )


def sweep(open_model: Callable[..., Model], *, rounds: int = 3, **options: Any) -> list[Audit]:
    """Audit the settings that matter for speed, one changed at a time; the usual ones come first.

    Rounds over all settings alternate, so that a machine that is slow for a while slows none in particular; the cost of
    each width is the least of its rounds.

    Args:
        open_model: opens the model, with further keywords.
        rounds: repetitions.
        **options: of the audits.
    """
    cores, processors = default_threads(), os.cpu_count() or 1
    changes: list[dict[str, Any]] = [
        {},
        *({"n_threads": n} for n in sorted({1, max(1, cores // 2), processors} - {cores})),
        *([] if options.get("type_v") in IN_BLOCKS else [{"flash_attn": False}]),
        {"n_ubatch": TILED_ROWS},
    ]
    best: dict[int, Audit] = {}
    # Weights are repacked when a model is loaded, so there is one model for each way, one at a time.
    for base, repack in ((0, True), (len(changes), False)):
        with open_model(use_extra_bufts=repack) as model:
            for _ in range(rounds):
                for i, change in enumerate(changes if repack else changes[:1], base):
                    found = audit(model, **{"n_threads": cores, **options, **change})
                    best[i] = found if i not in best else _faster(best[i], found)
    return [best[i] for i in sorted(best)]


def recommended(settings: Sequence[Audit]) -> Audit:
    """What to use of a sweep: the usual settings, unless others that are exact as far as them are clearly faster."""
    usual = settings[0]
    exact = [found for found in settings if found.exact_width >= usual.exact_width]
    fastest = min(exact, key=lambda found: found.verification_cost_s)
    return fastest if fastest.verification_cost_s < _CLEARLY * usual.verification_cost_s else usual


def _faster(one: Audit, other: Audit) -> Audit:
    pairs = zip(one.rows, other.rows, strict=True)
    return attrs.evolve(one, rows=tuple(attrs.evolve(a, cost_s=min(a.cost_s, b.cost_s)) for a, b in pairs))


def _tokens(target: LlamaTarget, n: int) -> list[int]:
    once = target.vocab.tokenize(_TEXT)
    return (once * (n // len(once) + 1))[:n]


def _audit_context(
    target: LlamaTarget, tokens: Sequence[int], context: int, widths: Sequence[int]
) -> tuple[list[WidthAudit], float]:
    rewind = _prepared(target, tokens[:context])
    plain, _ = _evaluated(target, tokens, context, 1, len(tokens) - context)
    if not np.isfinite(plain.max(axis=1)).all():  # of a row with a NaN, that is the largest
        raise BackendError("there are logits that are no numbers: the model or the runtime computes nonsense")
    best = np.sort(np.partition(plain, -2, axis=1)[:, -2:], axis=1)
    rows = []
    for width in widths:
        rewind()
        n = width * max(1, _POSITIONS // width)
        wide, times = _evaluated(target, tokens, context, width, n)
        alone = plain[:n]
        rows.append(
            WidthAudit(
                context=context,
                width=width,
                positions=n,
                exact=bool(np.array_equal(wide, alone)),
                max_difference=float(np.abs(wide - alone).max()),
                flips=int((wide.argmax(axis=1) != alone.argmax(axis=1)).sum()),
                cost_s=statistics.median(times),
            )
        )
    rewind()
    target.clear(0)
    return rows, float((best[:, 1] - best[:, 0]).min())


def _prepared(target: LlamaTarget, prompt: Sequence[int]) -> Any:
    """Evaluate ``prompt``; returns what brings memory back to it."""
    step = min(target.info.n_batch, _PIECE)
    for start in range(0, len(prompt), step):
        target.decode([BatchEntry(0, start, prompt[start : start + step], 1)])
    target.logits()
    if target.info.rollback is Rollback.TRUNCATE:
        return lambda: target.truncate(0, len(prompt))
    saved = target.checkpoint(0, lasting=True)
    return lambda: target.restore(saved)


def _evaluated(
    target: LlamaTarget, tokens: Sequence[int], start: int, width: int, n: int
) -> tuple[Logits, list[float]]:
    """Rows of ``n`` tokens from ``start`` on, ``width`` at a time, and how long each batch took."""
    rows, times = [], []
    for at in range(start, start + n, width):
        chunk = tokens[at : at + width]
        began = time.perf_counter()
        target.decode([BatchEntry(0, at, chunk, len(chunk))])
        row = target.logits()
        times.append(time.perf_counter() - began)
        rows.append(np.array(row))
    return np.concatenate(rows), times
