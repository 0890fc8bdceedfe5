"""Reads the documentation as a reader would, and does what it says: every code block of a page runs, top to bottom.

- ``python`` runs in one namespace per page. A ``text`` block titled ``Output`` right after it is what it prints.
- ``console`` holds commands after ``$`` and what they print; ``bash`` is a script. Both must exit with 0.
- A block titled with a file name (fence info ``title="pyproject.toml"``) is written to the page's folder first.

What is printed is compared with numbers masked and blanks folded, because timings differ from machine to machine;
``...`` stands for anything.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import itertools
import json
import os
import re
import subprocess
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import attrs
from markdown_it import MarkdownIt
from markdown_it.token import Token

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SHELL = {"bash", "console"}
#: Languages that only show something. A new one is added here on purpose, so that nothing escapes by a misspelling.
SHOWN = {"text", "toml", "json", "mermaid", "c", "gbnf", "jinja"}
COMMAND_TIMEOUT_S = 240.0


class DocumentationError(AssertionError):
    """A page says something that is not so; the message begins with its file and line."""


@attrs.frozen
class Block:
    """One fenced block."""

    page: Path
    line: int
    """Of the opening fence, from 1."""
    language: str
    title: str
    text: str

    @property
    def where(self) -> str:
        """Place of the block as editors understand it."""
        return f"{self.page}:{self.line}"


def tokens(page: Path) -> list[Token]:
    """Parse a page, refusing what hides code from this reader."""
    found = MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))
    for token in found:
        if token.type == "code_block" and "```" in token.content:
            line = (token.map or [0])[0] + 1
            raise DocumentationError(f"{page}:{line}: a fenced block inside an indented one would not be executed")
    return found


def blocks(page: Path) -> list[Block]:
    """Fenced blocks of a page, in order."""
    found = []
    for token in tokens(page):
        if token.type != "fence":
            continue
        language, _, info = token.info.strip().partition(" ")
        title = re.search(r'title="([^"]*)"', info)
        line = (token.map or [0])[0] + 1
        block = Block(page, line, language, title[1] if title else "", token.content)
        if language not in {"python", *SHELL, *SHOWN}:
            raise DocumentationError(
                f"{block.where}: nobody knows whether to execute a block of {language or 'nothing'!r}"
            )
        if language not in SHELL and re.match(r"\s*\$ ", block.text):
            raise DocumentationError(f"{block.where}: commands belong in a console block, where they are executed")
        found.append(block)
    return found


class Reader:
    """Executes one page in a folder of its own.

    Args:
        folder: where the page's commands run and its files are written.
        instead: commands that cannot run inside a test, and what runs in their place.
    """

    def __init__(self, folder: Path, *, instead: Mapping[str, str]) -> None:
        self._folder = folder
        self._instead = instead
        self._module = types.ModuleType("specframe_docs_page")
        self._printed: str | None = None
        # `pip install` on a page installs for the rest of that page only, and never from the network.
        site = folder / ".site"
        self.paths = (str(folder), str(site))
        self._environ = {
            **os.environ,
            "COLUMNS": "100",
            "NO_COLOR": "1",
            "PATH": os.pathsep.join((sysconfig.get_path("scripts"), os.environ["PATH"])),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_NO_BUILD_ISOLATION": "0",  # pip reads it as an answer to "isolate?", whatever its name says
            "PIP_NO_DEPS": "1",
            "PIP_NO_INDEX": "1",
            "PIP_TARGET": str(site),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH")))),
            "TERM": "dumb",
        }

    def read(self, page: Path) -> int:
        """Execute all blocks of a page and return how many ran.

        Raises:
            DocumentationError: a block failed, or printed something else than the page shows.
        """
        count = 0
        with self._here():
            for block in blocks(page):
                count += self._execute(block)
        return count

    @contextlib.contextmanager
    def _here(self) -> Iterator[None]:
        before, path = Path.cwd(), list(sys.path)
        os.chdir(self._folder)
        sys.path[:0] = self.paths
        sys.modules[self._module.__name__] = self._module
        try:
            yield
        finally:
            del sys.modules[self._module.__name__]
            sys.path[:] = path
            os.chdir(before)

    def _execute(self, block: Block) -> bool:
        printed, self._printed = self._printed, None
        if block.title == "Output":
            if printed is None:
                raise DocumentationError(f"{block.where}: output without a python block right before it")
            compare(block.where, shown=block.text, printed=printed)
            return False
        if block.title:
            path = self._folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        if block.language == "python":
            self._printed = self._run_python(block)
        elif block.language == "bash":
            self._run_command(block.where, block.text)
        elif block.language == "console":
            for where, command, shown in commands(block):
                printed = self._run_command(where, command)
                if shown:
                    compare(where, shown=shown, printed=printed)
        else:
            parse(block)
        return block.language not in SHOWN

    def _run_python(self, block: Block) -> str:
        importlib.invalidate_caches()
        out = io.StringIO()
        # Blank lines in front make line numbers in tracebacks those of the page.
        source = "\n" * block.line + block.text
        try:
            code = compile(source, str(block.page), "exec", dont_inherit=True)
            with contextlib.redirect_stdout(out):
                exec(code, self._module.__dict__)  # noqa: S102 - the page is the program
        except Exception as error:
            raise DocumentationError(f"{block.where}: {type(error).__name__}: {error}") from error
        return out.getvalue()

    def _run_command(self, where: str, command: str) -> str:
        command = self._instead.get(command.strip(), command)
        result = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],  # noqa: S607 - the shell that the reader would use
            check=False,
            cwd=self._folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
        )
        if result.returncode:
            raise DocumentationError(f"{where}: exit code {result.returncode} from: {command}\n{result.stdout}")
        return result.stdout


def commands(block: Block) -> Iterator[tuple[str, str, str]]:
    """Place, command and shown output of each prompt of a console block."""
    for match in re.finditer(r"^\$ (?P<command>(?:.*\\\n)*.*\n)(?P<shown>(?:(?!\$ ).*\n)*)", block.text, re.MULTILINE):
        line = block.line + 1 + block.text.count("\n", 0, match.start())
        yield f"{block.page}:{line}", match["command"].strip(), match["shown"]
    if not block.text.startswith("$ "):
        raise DocumentationError(f"{block.where}: a console block begins with `$ ` and a command")


def compare(where: str, *, shown: str, printed: str) -> None:
    """Raise unless what was printed is what the page shows, up to numbers, blanks and ``...``."""
    checker = doctest.OutputChecker()
    if not checker.check_output(masked(shown), masked(printed), doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE):
        raise DocumentationError(f"{where}: the page shows\n{shown}\nbut this is printed\n{printed}")


def masked(text: str) -> str:
    """Text without what may differ between two runs: numbers, and the length of drawn lines."""
    return re.sub(r"([─━═-])\1+", r"\1", re.sub(r"\d[\d_,]*(?:\.\d+)?(?:e[+-]?\d+)?", "0", text))


def parse(block: Block) -> Any:
    """Check the syntax of a data block."""
    readers = {"toml": tomllib.loads, "json": json.loads}
    try:
        return readers.get(block.language, str)(block.text)
    except ValueError as error:
        raise DocumentationError(f"{block.where}: {error}") from error


def broken_links(page: Path, *, root: Path) -> list[str]:
    """Relative links of a page that lead nowhere, each with its reason."""
    broken = []
    for token in tokens(page):
        for child in token.children or []:
            target = child.attrGet("href") or child.attrGet("src")
            if not target or urlsplit(str(target)).scheme:
                continue
            url = urlsplit(str(target))
            file = (page.parent / unquote(url.path)).resolve() if url.path else page
            if not file.is_relative_to(root) or not file.exists():
                broken.append(f"{page}: {target}: no such file")
            elif url.fragment and file.suffix == ".md" and url.fragment not in anchors(file):
                broken.append(f"{page}: {target}: no such heading")
    return broken


def anchors(page: Path) -> set[str]:
    """Anchors that the headings of a page get."""
    found = tokens(page)
    titles = (after.content for token, after in itertools.pairwise(found) if token.type == "heading_open")
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip()) for title in titles}
