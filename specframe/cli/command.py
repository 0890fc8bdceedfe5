"""What every command shares: option groups, ``-v``, and errors that end in one line and an exit code."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Protocol, TypeVar, get_args, get_origin

import typer

from specframe.core.errors import ConfigError, SpecframeError

_F = TypeVar("_F", bound=Callable[..., None])

EXIT_FAILED = 1
EXIT_UNUSABLE = 2
EXIT_INTERRUPTED = 130

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]

#: What stands for values in ``--help``, as in the documentation; a flag has none.
_VALUES = {int: "N", float: "X", str: "TEXT", Path: "FILE", bool: ""}

_VERBOSE = inspect.Parameter(
    "verbose",
    inspect.Parameter.KEYWORD_ONLY,
    default=0,
    annotation=Annotated[
        int,
        typer.Option(
            "--verbose", "-v", count=True, show_default=False, help="Log to stderr; twice: llama.cpp's log as well."
        ),
    ],
)


class Group(Protocol):
    """A set of options that several commands take; a parameter of this type becomes all of them."""

    @classmethod
    def cli_parameters(cls) -> list[inspect.Parameter]:
        """The options, keyword-only, annotated for typer."""
        ...

    @classmethod
    def from_cli(cls, values: dict[str, Any]) -> Any:
        """Build it from the parsed options."""
        ...


def cli_parameter(name: str, kind: Any, default: Any, option: Any) -> inspect.Parameter:
    """One option of a group, annotated for typer; ``...`` as the default: it has to be given."""
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is ... else default,
        annotation=Annotated[kind, option],
    )


def command(app: typer.Typer, name: str) -> Callable[[_F], _F]:
    """Register a function as the command ``name``: expands option groups, adds ``-v``, turns errors into exit codes."""

    def decorate(function: _F) -> _F:
        signature = inspect.signature(function, eval_str=True)
        parameters: list[inspect.Parameter] = []
        groups: dict[str, tuple[type[Group], list[str]]] = {}
        for parameter in signature.parameters.values():
            kind = parameter.annotation
            if get_origin(kind) is None and hasattr(kind, "cli_parameters"):
                expanded = kind.cli_parameters()
                groups[parameter.name] = (kind, [p.name for p in expanded])
                parameters += expanded
            else:
                parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

        @functools.wraps(function)
        def run(*, verbose: int, **values: Any) -> None:
            if "verbose" in signature.parameters:
                values["verbose"] = verbose
            with reporting_errors(verbose):
                for group, (kind, names) in groups.items():
                    values[group] = kind.from_cli({n: values.pop(n) for n in names})
                function(**values)

        parameters = [*(p for p in parameters if p.name != "verbose"), _VERBOSE]
        for parameter in parameters:
            _name_value(parameter)
        # What typer reads; the wrapped function is not its business.
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {}
        del run.__wrapped__
        app.command(name)(run)
        return function

    return decorate


def _name_value(parameter: inspect.Parameter) -> None:
    """Say what stands for a value in ``--help``, unless the option does."""
    kind, option = get_args(parameter.annotation)
    if option.metavar is None:
        kinds = [part for part in get_args(kind) or (kind,) if part is not NoneType]
        option.metavar = "" if getattr(option, "count", False) else _VALUES.get(kinds[0])


@contextmanager
def reporting_errors(verbose: int) -> Iterator[None]:
    """Log to stderr, and end with one line there and an exit code when something goes wrong."""
    with _logging_to_stderr(verbose):
        try:
            yield
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except SpecframeError as error:
            if verbose:
                logging.getLogger("specframe").exception("the command failed")
            complain(str(error))
            raise typer.Exit(EXIT_UNUSABLE if isinstance(error, ConfigError) else EXIT_FAILED) from None
        except OSError:  # a full disk, a directory that cannot be written to; where it is caught it is one line
            if verbose:
                logging.getLogger("specframe").exception("the command failed")
            raise


def complain(message: str) -> None:
    """One error line on stderr."""
    print(f"specframe: error: {message}", file=sys.stderr)


class _ToStderr(logging.StreamHandler[Any]):
    """Writes to what ``sys.stderr`` is at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


@contextmanager
def _logging_to_stderr(verbose: int) -> Iterator[None]:
    logger = logging.getLogger("specframe")
    handler, level = _ToStderr(), logger.level
    handler.setFormatter(logging.Formatter("specframe: %(levelname)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel((logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)])
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
