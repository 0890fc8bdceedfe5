"""Which strategy ``auto`` would take: the one with the best reason, of those that work with the files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from specframe.core.errors import ConfigError
from specframe.core.strategy import DraftRequest, Strategy, Suitability
from specframe.plugins import Registry

TARGET, DRAFT = Path("target.gguf"), Path("draft.gguf")


class _Volunteer(Strategy):
    """Drafts nothing, for a reason."""

    reason: ClassVar[Suitability]
    with_draft: ClassVar[Suitability | None] = None
    wrong: ClassVar[str] = ""
    checked: ClassVar[list[tuple[str, Path, Path | None]]] = []
    passed_over: ClassVar[dict[str, str]] = {}

    def draft(self, request: DraftRequest) -> Sequence[int]:
        del request
        return ()

    @classmethod
    def suitability(cls, target: Path, draft: Path | None) -> Suitability:
        del target
        return cls.reason if draft is None or cls.with_draft is None else cls.with_draft

    @classmethod
    def check_files(cls, target: Path, draft: Path | None) -> None:
        cls.checked.append((cls.name, target, draft))
        if cls.wrong:
            raise ConfigError(cls.wrong)


class Text(_Volunteer):
    name = "a-text"
    reason = Suitability.ANY_MODEL


class Other(_Volunteer):
    name = "b-text"
    reason = Suitability.ANY_MODEL


class Heads(_Volunteer):
    name = "heads"
    reason = Suitability.BUILT_IN
    with_draft = Suitability.UNASKED
    uses_draft_file = True


class Blocks(_Volunteer):
    name = "blocks"
    reason = Suitability.UNASKED
    with_draft = Suitability.DRAFT_FILE
    uses_draft_file = True


class Shy(Strategy):
    """Does not say anything about files."""

    name = "shy"

    def draft(self, request: DraftRequest) -> Sequence[int]:
        del request
        return ()


def suitable(*classes: type[Strategy], draft: Path | None = None) -> list[str]:
    registry = Registry()
    for cls in classes:
        registry.register(cls)
    _Volunteer.checked.clear()
    found, passed_over = registry.suitable(TARGET, draft)
    _Volunteer.passed_over = passed_over
    return [info.name for info in found]


def test_the_best_reason_comes_first_and_names_decide_between_equal_ones() -> None:
    assert suitable(Other, Shy, Heads, Text, Blocks) == ["heads", "a-text", "b-text"]
    assert suitable(Other, Shy, Heads, Text, Blocks, draft=DRAFT) == ["blocks", "a-text", "b-text"]
    assert _Volunteer.checked == [("blocks", TARGET, DRAFT), ("a-text", TARGET, None), ("b-text", TARGET, None)]
    assert suitable(Shy) == []


def test_what_does_not_work_is_passed_over_unless_the_draft_file_decides(caplog: pytest.LogCaptureFixture) -> None:
    class Stripped(Heads):
        name = "stripped"
        wrong = "the layers were left out"

    class Narrow(Blocks):
        name = "narrow"
        wrong = "96 values and not 64"

    with caplog.at_level("INFO"):
        assert suitable(Text, Stripped) == ["a-text"]
    assert "'stripped' is passed over: the layers were left out" in caplog.text
    assert _Volunteer.passed_over == {"stripped": "the layers were left out"}
    with pytest.raises(ConfigError, match="96 values and not 64"):
        suitable(Text, Narrow, draft=DRAFT)


def test_what_fails_to_answer_is_passed_over_like_any_broken_plugin() -> None:
    class Silly(_Volunteer):
        name = "silly"

        @classmethod
        def suitability(cls, target: Path, draft: Path | None) -> Suitability:
            raise ZeroDivisionError("of zero" if draft is None else "of a draft")

    class Odd(_Volunteer):
        name = "odd"
        reason = "very much"  # type: ignore[assignment]

    class Careless(Text):
        name = "careless"

        @classmethod
        def check_files(cls, target: Path, draft: Path | None) -> None:
            raise OSError("no such disk")

    assert suitable(Silly, Odd, Careless, Text) == ["a-text"]
    assert _Volunteer.passed_over == {
        "silly": "ZeroDivisionError: of zero",
        "odd": "ValueError: 'very much' is not a valid Suitability",
        "careless": "OSError: no such disk",
    }
    assert suitable(Silly, Blocks, draft=DRAFT) == ["blocks"]


def test_a_draft_file_that_cannot_be_read_is_said_to_be_so() -> None:
    class Reader(_Volunteer):
        name = "reader"

        @classmethod
        def suitability(cls, target: Path, draft: Path | None) -> Suitability:
            raise ConfigError(f"{draft} is not a GGUF file")

    with pytest.raises(ConfigError, match=r"draft\.gguf is not a GGUF file"):
        suitable(Reader, Text, draft=DRAFT)


def test_a_draft_file_nothing_drafts_with_is_refused() -> None:
    for classes in [(Text, Heads, Shy), ()]:
        with pytest.raises(ConfigError, match=r"no strategy drafts with 'draft\.gguf'"):
            suitable(*classes, draft=DRAFT)
