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
from specframe.bench import wrong
from specframe.bench.wrong import AlwaysWrong
from specframe.core.errors import ConfigError
from specframe.core.strategy import StrategySpec
from specframe.core.validators import parse_draft_length
from specframe.llm.choosing import Combined, StrategyChooser
from specframe.llm.choosing import parse as parse_strategy

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


#: Types of options that are no whole numbers.
_NUMBERS: Mapping[str, tuple[type, ...]] = {"p_min": (float, int), "backend_sampling": (bool,)}


@attrs.frozen(kw_only=True)
class Side:
    """One way of generating."""

    engine: str = OURS
    """``specframe``, or ``server``: llama.cpp's own in the ``xllamacpp`` wheel."""
    strategy: str = "none"
    options: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    draft: str | None = None
    """Draft file."""
    draft_length: int | str | None = None
    """Tokens to draft, whatever they cost, ``"off"`` or ``"auto"``; None: what the strategy is used with."""
    fixed: bool = attrs.field(default=False, eq=False)
    """Written with parentheses and nothing in them: its defaults, which no grid varies."""
    from_grid: bool = False
    """One setting of many; of these the best is of interest."""

    @classmethod
    def parse(cls, text: str, draft: Path | None = None, model: Path | None = None) -> Side:
        """Read ``plain``, a strategy or a combination as ``--strategy`` takes it, ``server`` or ``server:TYPE(...)``.

        Args:
            text: as above; TYPE is one of :data:`SERVER_TYPES`, with options as strategies have them. ``@`` and a
                number behind a strategy is its draft length.
            draft: draft file, taken by those that use one.
            model: the target's file, which ``auto`` looks at.

        Raises:
            ConfigError: There is no such strategy or type, or an option is wrong.
        """
        text = text.strip()
        if text == SERVER or text.startswith(f"{SERVER}:"):
            return cls._server(text.partition(":")[2], draft)
        text, at, length = text.partition("@")
        given = parse_strategy(text)
        if isinstance(given, Combined):
            side = cls(strategy=re.sub(r"\s", "", text))
        else:
            name = "none" if given.name == "plain" else given.name
            side = cls(strategy=name, options=given.options, fixed=text.endswith("()"))
        if at:
            if side.strategy == "none":
                raise ConfigError(f"plain decoding has no draft length; leave out @{length}")
            side = attrs.evolve(side, draft_length=parse_draft_length(f"the draft length of {side.label}", length))
        if draft is not None and any(spec.draft_path is not None for spec in side.members(draft, model)):
            side = attrs.evolve(side, draft=str(draft))
        return side.checked(model)

    @classmethod
    def _server(cls, text: str, draft: Path | None) -> Side:
        given = parse_strategy(text or "none")
        if isinstance(given, Combined):
            raise ConfigError(f"the server has no combinations: {text!r}; there are {', '.join(SERVER_TYPES)}")
        name = "none" if given.name == "plain" else given.name
        if name != "none" and name not in SERVER_TYPES:
            raise ConfigError(f"the server does not know {name!r}; there are {', '.join(SERVER_TYPES)}")
        known = SERVER_TYPES.get(name, ())
        for key in given.options:
            if key not in known:
                raise ConfigError(f"server:{name} has no option {key!r}; there are {', '.join(known) or 'none'}")
        for key, value in given.options.items():
            kinds = _NUMBERS.get(key, (int,))
            if type(value) not in kinds:
                wanted = " or ".join(kind.__name__ for kind in kinds)
                raise ConfigError(f"server:{name}: {key} must be of type {wanted}, not {value!r}")
        return cls(
            engine=SERVER,
            strategy=name,
            options=given.options,
            draft=str(draft) if draft and name.startswith("draft-") else None,
            fixed=text.endswith("()"),
        )

    def members(self, draft: Path | None, model: Path | None) -> tuple[StrategySpec, ...]:
        """The strategies of ours it is made of. Raises ConfigError when one does not take its options."""
        if AlwaysWrong.name in self.strategy:
            wrong.register()
        if self.engine == SERVER or (self.strategy == "auto" and model is None):
            return ()
        spec = StrategyChooser(self.strategy, self.options, draft, model).default
        return () if spec is None else spec.members

    def checked(self, model: Path | None = None) -> Side:
        """Itself. Raises ConfigError when a strategy of ours does not take its options."""
        self.members(None if self.draft is None else Path(self.draft), model)
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
        length = "" if self.draft_length is None else f"@{self.draft_length}"
        return f"{self.family}{f'({options})' if options else ''}{length}"

    @property
    def is_plain(self) -> bool:
        """Plain decoding of ours: what the others are held against."""
        return self.engine == OURS and self.strategy == "none"

    @property
    def option_names(self) -> tuple[str, ...]:
        """Options it can be given."""
        if self.strategy == "none":
            return ()
        if self.engine == SERVER:
            return tuple(SERVER_TYPES[self.strategy])
        names = ["draft_length"] if self.draft_length is None else []
        info = next((info for info in plugins.registry().strategies() if info.name == self.strategy), None)
        return (*names, *(option.name for option in info.options)) if info else tuple(names)


PLAIN = Side()


#: Values of one axis. Each is a process of its own for every text and repetition.
_MOST_VALUES = 1000


def parse_values(text: str) -> tuple[Any, ...]:
    """Values of one axis of a grid: ``6,8,10`` or ``1..8``, mixed as wanted. Raises ConfigError."""
    values: list[Any] = []
    for item in text.split(","):
        low, dots, high = item.strip().partition("..")
        if dots and low.isdecimal() and high.isdecimal() and int(low) <= int(high):
            if int(high) - int(low) >= _MOST_VALUES:
                raise ConfigError(f"{item.strip()!r} are more values than can be measured: {_MOST_VALUES} at most")
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
            length = options.pop("draft_length", side.draft_length)
            varied = attrs.evolve(side, options=options, draft_length=length, from_grid=bool(axes) or side.from_grid)
            found.append(varied.checked())
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
