"""Models that are made on the spot, ``zoo:NAME``: those of the test kit's zoo, and larger ones to measure with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from specframe.core.errors import ConfigError
from specframe.core.names import resembling
from specframe.testing import zoo

_PREFIX = "zoo:"


def _large_hybrid(path: Path, *, error: float) -> Path:
    """A Qwen 3.5 of 24 layers and about 100 MB that recites a cycle.

    Its blocks add nothing, so that the text is known and the MTP head is right on all but ``error`` of the tokens; they
    cost what blocks cost.
    """
    world = zoo.World(vocabulary=zoo.Vocabulary.byte_level(pre="qwen35"), width=320)
    shape = zoo.Shape(n_layer=24, n_ff=704, n_head=16, n_kv=4)
    recurrence = zoo.Recurrence(state=64, n_value_heads=4, n_key_heads=2, attention_interval=4)
    return zoo.targets.hybrid(
        path,
        world=world,
        shape=shape,
        recurrence=recurrence,
        strength=0.0,
        nextn=zoo.Nextn(error=error, strength=0.0),
    )


#: Of the dense models, which share a world: the target, and the drafts that are made for it.
_DENSE = zoo.Shape(n_layer=24, n_ff=704, n_head=16, n_kv=4, head=32)
_READ = (1, 12, 22)


def _large_dense(path: Path) -> Path:
    """A Llama of 24 layers and about 100 MB that recites a cycle, as :func:`_large_hybrid` does."""
    return zoo.targets.dense(path, world=zoo.World(width=320), shape=_DENSE, strength=0.0)


def _large_block(path: Path, *, markov: bool = False) -> Path:
    """A draft of four such layers for it, whose block of eight is wrong about a tenth of the tokens."""
    block = zoo.Block(error=0.1, target_layers=_READ, backbone=not markov, n_layer=4, n_ff=_DENSE.n_ff, strength=0.0)
    return zoo.dflash(path, world=zoo.World(width=320), block=block, markov=zoo.Markov() if markov else None)


def _large_eagle3(path: Path) -> Path:
    return zoo.drafts.eagle3(path, world=zoo.World(width=320), error=0.1, target_layers=_READ, strength=0.0)


#: Too slow to make for the zoo of the test kit, and kept once they are.
LARGE: Mapping[str, Callable[[Path], Path]] = MappingProxyType(
    {
        "large-mtp": lambda path: _large_hybrid(path, error=0.1),
        "large-mtp-sure": lambda path: _large_hybrid(path, error=0.0),
        "large-mtp-poor": lambda path: _large_hybrid(path, error=0.5),
        "large-dense": _large_dense,
        "large-dflash": _large_block,
        "large-dspark": lambda path: _large_block(path, markov=True),
        "large-eagle3": _large_eagle3,
    }
)


def build(name: str, directory: Path) -> Path:
    """The file of the analytic model ``zoo:NAME``, in ``directory``; larger ones are made only once.

    Raises:
        ConfigError: There is no such model, or the ``gguf`` package, which writes them, is missing.
    """
    short = name.removeprefix(_PREFIX)
    if short in zoo.NAMES:
        return zoo.build(short, directory)
    if short not in LARGE:
        names = [f"{_PREFIX}{known}" for known in (*LARGE, *zoo.NAMES)]
        hint = resembling(name, names, f"there are {', '.join(names)}")
        raise ConfigError(f"there is no model {name!r}; {hint}")
    path = directory / f"{short}.gguf"
    return path if path.is_file() else LARGE[short](path)
