"""Native builds without llama.cpp's source: a tree that builds in no time, and builds that are only described."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specframe.backends.llama.declarations import Carrier, Recipe
from specframe.backends.llama.native_builds import MANIFEST, NativeBuild, builds_directory

#: Needs CMake and Ninja, but no compiler: the "library" is a link to one that is there.
HEAD = """
cmake_minimum_required(VERSION 3.14)
project(fake NONE)
"""
CMAKE_LISTS = (
    HEAD
    + """
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
add_custom_target(llama COMMAND ${CMAKE_COMMAND} -E create_symlink ${LIBRARY} ${CMAKE_BINARY_DIR}/bin/libllama.so)
"""
)


def described(name: str, **changes: Any) -> NativeBuild:
    """A build in the cache with a description and no library."""
    build = NativeBuild(
        **{
            "name": name,
            "backend": "cpu",
            "upstream": "abc",
            "library": "libllama.so",
            "options": {},
            "compiler": "c++ 1.0",
            "cpu_features": (),
            "made": "2031-05-01T00:00:00+00:00",
            **changes,
        }
    )
    directory = builds_directory() / name
    directory.mkdir(parents=True)
    (directory / MANIFEST).write_text(json.dumps(build.to_dict()))
    return build


def packed(directory: Path, files: Mapping[str, str]) -> tuple[Path, Carrier]:
    """A source distribution with these files in its llama.cpp tree, and the pin of it."""
    path = directory / "fake-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in {"fake-1.0/PKG-INFO": "", **{f"fake-1.0/src/{n}": t for n, t in files.items()}}.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return path, Carrier(
        name="fake", version="1.0", file=path.name, sha256=digest, upstream="abc", abi="0.6.0-dev", source="src"
    )


def recipe(carrier: Carrier, library: Path, **options: str) -> Recipe:
    """How the fake source is built; ``library`` is what comes out."""
    return Recipe(
        carrier=carrier,
        target="llama",
        output="bin",
        options={"LIBRARY": str(library), **options},
        backends={"cpu": {}, "cuda": {"FAKE_CUDA": "ON"}},
    )
