"""What was built: where it is, which is used first, and how it goes away again."""

from __future__ import annotations

import shutil
from pathlib import Path

from specframe.backends.llama import discovery
from specframe.backends.llama.native_builds import builds_directory, choose_runtime, chosen_runtime, native_builds
from specframe.cache import cache_directory
from specframe.core.errors import ConfigError


def sources_directory() -> Path:
    """Where source distributions are kept until they are built."""
    return cache_directory("sources")


def workshop_of(name: str) -> Path:
    """Where the build ``name`` is made."""
    return cache_directory("builds") / name


def use(name: str | None) -> None:
    """Let the runtime ``name`` come first from now on; None: the usual order, native builds before wheels.

    Raises:
        ConfigError: there is no such runtime, or it cannot work here.
    """
    if name is not None:
        found = {candidate.name: candidate for candidate in discovery.runtimes()}
        if name not in found:
            raise ConfigError(f"there is no runtime {name!r}; there are {', '.join(found)}")
        if found[name].path is None:
            raise ConfigError(f"runtime {name!r} cannot be used: {found[name].missing}")
    choose_runtime(name)


def remove(name: str) -> None:
    """Delete a native build, and what a failed one of that name left behind.

    Raises:
        ConfigError: there is none of that name, or its files cannot be deleted.
    """
    known = {build.name for build in native_builds()} | unfinished()
    if name not in known:
        there_are = f"there are {', '.join(sorted(known))}" if known else "there are none"
        raise ConfigError(f"there is no native build {name!r}; {there_are}")
    if chosen_runtime() == name:
        choose_runtime(None)
    for directory in (builds_directory() / name, workshop_of(name)):
        try:
            if directory.exists():
                shutil.rmtree(directory)
        except OSError as error:
            raise ConfigError(f"not all of {directory} can be deleted: {error}; delete it yourself") from error


def unfinished() -> set[str]:
    """Names of builds that were begun and never came to be; what is kept of a finished one is not among them."""
    directory = cache_directory("builds")
    if not directory.is_dir():
        return set()
    begun = {entry.name for entry in directory.iterdir() if any(entry.glob("source*"))}
    return begun - {build.name for build in native_builds()}
