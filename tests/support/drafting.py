"""Targets of the zoo with what drafts for them: engines, requests, strategies, and drafts compared with fresh ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
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
from specframe.strategies.dflash import Dflash
from specframe.strategies.dflash2 import Dflash2
from specframe.strategies.draft_model import DraftModel
from specframe.strategies.dspark import Dspark
from specframe.strategies.eagle3 import Eagle3
from specframe.strategies.mtp import Mtp
from tests.support.llama import Zoo
from tests.support.recorded import recording

GREEDY = SamplingParams(temperature=0.0)
SEEDED = SamplingParams(seed=11, temperature=0.9)
PROMPTS = [list(b"the quick brown fox"), list(b"abc"), list(b"hello world, hello")]


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


@attrs.frozen
class Case:
    """What drafts for a target of the zoo: its own heads, or a file."""

    cls: type[BatchStrategy]
    target: str
    draft: str | None = None
    options: dict[str, Any] = attrs.field(factory=dict)
    """How the target's context is opened."""

    def path(self, zoo: Zoo) -> Path | None:
        """The file that drafts."""
        return None if self.draft is None else zoo(self.draft)

    def engine(self, zoo: Zoo, **options: Any) -> AbstractContextManager[tuple[Engine, LlamaTarget]]:
        """An engine on the target."""
        return engine(zoo(self.target), self.path(zoo), **{**self.options, **options})

    def spec(self, zoo: Zoo, **options: Any) -> StrategySpec:
        """The strategy with options; it keeps its drafts."""
        return spec(self.path(zoo), recording(self.cls), **options)

    def __str__(self) -> str:
        extra = [f"{key}={value}" for key, value in self.options.items()]
        return "-".join([self.cls.name, self.target, *([self.draft] if self.draft else []), *extra])


#: Built-in heads, heads in a file, chained heads, heads that share the target's memory; each kind of rollback.
HEADS = [
    Case(Mtp, "qwen35-mtp"),
    Case(Mtp, "qwen35-mtp", options={"n_rs_seq": 8}),
    Case(Mtp, "qwen35-mtp", options={"n_rs_seq": 2}),
    Case(Mtp, "qwen35", "mtp-qwen35", {"n_rs_seq": 8}),
    Case(Mtp, "step35-mtp3"),
    Case(Mtp, "gemma4", "gemma4-assistant"),
    Case(Mtp, "gemma4", "gemma4-assistant", {"swa_full": False}),
]

#: A draft with embeddings and head of its own and one without; each kind of memory and rollback.
EAGLES = [
    Case(Eagle3, "llama", "eagle3"),
    Case(Eagle3, "qwen3", "eagle3-shared"),
    Case(Eagle3, "qwen35", "eagle3"),
    Case(Eagle3, "qwen35", "eagle3", {"n_rs_seq": 8}),
    Case(Eagle3, "gemma4", "eagle3"),
    Case(Eagle3, "gemma4", "eagle3-shared", {"swa_full": False}),
]

#: Language models as drafts.
PLAIN = [
    Case(DraftModel, "llama", "draft-simple"),
    Case(DraftModel, "qwen35", "draft-simple"),
    Case(DraftModel, "gemma4", "draft-simple", {"swa_full": False}),
]

#: Whole blocks: own and shared embeddings, multi-axis rope, every kind of rollback.
BLOCKS = [
    Case(Dflash, "llama", "dflash"),
    Case(Dflash, "qwen35", "dflash-qwen35"),
    Case(Dflash, "qwen35", "dflash-qwen35", {"n_rs_seq": 8}),
    Case(Dflash, "gemma4", "dflash-shared", {"swa_full": False}),
    Case(Dflash2, "llama", "dflash2-shared"),
    Case(Dflash2, "qwen35", "dflash2-qwen35", {"n_rs_seq": 8}),
    Case(Dflash2, "gemma4", "dflash2"),
    Case(Dflash2, "llama", "dflash2", {"kv_unified": True}),
    Case(Dspark, "llama", "dspark-bonus"),
    Case(Dspark, "qwen35", "dspark-anchor", {"n_rs_seq": 8}),
    Case(Dspark, "gemma4", "dspark-anchor", {"swa_full": False}),
]

#: Those that predict one token after another, and all.
TOKENWISE = [*HEADS, *EAGLES, *PLAIN]
CASES = [*TOKENWISE, *BLOCKS]

#: One of each kind of model and memory.
SOME_TOKENWISE = [HEADS[0], HEADS[1], HEADS[4], HEADS[5], EAGLES[0], EAGLES[2], EAGLES[5], PLAIN[0], PLAIN[1]]
SOME_BLOCKS = [BLOCKS[0], BLOCKS[2], BLOCKS[3], BLOCKS[4]]
SOME = [*SOME_TOKENWISE, *SOME_BLOCKS]


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
