"""Our C declarations say the same as the headers of the pinned packages."""

from __future__ import annotations

import ast
import re
import tarfile
import zipfile
from typing import Any

import pytest

from specframe.backends.llama.declarations import CONCEPTS, declaration, pin
from tests.support.cdecl import Declaration, declarations, integer_macros, types_of
from tests.support.references import fetch

HEADERS = (
    "include/llama.h",
    "src/llama-ext.h",
    "ggml/include/ggml.h",
    "ggml/include/ggml-cpu.h",
    "ggml/include/ggml-backend.h",
    "ggml/include/gguf.h",
)
#: ``llama_context::get_sched() const``.
GET_SCHED = "_ZNK13llama_context9get_schedEv"
#: C++ lets upstream leave out the keyword.
CXX = "typedef struct llama_context llama_context;"


def ours(abi: str) -> str:
    return "\n".join(declaration(concept, abi) for concept in CONCEPTS)


def plain_name(name: str) -> str:
    """The source name of an Itanium-mangled one."""
    mangled = re.match(r"_Z(\d+)", name)
    return name[mangled.end() :][: int(mangled.group(1))] if mangled else name


def in_words_of(theirs: dict[str, Declaration], mine: dict[str, Declaration]) -> dict[str, Declaration]:
    """Every declaration of ``mine`` that ``theirs`` has too, as ``theirs`` words it; the others as they are."""
    worded = {}
    for key, declared in mine.items():
        other = theirs.get(f"{declared.kind} {plain_name(declared.name)}")
        if other is None:
            worded[key] = declared
        elif declared.kind == "function":
            text = re.sub(rf"\b{other.name}\s*\(", f"{declared.name}(", other.text, count=1)
            worded[key] = Declaration("function", declared.name, text)
        else:
            worded[key] = other
    return worded


def differences(
    theirs: dict[str, Declaration], abi: str, macros: dict[str, str], computed: frozenset[str] = frozenset()
) -> dict[str, tuple[Any, Any]]:
    """What the two say differently, leaving out the enumerators ``computed``."""
    mine = declarations(ours(abi))
    prelude = forward_declarations(abi)
    expected = types_of(in_words_of(theirs, mine), macros, prelude)
    actual = types_of(mine, {}, prelude)
    for key in mine:
        if key.startswith("enum"):
            # An older ABI may lack the newest names; the newest is checked to have them all.
            known = expected[key].keys() - computed
            newer = actual[key].keys() - expected[key].keys() if abi != pin().abis[0] else set()
            actual[key] = {name: value for name, value in actual[key].items() if name not in newer | computed}
            expected[key] = {name: expected[key][name] for name in known}
    return {key: (actual[key], expected[key]) for key in mine if actual[key] != expected[key]}


def computed_enumerators(header: str) -> frozenset[str]:
    """Enumerators whose value is an expression."""
    enums = [declared.text for declared in declarations(header).values() if declared.kind == "enum"]
    pairs = [pair for text in enums for pair in re.findall(r"(\w+)\s*=\s*([^,}]+)", text)]
    return frozenset(name for name, value in pairs if not re.fullmatch(r"-?\d+\s*", value))


def forward_declarations(abi: str) -> str:
    return CXX + "".join(re.findall(r"^struct \w+;", ours(abi), re.MULTILINE))


@pytest.fixture(scope="module")
def source_headers() -> str:
    """Headers of the pinned source, read from inside the archive."""
    carrier = pin().carriers["llama-cpp-python"]
    root = f"{carrier.file.removesuffix('.tar.gz')}/{carrier.source}"
    texts = []
    with tarfile.open(fetch(carrier)) as archive:
        for header in HEADERS:
            file = archive.extractfile(f"{root}/{header}")
            assert file is not None
            texts.append(file.read().decode())
    return "\n".join(texts)


