"""What is written to files: whole or not at all, and as JSON that everyone can read."""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def write_whole(path: Path, chunks: Iterable[bytes], *, lasting: bool = False) -> None:
    """Write ``path``, all of it or nothing; a file that is there is replaced, and read as it was until then.

    Args:
        path: In a directory that exists.
        chunks: The contents.
        lasting: Wait until it is on the disk, as it cannot be made again.

    Raises:
        OSError: It cannot be written. Nothing is left behind then, nor when ``chunks`` raises.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with part.open("xb") as file:
            file.writelines(chunks)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # a full disk does not say of which file
            error.filename = str(path)
        raise


def json_text(document: Any) -> str:
    """A JSON document. Numbers JSON cannot write become null, and what is none of its types becomes text."""
    return json.dumps(_plain(document), ensure_ascii=False, indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return str(value)
