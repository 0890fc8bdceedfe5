"""The progress bar of everything that downloads or builds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Task
    from rich.text import Text

_STAGES = {
    "wait": "waiting for another process",
    "download": "downloading",
    "extract": "unpacking",
    "check": "checking",
    "configure": "setting up",
    "compile": "compiling",
    "install": "trying it out",
}
#: What counts steps; all else counts bytes.
_STEPS = _STAGES["compile"]


@contextmanager
def progress_bar(*, announce: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """A reporter ``(stage, done, total)`` that draws on stderr, when that is a terminal.

    Args:
        announce: write a line for each stage where no bar can be drawn.
    """
    from rich.console import Console  # noqa: PLC0415 -- only what takes long needs it
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    class Amount(ProgressColumn):
        """Bytes or steps, as the stage counts."""

        def __init__(self) -> None:
            super().__init__()
            self._bytes, self._steps = DownloadColumn(), MofNCompleteColumn()

        def render(self, task: Task) -> Text:
            return (self._steps if task.description == _STEPS else self._bytes).render(task)

    columns = (TextColumn("{task.description}"), BarColumn(), Amount(), TimeElapsedColumn())
    drawn = sys.stderr.isatty()
    with Progress(*columns, console=Console(file=sys.stderr), transient=True, disable=not drawn) as bar:
        task = bar.add_task("starting", total=None)
        stage = ""

        def report(now: str, done: int, total: int) -> None:
            nonlocal stage
            if now != stage:
                stage = now
                bar.reset(task, total=None, description=_STAGES.get(now, now))
                if announce and not drawn:
                    print(_STAGES.get(now, now), file=sys.stderr)
            bar.update(task, completed=done, total=total or None)

        yield report
