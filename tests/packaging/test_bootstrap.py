"""Setting up from nothing but python3: the locked pip is found, checked and installed, also from a mirror."""

from __future__ import annotations

import functools
import hashlib
import http.server
import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
WHEEL = "pip-9.9-py3-none-any.whl"
CONTENT = b"not really a wheel"


@pytest.fixture
def bootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program as a module, working on an environment in the test's folder."""
    monkeypatch.setenv("SPECFRAME_VENV", str(tmp_path / "env"))
    spec = importlib.util.spec_from_file_location("specframe_bootstrap", ROOT / "scripts" / "bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Say nothing: the test's output is no access log."""


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A package index on this machine: its folder and its address."""
    folder = tmp_path / "mirror"
    (folder / "simple" / "pip").mkdir(parents=True)
    (folder / WHEEL).write_bytes(CONTENT)
    handler = functools.partial(QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


PAGES = {
    "json": json.dumps({"files": [{"url": "../../other.whl"}, {"url": f"../../{WHEEL}"}]}),
    "html": f"<html><a href='../../other.whl'>x</a><a data-x href='../../{WHEEL}#sha256=0'>y</a></html>",
}


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES.keys())
def test_wheel_is_found_on_json_and_html_indexes(
    bootstrap: ModuleType, mirror: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    folder, url = mirror
    (folder / "simple" / "pip" / "index.html").write_text(page)
    monkeypatch.setenv("PIP_INDEX_URL", f"{url}/simple")
    found = bootstrap.file_url("pip", WHEEL)
    assert bootstrap.fetch(found, digests={hashlib.sha256(CONTENT).hexdigest()}) == CONTENT


def test_wheel_that_is_not_offered_is_named(
    bootstrap: ModuleType, mirror: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, url = mirror
    (folder / "simple" / "pip" / "index.html").write_text(PAGES["json"])
    monkeypatch.setenv("PIP_INDEX_URL", f"{url}/simple/")
    with pytest.raises(RuntimeError, match=r"offers no pip-1\.0"):
        bootstrap.file_url("pip", "pip-1.0-py3-none-any.whl")


def test_wheel_with_another_digest_is_refused(bootstrap: ModuleType, mirror: tuple[Path, str]) -> None:
    with pytest.raises(RuntimeError, match="locked sha256"):
        bootstrap.fetch(f"{mirror[1]}/{WHEEL}", digests={"0" * 64})


def test_index_is_the_one_that_pip_would_use(
    bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://mirror.example/simple\n")
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    assert bootstrap.index_url() == "https://mirror.example/simple"
    monkeypatch.setenv("PIP_INDEX_URL", "https://other.example/simple")
    assert bootstrap.index_url() == "https://other.example/simple"
    monkeypatch.delenv("PIP_INDEX_URL")
    config.write_text("[global]\ntimeout = 9\n")
    assert bootstrap.index_url() == "https://pypi.org/simple"


@pytest.mark.slow
def test_python_without_ensurepip_gets_the_locked_pip(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "has_ensurepip", lambda: False)
    bootstrap.make_venv()
    version, _ = bootstrap.locked("pip", bootstrap.requirements("demo"))
    command = [str(bootstrap.venv_python()), "-m", "pip", "--version"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[1] == version


def test_environment_is_current_until_something_changes(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    python = bootstrap.venv_python()
    python.parent.mkdir(parents=True)
    assert not bootstrap.is_current("demo")
    python.symlink_to(sys.executable)
    bootstrap.stamp("dev").write_text(bootstrap.fingerprint("dev"))
    assert bootstrap.is_current("dev")
    assert bootstrap.is_current("demo"), "dev contains demo"
    bootstrap.stamp("dev").unlink()
    bootstrap.stamp("demo").write_text(bootstrap.fingerprint("demo"))
    assert not bootstrap.is_current("dev")
    bootstrap.stamp("demo").write_text("of an older lock")
    assert not bootstrap.is_current("demo")


def test_every_profile_locks_the_pip_that_starts_it(bootstrap: ModuleType) -> None:
    assert {bootstrap.locked("pip", bootstrap.requirements(profile))[0] for profile in bootstrap.PROFILES} == {
        bootstrap.locked("pip", bootstrap.requirements("demo"))[0]
    }
    with pytest.raises(RuntimeError, match="does not lock nothing-of-that-name"):
        bootstrap.locked("nothing-of-that-name", bootstrap.requirements("demo"))
