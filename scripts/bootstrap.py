"""Make ``.venv`` hold exactly what is locked, starting from nothing but python3: ``bootstrap.py demo|dev``.

A Debian machine with only ``python3`` has neither pip nor ensurepip, so the locked pip is fetched with the standard
library. Everything after that is plain pip with hashes rather than uv, for three reasons: pip is pure Python, so one
wheel serves every machine; it honours the mirrors, proxies and certificates that a site has set up for pip; and
``specframe pull`` needs it anyway. The hashes come from ``uv.lock`` (see ``make lock``).
"""

from __future__ import annotations

import configparser
import contextlib
import hashlib
import html.parser
import importlib.util
import json
import logging
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = Path(os.environ.get("SPECFRAME_VENV", ROOT / ".venv")).absolute()
PROFILES = ("demo", "dev")  # each contains the one before it
OLDEST_PYTHON = (3, 10)
TIMEOUT_S = 60.0
SIMPLE_JSON = "application/vnd.pypi.simple.v1+json"

log = logging.getLogger("bootstrap")


def main() -> int:
    """Bring the environment up to date; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    if len(sys.argv) != 2 or sys.argv[1] not in PROFILES:  # noqa: PLR2004 - program name and profile
        log.error("usage: bootstrap.py %s", "|".join(PROFILES))
        return 2
    if sys.version_info < OLDEST_PYTHON:
        log.error("specframe needs Python %d.%d or newer; %s is %s", *OLDEST_PYTHON, sys.executable, sys.version)
        return 2
    profile = sys.argv[1]
    if is_current(profile):
        return 0
    try:
        make_venv()
        install(profile)
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        log.error("setting up %s failed: %s", VENV, error)  # noqa: TRY400 - a traceback would hide the message
        return 1
    stamp(profile).write_text(fingerprint(profile))
    return 0


# ------------------------------------------------------------------------------------------------- is there work?
def projects() -> list[Path]:
    """Folders installed in place: specframe and the plugin packages beside it."""
    return [ROOT, *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]


def requirements(profile: str) -> Path:
    """Return the lock file of a profile."""
    return ROOT / "requirements" / f"{profile}.txt"


def stamp(profile: str) -> Path:
    """Return the file that remembers what was installed."""
    return VENV / f".installed-{profile}"


def fingerprint(profile: str) -> str:
    """Digest of everything that decides what the environment holds."""
    digest = hashlib.sha256(f"{VENV}\n{sys.version}\n".encode())
    for path in (Path(__file__), requirements(profile), *(folder / "pyproject.toml" for folder in projects())):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def is_current(profile: str) -> bool:
    """Whether an installed profile that covers this one is unchanged, and its interpreter still runs."""
    covering = PROFILES[PROFILES.index(profile) :]
    if not any(stamp(each).is_file() and stamp(each).read_text() == fingerprint(each) for each in covering):
        return False
    return runs(venv_python())


# --------------------------------------------------------------------------------------------- the environment
def venv_python() -> Path:
    """Return the interpreter of the environment."""
    return VENV / "bin" / "python"


def runs(python: Path, *args: str) -> bool:
    """Whether an interpreter starts and has this Python's version."""
    code = f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]!r})"
    try:
        return subprocess.run([str(python), *(args or ("-c", code))], check=False, capture_output=True).returncode == 0  # noqa: S603
    except OSError:
        return False


def make_venv() -> None:
    """Create the environment, with a pip inside, where it is missing or does not run."""
    for profile in PROFILES:
        stamp(profile).unlink(missing_ok=True)
    if not runs(venv_python()):
        if VENV.exists():
            log.info("%s does not run with Python %d.%d: making it again", VENV, *sys.version_info[:2])
            shutil.rmtree(VENV)
        log.info("creating %s with Python %s", VENV, sys.version.split()[0])
        venv.create(VENV, symlinks=True, with_pip=has_ensurepip())
    if not runs(venv_python(), "-m", "pip", "--version"):
        install_pip()


def has_ensurepip() -> bool:
    """Debian splits ensurepip, or the wheels it unpacks, into the package python3-venv."""
    if importlib.util.find_spec("ensurepip") is None:
        return False
    return runs(Path(sys.executable), "-c", "import ensurepip; ensurepip.version()")


def install(profile: str) -> None:
    """Install the locked dependencies, then the projects of this folder in place."""
    log.info("installing the locked dependencies of %s", requirements(profile).relative_to(ROOT))
    pip("--requirement", str(requirements(profile)), "--require-hashes", "--only-binary", ":all:")
    log.info(
        "installing %s in place", ", ".join(folder.name if folder != ROOT else "specframe" for folder in projects())
    )
    editable = [arg for folder in projects() for arg in ("--editable", str(folder))]
    pip("--no-deps", "--no-build-isolation", *editable)


