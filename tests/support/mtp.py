"""Targets with drafts that predict token after token, recorded with the text they continue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from specframe.backends.llama.model import Model
from specframe.backends.llama.target import LlamaTarget
from specframe.core.combination import AnySpec
from specframe.core.engine import Engine
from specframe.core.request import Request
from specframe.core.sampling import SamplingParams
from specframe.core.scheduler import DraftScheduler, Unlimited
from specframe.core.strategy import BatchStrategy, StrategySpec
from specframe.strategies.draft_model import DraftModel
from specframe.strategies.eagle3 import Eagle3
from specframe.strategies.mtp import Mtp
from tests.support.recorded import Recording

GREEDY = SamplingParams(temperature=0.0)
SEEDED = SamplingParams(seed=11, temperature=0.9)
PROMPTS = [list(b"the quick brown fox"), list(b"abc"), list(b"hello world, hello")]


class RecordingMtp(Recording, Mtp):
    """``mtp``, recorded."""

    name = "recording-mtp"


class RecordingEagle3(Recording, Eagle3):
    """``eagle3``, recorded."""

    name = "recording-eagle3"


class RecordingDraftModel(Recording, DraftModel):
    """``draft-model``, recorded."""

    name = "recording-draft-model"


@attrs.frozen
class Case:
    """A target of the zoo and what drafts for it: heads of its own, or a file."""

    target: str
    draft: str | None = None
    options: dict[str, Any] = attrs.field(factory=dict)
    cls: type[RecordingMtp | RecordingEagle3 | RecordingDraftModel] = RecordingMtp

    @property
    def kind(self) -> str:
        """What llama.cpp's server calls the strategy."""
        return "DRAFT_EAGLE3" if self.cls is RecordingEagle3 else "DRAFT_MTP"

    def __str__(self) -> str:
        extra = [f"{key}={value}" for key, value in self.options.items()]
        return "-".join([self.target, *([self.draft] if self.draft else []), *extra])


#: Built-in heads, heads in a file, chained heads, heads that share the target's memory; each kind of rollback.
CASES = [
    Case("qwen35-mtp"),
    Case("qwen35-mtp", options={"n_rs_seq": 8}),
    Case("qwen35-mtp", options={"n_rs_seq": 2}),
    Case("qwen35", "mtp-qwen35", {"n_rs_seq": 8}),
    Case("step35-mtp3"),
    Case("gemma4", "gemma4-assistant"),
    Case("gemma4", "gemma4-assistant", {"swa_full": False}),
]

#: A draft with embeddings and head of its own and one without; each kind of memory and rollback.
EAGLES = [
    Case("llama", "eagle3", cls=RecordingEagle3),
    Case("qwen3", "eagle3-shared", cls=RecordingEagle3),
    Case("qwen35", "eagle3", cls=RecordingEagle3),
    Case("qwen35", "eagle3", {"n_rs_seq": 8}, cls=RecordingEagle3),
    Case("gemma4", "eagle3", cls=RecordingEagle3),
    Case("gemma4", "eagle3-shared", {"swa_full": False}, cls=RecordingEagle3),
]

#: Language models as drafts.
PLAIN = [
    Case("llama", "draft-simple", cls=RecordingDraftModel),
    Case("qwen35", "draft-simple", cls=RecordingDraftModel),
    Case("gemma4", "draft-simple", {"swa_full": False}, cls=RecordingDraftModel),
]


@contextmanager
def engine(
    target: Path,
    draft: Path | None = None,
    *,
    n_ctx: int = 512,
    scheduler: Callable[[], DraftScheduler] = Unlimited,
    **options: Any,
) -> Iterator[tuple[Engine, LlamaTarget]]:
    """An engine on a target on one thread; it verifies every draft unless another scheduler is given."""
    with (
        Model(target, load_mtp=draft is None) as model,
        LlamaTarget(model, n_ctx=n_ctx, n_threads=1, **options) as opened,
        Engine(opened, scheduler=scheduler) as running,
    ):
        yield running, opened


def spec(draft: Path | None = None, cls: type[BatchStrategy] = Mtp, **options: Any) -> StrategySpec:
    """The strategy with options."""
    return StrategySpec.of(cls, options, draft)


def request(prompt: Sequence[int], strategy: AnySpec | None = None, n: int = 96, **fields: Any) -> Request:
    """A request that starts from nothing."""
    given = {"sampling": GREEDY, "reuse_prefix": False, **fields}
    return Request(prompt=list(prompt), max_tokens=n, strategy=strategy, **given)


def strategy_of(running: Engine, wanted: StrategySpec) -> Any:
    """The object that drafts for ``wanted``."""
    drafter: Any = running._drafters.members[wanted]
    return drafter._strategy


def compare_with_fresh_starts(running: Engine, wanted: StrategySpec, every: int) -> int:
    """Check every so many of the drafts made so far against those of fresh requests; returns the tokens compared."""
    strategy = strategy_of(running, wanted)
    made, strategy.drafts = [pair for pair in strategy.drafts if pair[1]], []
    n_compared = 0
    for history, ids in made[::every]:
        running.submit(request(history[:-1], wanted, n=len(ids) + 2)).result()
        fresh = dict(strategy.drafts).get(history, ())
        strategy.drafts = []
        n = min(len(fresh), len(ids))
        assert fresh[:n] == ids[:n]
        n_compared += n
    return n_compared
