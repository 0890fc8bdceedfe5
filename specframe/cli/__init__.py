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
from typing import NoReturn


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
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
    _leave(0)


def _leave(code: str | int | None) -> NoReturn:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output has gone. The interpreter would flush again while it exits, and complain.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = code or 1
    sys.exit(code)
