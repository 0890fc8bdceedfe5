"""What is generated: the built-in texts, and those of a user's file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from specframe.chat import ChatTemplate, check_messages
from specframe.core.errors import ConfigError

_DIRECTORY = Path(__file__).parent / "prompts"

#: The built-in texts, in the order of a report.
BUILT_IN = (
    "code-rewrite",
    "code-completion",
    "log-extraction",
    "summary-quotes",
    "chat",
    "translation",
    "prose",
    "long-context",
)

#: Those whose answer repeats much of the prompt.
REUSE = frozenset({"code-rewrite", "log-extraction", "summary-quotes"})


@attrs.frozen(kw_only=True)
class Workload:
    """A prompt with a name: a text to continue, or the messages of a chat."""

    name: str
    prompt: str = ""
    messages: tuple[dict[str, str], ...] = ()

    def text(self, template: ChatTemplate | None) -> str:
        """The prompt; ``messages`` as ``template`` renders them, or as a plain transcript without one.

        Some templates refuse a system message; they get its text as the beginning of what follows.
        """
        if not self.messages:
            return self.prompt
        if template is not None:
            try:
                return template.render(self.messages)
            except ConfigError:
                if self.messages[0]["role"] != "system" or len(self.messages) < 2:  # noqa: PLR2004 -- nobody to tell
                    raise
            return template.render(_without_system(self.messages))
        lines = [f"{message['role'].capitalize()}: {message['content']}" for message in self.messages]
        return "\n\n".join([*lines, "Assistant:"])

    @property
    def digest(self) -> str:
        """What tells it from another of the same name."""
        return hashlib.sha256(json.dumps(attrs.asdict(self), sort_keys=True).encode()).hexdigest()[:16]


def _without_system(messages: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    system, first, *rest = messages
    return [{**first, "content": f"{system['content']}\n\n{first['content']}"}, *rest]


def built_in(names: Sequence[str] = BUILT_IN) -> list[Workload]:
    """The built-in texts called ``names``. Raises ConfigError that names those there are."""
    for name in names:
        if name not in BUILT_IN:
            raise ConfigError(f"there is no workload {name!r}; there are {', '.join(BUILT_IN)}")
    return [_built_in(name) for name in names]


def warm_up() -> str:
    """What is generated before anything counts: a text like none of the others."""
    return _text("warm-up")


def _built_in(name: str) -> Workload:
    chat = _DIRECTORY / f"{name}.json"
    if chat.is_file():
        return Workload(name=name, messages=tuple(json.loads(chat.read_text(encoding="utf-8"))))
    return Workload(name=name, prompt=_text(name))


def _text(name: str) -> str:
    return (_DIRECTORY / f"{name}.txt").read_text(encoding="utf-8").rstrip("\n")


def from_file(path: Path) -> list[Workload]:
    """The prompts of a file: ``.jsonl`` with a prompt in each line, anything else is one prompt.

    A line of a ``.jsonl`` file is an object with ``prompt`` (a text) or ``messages`` (objects with ``role`` and
    ``content``), and ``name`` if wanted.

    Raises:
        ConfigError: The file cannot be read, is empty, or a line is not like that.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the prompts in {str(path)!r} cannot be read: {error}") from error
    if path.suffix.lower() != ".jsonl":
        if not text.strip():
            raise ConfigError(f"there is no prompt in {str(path)!r}")
        return [Workload(name=_name(repr(str(path)), path.stem), prompt=text.rstrip("\n"))]
    found = list(_lines(path, text))
    if not found:
        raise ConfigError(f"there is no prompt in {str(path)!r}")
    names = [workload.name for workload in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{str(path)!r} has the name {twice[0]!r} twice; names tell prompts apart")
    return found


def _lines(path: Path, text: str) -> Iterator[Workload]:
    for number, line in enumerate(text.split("\n"), 1):  # not at what JSON allows inside of texts
        if not line.strip():
            continue
        where = f"{str(path)!r}, line {number}"
        try:
            data = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{where}: no JSON: {error}") from error
        if not isinstance(data, dict) or ("prompt" in data) == ("messages" in data):
            raise ConfigError(f"{where}: give an object with either 'prompt' or 'messages'")
        if unknown := sorted(data.keys() - {"name", "prompt", "messages"}):
            raise ConfigError(f"{where}: there is no key {unknown[0]!r}; there are name, prompt and messages")
        yield _workload(where, _name(where, data.get("name", f"{path.stem}-{number}")), data)


def _name(where: str, name: object) -> str:
    """What a text is called, in tables, files and plots."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise ConfigError(f"{where}: the name of a text must be something to print in a line, not {name!r:.80}")
    return name


def _is_text(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(value.encode())
    except UnicodeEncodeError:  # half of a pair of surrogates, which JSON can write
        return False


def _workload(where: str, name: str, data: dict[str, Any]) -> Workload:
    if "prompt" in data:
        if not _is_text(data["prompt"]):
            raise ConfigError(f"{where}: 'prompt' must be a text that is not empty, not {data['prompt']!r:.80}")
        return Workload(name=name, prompt=data["prompt"])
    messages = data["messages"]
    good = isinstance(messages, list) and all(
        isinstance(m, dict) and m.keys() == {"role", "content"} and all(map(_is_text, m.values())) for m in messages
    )
    if not good or not messages:
        raise ConfigError(f"{where}: 'messages' must be objects with the texts 'role' and 'content'")
    try:
        check_messages(messages)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    return Workload(name=name, messages=tuple(messages))
