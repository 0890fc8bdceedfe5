"""The ways of generating that are compared: plain, any strategy, and llama.cpp's own server as a peer."""

from __future__ import annotations

import importlib.util
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from specframe import plugins
from specframe.core.combination import Kind
from specframe.core.errors import ConfigError
from specframe.llm.choosing import StrategyChooser

SERVER = "server"
OURS = "specframe"

_NGRAM = ("n", "m", "min_hits")
_DRAFT = ("n_max", "n_min", "p_min", "backend_sampling")

#: What the server in the ``xllamacpp`` wheel can draft with, and the options of each that can be set here.
SERVER_TYPES: Mapping[str, Sequence[str]] = {
    "ngram-simple": _NGRAM,
    "ngram-map-k": _NGRAM,
    "ngram-map-k4v": _NGRAM,
    "draft-simple": _DRAFT,
    "draft-mtp": _DRAFT,
    "draft-eagle3": _DRAFT,
    "draft-dflash": _DRAFT,
    "draft-dspark": _DRAFT,
}


_NAMED = re.compile(r"(?P<name>[^\s()=,]+)(?:\((?P<options>.*)\))?")


@attrs.frozen(kw_only=True)
class Side:
    """One way of generating."""

    engine: str = OURS
    """``specframe``, or ``server``: llama.cpp's own in the ``xllamacpp`` wheel."""
    strategy: str = "none"
    options: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    draft: str | None = None
    """Draft file."""
    fixed: bool = attrs.field(default=False, eq=False)
    """Written with parentheses and nothing in them: its defaults, which no grid varies."""
    from_grid: bool = False
    """One setting of many; of these the best is of interest."""

    @classmethod
    def parse(cls, text: str, draft: Path | None = None) -> Side:
        """Read ``plain``, ``NAME(key=value,...)``, ``server`` or ``server:TYPE(key=value,...)``.

        Args:
            text: as above; NAME is a strategy, TYPE one of :data:`SERVER_TYPES`.
            draft: draft file, taken by those that use one.

        Raises:
            ConfigError: There is no such strategy or type, or an option is wrong.
        """
        text = text.strip()
        if text == SERVER or text.startswith(f"{SERVER}:"):
            return cls._server(text.partition(":")[2], draft)
        if _chooses_itself(text):
            return cls(strategy=text, draft=str(draft) if draft else None, fixed=True).checked()
        name, options = _split(text)
        if name == "plain":
            name = "none"
        uses_draft = name != "none" and plugins.registry().get(name).uses_draft_file
        side = cls(
            strategy=name,
            options=options,
            draft=str(draft) if draft and uses_draft else None,
            fixed=text.endswith("()"),
        )
        return side.checked()

    @classmethod
    def _server(cls, text: str, draft: Path | None) -> Side:
        name, options = _split(text or "none")
        known: tuple[str, ...] = ()
        if name in {"none", "plain"}:
            name = "none"
        elif name in SERVER_TYPES:
            known = tuple(SERVER_TYPES[name])
        else:
            raise ConfigError(f"the server does not know {name!r}; there are {', '.join(SERVER_TYPES)}")
        for key in options:
            if key not in known:
                raise ConfigError(f"server:{name} has no option {key!r}; there are {', '.join(known) or 'none'}")
        uses_draft = name.startswith("draft-")
        return cls(
            engine=SERVER,
            strategy=name,
            options=options,
            draft=str(draft) if draft and uses_draft else None,
            fixed=text.endswith("()"),
        )

    def checked(self) -> Side:
        """Itself. Raises ConfigError when a strategy of ours does not take its options."""
        if self.engine == OURS and self.strategy != "auto":  # which looks at the model, later
            StrategyChooser(self.strategy, self.options, None if self.draft is None else Path(self.draft))
        return self

    @property
    def family(self) -> str:
        """The label without options."""
        name = "plain" if self.strategy == "none" else self.strategy
        if self.engine == OURS:
            return name
        return SERVER if self.strategy == "none" else f"{SERVER}:{name}"

    @property
    def label(self) -> str:
        """As :meth:`parse` reads it."""
        options = ",".join(f"{key}={value}" for key, value in sorted(self.options.items()))
        return f"{self.family}({options})" if options else self.family

    @property
    def is_plain(self) -> bool:
        """Plain decoding of ours: what the others are held against."""
        return self.engine == OURS and self.strategy == "none"

    @property
    def option_names(self) -> tuple[str, ...]:
        """Options it can be given."""
        if self.strategy == "none" or (self.engine == OURS and _chooses_itself(self.strategy)):
            return ()
        if self.engine == SERVER:
            return tuple(SERVER_TYPES[self.strategy])
        fields = attrs.fields(plugins.registry().get(self.strategy).Options)
        return tuple(field.alias or field.name for field in fields if field.init)


def _chooses_itself(text: str) -> bool:
    """Whether it is no single strategy, and its options are not for a grid."""
    return text == "auto" or text.startswith(tuple(f"{kind.value}(" for kind in Kind))


PLAIN = Side()


def _split(text: str) -> tuple[str, dict[str, Any]]:
    """``name(key=value,...)``, the parentheses only where there are options. Raises ConfigError."""
    found = _NAMED.fullmatch(text)
    if found is None:
        raise ConfigError(f"{text!r} names no side: write NAME or NAME(key=value,...)")
    options = found["options"]
    return found["name"], plugins.parse_options(options.split(",")) if options else {}


def parse_values(text: str) -> tuple[Any, ...]:
    """Values of one axis of a grid: ``6,8,10`` or ``1..8``, mixed as wanted. Raises ConfigError."""
    values: list[Any] = []
    for item in text.split(","):
        low, dots, high = item.strip().partition("..")
        if dots and low.isdigit() and high.isdigit() and int(low) <= int(high):
            values += range(int(low), int(high) + 1)
        elif dots or not low:
            raise ConfigError(f"{text!r} is no list of values: write 6,8,10 or 1..8")
        else:
            values.append(plugins.parse_options([f"value={low}"])["value"])
    return tuple(dict.fromkeys(values))


def expand(sides: Iterable[Side], grid: Mapping[str, Sequence[Any]]) -> list[Side]:
    """Each side with all combinations of the options in ``grid`` that it has and that are not set already.

    Raises:
        ConfigError: An option of the grid belongs to none of them, or a value of it is wrong.
    """
    sides, used, found = list(sides), set[str](), list[Side]()
    for side in sides:
        open_keys = () if side.fixed else side.option_names
        axes = [key for key in grid if key in open_keys and key not in side.options]
        used.update(axes)
        for values in itertools.product(*(grid[key] for key in axes)):
            options = {**side.options, **dict(zip(axes, values, strict=True))}
            found.append(attrs.evolve(side, options=options, from_grid=bool(axes) or side.from_grid).checked())
    if unused := [key for key in grid if key not in used]:
        raise ConfigError(f"no side has the option {unused[0]!r} left open: {', '.join(side.label for side in sides)}")
    labels = dict[str, Side]()
    for side in found:
        if side.label not in labels or labels[side.label].from_grid:
            labels[side.label] = side
    return list(labels.values())


def why_no_server() -> str | None:
    """Why the server cannot be measured here; None when it can."""
    if importlib.util.find_spec("xllamacpp") is None:
        return "the xllamacpp wheel, which carries llama.cpp's server, is not installed (pip install xllamacpp)"
    return None
