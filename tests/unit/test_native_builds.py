"""What is known about native builds, and in which order libraries are looked for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from specframe import runtime
from specframe.backends.llama import discovery, native_builds
from specframe.backends.llama.native_builds import MANIFEST, builds_directory, chosen_runtime
from specframe.core.errors import ConfigError
from specframe.runtime.installed import lock_of, workshop_of
from tests.support.builds import described

WHEELS = ["xllamacpp", "llama-cpp-py-sync"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, and nothing chosen."""
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path))
    for name in ("SPECFRAME_LLAMA_LIB", "SPECFRAME_RUNTIME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def order() -> list[str]:
    return [candidate.name for candidate in discovery.candidates(None)]


def test_without_builds_the_wheels_are_tried() -> None:
    assert order() == WHEELS
    assert native_builds.native_builds() == []


def test_builds_come_before_wheels_and_newer_ones_first() -> None:
    described("old", made="2031-05-01T00:00:00+00:00")
    new = described("new", made="2031-06-01T00:00:00+00:00")
    assert order() == ["new", "old", *WHEELS]
    assert native_builds.native_builds()[0] == new
    assert new.path == builds_directory() / "new" / "libllama.so"


@pytest.mark.parametrize("text", ["not json", "[]", '{"name": "x"}'])
def test_a_directory_without_a_readable_description_is_no_build(text: str) -> None:
    described("damaged")
    (builds_directory() / "damaged" / MANIFEST).write_text(text)
    assert order() == WHEELS


@pytest.mark.parametrize(
    "changes",
    [{"made": 5}, {"library": None}, {"library": "../other/libllama.so"}, {"options": ["a"]}, {"cpu_features": [1]}],
)
def test_a_description_with_something_else_in_it_is_no_build(changes: dict[str, Any]) -> None:
    described("good")
    manifest = builds_directory() / "damaged" / MANIFEST
    manifest.parent.mkdir()
    good = json.loads((builds_directory() / "good" / MANIFEST).read_text())
    manifest.write_text(json.dumps(good | changes))
    assert order() == ["good", *WHEELS]


def test_a_choice_that_cannot_be_read_is_none() -> None:
    described("mine")
    (builds_directory() / "chosen").write_bytes(b"\xff\xfe")
    assert order() == ["mine", *WHEELS]


def test_a_chosen_runtime_comes_first_until_there_is_no_choice() -> None:
    described("mine")
    runtime.use("xllamacpp")
    assert order() == ["xllamacpp", "mine", "llama-cpp-py-sync"]
    runtime.use(None)
    runtime.use(None)
    assert order() == ["mine", *WHEELS]


def test_only_what_is_there_and_works_can_be_chosen() -> None:
    with pytest.raises(ConfigError, match="no runtime 'elsewhere'; there are xllamacpp, llama-cpp-py-sync"):
        runtime.use("elsewhere")
    with pytest.raises(ConfigError, match="llama-cpp-py-sync' cannot be used: not installed"):
        runtime.use("llama-cpp-py-sync")
    described("mine").path.write_bytes(b"not ELF")
    with pytest.raises(ConfigError, match=r"'mine' cannot be used:\n[^!]*the dynamic linker refuses it"):
        runtime.use("mine")
    assert chosen_runtime() is None


def test_a_choice_that_cannot_be_kept_says_so(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / "file").write_text("")
    monkeypatch.setenv("SPECFRAME_CACHE", str(cache / "file"))
    with pytest.raises(ConfigError, match="the choice cannot be kept"):
        runtime.use("xllamacpp")


def test_the_environment_names_one_runtime_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    described("mine")
    native_builds.choose_runtime("mine")
    monkeypatch.setenv("SPECFRAME_RUNTIME", "xllamacpp")
    [only] = discovery.candidates(None)
    assert (only.name, only.explicit) == ("xllamacpp", True)
    monkeypatch.setenv("SPECFRAME_RUNTIME", "yours")
    [none] = discovery.candidates(None)
    assert none.path is None
    assert none.missing == "there is no runtime of that name; there are mine, xllamacpp, llama-cpp-py-sync"


def test_a_build_for_another_processor_is_refused_before_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_builds, "machine_features", lambda: ["avx2"])
    described("fits", cpu_features=["avx2"], made="2031-06-01T00:00:00+00:00")
    described("moved", cpu_features=["avx2", "avx512"])
    fits, moved, *_ = discovery.candidates(None)
    assert fits.path is not None
    assert moved.path is None
    assert "with avx512, which this one lacks" in moved.missing
    # A system that tells nothing about its processor gets the benefit of the doubt.
    monkeypatch.setattr(native_builds, "machine_features", list)
    assert not native_builds.native_builds()[1].unusable


def test_removing_a_build_removes_the_choice_and_what_is_left_of_building_it() -> None:
    described("mine")
    described("other")
    (workshop_of("mine") / "source").mkdir(parents=True)
    native_builds.choose_runtime("mine")
    runtime.remove("mine")
    assert order() == ["other", *WHEELS]
    assert chosen_runtime() is None
    assert not workshop_of("mine").exists()


def test_removing_an_unfinished_build_and_another_than_the_chosen_one() -> None:
    described("mine")
    native_builds.choose_runtime("mine")
    (workshop_of("broken") / "source").mkdir(parents=True)
    workshop_of("empty").mkdir()
    assert runtime.unfinished() == {"broken"}
    runtime.remove("broken")
    assert runtime.unfinished() == set()
    assert chosen_runtime() == "mine"


def test_what_is_being_built_cannot_be_removed() -> None:
    (workshop_of("mine") / "source").mkdir(parents=True)
    with lock_of(workshop_of("mine")), pytest.raises(ConfigError, match="'mine' is being built at this moment"):
        runtime.remove("mine")
    assert runtime.unfinished() == {"mine"}


def test_what_cannot_be_deleted_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    described("mine")

    def refused(path: Path, *_: object, **options: object) -> None:
        if not options.get("ignore_errors"):
            raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(shutil, "rmtree", refused)
    with pytest.raises(ConfigError, match=r"'mine' can be deleted: .*Permission denied"):
        runtime.remove("mine")


@pytest.mark.parametrize("name", ["", "..", "../runtimes", "xllamacpp", "absent"])
def test_only_builds_can_be_removed(name: str) -> None:
    with pytest.raises(ConfigError, match="there are none"):
        runtime.remove(name)
    described("mine")
    with pytest.raises(ConfigError, match="there are mine"):
        runtime.remove(name)
    assert order() == ["mine", *WHEELS]
