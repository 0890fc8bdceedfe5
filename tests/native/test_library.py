"""Finding, loading and refusing the native library."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs
import cffi
import pytest

from specframe.backends.llama import declarations, discovery, handshake, openmp
from specframe.backends.llama.declarations import Pin, new_ffi, pin, probe_ffi
from specframe.backends.llama.facts import runtime_facts
from specframe.backends.llama.handshake import check_layout, check_symbols, recognise
from specframe.backends.llama.library import Library, load_library
from specframe.core.errors import ConfigError, InternalError

ABI = "0.6.0-dev"


class FakeLibrary:
    """Answers like a library whose exports are the real one's, except for some."""

    def __init__(self, real: Any, *, missing: tuple[str, ...] = (), **answers: Any) -> None:
        self._real, self._missing, self._answers = real, missing, answers

    def __dir__(self) -> list[str]:
        return dir(self._real)

    def __getattr__(self, name: str) -> Any:
        if name in self._missing:
            raise AttributeError(f"symbol {name!r} not found")
        return self._answers.get(name) or getattr(self._real, name)


@pytest.fixture(scope="module", autouse=True)
def usual_search() -> Iterator[None]:
    """What is said here of the wheel is said of the wheel, whichever library the other tests run on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SPECFRAME_LLAMA_LIB", raising=False)
        patch.setenv("SPECFRAME_RUNTIME", "xllamacpp")
        yield


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


@pytest.fixture
def probed(library: Library) -> tuple[Any, Any]:
    probe = probe_ffi()
    return probe, probe.dlopen(str(library.path))


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | environment,
    )


def expect(changes: Mapping[str, Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the pin expect other default parameters than the library has."""
    real = pin()
    defaults = {name: MappingProxyType({**values, **changes.get(name, {})}) for name, values in real.defaults.items()}
    changed: Pin = attrs.evolve(real, defaults=MappingProxyType(defaults))
    monkeypatch.setattr(handshake, "pin", lambda: changed)


def test_the_pinned_wheel_is_found_and_says_what_it_is(library: Library) -> None:
    carrier = pin().carriers["xllamacpp"]
    assert library.source == f"xllamacpp {carrier.version}"
    assert library.version == carrier.abi
    assert library.path.name == "xllamacpp.abi3.so"


def test_one_library_is_loaded_once(library: Library) -> None:
    again = load_library(library.path)
    assert again.lib is library.lib


