"""C headers cut into declarations, to compare what two headers say about the same names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import cffi

_NOISE = re.compile(
    r"\b(LLAMA_API|GGML_API|GGML_BACKEND_API|extern\s+\"C\"\s*\{|extern)(?=\s)|__attribute__\s*\(\(.*?\)\)", re.DOTALL
)
_DEPRECATED = re.compile(r"DEPRECATED\((.*),\s*\"[^\"]*\"\s*\)\s*;", re.DOTALL)


@attrs.frozen
class Declaration:
    """One top-level declaration without comments."""

    kind: str
    """``struct``, ``enum``, ``typedef`` or ``function``."""
    name: str
    text: str


def declarations(header: str) -> dict[str, Declaration]:
    """Declarations of a header by ``kind name``, in order."""
    found: dict[str, Declaration] = {}
    for statement in _statements(_clean(header)):
        declaration = _classify(statement)
        if declaration is not None:
            found[f"{declaration.kind} {declaration.name}"] = declaration
    return found


def integer_macros(header: str) -> dict[str, str]:
    """``#define`` lines with an integer for a value."""
    return dict(re.findall(r"^\s*#define\s+(\w+)\s+(-?\d+)\b", header, re.MULTILINE))


def types_of(texts: Mapping[str, Declaration], macros: Mapping[str, str], prelude: str = "") -> dict[str, Any]:
    """What each declaration means, in a form that compares: layouts, values, signatures."""
    ffi = cffi.FFI()
    defines = "".join(f"#define {name} {value}\n" for name, value in macros.items())
    defines = "".join(f"#define {name} {value}\n" for name, value in macros.items())
    ffi.cdef(prelude + "\n" + defines + "\n".join(_as_type(declaration) for declaration in texts.values()))
    # One struct with a pointer to each, since every single question to cffi parses all declarations again.
    ffi.cdef("struct everything {" + "".join(f"{_spelled(d)} *f{i};" for i, d in enumerate(texts.values())) + "};")
    pointers = [field.type for _, field in ffi.typeof("struct everything").fields]
    return {key: _meaning(texts[key].kind, pointer) for key, pointer in zip(texts, pointers, strict=True)}


def _clean(header: str) -> str:
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", header, flags=re.DOTALL)
    text = re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*", "", text, flags=re.MULTILINE)
    return _NOISE.sub(" ", text).replace("GGML_RESTRICT", "")


def _statements(text: str) -> Iterator[str]:
    depth, start = 0, 0
    for position, character in enumerate(text):
        if character == "{":
            depth += 1
        elif character == "}":
            if depth == 0:
                start = position + 1  # closes extern "C"
            depth = max(depth - 1, 0)
        elif character == ";" and depth == 0:
            yield " ".join(text[start : position + 1].split())
            start = position + 1


def _classify(statement: str) -> Declaration | None:
    deprecated = _DEPRECATED.fullmatch(statement)
    if deprecated:
        statement = deprecated.group(1) + ";"
    typedef = re.fullmatch(r"typedef .*?(?:\(\s*\*\s*(\w+)\s*\)\s*\(.*\)|\b(\w+)\s*);", statement)
    if typedef:
        name = typedef.group(1) or typedef.group(2)
        body = re.fullmatch(r"typedef (struct \w+ \{.*\}) \w+;", statement)
        return Declaration("typedef", name, statement) if not body else Declaration("struct", name, statement)
    composite = re.fullmatch(r"(struct|enum) (\w+) \{.*\};", statement)
    if composite:
        return Declaration(composite.group(1), composite.group(2), statement)
    function = re.fullmatch(r"[^{}=]*?\b(\w+)\s*\(([^{}]*)\);", statement)
    if function:
        return Declaration("function", function.group(1), statement)
    return None


def _as_type(declaration: Declaration) -> str:
    if declaration.kind != "function":
        return declaration.text
    # cffi tells the type of a typedef, not of a function that belongs to no library.
    return "typedef " + re.sub(rf"\b{declaration.name}\s*\(", f"{declaration.name}_fn(", declaration.text, count=1)


def _spelled(declaration: Declaration) -> str:
    if declaration.kind == "function":
        return f"{declaration.name}_fn"
    return declaration.name if declaration.kind == "typedef" else f"{declaration.kind} {declaration.name}"


def _meaning(kind: str, pointer: Any) -> Any:
    if kind == "function":
        return f"{pointer.result.cname} ({', '.join(argument.cname for argument in pointer.args)})"
    described = pointer.item
    if kind == "typedef":
        return described.cname
    if kind == "enum":
        return dict(described.relements)
    return [(name, field.type.cname, field.offset) for name, field in described.fields]
