"""Where llama.cpp's messages go, and what a failed call says."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import specframe
from specframe.backends.llama import log
from specframe.backends.llama.library import Library, load_library
from specframe.backends.llama.log import TRACE, NativeLog, native_log
from specframe.backends.llama.model import Model
from specframe.backends.llama.status import BATCH_CODES, NativeCallError, check, failure, present
from specframe.core.errors import BackendError

NONE, DEBUG, INFO, WARN, ERROR, CONT = range(6)


@pytest.fixture
def library() -> Library:
    library = load_library()
    native_log.take()
    return library


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(r.levelno, r.getMessage()) for r in caplog.records if r.name == "specframe.llama"]


def test_continued_messages_become_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(TRACE, "specframe.llama")
    sink = NativeLog()
    for level, text in [(WARN, "loading "), (CONT, "."), (CONT, "."), (CONT, " done\n"), (ERROR, "a\nb\n")]:
        sink.feed(level, text)
    assert lines(caplog) == [(logging.WARNING, "loading .. done"), (logging.ERROR, "a"), (logging.ERROR, "b")]


def test_a_message_left_open_ends_where_the_next_begins(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(TRACE, "specframe.llama")
    sink = NativeLog()
    sink.feed(INFO, "open")
    sink.feed(DEBUG, "next\n")
    assert lines(caplog) == [(logging.DEBUG, "open"), (TRACE, "next")]


def test_empty_lines_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(TRACE, "specframe.llama")
    NativeLog().feed(INFO, "\n  \n\n")
    assert lines(caplog) == []


def test_threads_do_not_mix_their_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(TRACE, "specframe.llama")
    sink = NativeLog()
    sink.feed(WARN, "mine ")
    other = threading.Thread(target=sink.feed, args=(WARN, "theirs\n"))
    other.start()
    other.join()
    sink.feed(CONT, "still mine\n")
    assert lines(caplog) == [(logging.WARNING, "theirs"), (logging.WARNING, "mine still mine")]
    assert sink.take() == ("mine still mine",)


def test_what_is_done_on_purpose_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(TRACE, "specframe.llama")
    sink = NativeLog()
    sink.feed(WARN, "llama_kv_cache: layer   0: sharing with layer 3. k = 0x1, v = 0x2\n")
    sink.feed(WARN, "odd: sharing is caring\n")
    assert [level for level, _ in lines(caplog)] == [logging.DEBUG, logging.WARNING]
    assert sink.take() == ("odd: sharing is caring",)


@pytest.mark.parametrize(
    ("target", "draft", "strategy"),
    [("gemma4", "gemma4-assistant", "mtp"), ("qwen35-mtp", None, "mtp"), ("qwen35-mtp", None, "none")],
)
def test_loading_says_nothing_when_all_is_well(
    zoo: Callable[[str], Path], caplog: pytest.LogCaptureFixture, target: str, draft: str | None, strategy: str
) -> None:
    path = None if draft is None else zoo(draft)
    with specframe.load(zoo(target), strategy=strategy, draft=path, n_ctx=256, threads=1) as llm:
        assert llm.generate("abc", max_tokens=8, temperature=0).completion_tokens == 8
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_errors_are_quoted_before_warnings_and_only_once() -> None:
    sink = NativeLog()
    sink.feed(WARN, "odd\n")
    assert sink.take() == ("odd",)
    sink.feed(WARN, "odd\n")
    for _ in range(2):
        sink.feed(ERROR, "broken\n")
    assert sink.take() == ("broken",)
    assert sink.take() == ()


def test_what_is_kept_is_bounded() -> None:
    sink = NativeLog(keep=4)
    for number in range(100):
        sink.feed(ERROR, f"{number}\n")
    assert sink.take(at_most=9) == ("96", "97", "98", "99")


class Logging(str):
    """A message during which garbage is collected whose finalizer makes the library log."""

    __slots__ = ("sink",)
    sink: NativeLog

    def __radd__(self, other: str) -> str:
        self.sink.feed(WARN, "freed\n")
        return other + str(self)


def test_what_is_freed_while_a_message_is_taken_may_log_as_well() -> None:
    sink = NativeLog()
    text = Logging("mine\n")
    text.sink = sink
    kept: list[str] = []

    def fail() -> None:
        sink.feed(WARN, text)
        kept.extend(sink.take())

    feeding = threading.Thread(target=fail, daemon=True)
    feeding.start()
    feeding.join(60)
    assert sorted(kept) == ["freed", "mine"]


def test_native_messages_reach_logging(
    library: Library, zoo: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "specframe.llama")
    Model(zoo("llama"), library=library).close()
    texts = [text for _, text in lines(caplog)]
    assert any("general.architecture" in text for text in texts)
    assert all("\n" not in text for text in texts)


def test_a_message_that_is_not_utf8_does_not_break_the_call(library: Library, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(TRACE, "specframe.llama")
    callback: Any = library.ffi.new("ggml_log_callback *")
    user_data = library.ffi.new("void **")
    library.lib.llama_log_get(callback, user_data)
    callback[0](WARN, library.ffi.new("char[]", b"caf\xe9\n"), library.ffi.NULL)
    assert lines(caplog) == [(logging.WARNING, "caf\ufffd")]


def test_ggml_logs_to_the_same_place(library: Library) -> None:
    found = []
    for get in (library.lib.llama_log_get, library.lib.ggml_log_get):
        callback = library.ffi.new("ggml_log_callback *")
        get(callback, library.ffi.new("void **"))
        found.append(callback[0])
    assert found[0] == found[1] != library.ffi.NULL


def test_nothing_is_printed_by_default(zoo: Callable[[str], Path]) -> None:
    code = f"from specframe.backends.llama.model import Model; Model({str(zoo('llama'))!r}).close()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_log_is_silenced_before_the_interpreter_goes(zoo: Callable[[str], Path]) -> None:
    # An exit handler registered before the library was loaded runs after its own: logging from C must be harmless.
    code = (
        "import atexit, sys\n"
        f"atexit.register(lambda: [m.close(), Model({str(zoo('llama'))!r}).close()])\n"
        "from specframe.backends.llama.model import Model\n"
        f"m = Model({str(zoo('llama'))!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_good_status_passes() -> None:
    assert check(0, op="decode") == 0
    assert check(17, op="add", meanings=BATCH_CODES) == 17


@pytest.mark.parametrize(("code", "words"), [(1, "no room"), (2, "abort callback"), (-1, "invalid"), (-9, "unknown")])
def test_a_bad_status_says_what_where_and_why(code: int, words: str) -> None:
    native_log.take()
    log.native_log.feed(ERROR, "decode: the reason\n")
    with pytest.raises(BackendError, match=words) as raised:
        check(code, op="decode", n_past=7)
    assert isinstance(raised.value, NativeCallError)
    assert (raised.value.op, raised.value.code) == ("decode", code)
    assert "n_past=7" in str(raised.value)
    assert "llama.cpp says: decode: the reason" in str(raised.value)
    assert native_log.take() == ()


def test_a_null_pointer_is_a_failure(library: Library) -> None:
    with pytest.raises(BackendError, match="making a context failed: no memory"):
        present(library.ffi.NULL, op="making a context", meaning="no memory")
    handle = library.ffi.new("int *")
    assert present(handle, op="x", meaning="y") is handle


def test_a_failure_without_a_log_says_so_briefly() -> None:
    native_log.take()
    assert str(failure("saving", meaning="disk full")) == "saving failed: disk full"