@pytest.mark.parametrize("module", ["specframe", "specframe.backends.llama", "specframe.backends.llama.target"])
def test_importing_loads_no_native_code(module: str) -> None:
    done = run(
        f"import {module}, sys\n"
        "assert 'xllamacpp' not in sys.modules\n"
        "print([line for line in open('/proc/self/maps') if 'llama' in line or 'ggml' in line])"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_loading_does_not_import_the_wheel() -> None:
    done = run(
        "from specframe.backends.llama.library import load_library; load_library(); import sys\n"
        "print('xllamacpp' in sys.modules)"
    )
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("False", "", 0)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [({}, "2000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "passive"}, "None")],
)
def test_idle_threads_spin_briefly_unless_the_user_has_a_policy(setting: dict[str, str], expected: str) -> None:
    unset = "import os; [os.environ.pop(k, None) for k in ('GOMP_SPINCOUNT', 'OMP_WAIT_POLICY')]\n"
    given = f"os.environ.update({setting!r})\n"
    load = "from specframe.backends.llama.library import load_library; load_library()\n"
    done = run(unset + given + load + "print(os.environ.get('GOMP_SPINCOUNT'))")
    assert done.stdout.strip() == expected


def test_an_explicit_path_is_final(tmp_path: Path) -> None:
    absent = tmp_path / "libllama.so"
    with pytest.raises(ConfigError, match="there is no such file") as raised:
        load_library(absent)
    assert str(absent) in str(raised.value)
    assert "xllamacpp.abi3.so" not in str(raised.value)


def test_the_environment_chooses_and_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    junk = tmp_path / "libllama.so"
    junk.write_bytes(b"not ELF")
    monkeypatch.setenv("SPECFRAME_LLAMA_LIB", str(junk))
    with pytest.raises(ConfigError, match="the dynamic linker refuses it") as raised:
        load_library()
    assert "ctypes" not in str(raised.value)


def test_a_library_that_is_not_llama_is_refused() -> None:
    libc = next(Path("/lib").glob("*/libm.so.6"))
    with pytest.raises(ConfigError, match=r"no llama_version\(\)"):
        load_library(libc)


def test_the_default_carrier_is_the_dependency() -> None:
    pyproject = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f'"xllamacpp=={pin().carriers["xllamacpp"].version}"' in pyproject


def test_another_version_of_a_wheel_is_refused_by_its_number() -> None:
    carrier = attrs.evolve(pin().carriers["xllamacpp"], version="2020.1.1")
    candidate = discovery.installed(carrier)
    assert candidate.path is None
    assert candidate.missing == "the pinned version is 2020.1.1"


def test_a_wheel_without_the_library_is_refused() -> None:
    carrier = attrs.evolve(pin().carriers["xllamacpp"], library="xllamacpp/absent.so")
    assert discovery.installed(carrier).missing == "the package has no xllamacpp/absent.so on this platform"


def test_a_glibc_that_is_too_old_is_named() -> None:
    message = "/lib/libc.so.6: version `GLIBC_2.38' not found (required by /x/libllama.so)"
    assert discovery.explain_dlopen(message).startswith("it needs glibc 2.38 or newer, this system has ")


def test_a_missing_dependency_is_named() -> None:
    message = "cannot load library: libggml.so.0: cannot open shared object file: No such file or directory"
    assert discovery.explain_dlopen(message) == "a library it depends on is missing: libggml.so.0"


def test_every_refusal_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = [
        discovery.Candidate("xllamacpp", None, missing="not installed"),
        discovery.Candidate("here", Path("/nowhere/libllama.so")),
    ]
    monkeypatch.setattr(discovery, "candidates", lambda _path: iter(nothing))
    with pytest.raises(ConfigError) as raised:
        load_library()
    assert "xllamacpp: not installed" in str(raised.value)
    assert "/nowhere/libllama.so: there is no such file" in str(raised.value)
    assert "SPECFRAME_LLAMA_LIB" in str(raised.value)


def test_another_version_is_refused_with_both_named(library: Library) -> None:
    fake = FakeLibrary(library.lib, llama_version=lambda: library.ffi.new("char[]", b"0.7.0"))
    with pytest.raises(ConfigError, match=r"llama.cpp 0\.7\.0, and specframe is written against 0\.6\.0-dev"):
        recognise(library.ffi, fake)


def test_a_missing_symbol_is_named(library: Library) -> None:
    with pytest.raises(ConfigError, match="does not export llama_process and 1 more symbols"):
        check_symbols(FakeLibrary(library.lib, missing=("llama_process", "llama_synchronize")))


@pytest.mark.parametrize(
    ("function", "field", "value"),
    [
        ("llama_model_default_params", "load_mtp", True),
        ("llama_context_default_params", "n_ubatch", 513),
        ("llama_context_default_params", "abort_callback", 1),
        ("llama_sampler_chain_default_params", "no_perf", False),
    ],
)
def test_the_first_wrong_default_is_named(
    function: str, field: str, value: object, library: Library, probed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect({function: {field: value}}, monkeypatch)
    with pytest.raises(ConfigError, match=rf"{function}\(\)\.{field} is .* and should be {value!r}"):
        check_layout(library.ffi, library.lib, *probed)


def test_a_wrong_limit_is_named(library: Library, probed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expect({"scalars": {"llama_max_devices": 17}}, monkeypatch)
    with pytest.raises(ConfigError, match=r"llama_max_devices\(\) is 16 and should be 17"):
        check_layout(library.ffi, library.lib, *probed)


def other_layout(old: str, new: str) -> cffi.FFI:
    """Declarations in which a struct is not as the library has it."""
    ffi = cffi.FFI()
    for concept in declarations.CONCEPTS:
        ffi.cdef(declarations.declaration(concept, ABI).replace(old, new))
    return ffi


def test_a_struct_that_shifted_is_refused_without_overrunning(library: Library, probed: Any) -> None:
    # The layout of the older carrier: shorter by a field, so the library writes more than it would be given.
    with pytest.raises(ConfigError, match="struct llama_context_params has 168 bytes in this library and 160"):
        check_layout(new_ffi("0.5.0-dev"), library.lib, *probed)


def test_a_shift_that_keeps_the_size_is_refused_by_its_values(library: Library, probed: Any) -> None:
    ffi = other_layout("bool embeddings;\n    bool offload_kqv;", "bool offload_kqv;\n    bool embeddings;")
    with pytest.raises(ConfigError, match=r"llama_context_default_params\(\)\.offload_kqv is False"):
        check_layout(ffi, library.lib, *probed)


def test_the_layout_is_compared_also_where_the_size_cannot_be_seen(
    library: Library, probed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    check_layout(library.ffi, library.lib, *probed)
    with pytest.raises(ConfigError, match="the struct layout is another one"):
        check_layout(new_ffi("0.5.0-dev"), library.lib, *probed)


def test_every_declared_parameter_has_an_expected_default() -> None:
    for abi in pin().abis:
        ffi = new_ffi(abi)
        for function, struct in [
            ("llama_model_default_params", "struct llama_model_params"),
            ("llama_context_default_params", "struct llama_context_params"),
        ]:
            assert {name for name, _ in ffi.typeof(struct).fields} <= pin().defaults[function].keys()


def test_declarations_are_found_in_a_wheel_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "specframe" / "backends" / "llama" / "declarations.py"
    monkeypatch.setattr(declarations, "__file__", str(module))
    with pytest.raises(InternalError, match="reinstall specframe"):
        declarations.vendor_dir()
    checkout = tmp_path / "vendor" / "llama.cpp"
    packaged = module.with_name("vendor")
    for directory in (checkout, packaged):
        directory.mkdir(parents=True)
        (directory / "pin.toml").touch()
        assert declarations.vendor_dir() == directory


def test_what_the_runtime_can_use_is_told(library: Library) -> None:
    facts = runtime_facts(library)
    assert facts.cpu_features
    assert set(facts.cpu_features) < {n.removeprefix("ggml_cpu_has_") for n in dir(library.lib)}
    assert [device.kind for device in facts.devices][-1] == "cpu"
    assert facts.devices[-1].memory_total > 0
    assert facts.mmap


def test_openmp_from_a_wheel_serves_the_library(tmp_path: Path) -> None:
    done = run(
        "import cffi; from pathlib import Path\n"
        "from specframe.backends.llama import openmp\n"
        f"kept = cffi.FFI().dlopen(str(openmp.supply(Path({str(tmp_path)!r}))))\n"
        "from specframe.backends.llama.library import load_library; load_library()\n"
        "print({line.split()[-1] for line in open('/proc/self/maps') if 'gomp' in line})",
    )
    assert done.returncode == 0, done.stderr
    # The system's own copy, if there is one, was not needed.
    assert done.stdout.count("libgomp") == 1
    assert str(tmp_path) in done.stdout


def test_missing_openmp_is_recognised_and_supplied_once(tmp_path: Path) -> None:
    assert openmp.is_missing("libgomp.so.1: cannot open shared object file: No such file or directory")
    assert not openmp.is_missing("libggml.so.0: cannot open shared object file: No such file or directory")
    first = openmp.supply(tmp_path)
    stamp = first.stat().st_mtime_ns
    assert first.name == "libgomp.so.1"
    assert openmp.supply(tmp_path) == first
    assert first.stat().st_mtime_ns == stamp


def test_openmp_that_cannot_be_supplied_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(openmp, "CARRIER", "no-such-package-here")
    with pytest.raises(ConfigError, match="apt install libgomp1"):
        openmp.supply(tmp_path)


def test_openmp_of_an_unknown_layout_is_not_touched() -> None:
    with pytest.raises(ConfigError, match="unexpected layout"):
        openmp.relabel(b"\0libgomp-1.so.1.0.0\0" * 2, "libgomp-1.so.1.0.0")