def pip(*args: str, program: tuple[str, ...] = ("-m", "pip")) -> None:
    """Run ``pip install`` inside the environment, quiet but for errors."""
    env = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_REQUIRE_VIRTUALENV": "0"}
    command = [str(venv_python()), *program, "-qq", "install", *args]
    subprocess.run(command, check=True, cwd=ROOT, env=env)  # noqa: S603


# ------------------------------------------------------------------------------------------ pip without ensurepip
def install_pip() -> None:
    """Fetch the locked pip wheel and let it install itself."""
    version, digests = locked("pip", requirements("demo"))
    name = f"pip-{version}-py3-none-any.whl"
    log.info("fetching %s, since this Python comes without pip", name)
    wheel = fetch(file_url("pip", name), digests=digests)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(wheel)
        pip("--no-index", "--no-deps", str(path), program=(str(path / "pip"),))


def locked(package: str, lock: Path) -> tuple[str, set[str]]:
    """Version and permitted sha256 digests of a package in a lock file."""
    entry = re.search(
        rf"^{package}==(\S+)((?:\s*\\\n\s+--hash=sha256:[0-9a-f]{{64}})+)", lock.read_text(), re.MULTILINE
    )
    if entry is None:
        message = f"{lock} does not lock {package}"
        raise RuntimeError(message)
    return entry[1], set(re.findall(r"[0-9a-f]{64}", entry[2]))


def index_url() -> str:
    """Return the package index that pip would use: environment, then user, then site, then PyPI."""
    if url := os.environ.get("PIP_INDEX_URL"):
        return url
    user = Path.home()
    config = Path(os.environ.get("XDG_CONFIG_HOME", user / ".config"))
    site = Path("/etc/xdg/pip/pip.conf"), Path("/etc/pip.conf"), user / ".pip/pip.conf", config / "pip/pip.conf"
    files = [Path(os.environ["PIP_CONFIG_FILE"])] if "PIP_CONFIG_FILE" in os.environ else site
    parser = configparser.RawConfigParser(strict=False)
    with contextlib.suppress(configparser.Error):  # pip itself will complain, with the file's name, in a moment
        parser.read(files)
    for section in ("install", "global"):
        if url := parser.get(section, "index-url", fallback=None):
            return url
    return "https://pypi.org/simple"


def file_url(package: str, name: str) -> str:
    """Find a package's file on its index page, which is JSON on PyPI and may be HTML on a mirror."""
    page_url = urllib.parse.urljoin(index_url().rstrip("/") + "/", f"{package}/")
    page = fetch(page_url, accept=f"{SIMPLE_JSON}, text/html;q=0.1").decode()
    if page.lstrip().startswith("{"):
        links = [str(file["url"]) for file in json.loads(page)["files"]]
    else:
        links = Links.of(page)
    for link in links:
        if urllib.parse.urlsplit(link).path.endswith(f"/{name}"):
            return urllib.parse.urljoin(page_url, link)
    message = f"{page_url} offers no {name}"
    raise RuntimeError(message)


class Links(html.parser.HTMLParser):
    """The targets of the links of an HTML page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    @classmethod
    def of(cls, page: str) -> list[str]:
        """Return the link targets of a page in its order."""
        parser = cls()
        parser.feed(page)
        return parser.found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect one link."""
        self.found.extend(value for key, value in attrs if tag == "a" and key == "href" and value)


def fetch(url: str, *, accept: str = "*/*", digests: set[str] | None = None) -> bytes:
    """Download a file, and check it against its digests where they are known.

    A machine with only python3 may have no certificate authorities either. Then the connection is not verified: the
    page only tells where the wheel lies, and the wheel itself must have the locked digest. pip brings its own
    authorities for everything it downloads later.
    """
    if not url.startswith(("https://", "http://", "file://")):
        message = f"cannot download from {url}"
        raise RuntimeError(message)
    request = urllib.request.Request(url, headers={"Accept": accept, "User-Agent": "specframe-bootstrap"})  # noqa: S310
    context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
    try:
        data = _read(request, context)
    except urllib.error.URLError as error:
        if not isinstance(error.reason, ssl.SSLCertVerificationError) or context.cert_store_stats()["x509_ca"]:
            message = f"cannot download {url}: {error}"
            raise RuntimeError(message) from error
        data = _read(request, ssl._create_unverified_context())  # noqa: S323, SLF001 - the digest vouches instead
    if digests is not None and hashlib.sha256(data).hexdigest() not in digests:
        message = f"{url} does not have a locked sha256 digest"
        raise RuntimeError(message)
    return data


def _read(request: urllib.request.Request, context: ssl.SSLContext) -> bytes:
    with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as response:  # noqa: S310
        data: bytes = response.read()
    return data


if __name__ == "__main__":
    sys.exit(main())
