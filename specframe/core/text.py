"""Bytes of tokens to text, piece by piece: UTF-8 across tokens, stop strings across tokens."""

from __future__ import annotations

import codecs


class TextStream:
    """Text of one request as it becomes certain.

    Bytes of an unfinished character and text that may turn out to be the beginning of a stop string are held back, so
    what was handed out is never taken back. Truly invalid bytes become U+FFFD; an unfinished character at the end is
    dropped.
    """

    def __init__(self, stops: tuple[str, ...] = ()) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._stops = stops
        self._held = ""
        self.matched: str | None = None
        """The stop string that was found; feeding must end then."""

    def feed(self, piece: bytes) -> str:
        """Add the bytes of one token; returns the text that is certain now."""
        text = self._decode(piece)
        if not self._stops:
            return text
        text = self._held + text
        # The match that is complete first wins: then where tokens begin and end does not matter.
        found = [(start + len(s), start, s) for s in self._stops if (start := text.find(s)) >= 0]
        if found:
            _, start, self.matched = min(found)
            self._held = ""
            return text[:start]
        keep = max(_overlap(text, s) for s in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """No more tokens: the text that was held back in case it became a stop string."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that is a beginning of ``stop``, the whole of it excluded."""
    for n in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0
