"""Taking out of a text what tells who somebody is and where their files are."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

_WORD = r"""[^\s\\/:*?"'<>|(),;]+"""
#: The name of a directory may have spaces, which only the separator behind it shows.
_SPACED = r"""[^\s\\/:*?"'<>|(),;~.]+(?: [^\s\\/:*?"'<>|(),;~.]+){1,3}(?=[\\/])"""
#: An absolute path, or one below a home directory. What follows ``//`` or a word is none: URLs, ``tokens/s``.
_PATH = re.compile(rf"(?<![\w/:.>])(?:~[\w.-]*|[A-Za-z]:|\\)?(?:[\\/](?:{_SPACED}|{_WORD}))+[\\/]?")


@attrs.frozen
class Redactor:
    """Replaces paths by their last part, and names of the user and the machine by placeholders."""

    user: str = ""
    host: str = ""
    directories: tuple[str, ...] = ()
    """Known to be private; found also when they have spaces in their names."""

    @classmethod
    def here(cls, *files: Path) -> Redactor:
        """For this user on this machine; the directories of ``files`` are known to be private."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # nobody that this system has a name for
            user = ""
        directories = {Path.home(), Path.cwd(), *(file.expanduser().absolute().parent for file in files)}
        private = tuple(str(directory) for directory in directories if directory != Path(directory.anchor))
        return cls(user, socket.gethostname().partition(".")[0], private)

    def text(self, text: str) -> str:
        """``text`` without them."""
        for directory in sorted(self.directories, key=len, reverse=True):
            text = re.sub(re.escape(directory) + r"[\\/]", "~/", text)
            text = re.sub(re.escape(directory) + r"(?![\w.-])", "~", text)
        text = _PATH.sub(_last_part, text)
        for name, placeholder in ((self.user, "<user>"), (self.host, "<host>")):
            if name:
                text = re.sub(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", placeholder, text, flags=re.IGNORECASE)
        return text

    def __call__(self, value: Any) -> Any:
        """``value`` without them, whatever JSON it is."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self(inner) for key, inner in value.items()}
        if isinstance(value, Sequence):
            return [self(inner) for inner in value]
        return value


def _last_part(found: re.Match[str]) -> str:
    return re.split(r"[\\/]", found[0].rstrip("\\/"))[-1]
