"""The command line: argument parsing and printing only.

Exit codes: 0 done; 1 it failed while running; 2 what was asked for cannot work (usage, files, compatibility);
130 interrupted.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    _fill_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A model may answer with characters a terminal cannot show; that is no reason to stop.
            stream.reconfigure(errors="replace")
    try:
        from specframe.cli.app import app  # noqa: PLC0415 -- an interrupt during the import is handled here as well

        app(args, prog_name="specframe")
    except KeyboardInterrupt:
        _leave(130)
    except SystemExit as error:
        _leave(error.code)
    except OSError as error:
        print(f"specframe: error: {error}", file=sys.stderr)
        _leave(1)
    _leave(0)


def _fill_closed_streams() -> None:
    """Open standard streams that the caller closed: nothing to read, and nobody who reads."""
    # Otherwise the next file that is opened, a session say, gets the descriptor of stdout or stderr, and with it
    # whatever native code writes there.
    nothing = Path(os.devnull)
    sys.stdin = sys.stdin or nothing.open(encoding="utf-8")
    sys.stdout = sys.stdout or nothing.open("w", encoding="utf-8")
    sys.stderr = sys.stderr or nothing.open("w", encoding="utf-8")


def _leave(code: str | int | None) -> NoReturn:
    try:
        sys.stdout.flush()
    except OSError as error:
        # Whoever read the output has gone, which is no news to them; or the disk is full, which is, once.
        if not isinstance(error, BrokenPipeError) and not code:
            print(f"specframe: error: {error}", file=sys.stderr)
        # The interpreter would flush again while it exits, and complain.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = code or 1
    sys.exit(code)
