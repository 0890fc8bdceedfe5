"""The command line, in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from typer.testing import CliRunner

import specframe
from specframe.cli.app import app
from tests.support.exact import once


@attrs.frozen
class Answer:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Stdout as the one JSON document it must be."""
        return json.loads(self.out)


@pytest.fixture
def model(zoo: Callable[[str], Path]) -> Path:
    """A tiny model with a chat template."""
    return zoo("llama-chat")


@pytest.fixture
def interrupt_step(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """``interrupt_step(n)`` makes Ctrl-C arrive in the n-th step from then on."""
    step = specframe.Engine.step

    def arm(n: int) -> None:
        strike = once(KeyboardInterrupt(), at=n)

        def interrupted(engine: specframe.Engine) -> bool:
            strike()
            return step(engine)

        monkeypatch.setattr(specframe.Engine, "step", interrupted)

    return arm


@pytest.fixture
def cli() -> Callable[..., Answer]:
    """``cli("generate", path, "-p", "x", stdin="...")``; any exception but an orderly exit is a failure."""

    def run(*args: object, stdin: str | bytes = "") -> Answer:
        result = CliRunner().invoke(app, [str(a) for a in args], input=stdin, prog_name="specframe")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Answer(result.exit_code, result.stdout, result.stderr)

    return run
