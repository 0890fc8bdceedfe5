"""The packages in the folder plugins, through their real entry points."""

from __future__ import annotations

import ast
import inspect
import sys
from importlib.metadata import entry_points

import pytest

from specframe.core.history import History
from specframe.core.ports import TargetInfo, Vocab
from specframe.core.strategy import DraftRequest, Strategy, StrategyContext
from specframe.plugins import Registry


@pytest.fixture
def installed() -> Registry:
    found = {entry.name for entry in entry_points(group="specframe")}
    assert found >= {"prompt-lookup", "step-log"}, "install the packages in plugins/"
    return Registry.discover(load="prompt-lookup,step-log")


class NoVocab(Vocab):
    n_tokens = 100
    eog: frozenset[int] = frozenset()

    def piece(self, token: int) -> bytes:
        return b"?"


def draft_with(registry: Registry, name: str, tokens: list[int], budget: int = 3) -> list[int]:
    spec = registry.spec(name)
    assert issubclass(spec.cls, Strategy)
    info = TargetInfo(n_vocab=100, n_ctx=100, n_batch=100, n_seq=1)
    strategy = spec.cls(spec.options, StrategyContext(target=info, vocab=NoVocab()))
    return list(strategy.draft(DraftRequest(0, History(tokens), budget)))


def test_a_plugin_is_less_than_30_lines_of_code(installed: Registry) -> None:
    source = inspect.getsource(sys.modules[installed.get("prompt-lookup").__module__])
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            documented.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code = [line for i, line in enumerate(source.splitlines(), 1) if line.strip() and i not in documented]
    assert "class PromptLookup(specframe.Strategy):" in code
    assert len(code) < 30


def test_prompt_lookup_is_found_and_drafts(installed: Registry) -> None:
    info = installed.info("prompt-lookup")
    assert (info.source.package, info.source.module) == ("specframe-prompt-lookup", "specframe_prompt_lookup")
    assert [(o.name, o.type, o.default) for o in info.options] == [("ngram", "int", 3)]
    assert draft_with(installed, "prompt-lookup", [1, 2, 3, 4, 5, 6, 1, 2, 3]) == [4, 5, 6]
    assert draft_with(installed, "prompt-lookup", [1, 2, 3, 4, 5, 6, 2, 2, 3]) == []
    assert draft_with(installed, "prompt-lookup", [1]) == []


def test_step_log_offers_an_observer_and_a_function(installed: Registry) -> None:
    assert [observer.__name__ for observer in installed.observers()] == ["StepLog"]
    assert draft_with(installed, "repeat-last", [7, 8]) == [8, 8, 8]
    assert installed.info("repeat-last").source.package == "specframe-step-log"
