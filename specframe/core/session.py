"""Sessions on disk: what a sequence holds, so that another process starts from there.

A file is: a magic line, the length of the header (8 bytes, little endian), the header (JSON), the states, and the
SHA-256 of all of that. The header names the format, the version that wrote it, what the states are good for (the model
and the settings their bytes depend on), the tokens, and the parts of the body in order.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from specframe.core.errors import ConfigError
from specframe.core.strategy import StrategySpec
from specframe.files import write_whole

FORMAT = 1
_MAGIC = b"specframe session\n"
_LENGTH = 8
_DIGEST = hashlib.sha256().digest_size


@attrs.frozen(kw_only=True)
class Session:
    """The memory of one sequence, outside of it."""

    identity: Mapping[str, Any]
    """``Target.identity`` of the target that made it."""
    tokens: tuple[int, ...] = attrs.field(repr=lambda tokens: f"<{len(tokens)} tokens>")
    """What the memory holds."""
    state: bytes = attrs.field(repr=lambda state: f"<{len(state)} bytes>")
    """``Target.save_state`` of it."""
    strategies: Mapping[str, bytes] = attrs.field(factory=dict, repr=False)
    """What strategies keep of it, by :func:`strategy_key`."""
    notes: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    """What an application keeps with it, such as the messages of a chat; JSON-ready."""

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write it to ``path``, all of it or nothing; a file that is there is replaced.

        Raises:
            ConfigError: there is no such directory, or ``path`` is one.
            OSError: it cannot be written.
        """
        if Path(path).is_dir() or not Path(path).parent.is_dir():
            msg = f"a session cannot be written to {os.fspath(path)!r}: name a file in a directory that exists"
            raise ConfigError(msg)
        parts = [("state", self.state), *self.strategies.items()]
        header = {
            "format": FORMAT,
            "specframe": importlib.metadata.version("specframe"),
            "identity": dict(self.identity),
            "tokens": list(self.tokens),
            "notes": dict(self.notes),
            "parts": [[name, len(data)] for name, data in parts],
        }
        text = json.dumps(header, separators=(",", ":")).encode()
        body = [_MAGIC, len(text).to_bytes(_LENGTH, "little"), text, *(data for _, data in parts)]
        write_whole(Path(path), _signed(body), lasting=True)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Session:
        """Read a file written by :meth:`write`. Raises ConfigError when it is none, damaged, or of another format."""
        with Path(path).open("rb") as file:
            data = file.read(len(_MAGIC))
            if data != _MAGIC:  # before the rest is read: it may be a model, or a device without an end
                msg = f"{os.fspath(path)!r} is not a session file"
                raise ConfigError(msg)
            data += file.read()
        start = len(_MAGIC) + _LENGTH
        body, digest = data[:-_DIGEST], data[-_DIGEST:]
        if len(data) < start + _DIGEST or hashlib.sha256(body).digest() != digest:
            msg = f"the session file {os.fspath(path)!r} is damaged or was not written to its end; make it anew"
            raise ConfigError(msg)
        end = start + int.from_bytes(body[len(_MAGIC) : start], "little")
        header = json.loads(body[start:end])
        if header["format"] != FORMAT:
            msg = (
                f"the session file {os.fspath(path)!r} has format {header['format']} (written by specframe "
                f"{header['specframe']}), this version reads format {FORMAT}; make it anew"
            )
            raise ConfigError(msg)
        parts: dict[str, bytes] = {}
        for name, length in header["parts"]:
            parts[name] = body[end : end + length]
            end += length
        state = parts.pop("state")
        return cls(
            identity=header["identity"],
            tokens=tuple(header["tokens"]),
            state=state,
            strategies=parts,
            notes=header["notes"],
        )

    def check_fits(self, identity: Mapping[str, Any]) -> None:
        """Raise ConfigError naming the first thing that differs between the target that made it and this one."""
        # Both through JSON, so that a tuple is what a list is.
        mine, theirs = json.loads(json.dumps(dict(self.identity))), json.loads(json.dumps(dict(identity)))
        for key in sorted({*mine, *theirs}):
            if mine.get(key) != theirs.get(key):
                if key == "model":  # a hash, which tells nobody anything
                    raise ConfigError("this session was made with another model; name another session file")
                msg = f"this session was made with {key} {mine.get(key)!r}, but here it is {theirs.get(key)!r}"
                raise ConfigError(msg)


def strategy_key(spec: StrategySpec) -> str:
    """The name a strategy's part of a session goes by: another strategy, option or draft file is another name."""
    draft = None if spec.draft_path is None else [spec.draft_path.name, spec.draft_path.stat().st_size]
    options = attrs.asdict(spec.options, recurse=False)
    return "strategy " + json.dumps([spec.name, options, draft], default=repr, sort_keys=True)


def _signed(chunks: Iterable[bytes]) -> Iterator[bytes]:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
        yield chunk
    yield digest.digest()
