"""What was built: where it is, which is used first, and how it goes away again."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import filelock

from specframe.backends.llama import discovery
from specframe.backends.llama.native_builds import builds_directory, choose_runtime, chosen_runtime, native_builds
from specframe.cache import cache_directory
from specframe.core.errors import ConfigError

#: Loads the library named by its argument as a request would, and fails with the reason. In a process of its own:
#: a kernel that this processor lacks ends it, and a library stays loaded for good.
_TRIAL = """
import sys
from specframe.backends.llama.library import load_library
from specframe.core.errors import SpecframeError
try:
    load_library(sys.argv[1])
except SpecframeError as error:
    sys.exit(str(error))
"""


def sources_directory() -> Path:
    """Where source distributions are kept until they are built."""
    return cache_directory("sources")


def workshop_of(name: str) -> Path:
    """Where the build ``name`` is made."""
    return cache_directory("builds") / name


def lock_of(directory: Path) -> filelock.FileLock:
    """The lock of something in the cache. Its directory is there afterwards."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    return filelock.FileLock(directory.with_name(f".{directory.name}.lock"))


def try_out(library: Path) -> str:
    """Why a library cannot be used; empty when it can."""
    done = subprocess.run(  # noqa: S603 -- our own command
        [sys.executable, "-c", _TRIAL, str(library)], check=False, capture_output=True, text=True
    )
    if not done.returncode:
        return ""
    said = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
    return "\n  ".join(said[-5:])


def use(name: str | None) -> None:
    """Let the runtime ``name`` come first from now on; None: the usual order, native builds before wheels.

    Raises:
        ConfigError: there is no such runtime, or it cannot work here.
    """
    if name is not None:
        found = {candidate.name: candidate for candidate in discovery.runtimes()}
        if name not in found:
            raise ConfigError(f"there is no runtime {name!r}; there are {', '.join(found)}")
        path = found[name].path
        if path is None:
            raise ConfigError(f"runtime {name!r} cannot be used: {found[name].missing}")
        if why := try_out(path):
            raise ConfigError(f"runtime {name!r} cannot be used:\n  {why}")
    choose_runtime(name)


def remove(name: str) -> None:
    """Delete a native build, and what a failed one of that name left behind.

    Raises:
        ConfigError: there is none of that name, it is being built, or its files cannot be deleted.
    """
    known = {build.name for build in native_builds()} | unfinished()
    if name not in known:
        there_are = f"there are {', '.join(sorted(known))}" if known else "there are none"
        raise ConfigError(f"there is no native build {name!r}; {there_are}")
    try:
        with lock_of(workshop_of(name)).acquire(timeout=0):
            if chosen_runtime() == name:
                choose_runtime(None)
            for directory in (builds_directory() / name, workshop_of(name)):
                if directory.exists():
                    shutil.rmtree(directory)
    except filelock.Timeout:
        raise ConfigError(f"{name!r} is being built at this moment; stop that first") from None
    except OSError as error:
        raise ConfigError(f"not all of {name!r} can be deleted: {error}; delete it yourself") from error


def unfinished() -> set[str]:
    """Names of builds that were begun and never came to be; what is kept of a finished one is not among them."""
    directory = cache_directory("builds")
    if not directory.is_dir():
        return set()
    begun = {entry.name for entry in directory.iterdir() if any(entry.glob("source*"))}
    return begun - {build.name for build in native_builds()}
