"""Tiny GGUF models with analytic weights, made on the spot: every architecture that matters here.

Needs the ``gguf`` package: ``pip install specframe[testing]``. Importing this package does not.

:func:`build` makes a model by name. For anything else call the functions in ``targets`` and ``drafts`` or
:func:`dflash`, where every knob is an argument, and damage the result with ``corrupt``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from specframe.core.errors import ConfigError
from specframe.core.names import resembling
from specframe.testing.zoo import corrupt, drafts, targets
from specframe.testing.zoo.blocks import Nextn, Own, Shape
from specframe.testing.zoo.diffusion import Block, Lattice, Markov, Reads, dflash
from specframe.testing.zoo.targets import Recurrence
from specframe.testing.zoo.tokenizer import CHATML, UTF8_CYCLE, Vocabulary
from specframe.testing.zoo.world import World

__all__ = [
    "CHATML",
    "NAMES",
    "UTF8_CYCLE",
    "Block",
    "Lattice",
    "Markov",
    "Nextn",
    "Own",
    "Reads",
    "Recurrence",
    "Shape",
    "Vocabulary",
    "World",
    "build",
    "build_all",
    "corrupt",
    "dflash",
    "drafts",
    "targets",
]


_NOTHING = Own(embeddings=False, head=False)


def _utf8(path: Path) -> Path:
    world = World(vocabulary=Vocabulary.byte_fallback(), cycle=UTF8_CYCLE, ordered=True)
    return targets.dense(path, world=world, strength=0.0)


def _chat(path: Path) -> Path:
    return targets.dense(path, world=World(vocabulary=Vocabulary.byte_level(chat_template=CHATML)))


def _for_qwen35(path: Path, *, lattice: Lattice | None = None) -> Path:
    # As converters write drafts for targets with multi-axis rope: all of it along the first axis.
    world = World(vocabulary=Vocabulary.byte_level(pre="qwen35"))
    return dflash(path, world=world, block=Block(rope_sections=(16, 0, 0, 0)), lattice=lattice)


_RECIPES: Mapping[str, Callable[[Path], Path]] = MappingProxyType(
    {
        "llama": targets.dense,
        "llama-bigram": lambda path: targets.dense(path, strength=0.0),
        "llama-utf8": _utf8,
        "llama-chat": _chat,
        "qwen3": lambda path: targets.dense(path, arch="qwen3", strength=0.27, seed=12),
        "qwen35": targets.hybrid,
        "qwen35-mtp": lambda path: targets.hybrid(path, nextn=Nextn()),
        "qwen35-mtp-h": lambda path: targets.hybrid(path, nextn=Nextn(mix=1.0, error=0.0)),
        "qwen35-mtp-bigram": lambda path: targets.hybrid(path, strength=0.0, nextn=Nextn(error=0.0)),
        "step35-mtp3": targets.chained,
        "gemma4": targets.sliding_window,
        "draft-simple": drafts.simple,
        "mtp-qwen35": drafts.external_mtp,
        "gemma4-assistant": drafts.assistant,
        "dflash": dflash,
        "dflash-shared": lambda path: dflash(path, block=Block(own=_NOTHING)),
        "dflash-inject": lambda path: dflash(path, block=Block(reads=Reads.FEATURES, error=0.0)),
        "dflash-anchor": lambda path: dflash(path, block=Block(reads=Reads.ANCHOR, error=0.0)),
        "dflash-qwen35": _for_qwen35,
        "dflash2": lambda path: dflash(path, lattice=Lattice()),
        "dflash2-qwen35": lambda path: _for_qwen35(path, lattice=Lattice()),
        "dflash2-shared": lambda path: dflash(path, block=Block(own=_NOTHING), lattice=Lattice()),
        "dspark-anchor": lambda path: dflash(path, block=Block(backbone=False), markov=Markov()),
        "dspark-bonus": lambda path: dflash(path, block=Block(backbone=False), markov=Markov(from_anchor=False)),
        "eagle3": drafts.eagle3,
        "eagle3-g": lambda path: drafts.eagle3(path, mix=1.0, error=0.0),
        "eagle3-shared": lambda path: drafts.eagle3(path, own=_NOTHING),
    }
)

NAMES: tuple[str, ...] = tuple(_RECIPES)
"""Models :func:`build` can make."""


def build(name: str, directory: Path) -> Path:
    """Write the model ``name`` to ``directory/name.gguf`` and return that path. The bytes are the same each time.

    Raises:
        ConfigError: there is no such model, or the ``gguf`` package is missing.
    """
    recipe = _RECIPES.get(name)
    if recipe is None:
        hint = resembling(name, NAMES, f"there are {', '.join(NAMES)}")
        raise ConfigError(f"the zoo has no model {name!r}; {hint}")
    return recipe(Path(directory) / f"{name}.gguf")


def build_all(directory: Path) -> dict[str, Path]:
    """Every model of the zoo; takes well under a second."""
    return {name: build(name, directory) for name in NAMES}
