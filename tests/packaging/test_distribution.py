"""What is published holds what is needed, and the lock names public places only."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    # From a copy of nothing but what hatchling would put into the sdist, as a release is built.
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)], check=True, cwd=ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    subprocess.run(["tar", "xzf", str(sdist), "-C", str(folder)], check=True)  # noqa: S607 - every system has tar
    source = folder / sdist.name.removesuffix(".tar.gz")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], check=True, cwd=source
    )
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_ships_types_licence_and_declarations(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "specframe/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    headers = {str(path.relative_to(ROOT / "vendor/llama.cpp")) for path in (ROOT / "vendor/llama.cpp").rglob("*.h")}
    assert len(headers) > 1
    assert {f"specframe/backends/llama/vendor/{name}" for name in {*headers, "pin.toml"}} <= set(names)
    strangers = {name.split("/")[0] for name in names} - {"specframe"}
    assert all(name.endswith(".dist-info") for name in strangers)


def test_installed_wheel_loads_the_library_without_the_repository(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "-q", "install", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run(pip, check=True)
    code = (
        "import sys, specframe; assert 'cffi' not in sys.modules and 'numpy' not in sys.modules, 'import is not lazy';"
        "from specframe.backends.llama.library import load_library; print(load_library().version);"
        "print(specframe.__file__)"
    )
    environ = {**os.environ, "PYTHONPATH": str(site)}
    run = subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    version, place = run.stdout.split()
    assert version
    assert Path(place).is_relative_to(site)
    assert run.stderr == ""


def test_lock_names_public_hosts_only() -> None:
    urls = re.findall(r'(?:url|registry) = "([^"]+)"', (ROOT / "uv.lock").read_text())
    assert {urlsplit(url).netloc for url in urls} == {"pypi.org", "files.pythonhosted.org"}
    assert {urlsplit(url).scheme for url in urls} == {"https"}


def test_every_requirement_is_pinned_and_hashed() -> None:
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        entries = path.read_text().replace("\\\n", " ").splitlines()
        assert len(entries) > 1
        unpinned = [entry for entry in entries if not re.match(r"\S+==\S+ .*--hash=sha256:[0-9a-f]{64}", entry)]
        assert unpinned == [], path
