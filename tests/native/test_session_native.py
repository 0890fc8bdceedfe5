"""Sessions of real memory: what one process wrote, another continues, on every kind of memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import specframe
from specframe.core.engine import Engine
from specframe.core.errors import ConfigError, RollbackError
from specframe.core.request import Request
from specframe.core.sampling import SamplingParams
from specframe.core.session import Session
from specframe.core.strategy import StrategySpec
from specframe.strategies.ngram_k import NgramK
from tests.support.llama import Zoo, feed, target, tokens

GREEDY = SamplingParams(temperature=0.0)
PROMPT = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6, *tokens(30)]
kinds = pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama", {}),
        ("llama", {"type_k": "bf16", "type_v": "bf16"}),
        ("gemma4", {"swa_full": False}),
        ("qwen35", {}),
        ("qwen35", {"n_rs_seq": 8}),
    ],
    ids=["dense", "dense-bf16", "sliding-window", "hybrid", "hybrid-bounded"],
)

#: Writes what a first turn left.
_WRITER = """
import sys
from specframe.core.engine import Engine
from specframe.core.request import Request
from tests.native.test_session_native import GREEDY, PROMPT
from tests.support.llama import target

path, out, options = sys.argv[1], sys.argv[2], eval(sys.argv[3])
with target(path, n_seq=2, **options) as opened, Engine(opened) as engine:
    engine.submit(Request(prompt=PROMPT, max_tokens=20, sampling=GREEDY)).result()
    engine.save_session().write(out)
"""


def _write_elsewhere(model: Path, out: Path, options: dict[str, Any]) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", _WRITER, str(model), str(out), repr(options)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@kinds
def test_another_process_continues(zoo: Zoo, tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    path = tmp_path / "first.session"
    _write_elsewhere(zoo(name), path, options)
    session = Session.read(path)
    assert list(session.tokens[: len(PROMPT)]) == PROMPT
    assert len(session.tokens) == len(PROMPT) + 19
    second = [*session.tokens, 11, 12, 13]
    spec = StrategySpec.of(NgramK, {"n": 2, "m": 6})
    with target(zoo(name), n_seq=2, **options) as opened, Engine(opened) as engine:
        # The same two turns without any file.
        engine.submit(Request(prompt=PROMPT, max_tokens=20, sampling=GREEDY)).result()
        right = engine.submit(Request(prompt=second, max_tokens=30, sampling=GREEDY)).result()
        assert right.stats.cached_tokens == len(session.tokens)
    for strategy in (None, spec):
        with target(zoo(name), n_seq=2, **options) as opened, Engine(opened) as engine:
            assert engine.load_session(session) == len(session.tokens)
            request = Request(prompt=second, max_tokens=30, sampling=GREEDY, strategy=strategy)
            completion = engine.submit(request).result()
            assert completion.stats.cached_tokens == len(session.tokens)
            assert completion.tokens == right.tokens


@kinds
def test_logits_after_loading_equal_those_after_saving(zoo: Zoo, name: str, options: dict[str, Any]) -> None:
    with target(zoo(name), **options, n_seq=3) as opened:
        feed(opened, PROMPT, rows=1)
        state = opened.save_state(0)
        right = feed(opened, [3, 4, 5])
        feed(opened, [9, 9], seq=2, rows=0)  # what was there is replaced
        opened.load_state(2, state, len(PROMPT))
        assert opened.n_past(2) == len(PROMPT)
        assert (feed(opened, [3, 4, 5], seq=2) == right).all()


def test_a_state_of_the_wrong_length_is_refused(zoo: Zoo) -> None:
    with target(zoo("llama")) as opened:
        feed(opened, PROMPT, rows=1)
        state = opened.save_state(0)
        for bad in (state[:-1], state[: len(state) // 2], b"", state):
            with pytest.raises(RollbackError, match="was to hold"):
                opened.load_state(0, bad, len(PROMPT) + (bad is state))
            assert opened.n_past(0) == 0


def test_another_model_or_setting_is_refused_by_name(zoo: Zoo, tmp_path: Path) -> None:
    with target(zoo("llama")) as opened, Engine(opened) as engine:
        engine.submit(Request(prompt=PROMPT, max_tokens=1, sampling=GREEDY)).result()
        session = engine.save_session()
    for name, options, named in (
        ("gemma4", {}, "another model"),
        ("llama", {"n_ctx": 256}, "n_ctx 512"),
        ("llama", {"n_seq": 2}, "n_seq 1"),
        ("llama", {"type_k": "bf16"}, "type_k 'f16'"),
        ("llama", {"flash_attn": False}, "flash_attn True"),
    ):
        with (
            target(zoo(name), **options) as opened,
            Engine(opened) as engine,
            pytest.raises(ConfigError, match=f"made with {named}"),
        ):
            engine.load_session(session)
    moved = tmp_path / "another-name.gguf"
    shutil.copy(zoo("llama"), moved)
    with target(moved) as opened, Engine(opened) as engine:
        assert engine.load_session(session) == len(PROMPT)


@pytest.mark.parametrize("name", ["llama", "qwen35"])
def test_llm_saves_and_loads(zoo: Zoo, tmp_path: Path, name: str) -> None:
    path = tmp_path / "prompt.session"
    with specframe.load(zoo(name), strategy="none", n_ctx=256, threads=1) as llm:
        right = llm.generate(PROMPT, max_tokens=12, temperature=0.0, reuse_prefix=False)
        assert llm.save_session(path, PROMPT) == len(PROMPT) - 1
    with specframe.load(zoo(name), strategy="none", n_ctx=256, threads=1) as llm:
        assert llm.load_session(path) == len(PROMPT) - 1
        completion = llm.generate(PROMPT, max_tokens=12, temperature=0.0)
        assert completion.stats.cached_tokens == len(PROMPT) - 1
        assert completion.tokens == right.tokens
        assert llm.save_session(path) == len(PROMPT) + 11
        with pytest.raises(TypeError, match="save_session"):
            llm.save_session(path, PROMPT, tempreature=1.0)  # type: ignore[call-arg]
    with pytest.raises(specframe.ClosedError):
        llm.load_session(path)
