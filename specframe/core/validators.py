"""Validators of attrs fields whose messages name the field and the value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import attrs

from specframe.core.errors import ConfigError


def finite(low: float | None = None, high: float | None = None, *, above: float | None = None) -> Any:
    """Validator: a finite number within [low, high] (and > above). Raises ConfigError."""

    def check(_: object, field: attrs.Attribute[Any], value: Any) -> None:
        bad = isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)
        if not bad:
            bad = (
                (low is not None and value < low)
                or (high is not None and value > high)
                or (above is not None and value <= above)
            )
        if bad:
            bounds = [
                *([f"> {above:g}"] if above is not None else []),
                *([f">= {low:g}"] if low is not None else []),
                *([f"<= {high:g}"] if high is not None else []),
            ]
            msg = f"{field.name} must be a finite number{' ' + ' and '.join(bounds) if bounds else ''}, not {value!r}"
            raise ConfigError(msg)

    return check


def whole_number(low: int | None = None, high: int | None = None, *, way_out: str = "") -> Any:
    """Validator: an int (no bool) within [low, high]. Raises ConfigError, whose message ends with ``way_out``."""

    def check(_: object, field: attrs.Attribute[Any], value: Any) -> None:
        check_whole_number(field.name, value, low, high, way_out=way_out)

    return check


def check_whole_number(
    name: str, value: object, low: int | None = None, high: int | None = None, *, way_out: str = ""
) -> None:
    """As :func:`whole_number`, for a value that is no field."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or (low is not None and value < low)
        or (high is not None and value > high)
    ):
        span = f"[{low if low is not None else '-inf'}, {high if high is not None else 'inf'}]"
        msg = f"{name} must be a whole number in {span}, not {value!r}{'; ' + way_out if way_out else ''}"
        raise ConfigError(msg)


def parse_draft_length(name: str, text: str) -> int | Literal["auto", "off"]:
    """A draft length as a request takes it, from text. Raises ConfigError."""
    words: Mapping[str, Literal["auto", "off"]] = {"auto": "auto", "off": "off"}
    if text in words:
        return words[text]
    if text.isdecimal():
        return int(text)
    msg = f"{name} must be a whole number >= 0, auto or off, not {text!r}"
    raise ConfigError(msg)


def elements(name: str, value: object) -> tuple[Any, ...]:
    """The elements of a sequence, of which a text is none. Raises ConfigError."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | bytearray | Mapping):
        return tuple(value)
    msg = f"{name} must be a sequence, not {value!r:.80}"
    raise ConfigError(msg)


def text_or_none(_: object, field: attrs.Attribute[Any], value: object) -> None:
    """Validator: a text, or None. Raises ConfigError."""
    if value is not None and not isinstance(value, str):
        msg = f"{field.name} must be a text, not {value!r:.80}"
        raise ConfigError(msg)


def flag(_: object, field: attrs.Attribute[Any], value: object) -> None:
    """Validator: True or False. Raises ConfigError."""
    check_flag(field.name, value)


def check_flag(name: str, value: object) -> None:
    """As :func:`flag`, for a value that is no field."""
    if not isinstance(value, bool):
        msg = f"{name} must be true or false, not {value!r}"
        raise ConfigError(msg)