@pytest.fixture(scope="module")
def bundled_cdef() -> str:
    """The declarations inside the llama-cpp-py-sync wheel, without importing them."""
    with zipfile.ZipFile(fetch(pin().carriers["llama-cpp-py-sync"])) as wheel:
        tree = ast.parse(wheel.read("llama_cpp_py_sync/_cffi_bindings.py"))
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return max(texts, key=len)


@pytest.mark.parametrize("abi", pin().abis)
def test_every_declaration_is_understood_by_the_comparison(abi: str) -> None:
    # A declaration that the splitter overlooks would never be compared.
    text = re.sub(r"/\*.*?\*/", "", ours(abi), flags=re.DOTALL)
    count = len(re.findall(r";", re.sub(r"\{.*?\}", "", text, flags=re.DOTALL)))
    forward = len(re.findall(r"^struct \w+;", text, re.MULTILINE))
    assert len(declarations(ours(abi))) == count - forward


def test_declarations_match_the_pinned_source(source_headers: str) -> None:
    theirs = declarations(source_headers)
    mine = declarations(ours("0.5.0-dev"))
    unknown = [key for key, d in mine.items() if f"{d.kind} {plain_name(d.name)}" not in theirs]
    assert unknown == [f"function {GET_SCHED}"]  # a member function, see below
    assert differences(theirs, "0.5.0-dev", integer_macros(source_headers)) == {}


def test_the_member_function_is_in_the_pinned_source() -> None:
    carrier = pin().carriers["llama-cpp-python"]
    root = f"{carrier.file.removesuffix('.tar.gz')}/{carrier.source}"
    with tarfile.open(fetch(carrier)) as archive:
        file = archive.extractfile(f"{root}/src/llama-context.h")
        assert file is not None
        # The first argument of its mangled name is `this`; it takes no other and returns the scheduler.
        assert "ggml_backend_sched_t get_sched() const;" in file.read().decode()


def test_declarations_match_the_ones_bundled_with_the_pinned_library(bundled_cdef: str, source_headers: str) -> None:
    theirs = declarations(bundled_cdef)
    mine = declarations(ours("0.6.0-dev"))
    # That wheel binds llama.h only, and makes every ggml handle a void pointer.
    theirs = {key: d for key, d in theirs.items() if not (d.kind == "typedef" and d.name.startswith("ggml_"))}
    unknown = [key for key, d in mine.items() if d.name.startswith("llama_") and key not in theirs]
    assert unknown == []
    # Its generator loses values that are expressions; those are checked against the source only.
    computed = computed_enumerators(source_headers)
    assert "LLAMA_TOKEN_ATTR_CONTROL" in computed
    assert differences(theirs, "0.6.0-dev", {}, computed) == {}


def test_the_two_layouts_are_told_apart(source_headers: str) -> None:
    wrong = differences(declarations(source_headers), "0.6.0-dev", integer_macros(source_headers))
    assert list(wrong) == ["enum llama_vocab_type", "struct llama_context_params"]


def test_state_flags_match_the_pinned_source(source_headers: str) -> None:
    theirs, mine = integer_macros(source_headers), integer_macros(ours("0.6.0-dev"))
    assert mine, "the state flags are macros"
    assert {name: theirs[name] for name in mine} == mine


def test_a_changed_field_is_noticed() -> None:
    theirs = declarations("struct gguf_init_params { struct ggml_context ** ctx; bool no_alloc; };")
    assert list(differences(theirs, "0.6.0-dev", {})) == ["struct gguf_init_params"]


def test_a_changed_parameter_is_noticed() -> None:
    theirs = declarations("LLAMA_API bool llama_memory_can_shift(llama_memory_t mem, bool really);")
    assert list(differences(theirs, "0.6.0-dev", {})) == ["function llama_memory_can_shift"]


def test_a_changed_enum_value_is_noticed() -> None:
    theirs = declarations("enum llama_process_type { LLAMA_PROCESS_TYPE_DECODE, LLAMA_PROCESS_TYPE_ENCODE };")
    assert list(differences(theirs, "0.6.0-dev", {})) == ["enum llama_process_type"]
