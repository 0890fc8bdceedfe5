"""Running pip: which one, how it is watched, what its failures mean."""

from __future__ import annotations

import importlib.util
import os
import stat
import sys
from pathlib import Path

import pytest

from specframe.catalogue import PullError, download
from specframe.catalogue.download import pip_command, pip_download


@pytest.fixture
def work(tmp_path: Path) -> Path:
    directory = tmp_path / "work"
    directory.mkdir()
    return directory


def fake_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Make ``pip`` a Python program; ``dest`` and ``args`` are there for it."""
    program = tmp_path / "fake_pip.py"
    program.write_text(
        "import os, pathlib, sys, time\nargs = sys.argv[1:]\n"
        "dest = pathlib.Path(args[args.index('--dest') + 1])\n" + body
    )
    monkeypatch.setattr(download, "pip_command", lambda: [sys.executable, str(program)])


def test_wheels_arrive_and_nothing_else_stays(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_pip(
        tmp_path,
        monkeypatch,
        "assert args[0] == 'download' and '--no-deps' in args and args[-1] == 'thing==1.0'\n"
        "assert args[args.index('--only-binary') + 1] == ':all:'\n"
        "assert os.getcwd() == os.environ['TMPDIR']\n"
        "(dest / 'thing-1.0-py3-none-any.whl').write_bytes(b'wheel')\n",
    )
    pip_download(["thing==1.0"], work, lambda _: None)
    assert [(p.name, p.read_bytes()) for p in work.iterdir()] == [("thing-1.0-py3-none-any.whl", b"wheel")]


def test_growth_of_temporary_files_is_watched(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_pip(
        tmp_path,
        monkeypatch,
        "part = pathlib.Path(os.environ['TMPDIR'], 'part')\n"
        "part.write_bytes(bytes(5000))\n"
        "while not (part.parent / 'seen').exists(): time.sleep(0.01)\n"
        "part.rename(dest / 'thing.whl')\n",
    )
    seen: list[int] = []

    def watch(n_bytes: int) -> None:
        seen.append(n_bytes)
        if n_bytes >= 5000:
            (work / "scratch" / "seen").touch()

    pip_download(["thing"], work, watch)
    assert max(seen) == 5000


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("ERROR: No matching distribution found for thing==9", r"exit code 3\): ERROR: No matching distribution"),
        (
            "WARNING: retry NameResolutionError(...)\nERROR: could not find thing",
            "cannot be reached .* check the network",
        ),
        ("ERROR: [Errno 28] No space left on device", "the disk is full"),
        ("something odd", "something odd"),
        ("", "nothing"),
    ],
)
def test_a_failure_says_what_stopped_it(
    output: str, message: str, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_pip(tmp_path, monkeypatch, f"print({output!r}, file=sys.stderr); sys.exit(3)")
    with pytest.raises(PullError, match=message) as caught:
        pip_download(["thing==9"], work, lambda _: None)
    assert "thing==9" in str(caught.value)


def test_a_pip_that_cannot_start_is_named(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "pip_command", lambda: ["/nonexistent/pip"])
    with pytest.raises(PullError, match="/nonexistent/pip could not be started"):
        pip_download(["thing"], work, lambda _: None)


@pytest.mark.parametrize("stubborn", [False, True])
def test_an_interrupt_ends_pip_too(stubborn: bool, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid_file = tmp_path / "pid"
    monkeypatch.setattr(download, "_STOP_S", 0.2)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if stubborn else ""
    fake_pip(
        tmp_path,
        monkeypatch,
        f"{deaf}pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))\ntime.sleep(600)\n",
    )

    def interrupt(_: int) -> None:
        if pid_file.exists() and pid_file.read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pip_download(["thing"], work, interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def executable(path: Path) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_the_interpreters_own_pip_comes_first_then_uv_then_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UV", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    assert pip_command() == [sys.executable, "-m", "pip"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(PullError, match="python -m ensurepip"):
        pip_command()
    pip = executable(tmp_path / "bin" / "pip3")
    assert pip_command() == [pip]
    uv = executable(tmp_path / "bin" / "uv")
    assert pip_command() == [uv, "tool", "run", "pip"]
    monkeypatch.setenv("UV", "/opt/uv")
    assert pip_command() == ["/opt/uv", "tool", "run", "pip"]
