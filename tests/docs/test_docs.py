"""The documentation is true: its code runs, its output is what is printed, its links lead somewhere."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.markdown import Reader, blocks, broken_links

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

#: Commands that cannot run inside a test, what runs in their place, and why. Keep it this short.
INSTEAD = {
    # These very tests are part of it: running it here would never end.
    "make test": f"make -C {shlex.quote(str(ROOT))} --dry-run test",
    # The environment is the one that runs the tests; setting one up is what it would do first.
    "make demo": f"{shlex.quote(sys.executable)} {shlex.quote(str(ROOT / 'scripts/demo.py'))}",
    # No index is asked during tests; this is the tree that the next release is made of.
    "pip install specframe": f"pip install --dry-run {shlex.quote(str(ROOT))}",
}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_code_block_of_a_page_runs(page: Path, tmp_path: Path, smollm2: Path) -> None:
    assert smollm2.is_file()  # pages name the model; it must not be fetched in the middle of one
    executed = Reader(tmp_path, instead=INSTEAD).read(page)
    assert executed == sum(block.language in {"python", "bash", "console"} for block in blocks(page))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page, root=ROOT) == []


def test_navigation_lists_every_page_once() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())

    def paths(entries: list[dict[str, Any]]) -> Iterator[str]:
        for entry in entries:
            for value in entry.values():
                yield from [value] if isinstance(value, str) else paths(value)

    assert sorted(paths(config["nav"])) == sorted(
        str(page.relative_to(ROOT / "docs")) for page in PAGES if ROOT / "docs" in page.parents
    )
