"""What every test can have: tiny models, the real model, hypothesis profiles, a tame OpenMP."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

# Read once, when the native library loads: before any test can import it. Spinning OpenMP threads starve each other as
# soon as something else wants the processor.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
# The same library on every machine, whatever was built there; SPECFRAME_LLAMA_LIB tests another one.
os.environ.setdefault("SPECFRAME_RUNTIME", "xllamacpp")

# Where the tests run in the background, interrupts are ignored, and programs that they start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
from hypothesis import HealthCheck, settings

from specframe.cache import cache_directory
from specframe.llm import costs as costs_module
from specframe.testing import zoo as zoo_module

settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile(
    "ci", max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("nightly", max_examples=5000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


#: Folders by how long a file of theirs may take.
SLOWEST_FIRST = ("docs", "native", "mutation", "conformance", "property", "packaging", "cli", "unit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Short files come last, so that workers that take whole files end together; the compiler's minutes come first."""

    def place(item: pytest.Item) -> tuple[bool, int]:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        return item.get_closest_marker("build") is None, SLOWEST_FIRST.index(folder)

    items.sort(key=place)


@pytest.fixture(scope="session", autouse=True)
def _costs_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests measure is not kept where the user's measurements are."""
    directory = tmp_path_factory.mktemp("costs")

    def kept(kind: str) -> Path:
        return cache_directory(kind) if os.environ.get("SPECFRAME_CACHE") else directory / kind

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(costs_module, "cache_directory", kept)
        yield


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``zoo(name)`` is the path of a tiny model, built the first time it is asked for."""
    directory = tmp_path_factory.mktemp("zoo")
    built: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in built:
            built[name] = zoo_module.build(name, directory)
        return built[name]

    return get


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The real model, fetched if it is not cached yet. Not having it is an error: these tests are the point."""
    from specframe.catalogue import pull  # noqa: PLC0415 -- only the tests that use the model need it

    return pull("smollm2-135m")
