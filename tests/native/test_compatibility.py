"""What works with what, told from metadata alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from specframe import plugins
from specframe.backends.llama.gguf import inspect
from specframe.backends.llama.vocab_difference import vocabulary_difference
from specframe.compatibility import check_files
from specframe.core.ports import Need
from specframe.core.strategy import DraftRequest, Strategy
from specframe.plugins import Registry
from specframe.testing.zoo import Vocabulary, World, targets

Zoo = Callable[[str], Path]


class Reader(Strategy):
    """Reads hidden states, and a draft file."""

    name = "reader"
    needs = Need.HIDDEN
    uses_draft_file = True

    def draft(self, request: DraftRequest) -> Sequence[int]:
        return ()


@pytest.fixture(autouse=True)
def only_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    registry.register(Reader)
    monkeypatch.setattr(plugins, "registry", lambda: registry)


def failed(target: Path, **options: object) -> dict[str, str]:
    report = check_files(target, **options)  # type: ignore[arg-type]
    assert report.usable == all(c.ok for c in report.checks if c.decides)
    return {c.subject: c.detail for c in report.checks if not c.ok and c.decides}


def test_a_target_that_lacks_what_a_strategy_needs(zoo: Zoo) -> None:
    assert failed(zoo("llama-chat"), strategy="reader") == {
        "strategy reader": "needs hidden rows of the target, which llama.cpp does not hand out for llama models"
    }
    assert failed(zoo("llama-chat")) == {}, "strategies nobody asked for do not make a target unusable"
    assert failed(zoo("qwen35"), strategy="reader") == {}


def test_a_draft_that_fits(zoo: Zoo) -> None:
    report = check_files(zoo("qwen35"), draft=zoo("mtp-qwen35"), strategy="reader")
    assert report.usable
    assert {"draft", "draft vocabulary", "strategy reader"} <= {c.subject for c in report.checks}


def test_a_draft_that_is_no_model(zoo: Zoo, tmp_path: Path) -> None:
    path = tmp_path / "junk.gguf"
    path.write_bytes(b"junk")
    assert "junk.gguf" in failed(zoo("qwen35"), draft=path, strategy="reader")["draft"]


def test_a_draft_of_another_tokenizer(zoo: Zoo) -> None:
    problem = failed(zoo("qwen35"), draft=zoo("llama-utf8"), strategy="reader")["draft vocabulary"]
    assert "tokenizer is 'gpt2', the draft's is" in problem


def test_the_first_differing_token_is_named(zoo: Zoo, tmp_path: Path) -> None:
    template = World(vocabulary=Vocabulary.byte_level(chat_template="x"))
    same = targets.dense(tmp_path / "same.gguf", world=template)
    assert vocabulary_difference(inspect(zoo("llama-chat")), inspect(same)) is None
    swapped = tmp_path / "swapped.gguf"
    # The vocabulary is stored as text, so two tokens of equal length can change places in the file itself.
    tokens = inspect(same).array("tokenizer.ggml.tokens")
    assert tokens is not None
    first, second = tokens.index("A"), tokens.index("B")
    data = same.read_bytes()
    entry = (b"\x01\x00\x00\x00\x00\x00\x00\x00A", b"\x01\x00\x00\x00\x00\x00\x00\x00B")
    at = [data.index(e) for e in entry]
    swapped.write_bytes(
        data[: at[0]] + entry[1] + data[at[0] + 9 : at[1]] + entry[0] + data[at[1] + 9 :]
        if at[0] < at[1]
        else data[: at[1]] + entry[0] + data[at[1] + 9 : at[0]] + entry[1] + data[at[0] + 9 :]
    )
    difference = vocabulary_difference(inspect(same), inspect(swapped))
    assert difference == f"token {min(first, second)} is 'A' in the target and 'B' in the draft"


def test_a_plugin_that_fails_to_look_at_files_is_reported(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(target: Path, draft: Path | None) -> None:
        raise KeyError("depth")

    monkeypatch.setattr(Reader, "check_files", broken)
    assert failed(zoo("qwen35"), strategy="reader") == {"strategy reader": "KeyError: 'depth'"}
