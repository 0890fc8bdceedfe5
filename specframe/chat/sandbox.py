"""A jinja2 environment for templates nobody here wrote.

Attribute access is jinja2's immutable sandbox. On top of it everything a template can do is metered, because a GGUF
file from a stranger must not be able to hang the process or eat its memory: loop turns, calls, the size of every
intermediate value, and the time of a whole rendering.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, NoReturn, cast

import attrs
from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

#: Characters of one string, items of one list.
MAX_SIZE = 8_000_000
#: Loop turns and calls in one rendering.
MAX_TICKS = 1_000_000
#: Seconds one rendering may take; a real template with a full context takes milliseconds.
MAX_SECONDS = 10.0
#: Largest width, count or precision a template may ask for.
MAX_WIDTH = 100_000

_SIZED = (str, list, tuple, dict, bytes)
_WIDE = re.compile(r"\d{6,}|\*")


class TemplateRaisedError(TemplateError):
    """The template itself called ``raise_exception(message)``."""


class LimitError(SecurityError):
    """The template asked for more time, memory or turns than a chat template can need."""


@attrs.define
class Meter:
    """What one rendering has used so far."""

    deadline: float = attrs.field(factory=lambda: time.monotonic() + MAX_SECONDS)
    ticks: int = 0

    def tick(self) -> None:
        """Count one loop turn or call."""
        self.ticks += 1
        if self.ticks > MAX_TICKS:
            msg = f"more than {MAX_TICKS} loop turns and calls"
            raise LimitError(msg)
        # Asking the clock costs more than the turn it guards; every 64th is often enough.
        if not self.ticks & 63 and time.monotonic() > self.deadline:
            msg = f"took longer than {MAX_SECONDS:g} s"
            raise LimitError(msg)


_running = threading.local()


class metered:  # noqa: N801 -- reads as a verb: ``with metered():``
    """Context in which the meter of this thread runs."""

    def __enter__(self) -> Meter:
        self._outer = getattr(_running, "meter", None)
        _running.meter = meter = Meter()
        return meter

    def __exit__(self, *_: object) -> None:
        _running.meter = self._outer


def _tick() -> None:
    meter: Meter | None = getattr(_running, "meter", None)
    if meter is not None:
        meter.tick()


def _sized(value: Any) -> Any:
    if isinstance(value, _SIZED) and len(value) > MAX_SIZE:
        _too_big(len(value))
    return value


def _too_big(size: int) -> NoReturn:
    msg = f"would build a value of {size} characters or items; the limit is {MAX_SIZE}"
    raise LimitError(msg)


def _check_arguments(values: Iterable[Any]) -> None:
    """Refuse huge widths and counts before the string method or filter that would honour them runs."""
    for value in values:
        if isinstance(value, int) and abs(value) > MAX_WIDTH:
            msg = f"the number {value} is too large for a string operation; the limit is {MAX_WIDTH}"
            raise LimitError(msg)


def _check_growth(name: str, values: list[Any]) -> None:
    """``replace`` and ``join`` can square the size of their input; bound the product of what they get."""
    if name not in {"replace", "join", "translate", "expandtabs"}:
        return
    size = 1
    for value in values:
        if isinstance(value, _SIZED):
            size *= max(1, len(value))
    if size > MAX_SIZE * 32:
        _too_big(size)


def _check_format(template: str) -> None:
    if _WIDE.search(template):
        msg = "a format string with a width of six digits or more, or a width taken from an argument"
        raise LimitError(msg)


def _turns(iterable: Iterable[Any]) -> Iterator[Any]:
    """Count the turns of a ``for`` loop."""
    for item in iterable:
        _tick()
        yield item


class _Metering(NodeTransformer):
    """Puts the meter into the syntax tree: around loop iterables and around every concatenation."""

    def visit_For(self, node: nodes.For, *args: Any, **kwargs: Any) -> nodes.For:  # noqa: N802 -- jinja2's name
        self.generic_visit(node, *args, **kwargs)
        node.iter = _filtered(node.iter, "specframe_turns")
        return node

    def visit_Concat(self, node: nodes.Concat, *args: Any, **kwargs: Any) -> nodes.Filter:  # noqa: N802 -- jinja2's name
        self.generic_visit(node, *args, **kwargs)
        return _filtered(node, "specframe_sized")


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    # jinja2 declares the iterable of a loop as any node, but only ever parses expressions there.
    expr = cast("nodes.Expr", node)
    return nodes.Filter(expr, name, [], [], None, None, lineno=node.lineno, environment=node.environment)


class _GenerationTag(Extension):
    """``{% generation %}...{% endgeneration %}``: marks assistant text for training tools; rendered as its content."""

    tags = {"generation"}  # noqa: RUF012 -- jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def bounded(*args: Any, **kwargs: Any) -> Any:
        _tick()
        # A filter that wants the environment or the context gets it first; neither is a number or sized.
        values = [*args, *kwargs.values()]
        if name not in {"abs", "int", "float", "round", "string", "default", "d", "tojson", "min", "max", "sum"}:
            _check_arguments(values)
        if name == "format" and args:
            _check_format(str(args[0]))
        _check_growth(name, values)
        return _sized(function(*args, **kwargs))

    # jinja2 copies its marks (what to pass first, the async twin) along with the name this way in its own decorators.
    bounded.__dict__.update(getattr(function, "__dict__", {}))
    return bounded


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """jinja2 as chat templates expect it (as in Hugging Face transformers and llama.cpp), and bounded."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationTag],
        )
        self.globals.pop("lipsum")
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.filters = {name: _bounded_filter(name, f) for name, f in self.filters.items()}
        self.filters["tojson"] = _bounded_filter("tojson", _tojson)
        self.filters["specframe_turns"] = _turns
        self.filters["specframe_sized"] = _sized

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Metering().visit(super()._parse(source, name, filename))
        return tree

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Raise at once; jinja2 itself would print an empty string for the attribute."""
        msg = f"access to attribute {attribute!r} of a {type(obj).__name__!r} object is not allowed"
        raise SecurityError(msg)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse operations that would build something enormous."""
        if operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(value, _SIZED) and isinstance(times, int) and len(value) * times > MAX_SIZE:
                    _too_big(len(value) * times)
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
        if operator in {"*", "**"} and isinstance(left, int) and isinstance(right, int):
            factor = right if operator == "**" else 1
            if left.bit_length() * factor > MAX_WIDTH or right.bit_length() > MAX_WIDTH:
                msg = f"a number of more than {MAX_WIDTH} bits"
                raise LimitError(msg)
        return _sized(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Count the call and bound what a string method may build."""
        _tick()
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            values = [*args, *kwargs.values()]
            _check_arguments(values)
            _check_growth(obj.__name__, [owner, *values])
        return _sized(super().call(context, obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Sandbox ``str.format`` as jinja2 does, and refuse huge widths."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        _check_format(value.__self__)
        return wrapped


def _raise_exception(message: object = "no message given") -> NoReturn:
    raise TemplateRaisedError(str(message))


def _strftime_now(fmt: str) -> str:
    # Local time without a zone, as in transformers and llama.cpp: templates print it as "today".
    return datetime.now().strftime(fmt)  # noqa: DTZ005 -- see above


def _tojson(
    value: Any,
    indent: int | None = None,
    ensure_ascii: bool = False,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes for HTML, which would put \u0027 into prompts.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
