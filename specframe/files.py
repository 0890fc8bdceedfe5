"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path


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
    except BaseException:
        part.unlink(missing_ok=True)
        raise
