"""GNU OpenMP for a system that has none.

The ``xllamacpp`` wheel needs ``libgomp.so.1`` and does not bring it, and a bare Debian does not have it. Some wheels
carry a copy under a name of their own (``libgomp-870cb1d0.so.1.0.0``: auditwheel renames what it bundles, so that two
wheels cannot clash). The dynamic linker finds a loaded library by its SONAME, so a copy that has its old SONAME again
serves as ``libgomp.so.1``.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path

from specframe.cache import cache_directory
from specframe.core.errors import ConfigError
from specframe.files import write_whole

NAME = "libgomp.so.1"

#: The small wheel that specframe depends on for its copy.
CARRIER = "pykdtree"


def is_missing(dlopen_message: str) -> bool:
    """Whether the dynamic linker says that it lacks GNU OpenMP."""
    return f"{NAME}: cannot open shared object file" in dlopen_message


def supply(directory: Path | None = None) -> Path:
    """A ``libgomp.so.1`` made from the copy in an installed wheel.

    Args:
        directory: where to put it, by default the user's cache.

    Raises:
        ConfigError: no wheel with a copy is installed.
    """
    bundled = _bundled()
    if bundled is None:
        raise ConfigError(
            f"a library it depends on is missing: {NAME}; install it (on Debian and Ubuntu: apt install libgomp1), "
            f"or a copy of it: pip install {CARRIER}"
        )
    content = relabel(bundled.read_bytes(), bundled.name)
    root = directory or cache_directory("openmp")
    target = root / hashlib.sha256(content).hexdigest()[:16] / NAME
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, [content])  # another process may be loading the same file
    return target


def relabel(content: bytes, soname: str) -> bytes:
    """``content`` of a shared library with its SONAME replaced by ``libgomp.so.1``.

    Raises:
        ConfigError: the library does not have that SONAME exactly once.
    """
    old = b"\0" + soname.encode() + b"\0"
    new = (b"\0" + NAME.encode()).ljust(len(old), b"\0")
    if content.count(old) != 1 or len(new) != len(old):
        raise ConfigError(f"the GNU OpenMP library {soname} has an unexpected layout; apt install libgomp1")
    return content.replace(old, new)


def _bundled() -> Path | None:
    try:
        distribution = importlib.metadata.distribution(CARRIER)
    except importlib.metadata.PackageNotFoundError:
        return None
    found = sorted(Path(str(distribution.locate_file(f"{CARRIER}.libs"))).glob("libgomp-*.so*"))
    return found[0] if found else None
