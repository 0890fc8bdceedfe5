"""Checks a GBNF grammar before llama.cpp parses it.

llama.cpp prints syntax errors to stderr, expands some grammars without end, overflows its stack on others, and throws
through C on tokens that a grammar with token references let pass. Here each of these is an error that says where.
Mirrors ``llama_grammar_parser`` in upstream ``src/llama-grammar.cpp``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeAlias

from specframe.core.errors import ConfigError

ROOT = "root"
#: ``MAX_REPETITION_THRESHOLD``.
MAX_REPETITIONS = 2000
MAX_BYTES = 2**20
#: Parentheses in parentheses, and rules that begin with rules: llama.cpp recurses over both.
MAX_NESTING = 200
MAX_CHAIN = 2000

_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[A-Za-z0-9-]+")
_DEFINED_AS = re.compile(r"::=")
_BRACE = re.compile(r"\}")
_DIGITS = re.compile(r"[0-9]+")
_CHAR = re.compile(r'\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[tnr\\"\[\]-])|[^\\]', re.DOTALL)
_REPEAT = {"*": (0, None), "+": (1, None), "?": (0, 1)}


#: One element of a sequence: the rule it refers to (None: characters), and whether it may be left out or match nothing.
_Element: TypeAlias = tuple[str | None, bool]
_Rule: TypeAlias = list[list[_Element]]


def check_grammar(text: str) -> None:
    """Raise ConfigError when llama.cpp could not use ``text`` as a grammar, or would not survive it."""
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        msg = f"grammar: a lone surrogate at character {error.start} stands for no character; remove it"
        raise ConfigError(msg) from None
    if size > MAX_BYTES or "\0" in text or not text.strip():
        what = "is empty" if not text.strip() else "has a NUL character" if "\0" in text else f"has {size} bytes"
        msg = f"grammar: the text {what}; give GBNF text of at most {MAX_BYTES} bytes that defines {ROOT!r}"
        raise ConfigError(msg)
    parser = _Parser(text)
    parser.grammar()
    for name, where in parser.used.items():
        if name not in parser.rules:
            raise parser.error(f"rule {name!r} is used but not defined", where)
    if ROOT not in parser.rules:
        msg = f"grammar: there is no rule {ROOT!r}; it is where generation starts"
        raise ConfigError(msg)
    _check_recursion(parser.rules)


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.rules: dict[str, _Rule] = {}
        self.used: dict[str, int] = {}
        self.symbols: set[str] = set()
        self.generated = 0
        self.depth = 0

    def error(self, what: str, at: int | None = None) -> ConfigError:
        at = self.at if at is None else at
        line = self.text.count("\n", 0, at) + 1
        column = at - (self.text.rfind("\n", 0, at) + 1) + 1
        return ConfigError(f"grammar, line {line}, column {column}: {what}")

    def take(self, pattern: re.Pattern[str], expected: str) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            found = self.text[self.at : self.at + 12] or "the end"
            raise self.error(f"{expected} expected, found {found!r}")
        self.at = match.end()
        return match.group()

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def space(self, lines: bool) -> None:
        self.take(_SPACE_LINES if lines else _SPACE, "space")

    def n_symbols(self) -> int:
        return len(self.symbols) + self.generated

    def grammar(self) -> None:
        self.space(lines=True)
        while self.peek():
            name = self.take(_NAME, "the name of a rule")
            self.symbols.add(name)
            self.space(lines=False)
            self.take(_DEFINED_AS, "'::='")
            self.space(lines=True)
            self.rules[name] = self.alternatives(nested=False)
            if self.peek() not in {"", "\r", "\n"}:
                raise self.error(f"the end of the rule expected, found {self.peek()!r}")
            self.space(lines=True)

    def alternatives(self, *, nested: bool) -> _Rule:
        rule = [self.sequence(nested=nested)]
        while self.peek() == "|":
            self.at += 1
            self.space(lines=True)
            rule.append(self.sequence(nested=nested))
        return rule

    def sequence(self, *, nested: bool) -> list[_Element]:
        elements: list[_Element] = []
        weight = 1  # rules that a repetition of the last element multiplies (n_prev_rules)
        repeatable = False
        while (char := self.peek()) and (char in '"[<!(.*+?{' or _NAME.match(char)):
            if char in "*+?{":
                weight, optional = self.repetition(char, weight, nested=nested, repeatable=repeatable)
                if optional:
                    elements[-1] = (elements[-1][0], True)
                continue
            n_before = self.n_symbols()
            name, n_chars = self.element(char)
            weight = max(1, self.n_symbols() - n_before) if char == "(" else 1
            repeatable = name is not None or n_chars > 0
            elements.append((name, name is None and n_chars == 0))
            self.space(lines=nested)
        return elements

    def element(self, char: str) -> tuple[str | None, int]:
        """One element: the rule it refers to, or the number of characters it lists."""
        if char == '"':
            return None, self.characters('"')
        if char == "[":
            return None, self.characters("]")
        if char in "<!":
            msg = (
                "token references (<...>) are not supported: a token that only begins like the text before it would "
                "end the process; spell the text of the token in quotes"
            )
            raise self.error(msg)
        if char == "(":
            return self.group(), 0
        if char == ".":
            self.at += 1
            return None, 1
        name = self.take(_NAME, "the name of a rule")
        self.symbols.add(name)
        self.used.setdefault(name, self.at - len(name))
        return name, 0

    def characters(self, end: str) -> int:
        opened = self.at
        self.at += 1
        if end == "]" and self.peek() == "^":
            self.at += 1
        count = 0
        while self.peek() != end:
            if not self.peek():
                raise self.error(f"{end} is missing for this one", opened)
            self.take(_CHAR, "a character or a known escape")
            count += 1
            if end == "]" and self.peek() == "-" and self.text[self.at + 1 : self.at + 2] != "]":
                self.at += 1
                self.take(_CHAR, "the end of a range")
        self.at += 1
        return count

    def group(self) -> str:
        opened = self.at
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise self.error(f"parentheses are nested more than {MAX_NESTING} deep; use rules")
        self.at += 1
        self.space(lines=True)
        self.generated += 1
        name = f"({opened})"
        self.rules[name] = self.alternatives(nested=True)
        if self.peek() != ")":
            raise self.error(") is missing for this one", opened)
        self.at += 1
        self.depth -= 1
        return name

    def repetition(self, char: str, weight: int, *, nested: bool, repeatable: bool) -> tuple[int, bool]:
        start = self.at
        self.at += 1
        self.space(lines=nested)
        low, high = self.braces(nested=nested) if char == "{" else _REPEAT[char]
        if not repeatable:
            raise self.error(f"nothing stands before {char!r} that could be repeated", start)
        if high is not None and high > MAX_REPETITIONS:
            high = None
        if low > MAX_REPETITIONS or (high is not None and high < low):
            msg = f"repetitions must be in [0, {MAX_REPETITIONS}], the smaller number first"
            raise self.error(msg, start)
        total = high or low or 1
        if weight * total > MAX_REPETITIONS:
            msg = f"repetitions of repetitions make {weight * total} rules, more than {MAX_REPETITIONS}"
            raise self.error(msg, start)
        self.generated += 1 if high is None else high - low
        return weight * total, low == 0

    def braces(self, *, nested: bool) -> tuple[int, int | None]:
        low = int(self.take(_DIGITS, "a number of repetitions")[:9])
        high: int | None = low
        self.space(lines=nested)
        if self.peek() == ",":
            self.at += 1
            self.space(lines=nested)
            high = int(self.take(_DIGITS, "a number")[:9]) if _DIGITS.match(self.peek()) else None
            self.space(lines=nested)
        self.take(_BRACE, "'}'")
        self.space(lines=nested)
        return low, high


def _check_recursion(rules: dict[str, _Rule]) -> None:
    """Refuse rules that can come first in themselves: expanding them never ends."""
    empty = _nullable(rules)
    first: dict[str, list[str]] = {name: list(_leading(rule, empty)) for name, rule in rules.items()}
    done: set[str] = set()
    for start in rules:
        path: list[str] = [start]
        on_path, todo = {start}, [iter(first[start])]
        while todo:
            following = next(todo[-1], None)
            if following is None:
                todo.pop()
                done.add(path[-1])
                on_path.discard(path.pop())
            elif following in on_path:
                named = next((n for n in reversed(path) if not n.startswith("(")), ROOT)
                msg = f"grammar: rule {named!r} can begin with itself (left recursion); let it begin with a character"
                raise ConfigError(msg)
            elif following not in done:
                if len(path) >= MAX_CHAIN:
                    msg = f"grammar: more than {MAX_CHAIN} rules begin with one another; shorten the chain"
                    raise ConfigError(msg)
                path.append(following)
                on_path.add(following)
                todo.append(iter(first[following]))


def _nullable(rules: dict[str, _Rule]) -> set[str]:
    """Rules that can match nothing."""
    empty: set[str] = set()
    grew = True
    while grew:
        grew = False
        for name, rule in rules.items():
            if name not in empty and any(all(skip or ref in empty for ref, skip in seq) for seq in rule):
                empty.add(name)
                grew = True
    return empty


def _leading(rule: _Rule, empty: set[str]) -> Iterator[str]:
    """Rules that can come first in ``rule``."""
    for sequence in rule:
        for name, may_be_empty in sequence:
            if name is not None:
                yield name
            if not may_be_empty and name not in empty:
                break
