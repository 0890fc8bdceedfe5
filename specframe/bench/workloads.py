"""What is generated: the built-in texts, and those of a user's file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from specframe.chat import ChatTemplate
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
        """The prompt; ``messages`` as ``template`` renders them, or as a plain transcript without one."""
        if not self.messages:
            return self.prompt
        if template is not None:
            return template.render(list(self.messages), add_generation_prompt=True)
        lines = [f"{message['role'].capitalize()}: {message['content']}" for message in self.messages]
        return "\n\n".join([*lines, "Assistant:"])

    @property
    def digest(self) -> str:
        """What tells it from another of the same name."""
        return hashlib.sha256(json.dumps(attrs.asdict(self), sort_keys=True).encode()).hexdigest()[:16]


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
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the prompts in {str(path)!r} cannot be read: {error}") from error
    if path.suffix != ".jsonl":
        if not text.strip():
            raise ConfigError(f"there is no prompt in {str(path)!r}")
        return [Workload(name=path.stem, prompt=text.rstrip("\n"))]
    found = list(_lines(path, text))
    if not found:
        raise ConfigError(f"there is no prompt in {str(path)!r}")
    names = [workload.name for workload in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{str(path)!r} has the name {twice[0]!r} twice; names tell prompts apart")
    return found


def _lines(path: Path, text: str) -> Iterator[Workload]:
    for number, line in enumerate(text.splitlines(), 1):
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
        yield _workload(where, str(data.get("name", f"{path.stem}-{number}")), data)


def _workload(where: str, name: str, data: dict[str, Any]) -> Workload:
    if "prompt" in data:
        if not isinstance(data["prompt"], str) or not data["prompt"]:
            raise ConfigError(f"{where}: 'prompt' must be a text that is not empty, not {data['prompt']!r:.80}")
        return Workload(name=name, prompt=data["prompt"])
    messages = data["messages"]
    good = isinstance(messages, list) and all(
        isinstance(m, dict) and m.keys() == {"role", "content"} and all(isinstance(v, str) for v in m.values())
        for m in messages
    )
    if not good or not messages:
        raise ConfigError(f"{where}: 'messages' must be objects with the texts 'role' and 'content'")
    return Workload(name=name, messages=tuple(messages))
