"""From the pinned source to a library that is found at the next load."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import attrs
import filelock

from specframe.backends.llama.declarations import Recipe, pin
from specframe.backends.llama.native_builds import MANIFEST, NativeBuild, builds_directory, installed_files
from specframe.backends.llama.processor import machine_features
from specframe.core.errors import ConfigError
from specframe.runtime import archive, toolchain
from specframe.runtime.archive import Progress
from specframe.runtime.errors import BuildError
from specframe.runtime.installed import lock_of, sources_directory, try_out, workshop_of

#: Names a shared libllama has, by platform.
LIBRARY_NAMES = ("libllama.so", "libllama.dylib", "llama.dll")

_PATIENCE_S = 1.0


def _ignore(_stage: str, _done: int, _total: int) -> None:
    """Nobody wants to know."""


@attrs.frozen(kw_only=True)
class Plan:
    """What is to be built, and from what."""

    backend: str = "cpu"
    options: Mapping[str, str] = attrs.field(factory=dict)
    """Further CMake options; they win over those of the recipe."""
    source: Path | None = None
    """The pinned source distribution, where it is here already; None: it is downloaded."""
    jobs: int | None = None
    """Compilers at once; None: one per processor."""
    keep: bool = False
    """Keep source and build tree, so that the next build of the same kind has less to do."""
    recipe: Recipe = attrs.field(factory=lambda: pin().recipe)

    def __attrs_post_init__(self) -> None:
        if self.backend not in self.recipe.backends:
            known = ", ".join(self.recipe.backends)
            raise ConfigError(f"there is no backend {self.backend!r} to build for; there are {known}")

    @property
    def cmake_options(self) -> dict[str, str]:
        """All of them."""
        return {**self.recipe.options, **self.recipe.backends[self.backend], **self.options}

    @property
    def name(self) -> str:
        """Of the build: the same for the same source and options."""
        own = json.dumps(sorted(self.options.items()))
        suffix = f"-{hashlib.sha256(own.encode()).hexdigest()[:8]}" if self.options else ""
        return f"{self.backend}-{self.recipe.carrier.upstream}{suffix}"


def build(plan: Plan, *, progress: Progress | None = None) -> NativeBuild:
    """Build and install a library; from then on it comes before the wheels.

    Safe to call from many processes at once: one builds, the others wait. After a failure, an interrupt or a power cut
    the next call goes on where this one stopped. The library appears complete and tried out, or not at all.

    Args:
        plan: what to build.
        progress: told how it goes; what it raises ends the build and comes out here.

    Raises:
        BuildError: something is missing, the source cannot be had, or the compiler refused.
    """
    report = progress or _ignore
    tools = toolchain.find_tools()
    workshop = workshop_of(plan.name)
    with _disk_errors(workshop), _locked(workshop, report), _log(workshop) as log:
        carrier, source, tree = plan.recipe.carrier, workshop / "source", workshop / "tree"
        downloaded = sources_directory() / carrier.file
        if plan.source is not None:
            archive.check(plan.source, carrier, report)
            archive.extract(plan.source, carrier, source, report)
        elif not source.exists():
            with _locked(downloaded, report):  # builds of other kinds want the same file
                archive.extract(archive.fetch(carrier, downloaded.parent, report), carrier, source, report)
        report("configure", 0, 0)
        toolchain.configure(tools, source, tree, plan.cmake_options, log)
        report("compile", 0, 0)
        toolchain.compile_target(
            tools, tree, plan.recipe.target, plan.jobs, log, lambda done, total: report("compile", done, total)
        )
        report("install", 0, 0)
        made = _install(plan, tools, tree / plan.recipe.output)
        if not plan.keep:
            shutil.rmtree(source)
            shutil.rmtree(tree)
            if plan.source is None:
                with _locked(downloaded, report):
                    downloaded.unlink(missing_ok=True)
    return made


def _install(plan: Plan, tools: toolchain.Tools, output: Path) -> NativeBuild:
    """Put the libraries where they are looked for, once they have proved to work."""
    target = builds_directory() / plan.name
    target.parent.mkdir(parents=True, exist_ok=True)
    library = next((name for name in LIBRARY_NAMES if (output / name).is_file()), None)
    if library is None:
        raise BuildError(f"the build made none of {', '.join(LIBRARY_NAMES)} in {output}")
    made = NativeBuild(
        name=plan.name,
        backend=plan.backend,
        upstream=plan.recipe.carrier.upstream,
        library=library,
        options=plan.cmake_options,
        compiler=toolchain.compiler_version(tools),
        cpu_features=machine_features(),
        made=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
    )
    for left in target.parent.glob(f".{plan.name}.install-*"):  # where a process was killed
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{plan.name}.install-") as scratch:
        new, old = Path(scratch) / plan.name, Path(scratch) / "old"
        shutil.copytree(output, new, symlinks=True, ignore=_not_a_library)
        made = attrs.evolve(made, files=installed_files(new, library))
        if why := try_out(new / library):
            raise BuildError(f"the library was built, but cannot be used:\n  {why}")
        (new / MANIFEST).write_text(json.dumps(made.to_dict(), indent=2), encoding="utf-8")
        if target.exists():
            target.replace(old)
        try:
            new.replace(target)
        except BaseException:
            if old.exists():
                old.replace(target)
            raise
    return made


def _not_a_library(_directory: str, names: list[str]) -> list[str]:
    return [name for name in names if not {".so", ".dylib", ".dll"}.intersection(Path(name).suffixes)]


@contextmanager
def _locked(directory: Path, report: Progress) -> Iterator[None]:
    """Hold the lock of a directory or a file; whoever waits says so."""
    lock = lock_of(directory)
    while True:
        try:
            lock.acquire(timeout=_PATIENCE_S)
            break
        except filelock.Timeout:
            report("wait", 0, 0)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _log(workshop: Path) -> Iterator[IO[str]]:
    workshop.mkdir(exist_ok=True)
    with (workshop / "build.log").open("w", encoding="utf-8", buffering=1) as log:
        yield log


@contextmanager
def _disk_errors(directory: Path) -> Iterator[None]:
    """Say what an OSError means for the user."""
    try:
        yield
    except OSError as error:
        raise BuildError(
            f"building in {directory} failed: {error}; make room, or set SPECFRAME_CACHE to a directory that you can "
            "write to"
        ) from error
