"""llama.cpp itself, built from the pinned source, loaded, and put through the tests of the backend.

Takes minutes, most of them a compiler's. The result is kept in ``.cache`` of the checkout for the next run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from specframe import runtime
from specframe.backends.llama.declarations import pin
from specframe.backends.llama.facts import runtime_facts
from specframe.backends.llama.library import load_library
from specframe.backends.llama.native_builds import NativeBuild, native_builds
from specframe.backends.llama.processor import machine_features
from specframe.runtime import Plan
from tests.support.references import fetch

pytestmark = [pytest.mark.build, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
#: What depends on the layout of structs, on symbols and on kernels; the rest of the tests is about specframe.
TESTS = (
    "tests/conformance/test_llama_target.py",
    "tests/native/test_context.py",
    "tests/native/test_context_memory.py",
    "tests/native/test_device_checkpoints.py",
    "tests/native/test_features.py",
    "tests/native/test_lossless_native.py",
    "tests/native/test_model.py",
    "tests/native/test_draft_memory.py",
    "tests/native/test_block_context.py",
    "tests/native/test_sampler.py",
    "tests/native/test_session_native.py",
)


@pytest.fixture(scope="module")
def built() -> Iterator[NativeBuild]:
    """The native build, found the way users find theirs."""
    source = fetch(pin().recipe.carrier)
    plan = Plan(source=source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECFRAME_CACHE", str(ROOT / ".cache"))
        patch.setenv("SPECFRAME_RUNTIME", plan.name)
        wanted = (plan.name, plan.cmake_options, "")
        here = [build for build in native_builds() if (build.name, build.options, build.unusable) == wanted]
        yield here[0] if here else runtime.build(plan)


def test_the_build_is_found_and_uses_what_the_processor_has(built: NativeBuild) -> None:
    library = load_library()
    assert library.source == f"native build {built.name}"
    assert library.path == built.path.resolve()
    assert library.version == pin().recipe.carrier.abi
    facts = runtime_facts(library)
    assert set(machine_features()) <= set(facts.cpu_features)
    assert [device.kind for device in facts.devices] == ["cpu"]


def test_the_backend_works_on_it_as_on_the_wheel(built: NativeBuild) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "not slow and not sweep",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            *TESTS,
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "SPECFRAME_LLAMA_LIB": str(built.path),
            "SPECFRAME_CACHE": "",
            "HYPOTHESIS_PROFILE": "dev",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout
