"""CMake, Ninja and a compiler: finding them, running them, saying what stopped them."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import attrs

from specframe.runtime.errors import BuildError

_QUOTED_LINES = 12
_STEP = re.compile(r"\[(\d+)/(\d+)\] ")
_STOP_S = 5.0


@attrs.frozen
class Tools:
    """The programs of a build."""

    cmake: str
    ninja: str
    compiler: str
    """For C++, by the environment variable ``CXX`` or by its usual name; for people, CMake finds it itself."""


def find_tools() -> Tools:
    """What a build needs. Raises BuildError that says how to get what is missing."""
    cmake, ninja = _program("cmake"), _program("ninja")
    if cmake is None or ninja is None:
        missing = " and ".join(name for name, found in (("cmake", cmake), ("ninja", ninja)) if found is None)
        raise BuildError(f"building needs {missing}: pip install 'specframe[build]'")
    compiler = find_compiler()
    if compiler is None:
        if asked := _asked():
            raise BuildError(f"building needs a C++ compiler, and CXX names {asked!r}, which is no program here")
        way = "xcode-select --install" if sys.platform == "darwin" else "on Debian and Ubuntu: apt install g++"
        raise BuildError(f"building needs a C++ compiler, and there is none ({way}; or set CC and CXX)")
    return Tools(cmake, ninja, compiler)


def find_compiler() -> str | None:
    """The C++ compiler that CMake will take, as far as that can be told without asking it."""
    if asked := _asked():
        return shutil.which(asked) or shutil.which(asked.split()[0])
    names = ("cl", "clang-cl", "g++", "clang++") if sys.platform == "win32" else ("c++", "g++", "clang++")
    return next((found for name in names if (found := shutil.which(name))), None)


def _asked() -> str:
    """The compiler that the environment names, with arguments or in a directory with spaces."""
    return os.environ.get("CXX", "").strip()


def _program(name: str) -> str | None:
    # The scripts of this environment first: it may not be activated.
    return shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)


def configure(tools: Tools, source: Path, tree: Path, options: Mapping[str, str], log: IO[str]) -> None:
    """Let CMake set up ``tree``; what was compiled there is kept. Raises BuildError."""
    # CMake remembers compilers and what it found out about them, also those that failed. As its --fresh does.
    (tree / "CMakeCache.txt").unlink(missing_ok=True)
    shutil.rmtree(tree / "CMakeFiles", ignore_errors=True)
    command = [
        *(tools.cmake, "-S", str(source), "-B", str(tree), "-G", "Ninja"),
        f"-DCMAKE_MAKE_PROGRAM={tools.ninja}",
        *(f"-D{name}={value}" for name, value in options.items()),
    ]
    code, lines = _run(command, log, lambda _: None)
    if code:
        at = next((i for i, line in enumerate(lines) if line.startswith("CMake Error")), max(0, len(lines) - 12))
        raise BuildError(_failed("setting up the build", lines[at:], log))


def compile_target(
    tools: Tools, tree: Path, target: str, jobs: int | None, log: IO[str], report: Callable[[int, int], None]
) -> None:
    """Build ``target``; ``report(done, total)`` counts steps. Raises BuildError with what the compiler said."""

    def watch(line: str) -> None:
        step = _STEP.match(line)
        if step:
            report(int(step[1]), int(step[2]))

    command = [tools.ninja, "-C", str(tree), "-j", str(jobs or os.cpu_count() or 1), target]
    code, lines = _run(command, log, watch)
    if code:
        start = next((i for i, line in enumerate(lines) if line.startswith("FAILED:")), 0)
        said = [line for line in lines[start + 2 :] if not _STEP.match(line) and not line.startswith("ninja:")]
        errors = [line for line in said if re.search(r"\b(error|Error|ERROR|undefined reference|Killed)\b", line)]
        raise BuildError(_failed("compiling llama.cpp", errors or said or lines, log))


def compiler_version(tools: Tools) -> str:
    """The first line of what the compiler says about itself."""
    done = subprocess.run([tools.compiler, "--version"], check=False, capture_output=True, text=True)  # noqa: S603
    return next(iter(done.stdout.splitlines()), tools.compiler)


def _run(command: Sequence[str], log: IO[str], watch: Callable[[str], None]) -> tuple[int, list[str]]:
    """Run to the end; returns the exit code and the output. Never leaves the process behind."""
    log.write(f"$ {' '.join(command)}\n")
    # The same words in every language, since they are searched; and no status line that is overwritten.
    environment = {**os.environ, "LC_ALL": "C", "NINJA_STATUS": "[%f/%t] ", "CLICOLOR_FORCE": "0"}
    lines: list[str] = []
    with subprocess.Popen(  # noqa: S603 -- our own command
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None  # noqa: S101 -- for the type checker
        try:
            for line in process.stdout:
                log.write(line)
                lines.append(line.rstrip())
                watch(line)
        except BaseException:
            _stop(process)
            raise
    return process.returncode, lines


def _stop(process: subprocess.Popen[str]) -> None:
    """End it and what it started: CMake and Ninja leave their children behind when they are killed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def _failed(what: str, said: Sequence[str], log: IO[str]) -> str:
    quoted = "".join(f"\n  {line.strip()}" for line in [line for line in said if line.strip()][:_QUOTED_LINES])
    return f"{what} failed:{quoted}\nEverything it said is in {log.name}; what is done is kept for the next try."
