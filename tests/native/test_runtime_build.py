"""Building a library from source to the moment it is used, with a tree that builds in no time.

CMake and Ninja are real; what comes out is the wheel's library under another name, so it can really be loaded.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import filelock
import pytest

from specframe import runtime
from specframe.backends.llama import discovery
from specframe.backends.llama.declarations import pin
from specframe.backends.llama.facts import runtime_facts
from specframe.backends.llama.library import load_library
from specframe.backends.llama.native_builds import builds_directory, native_builds
from specframe.core.errors import ConfigError
from specframe.runtime import BuildError, Plan
from specframe.runtime.installed import sources_directory, workshop_of
from tests.support.builds import CMAKE_LISTS, HEAD, described, packed, recipe

#: A source that CMake accepts and "the compiler" does not.
BROKEN = CMAKE_LISTS.replace(
    "COMMAND",
    'COMMAND ${CMAKE_COMMAND} -E echo "a.c:1:2: error: no such thing" COMMAND ${CMAKE_COMMAND} -E false COMMAND',
    1,
)


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, the usual search, and something that stands for a compiler."""
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path / "cache"))
    for name in ("SPECFRAME_LLAMA_LIB", "SPECFRAME_RUNTIME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CXX", sys.executable)
    return tmp_path


@pytest.fixture(scope="module")
def wheel() -> Path:
    path = discovery.installed(pin().carriers["xllamacpp"]).path
    assert path is not None
    return path


@pytest.fixture
def plan(workplace: Path, wheel: Path) -> Callable[..., Plan]:
    """``plan(text)`` is to build a tree with this CMakeLists.txt."""

    def make(text: str = CMAKE_LISTS, *, library: Path = wheel, **changes: Any) -> Plan:
        path, carrier = packed(workplace, {"CMakeLists.txt": text})
        return Plan(source=path, recipe=recipe(carrier, library), **changes)

    return make


