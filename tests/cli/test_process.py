"""The command line as a process of its own: start-up, signals, pipes, clean exits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ZOO_GREEDY = ("--temperature", "0")


def start(*args: object, code: str | None = None, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", code] if code is not None else [sys.executable, "-m", "specframe"]
    return subprocess.Popen(
        [*command, *map(str, args)],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def finish(process: subprocess.Popen[bytes], stdin: bytes | None = None) -> tuple[int, str, str]:
    out, err = process.communicate(stdin, timeout=300)
    return process.returncode, out.decode(), err.decode()


def test_module_and_pipes(model: Path) -> None:
    process = start("generate", model, "-n", "5", *ZOO_GREEDY, "--json", stdin=subprocess.PIPE)
    code, out, err = finish(process, b"abc\n")
    assert (code, err) == (0, "")
    assert json.loads(out)["completion_tokens"] == 5


def test_the_console_script_is_installed(model: Path) -> None:
    script = Path(sys.executable).with_name("specframe")
    done = subprocess.run([script, "--version"], capture_output=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("what", ["import specframe", "from specframe.cli.app import app"])
def test_starting_up_loads_nothing_heavy(what: str) -> None:
    code = f"{what}; import sys; print([m for m in ('numpy', 'cffi', 'jinja2', 'pluggy') if m in sys.modules])"
    assert finish(start(code=code)) == (0, "[]\n", "")


def test_a_closed_pipe_is_quiet(model: Path) -> None:
    process = start("generate", model, "-p", "abc", "-n", "400", "--ignore-eos", *ZOO_GREEDY)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(300) == 1


def in_shell(model: Path, command: str) -> tuple[int, str, str]:
    """``command`` with ``specframe`` and ``$MODEL`` in it, as a shell runs it."""
    done = subprocess.run(
        ["/bin/sh", "-c", command.replace("specframe", f"{sys.executable} -m specframe")],
        capture_output=True, check=False, timeout=300, env={**os.environ, "MODEL": str(model)}, text=True,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


GENERATE = "specframe generate $MODEL -p abc -n 4 --temperature 0 --no-stats"


def test_closed_standard_streams_are_like_empty_ones(model: Path) -> None:
    code, said, _ = in_shell(model, GENERATE)
    assert (code, len(said) > 0) == (0, True)
    assert in_shell(model, f"{GENERATE} <&- 2>&-") == (0, said, "")
    assert in_shell(model, f"{GENERATE} <&- >&-") == (0, "", "")
    assert in_shell(model, f"{GENERATE} -s nonsense 2>&-") == (2, "", "")
    code, _, err = in_shell(model, "specframe generate $MODEL -n 4 <&-")
    assert (code, err.count("\n")) == (2, 1)
    assert "the prompt is empty" in err
    assert in_shell(model, "specframe chat $MODEL -n 4 <&-") == (0, "", "")


@pytest.mark.parametrize("command", [GENERATE, f"{GENERATE} --json", "specframe strategies", "specframe --version"])
def test_output_that_cannot_be_written_is_one_line_of_error(model: Path, command: str) -> None:
    code, _, err = in_shell(model, f"{command} >/dev/full")
    assert code == 1
    assert err == "specframe: error: [Errno 28] No space left on device\n"


def wait_for_output(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    first = process.stdout.read(1)
    assert first, "the process ended before it said anything"
    return first


# A model that takes its time, so that an interrupt arrives in the middle of an answer.
SLOW = """
import sys, time
import specframe
from specframe.cli import main
step = specframe.Engine.step
def slow(engine):
    time.sleep(0.02)
    return step(engine)
specframe.Engine.step = slow
main(sys.argv[1:])
"""


def test_an_interrupt_is_exit_130_without_a_traceback(model: Path) -> None:
    process = start("generate", model, "-p", "abc", "-n", "400", "--ignore-eos", *ZOO_GREEDY, code=SLOW)
    wait_for_output(process)
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert (code, err) == (130, "")


def test_an_interrupt_in_a_chat_stops_the_answer_only(model: Path) -> None:
    process = start("chat", model, "-n", "400", "--ignore-eos", *ZOO_GREEDY, code=SLOW, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"hello\n")
    process.stdin.flush()
    wait_for_output(process)
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process, b"/exit\n")
    assert (code, err) == (0, " [stopped]")


LEFT_OPEN = """
import sys
import specframe
llm = specframe.load(sys.argv[1])
stream = llm.stream("abc", max_tokens=300, temperature=0, ignore_eos=True)
print(len(next(stream).tokens) > 0)
"""

LEFT_OPEN_ASYNC = """
import asyncio, sys
import specframe
llm = specframe.load(sys.argv[1])
async def main():
    stream = llm.astream("abc", max_tokens=300, temperature=0, ignore_eos=True)
    print(len((await stream.__anext__()).tokens) > 0)
asyncio.run(main())
"""

LEFT_OPEN_THREAD = """
import sys, threading
import specframe
llm = specframe.load(sys.argv[1])
started = threading.Event()
def work():
    for chunk in llm.stream("abc", max_tokens=300, temperature=0, ignore_eos=True):
        started.set()
threading.Thread(target=work, daemon=True).start()
started.wait(300)
print(True)
"""


@pytest.mark.parametrize("code", [LEFT_OPEN, LEFT_OPEN_ASYNC, LEFT_OPEN_THREAD])
def test_exit_with_a_generator_open_is_clean(model: Path, code: str) -> None:
    assert finish(start(model, code=code)) == (0, "True\n", "")
