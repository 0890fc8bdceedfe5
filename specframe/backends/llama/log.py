"""llama.cpp's log, routed to ``logging`` under the name ``specframe.llama``.

Nothing reaches stderr unless the application asks for it: the logger has a ``NullHandler``, so Python's last-resort
handler stays silent. Native INFO is chatty (hundreds of lines per load) and becomes DEBUG, and so do warnings about
what is done on purpose.
"""

from __future__ import annotations

import atexit
import collections
import logging
import threading
from typing import Any

import attrs

logger = logging.getLogger("specframe.llama")
logger.addHandler(logging.NullHandler())

#: Native DEBUG: one line per graph or batch.
TRACE = 5

_NONE, _DEBUG, _INFO, _WARN, _ERROR, _CONT = range(6)
_LEVELS = {_NONE: TRACE, _DEBUG: TRACE, _INFO: logging.DEBUG, _WARN: logging.WARNING, _ERROR: logging.ERROR}


#: Warnings about what is wanted here: layers that share memory or are not loaded on purpose, ``swa_full``.
_INTENDED = (
    "sharing with layer",
    "to match the shared source cache",
    "model has unused tensor",
    "using full-size SWA cache",
)


@attrs.frozen
class _Line:
    thread: int
    level: int
    text: str


class NativeLog:
    """Joins the fragments a library logs into lines, logs them, and remembers the troubling ones.

    One instance serves every library loaded in the process; native code may call it from any thread.
    """

    def __init__(self, *, keep: int = 64) -> None:
        # Re-entrant: the garbage collector may free a native object at any point, and freeing is logged.
        self._lock = threading.RLock()
        self._partial: dict[int, tuple[int, str]] = {}
        self._kept: collections.deque[_Line] = collections.deque(maxlen=keep)

    def feed(self, level: int, text: str) -> None:
        """Take one fragment; complete lines are logged at once, the rest waits for its continuation."""
        thread = threading.get_ident()
        lines: list[_Line] = []
        with self._lock:
            old_level, old_text = self._partial.pop(thread, (_INFO, ""))
            if level == _CONT:
                level = old_level
            elif old_text:
                lines.append(_Line(thread, old_level, old_text))
                old_text = ""
            *whole, rest = (old_text + text).split("\n")
            lines += [_Line(thread, _level(level, line), line) for line in whole]
            if rest:
                self._partial[thread] = (level, rest)
            self._kept.extend(line for line in lines if line.level in {_WARN, _ERROR})
        for line in lines:
            stripped = line.text.rstrip()
            if stripped:
                logger.log(_LEVELS.get(line.level, logging.DEBUG), "%s", stripped)

    def take(self, *, at_most: int = 6) -> tuple[str, ...]:
        """The latest warnings and errors of the calling thread, oldest first; they are forgotten by this.

        Errors win: warnings are quoted only where no error was logged.
        """
        thread = threading.get_ident()
        with self._lock:
            kept = tuple(self._kept)
            self._kept.clear()
            self._kept.extend(line for line in kept if line.thread != thread)
        mine = [line for line in kept if line.thread == thread]
        errors = [line.text.strip() for line in mine if line.level == _ERROR]
        chosen = errors or [line.text.strip() for line in mine]
        return tuple(dict.fromkeys(chosen[-at_most:]))


def _level(level: int, text: str) -> int:
    return _INFO if level == _WARN and any(part in text for part in _INTENDED) else level


#: The log of every native library in this process.
native_log = NativeLog()


def install(ffi: Any, lib: Any) -> Any:
    """Send the log of ``lib`` to ``native_log``.

    Returns:
        The C callback; the caller keeps it alive as long as the library is loaded.
    """

    @ffi.callback("ggml_log_callback", onerror=lambda *_: True)  # type: ignore[untyped-decorator]
    def on_message(level: int, text: Any, _user_data: Any) -> None:
        native_log.feed(int(level), ffi.string(text).decode("utf-8", "replace"))

    _set(lib, ffi, on_message)
    # A callback into a Python that is being torn down crashes, and NULL means "print to stderr". A native function
    # without arguments and effects takes the call instead: extra arguments stay unread in their registers.
    silence = ffi.cast("ggml_log_callback", lib.llama_max_devices)
    atexit.register(_set, lib, ffi, silence)
    return on_message


def _set(lib: Any, ffi: Any, callback: Any) -> None:
    # llama_log_set hands the callback on to ggml, but ggml can be a library of its own whose setter came later.
    lib.llama_log_set(callback, ffi.NULL)
    lib.ggml_log_set(callback, ffi.NULL)