def test_what_was_built_is_installed_described_and_used_from_then_on(plan: Callable[..., Plan], wheel: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    made = runtime.build(plan(), progress=lambda *step: seen.append(step))
    assert [stage for i, (stage, *_) in enumerate(seen) if i == 0 or seen[i - 1][0] != stage] == [
        "check", "configure", "compile", "install"
    ]  # fmt: skip
    assert seen[-2] == ("compile", 1, 1)
    assert native_builds() == [made]
    assert (made.name, made.backend, made.upstream) == ("cpu-abc", "cpu", "abc")
    assert made.options == {"LIBRARY": str(wheel)}
    assert made.compiler.startswith("Python ")
    first, *_ = discovery.candidates(None)
    assert (first.name, first.path) == ("cpu-abc", made.path)
    library = load_library()
    assert library.path == wheel.resolve()  # through the link that the tree made
    assert runtime_facts(library).refused == ()


def test_what_is_not_needed_any_more_is_gone_unless_it_is_to_be_kept(plan: Callable[..., Plan]) -> None:
    kept = plan(keep=True)
    runtime.build(kept)
    assert (workshop_of("cpu-abc") / "tree" / "build.ninja").is_file()
    assert runtime.unfinished() == set()
    runtime.build(attrs.evolve(kept, keep=False))
    assert [path.name for path in workshop_of("cpu-abc").iterdir()] == ["build.log"]
    assert runtime.unfinished() == set()
    assert kept.source is not None
    assert kept.source.is_file()  # it was given, so it is not ours to delete
    assert not list(builds_directory().glob(".*"))


def test_a_downloaded_source_goes_when_it_is_built(plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    given = plan()
    assert given.source is not None
    sources_directory().mkdir(parents=True)
    here = sources_directory() / given.source.name
    here.write_bytes(given.source.read_bytes())
    runtime.build(attrs.evolve(given, source=None))
    assert not here.exists()
    assert len(native_builds()) == 1


def test_builds_of_two_kinds_share_a_download(plan: Callable[..., Plan]) -> None:
    one = plan()
    assert one.source is not None
    sources_directory().mkdir(parents=True)
    here, stages = sources_directory() / one.source.name, list[str]()
    shutil.copy(one.source, here)

    def meanwhile(stage: str, _done: int, _total: int) -> None:
        stages.append(stage)
        if stage == "configure" and here.exists():
            runtime.build(attrs.evolve(one, source=None, options={"FAKE": "ON"}))
            assert not here.exists()

    runtime.build(attrs.evolve(one, source=None), progress=meanwhile)
    assert len(native_builds()) == 2


def test_what_was_unpacked_before_is_not_downloaded_again(plan: Callable[..., Plan]) -> None:
    broken = plan(BROKEN)
    with pytest.raises(BuildError, match="no such thing"):
        runtime.build(broken)
    (workshop_of("cpu-abc") / "source" / "CMakeLists.txt").write_text(CMAKE_LISTS)
    runtime.build(attrs.evolve(broken, source=None))  # there is no such package to be downloaded
    assert len(native_builds()) == 1


def test_another_compiler_can_be_tried_after_one_that_failed(
    plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What CMake does with compilers: the first one is remembered.
    remembers = HEAD + 'set(COMPILER "$ENV{CXX}" CACHE STRING "")\n'
    text = CMAKE_LISTS.replace(HEAD, f"{remembers}if(COMPILER MATCHES bad)\nmessage(FATAL_ERROR bad)\nendif()\n")
    bad = shutil.copy(sys.executable, workshop_of("").parent.parent / "bad compiler")
    monkeypatch.setenv("CXX", str(bad))
    with pytest.raises(BuildError, match="bad"):
        runtime.build(plan(text))
    monkeypatch.setenv("CXX", sys.executable)
    runtime.build(plan(text))
    assert len(native_builds()) == 1


@pytest.mark.parametrize("damage", ["changed", "cut", "gone"])
def test_a_damaged_library_is_passed_over_before_it_can_end_the_process(
    plan: Callable[..., Plan], workplace: Path, wheel: Path, damage: str
) -> None:
    copy = workplace / "libllama.so"
    shutil.copy(wheel, copy)
    made = runtime.build(plan(library=copy))
    assert next(discovery.candidates(None)).path == made.path
    with copy.open("r+b") as file:
        if damage == "changed":
            file.seek(4096 * 700)
            file.write(b"\xff" * 4096)
        else:
            file.truncate(copy.stat().st_size - 100)
    if damage == "gone":
        copy.unlink()
    found = next(discovery.candidates(None))
    assert found.path is None
    assert "libllama.so is not what was installed; build it again" in found.missing
    with pytest.raises(ConfigError, match="is not what was installed"):
        runtime.use(made.name)
    assert load_library().path == wheel.resolve()


def test_what_a_killed_installation_left_is_cleared_away(plan: Callable[..., Plan]) -> None:
    left = builds_directory() / ".cpu-abc.install-x" / "cpu-abc"
    left.mkdir(parents=True)
    runtime.build(plan())
    assert [path.name for path in builds_directory().iterdir()] == ["cpu-abc"]


def test_the_compilers_words_are_quoted_and_the_next_try_goes_on(plan: Callable[..., Plan], workplace: Path) -> None:
    with pytest.raises(BuildError) as raised:
        runtime.build(plan(BROKEN))
    message = str(raised.value)
    assert message.splitlines()[:2] == ["compiling llama.cpp failed:", "  a.c:1:2: error: no such thing"]
    log = workshop_of("cpu-abc") / "build.log"
    assert str(log) in message
    assert "FAILED" in log.read_text()
    assert native_builds() == []
    assert runtime.unfinished() == {"cpu-abc"}
    # What is repaired is the unpacked tree, as it would be the compiler: it was kept.
    (workshop_of("cpu-abc") / "source" / "CMakeLists.txt").write_text(CMAKE_LISTS)
    runtime.build(plan(BROKEN))
    assert [build.name for build in native_builds()] == ["cpu-abc"]


def test_what_cmake_refuses_is_quoted(plan: Callable[..., Plan]) -> None:
    with pytest.raises(BuildError, match=r"setting up the build failed:\n  CMake Error at CMakeLists\.txt:4") as raised:
        runtime.build(plan(f'{HEAD}message(FATAL_ERROR "this needs a toolkit")'))
    assert "this needs a toolkit" in str(raised.value)


def test_a_library_that_cannot_be_used_does_not_replace_one_that_can(
    plan: Callable[..., Plan], workplace: Path
) -> None:
    good = runtime.build(plan())
    junk = workplace / "junk.so"
    junk.write_bytes(b"not ELF")
    with pytest.raises(BuildError, match=r"cannot be used:\n.*no usable llama\.cpp") as raised:
        runtime.build(plan(library=junk))
    assert "the dynamic linker refuses it" in str(raised.value)
    assert native_builds() == [good]
    assert good.path.resolve() != junk


def test_a_build_without_a_library_is_told(plan: Callable[..., Plan]) -> None:
    with pytest.raises(BuildError, match=r"the build made none of libllama\.so"):
        runtime.build(plan(CMAKE_LISTS.replace("bin/libllama.so)", "bin/other.so)")))


def test_a_new_build_takes_the_place_of_the_old_one(plan: Callable[..., Plan]) -> None:
    described("cpu-abc", compiler="an older one")
    made = runtime.build(plan())
    assert native_builds() == [made]
    assert made.compiler != "an older one"


def test_an_interrupt_while_one_takes_the_place_of_another_leaves_the_old_one(
    plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = runtime.build(plan())
    replace = Path.replace

    def interrupted(path: Path, target: Path) -> Path:
        if target == old.path.parent and path.name == old.name:
            raise KeyboardInterrupt
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runtime.build(plan())
    assert native_builds() == [old]
    assert old.path.is_file()


def test_other_options_make_another_build(plan: Callable[..., Plan]) -> None:
    one, other, gpu = plan(), plan(options={"GGML_OPENMP": "OFF"}), plan(backend="cuda")
    assert len({each.name for each in (one, other, gpu)}) == 3
    assert gpu.cmake_options["FAKE_CUDA"] == "ON"
    assert runtime.build(other).options["GGML_OPENMP"] == "OFF"
    assert plan(options={"LIBRARY": "/mine"}).cmake_options == {"LIBRARY": "/mine"}


def test_a_second_process_waits_for_the_first(plan: Callable[..., Plan]) -> None:
    stages: list[str] = []
    workshop_of("cpu-abc").mkdir(parents=True)
    lock = filelock.FileLock(workshop_of("cpu-abc").with_name(".cpu-abc.lock"), thread_local=False)
    lock.acquire()

    def report(stage: str, _done: int, _total: int) -> None:
        stages.append(stage)
        if stage == "wait":
            lock.release()

    runtime.build(plan(), progress=report)
    assert stages[0] == "wait"
    assert stages.count("wait") == 1


def until(condition: Callable[[], object]) -> None:
    """Wait for what another process does."""
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def runs(pid: int) -> bool:
    """Whether there is such a process that has not ended; one that nobody asked about yet stays as a zombie."""
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    return False


def test_an_interrupt_ends_the_compilers_too(plan: Callable[..., Plan], workplace: Path) -> None:
    pid, waits = workplace / "pid", workplace / "waits.py"
    waits.write_text(f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    text = CMAKE_LISTS.replace("COMMAND", f"COMMAND {sys.executable} {waits} COMMAND", 1) + (
        "add_custom_target(first COMMAND ${CMAKE_COMMAND} -E echo first)\nadd_dependencies(llama first)\n"
    )

    def strike(stage: str, done: int, _total: int) -> None:
        if (stage, done) == ("compile", 1):
            until(lambda: pid.is_file() and pid.read_text())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runtime.build(plan(text), progress=strike)
    until(lambda: not runs(int(pid.read_text())))
    assert native_builds() == []


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"ninja", "c++"}, r"building needs cmake: pip install 'specframe\[build\]'"),
        ({"c++"}, "building needs cmake and ninja"),
        ({"cmake", "ninja"}, r"building needs a C\+\+ compiler, and there is none"),
    ],
)
def test_what_is_missing_is_named_before_anything_is_downloaded(
    found: set[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(shutil, "which", lambda name, path=None: f"/bin/{name}" if name in found else None)
    with pytest.raises(BuildError, match=message):
        runtime.build(Plan())
    assert not sources_directory().exists()


@pytest.mark.parametrize(
    ("name", "message"), [("g+++ -O2", r"CXX names 'g\+\+\+ -O2', which is no"), ("  ", "there is none")]
)
def test_a_compiler_of_the_environment_that_is_none_is_named(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", name)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: f"/bin/{name}" if name in {"cmake", "ninja"} else None)
    with pytest.raises(BuildError, match=message):
        runtime.build(Plan())


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ConfigError, match="no backend 'tpu' to build for; there are cpu, cuda, "):
        Plan(backend="tpu")


def test_a_cache_that_cannot_be_written_is_told(
    plan: Callable[..., Plan], workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workplace / "file").write_text("")
    monkeypatch.setenv("SPECFRAME_CACHE", str(workplace / "file"))
    with pytest.raises(BuildError, match="set SPECFRAME_CACHE to a directory that you can write to"):
        runtime.build(plan())


def test_the_recipe_of_the_pin_builds_a_library_for_this_machine() -> None:
    plan = Plan()
    assert plan.name == f"cpu-{pin().carriers['llama-cpp-python'].upstream}"
    assert plan.cmake_options["GGML_NATIVE"] == plan.cmake_options["BUILD_SHARED_LIBS"] == "ON"
    assert {"cpu", "cuda", "metal", "vulkan"} <= plan.recipe.backends.keys()
