"""The native builds in the user's cache: what each is, and which runtime was chosen."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from specframe.backends.llama.processor import machine_features
from specframe.backends.llama.state import fingerprint
from specframe.cache import cache_directory
from specframe.core.errors import ConfigError
from specframe.files import write_whole

#: The file that describes a build, in its directory.
MANIFEST = "build.json"
#: The file that holds the name of the chosen runtime, beside the builds.
_CHOICE = "chosen"


_TEXT = attrs.validators.instance_of(str)
_TEXTS = attrs.validators.deep_iterable(_TEXT)


def _names(given: Iterable[str]) -> tuple[str, ...]:
    return tuple(given)


def _file_name(_: object, field: attrs.Attribute[str], value: object) -> None:
    if not isinstance(value, str) or Path(value).name != value:
        raise ValueError(f"{field.name} must be the name of a file, not {value!r}")


@attrs.frozen(kw_only=True)
class NativeBuild:
    """A library that was built on this machine."""

    name: str = attrs.field(validator=_TEXT)
    """Of its directory."""
    backend: str = attrs.field(validator=_TEXT)
    """``cpu``, ``cuda``, ...: what it was built for."""
    upstream: str = attrs.field(validator=_TEXT)
    """Tag or commit of llama.cpp."""
    library: str = attrs.field(validator=_file_name)
    """File name of libllama."""
    options: Mapping[str, str] = attrs.field(validator=attrs.validators.deep_mapping(_TEXT, _TEXT))
    """CMake options."""
    compiler: str = attrs.field(validator=_TEXT)
    cpu_features: tuple[str, ...] = attrs.field(converter=_names, validator=_TEXTS)
    """What the processor it was built for can do; it may use all of that."""
    made: str = attrs.field(validator=_TEXT)
    """When, ISO 8601."""

    files: Mapping[str, str] = attrs.field(factory=dict, validator=attrs.validators.deep_mapping(_TEXT, _TEXT))
    """Fingerprints of what was installed, by file name; those of an older version are unknown."""

    @property
    def path(self) -> Path:
        """The library."""
        return builds_directory() / self.name / self.library

    @property
    def unusable(self) -> str:
        """Why this machine cannot run it; empty when it can."""
        here = machine_features()
        lacking = [name for name in self.cpu_features if name not in here]
        if lacking and here:
            return (
                f"it was built for a processor with {', '.join(lacking)}, which this one lacks; "
                f"build it again: specframe runtime build --backend {self.backend}"
            )
        # Loading a damaged library ends the process, and with it every command that could say so.
        damaged = [name for name, known in self.files.items() if _fingerprint(self.path.with_name(name)) != known]
        if damaged:
            return (
                f"{damaged[0]} is not what was installed; build it again: specframe runtime build --backend "
                f"{self.backend}; or: specframe runtime remove {self.name}"
            )
        return ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**attrs.asdict(self), "options": dict(self.options), "files": dict(self.files)}


def installed_files(directory: Path, library: str) -> dict[str, str]:
    """The ``files`` of a build in ``directory``; of several names of a file only those that are no links."""
    files = [path for path in sorted(directory.iterdir()) if path.name == library or not path.is_symlink()]
    return {path.name: _fingerprint(path) for path in files}


def _fingerprint(path: Path) -> str:
    """Empty when there is no such file."""
    try:
        return fingerprint([path])
    except OSError:
        return ""


def builds_directory() -> Path:
    """Where native builds live, one directory per build."""
    return cache_directory("runtimes")


def native_builds() -> list[NativeBuild]:
    """Libraries built on this machine, newest first. What is damaged is left out."""
    found = [read_manifest(path.parent) for path in builds_directory().glob(f"*/{MANIFEST}")]
    return sorted((build for build in found if build is not None), key=lambda build: build.made, reverse=True)


def read_manifest(directory: Path) -> NativeBuild | None:
    """The build in a directory; None where there is none, or one that was described by another version."""
    try:
        raw = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        return NativeBuild(**{**raw, "name": directory.name})
    except (OSError, ValueError, TypeError):
        return None


def chosen_runtime() -> str | None:
    """The runtime that comes first whatever the order, by name; None: nothing was chosen."""
    try:
        return (builds_directory() / _CHOICE).read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def choose_runtime(name: str | None) -> None:
    """Let ``name`` come first from now on; None: back to the usual order. Raises ConfigError when it cannot be kept."""
    path = builds_directory() / _CHOICE
    try:
        if name is None:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, [f"{name}\n".encode()])
    except OSError as error:
        raise ConfigError(f"the choice cannot be kept in {path.parent}: {error}") from error
