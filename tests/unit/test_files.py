"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from specframe.files import write_whole


@pytest.mark.parametrize("lasting", [False, True])
def test_a_file_appears_whole_and_replaces_another(tmp_path: Path, lasting: bool) -> None:
    path = tmp_path / "f"
    for chunks in ([b"old"], [b"n", b"", b"ew"], []):
        write_whole(path, chunks, lasting=lasting)
        assert path.read_bytes() == b"".join(chunks)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError("the disk is full"), KeyboardInterrupt()])
def test_what_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    def half() -> Iterator[bytes]:
        yield b"new"
        raise error

    path = tmp_path / "f"
    write_whole(path, [b"old"])
    with pytest.raises(type(error)):
        write_whole(path, half())
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_others_may_read_what_the_user_lets_them(tmp_path: Path) -> None:
    """A cache may be shared: a library that only its writer can read would stop everybody else."""
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "f", [b""])
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o640
