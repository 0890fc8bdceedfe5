"""Validators shared by the options of built-in strategies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs


def whole_number(low: int, high: int) -> Callable[[Any, attrs.Attribute[int], object], None]:
    """Validator of an attrs field: a whole number from ``low`` to ``high``. Raises ValueError that names the option."""

    def check(_: object, field: attrs.Attribute[int], value: object) -> None:
        # bool is a subclass of int, and `n=true` on a command line is a mistake.
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            msg = f"option {field.name!r} must be a whole number from {low} to {high}, not {value!r}"
            raise ValueError(msg)

    return check


def fraction(_: object, field: attrs.Attribute[float], value: object) -> None:
    """Validator of an attrs field: a number from 0 to 1. Raises ValueError that names the option."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        msg = f"option {field.name!r} must be a number from 0 to 1, not {value!r}"
        raise ValueError(msg)
