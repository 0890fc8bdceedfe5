"""Sessions on disk: the next request with their beginning starts from memory, or they are refused with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from typing_extensions import override

from specframe.core.engine import Engine
from specframe.core.errors import BackendError, ConfigError, RollbackError, StrategyError
from specframe.core.history import History
from specframe.core.ports import Decoded
from specframe.core.scheduler import Unlimited
from specframe.core.session import FORMAT, Session, strategy_key
from specframe.core.slot import PromptCheckpoints
from specframe.core.strategy import BatchStrategy, DraftRequest, NoOptions, StrategySpec
from specframe.testing import Fault, ScriptedTarget, tape
from tests.support.lossless import PROMPT, ask, assert_plain, every_memory, oracle

_RIGHT = tape(ScriptedTarget(), ask())


def _saved(memory: dict[str, Any], **more: Any) -> Session:
    """What an engine that is gone by now had in memory."""
    with Engine(ScriptedTarget(**memory)) as engine:
        engine.submit(ask(**more)).result()
        return engine.save_session()


@every_memory
@pytest.mark.parametrize("strategy", [None, oracle(_RIGHT, 3)], ids=["plain", "drafted"])
def test_the_next_request_starts_from_memory(memory: dict[str, Any], strategy: StrategySpec | None) -> None:
    session = _saved(memory, max_tokens=10, strategy=strategy)
    assert session.tokens == _RIGHT[: len(session.tokens)]
    target = ScriptedTarget(**memory, n_seq=2)
    with Engine(target) as engine:
        assert engine.load_session(session) == len(session.tokens)
        request = ask(prompt=(*_RIGHT[:15], 3, 4), strategy=oracle(tape(ScriptedTarget(), ask(prompt=_RIGHT[:17]))))
        completion = engine.submit(request).result()
        assert completion.stats.cached_tokens == len(session.tokens)
        assert target.n_decoded < 2 + 3 + 2 * completion.stats.emitted + completion.stats.verified
        assert_plain(ScriptedTarget(), request, completion)


@every_memory
def test_a_request_that_departs_from_it_is_right_too(memory: dict[str, Any]) -> None:
    session = _saved(memory, max_tokens=10)
    with Engine(ScriptedTarget(**memory), checkpoints=PromptCheckpoints(tail=1)) as engine:
        for prompt in ((*_RIGHT[:12], 1, 2), (*_RIGHT[:15], 5), _RIGHT[:3], (9, 9)):
            engine.load_session(session)
            request = ask(prompt=prompt)
            assert_plain(ScriptedTarget(), request, engine.submit(request).result())
            assert_plain(ScriptedTarget(), ask(), engine.submit(ask()).result())


def test_the_sequence_that_holds_most_of_the_prompt_is_saved() -> None:
    with Engine(ScriptedTarget(n_seq=3)) as engine:
        for prompt in ((1, 2, 3, 4), (1, 2, 9, 9), (7, 7)):
            engine.submit(ask(1, prompt=prompt, reuse_prefix=False)).result()
        assert engine.save_session((1, 2, 9, 8)).tokens == (1, 2, 9, 9)
        assert engine.save_session((1, 2, 3, 4, 5)).tokens == (1, 2, 3, 4)
        assert engine.save_session((7,)).tokens == (7, 7)
        assert engine.save_session().tokens == (7, 7)
        with pytest.raises(ConfigError, match="nothing to save"):
            engine.save_session((8, 1))


def test_nothing_to_save_and_nowhere_to_load() -> None:
    session = _saved({})
    with Engine(ScriptedTarget()) as engine:
        with pytest.raises(ConfigError, match="nothing to save"):
            engine.save_session()
        generation = engine.submit(ask())
        next(generation)
        with pytest.raises(ConfigError, match="every sequence is in use"):
            engine.load_session(session)
        with pytest.raises(ConfigError, match="nothing to save"):
            engine.save_session()
        assert_plain(ScriptedTarget(), ask(), generation.result())


def test_a_file_says_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "talk.session"
    session = attrs.evolve(_saved({}), strategies={"strategy a": b"\x00\x01", "strategy b": b""})
    session.write(path)
    session.write(path)  # replaces
    assert Session.read(path) == session
    assert [p.name for p in tmp_path.iterdir()] == ["talk.session"]


def test_what_is_no_session_is_refused_before_it_is_read_to_its_end() -> None:
    with pytest.raises(ConfigError, match="'/dev/zero' is not a session file"):
        Session.read("/dev/zero")


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    _saved({}).write(path)
    whole = path.read_bytes()
    for n in (0, 5, 17, 18, 25, 26, 40, len(whole) - 40, len(whole) - 1):
        path.write_bytes(whole[:n])
        with pytest.raises(ConfigError, match=r"not a session file|damaged"):
            Session.read(path)
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ConfigError, match=r"not a session file|damaged"):
            Session.read(path)
    with pytest.raises(FileNotFoundError):
        Session.read(tmp_path / "none")


def test_another_format_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s"
    monkeypatch.setattr("specframe.core.session.FORMAT", FORMAT + 1)
    _saved({}).write(path)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=rf"format {FORMAT + 1} .*reads format {FORMAT}"):
        Session.read(path)


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s"
    session = _saved({})
    session.write(path)

    def interrupted(fd: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        attrs.evolve(session, state=b"other").write(path)
    assert Session.read(path) == session
    assert [p.name for p in tmp_path.iterdir()] == ["s"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none" / "s", tmp_path):
        with pytest.raises(ConfigError, match=rf"cannot be written to '{path}'.*a directory that exists"):
            _saved({}).write(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("other", "named"), [({"seed": 5}, "seed 0"), ({"n_ctx": 99}, "n_ctx 256"), ({"order": 2}, "order")]
)
def test_another_model_or_setting_is_refused_by_name(other: dict[str, Any], named: str) -> None:
    target = ScriptedTarget(**other)
    with Engine(target) as engine:
        with pytest.raises(ConfigError, match=f"made with {named}"):
            engine.load_session(_saved({}))
        assert target.calls == []


@every_memory
@pytest.mark.parametrize("error", [RollbackError, MemoryError, KeyboardInterrupt])
def test_a_state_that_is_not_taken_leaves_an_empty_sequence(memory: dict[str, Any], error: type[BaseException]) -> None:
    target = ScriptedTarget(**memory)
    with Engine(target) as engine:
        engine.submit(ask(prompt=(3, 4))).result()
        target.inject(Fault(call="load_state", error=error))
        with pytest.raises(error):
            engine.load_session(_saved(memory))
        completion = engine.submit(ask()).result()
        assert completion.stats.cached_tokens == 0
        assert_plain(ScriptedTarget(), ask(), completion)


def test_a_state_that_cannot_be_had_changes_nothing() -> None:
    target = ScriptedTarget()
    with Engine(target) as engine:
        engine.submit(ask()).result()
        target.inject(Fault(call="save_state"))
        with pytest.raises(BackendError):
            engine.save_session()
        assert engine.save_session().tokens == _RIGHT[:28]


class _Keeper(BatchStrategy):
    """Keeps what it processed of each sequence, and says so at the begin of the next request."""

    name = "keeper"
    begun: list[tuple[int, int]]

    def __init__(self, options: Any, context: Any) -> None:
        super().__init__(options, context)
        self.held: dict[int, list[int]] = {}
        self.begun = []

    @override
    def begin(self, seq: int, history: History, n_held: int) -> int:
        kept = self.held.setdefault(seq, [])
        n = 0
        while n < min(n_held, len(kept)) and kept[n] == history[n]:
            n += 1
        del kept[n:]
        self.begun.append((n_held, n))
        return n

    @override
    def process(self, batch: Sequence[Decoded]) -> None:
        for entry in batch:
            kept = self.held[entry.seq]
            assert entry.pos <= len(kept)
            kept[entry.pos :] = entry.tokens

    @override
    def draft(self, requests: Sequence[DraftRequest]) -> Sequence[Sequence[int]]:
        return [()] * len(requests)

    @override
    def save(self, seq: int) -> bytes | None:
        return bytes(self.held[seq]) if seq in self.held else None

    @override
    def load(self, seq: int, data: bytes) -> None:
        self.held[seq] = list(data)


class _Broken(_Keeper):
    name = "broken-keeper"

    @override
    def save(self, seq: int) -> bytes | None:
        raise OSError("no")


def _keeper(engine: Engine) -> _Keeper:
    (drafter,) = engine._drafters.members.values()
    strategy = drafter._strategy  # type: ignore[attr-defined]
    assert isinstance(strategy, _Keeper)
    return strategy


def test_the_memory_of_a_strategy_travels_along() -> None:
    spec = StrategySpec.of(_Keeper)
    session = _saved({}, max_tokens=6, strategy=spec)
    assert list(session.strategies) == [strategy_key(spec)]
    n = len(session.tokens)
    request = ask(6, prompt=(*_RIGHT[:n], 3, 4), strategy=spec)
    with Engine(ScriptedTarget()) as engine:
        engine.load_session(session)
        assert engine.save_session().strategies == session.strategies  # not continued yet, still there
        assert_plain(ScriptedTarget(), request, engine.submit(request).result())
        assert _keeper(engine).begun == [(n, n)]
    with Engine(ScriptedTarget()) as engine:
        # A request without it in between: the strategy missed that, and is asked what it knows.
        engine.load_session(session)
        engine.submit(ask(2, prompt=(*_RIGHT[:n], 3))).result()
        assert_plain(ScriptedTarget(), request, engine.submit(request).result())
        assert _keeper(engine).begun == [(n + 1, 0)]


def test_what_a_strategy_keeps_of_another_text_stays_out_of_a_session() -> None:
    spec = StrategySpec.of(_Keeper)
    session = _saved({}, max_tokens=6, strategy=spec)
    with Engine(ScriptedTarget()) as engine:
        engine.submit(ask(9, prompt=(8, 9, 7), strategy=spec)).result()
        assert engine.save_session().strategies != session.strategies
        engine.load_session(session)
        assert engine.save_session().strategies == session.strategies
        engine.submit(ask(9, prompt=(8, 9, 7), strategy=spec)).result()
        engine.submit(ask(9, prompt=(5, 6))).result()
        assert engine.save_session().strategies == {}


def test_a_strategy_that_cannot_save_is_left_out() -> None:
    assert _saved({}, strategy=StrategySpec.of(_Broken)).strategies == {}


def test_a_strategy_that_cannot_load_starts_over(caplog: pytest.LogCaptureFixture) -> None:
    class Picky(_Keeper):
        name = "picky"

        @override
        def load(self, seq: int, data: bytes) -> None:
            raise StrategyError(self.name, "no thanks")

    spec = StrategySpec.of(Picky)
    session = _saved({}, max_tokens=6, strategy=spec)
    request = ask(6, prompt=(*session.tokens, 3, 4), strategy=spec)
    with Engine(ScriptedTarget(), scheduler=Unlimited) as engine:
        engine.load_session(session)
        completion = engine.submit(request).result()
        assert_plain(ScriptedTarget(), request, completion)
        assert completion.stats.inactive_reason == "nothing-proposed"
        assert _keeper(engine).begun == [(len(session.tokens), 0)]
    assert "no thanks" in caplog.text


def test_a_draft_file_that_is_gone_costs_no_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its name and size are part of what a session calls the memory of a strategy."""

    class Filed(_Keeper):
        name = "filed"
        uses_draft_file = True

    draft = tmp_path / "draft"
    draft.write_bytes(b"x")
    spec = StrategySpec.of(Filed, draft_path=draft)
    session = _saved({}, max_tokens=6, strategy=spec)
    request = ask(6, prompt=(*session.tokens, 3, 4), strategy=spec)
    with Engine(ScriptedTarget()) as engine:
        engine.load_session(session)
        draft.unlink()
        assert_plain(ScriptedTarget(), request, engine.submit(request).result())
        assert engine.save_session().strategies == {}
    assert "'filed': load() raised FileNotFoundError" in caplog.text


def test_other_options_or_another_draft_file_have_another_name(tmp_path: Path) -> None:
    keys = {strategy_key(oracle(PROMPT)), strategy_key(oracle(_RIGHT)), strategy_key(StrategySpec.of(_Keeper))}
    for name, size in (("a", 1), ("b", 1), ("a", 2)):
        path = tmp_path / name
        path.write_bytes(bytes(size))
        keys.add(strategy_key(StrategySpec(_Keeper, NoOptions(), path)))
    assert len(keys) == 6


def test_what_an_application_notes_comes_back(tmp_path: Path) -> None:
    notes = {"messages": [{"role": "user", "content": "h\u00e9llo"}]}
    attrs.evolve(_saved({}), notes=notes).write(tmp_path / "s")
    assert Session.read(tmp_path / "s").notes == notes
    _saved({}).write(tmp_path / "s")
    assert Session.read(tmp_path / "s").notes == {}
