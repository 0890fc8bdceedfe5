"""Models that several native tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specframe.backends.llama.model import Model
from tests.support.exact import ExactZoo, quantized


@pytest.fixture(scope="session")
def exact_zoo(zoo: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExactZoo]:
    """``exact_zoo(name)`` is an open tiny model whose logits do not depend on the width of a batch."""
    directory = tmp_path_factory.mktemp("exact")
    opened: dict[tuple[str, int | None], Model] = {}

    def get(name: str, *, eos: int | None = None) -> Model:
        if (name, eos) not in opened:
            path = quantized(zoo(name), directory / f"{name}-q8-{eos}.gguf", eos=eos)
            opened[name, eos] = Model(path)
        return opened[name, eos]

    yield get
    for model in opened.values():
        model.close()
