"""What was measured so far, case by case in a file, so that an interrupted run can be resumed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specframe.core.errors import ConfigError

_FORMAT = 1


class Store:
    """Answers by key, in memory and, when there is a path, in a file of JSON lines that grows with each of them."""

    def __init__(self, path: Path | None, settings: Mapping[str, Any], *, resume: bool = False) -> None:
        """Begin a file, or read what is in it.

        Args:
            path: of the file; None: in memory only.
            settings: JSON-ready; answers of other settings are not taken over.
            resume: take over what the file has. Without it a file that is there is replaced.

        Raises:
            ConfigError: The file is of other settings, or no such file.
        """
        self._path = path
        self._answers: dict[str, Any] = {}
        # As it comes back from the file: tuples are lists there.
        settings = json.loads(json.dumps(settings))
        if path is None:
            return
        if resume and path.is_file():
            self._read(path, settings)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_line({"format": _FORMAT, "settings": settings}), encoding="utf-8")

    def _read(self, path: Path, settings: Mapping[str, Any]) -> None:
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        first, *lines = whole.split(b"\n")
        try:
            head = json.loads(first)
            before = dict(head["settings"])
            known = head["format"] == _FORMAT
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(
                f"{str(path)!r} is not a file of measurements ({error!r}); start without --resume"
            ) from error
        if not known:
            raise ConfigError(f"{str(path)!r} is not a file of measurements of this version; start without --resume")
        for number, line in enumerate(lines[:-1], 2):
            try:
                answer = json.loads(line)
                self._answers[answer["key"]] = answer["value"]
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise ConfigError(
                    f"{str(path)!r}, line {number} is not a measurement ({error!r}): delete the line, and what it said "
                    "is measured again; or start without --resume"
                ) from error
        for name in before.keys() | settings.keys():
            if before.get(name) != settings.get(name):
                msg = (
                    f"{str(path)!r} was measured with {name}={before.get(name)!r}, not {settings.get(name)!r}; "
                    "start without --resume, or with another --out"
                )
                raise ConfigError(msg)
        if len(whole) < len(data):  # the writer was stopped in the middle of a line
            os.truncate(path, len(whole))

    def __contains__(self, key: str) -> bool:
        return key in self._answers

    def __getitem__(self, key: str) -> Any:
        return self._answers[key]

    def __len__(self) -> int:
        return len(self._answers)

    def __setitem__(self, key: str, value: Any) -> None:
        """Keep an answer; it is on disk when this returns. Raises OSError that names the file and the way out."""
        self._answers[key] = value
        if self._path is not None:
            try:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(_line({"key": key, "value": value}))
            except OSError as error:
                what = f"{error.strerror}; what was measured before is kept, and --resume goes on from there"
                raise OSError(error.errno, what, str(self._path)) from error


def _line(data: Mapping[str, Any]) -> str:
    return json.dumps(data) + "\n"
