"""``specframe chat`` on a terminal: line editing, Ctrl-C, Ctrl-D."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest


@attrs.define
class Terminal:
    """A process on a pseudo terminal, and everything it has shown."""

    process: subprocess.Popen[bytes]
    fd: int
    shown: str = ""

    def wait_for(self, text: str, *, pressing: Callable[[], None] = lambda: None) -> None:
        """Read until ``text`` was shown since the last call; ``pressing`` is called when nothing happens."""
        deadline = time.monotonic() + 300
        while text not in self.shown:
            ready, _, _ = select.select([self.fd], [], [], 2)
            if ready:
                self.shown += os.read(self.fd, 4096).decode("utf-8", "replace")
            else:
                pressing()
            assert time.monotonic() < deadline, f"{text!r} never came; shown: {self.shown!r}"
        self.shown = self.shown.partition(text)[2]

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self.fd, text.encode())


@pytest.fixture
def chat(zoo: Callable[[str], Path]) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "specframe", "chat", zoo("llama-chat"), "-n", "4", "--temperature", "0", "--no-stats"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        env={**os.environ, "TERM": "dumb"},
    )
    os.close(slave)
    yield Terminal(process, master)
    process.kill()
    process.wait()
    os.close(master)


def test_an_interrupt_at_the_prompt_stays_and_the_end_of_input_leaves(chat: Terminal) -> None:
    chat.wait_for("Ctrl-C stops an answer")
    chat.wait_for("> ")
    # A signal between the prompt and the moment readline listens is seen at the next key only, as with any Python
    # prompt.
    chat.wait_for("Ctrl-D to leave", pressing=lambda: chat.process.send_signal(signal.SIGINT))
    chat.wait_for("> ")
    chat.type("hello\n")
    chat.wait_for("hello")
    chat.wait_for("> ")
    chat.type("\x04")
    assert chat.process.wait(300) == 0
