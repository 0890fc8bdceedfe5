"""One chat template: where it came from, what it renders, and where it breaks."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError, TemplateSyntaxError

from specframe.chat.messages import Message, check_messages
from specframe.chat.sandbox import MAX_SIZE, ChatEnvironment, LimitError, TemplateRaisedError, metered
from specframe.core.errors import ConfigError
from specframe.core.validators import elements

if TYPE_CHECKING:
    from jinja2 import Template

_KEY = "tokenizer.chat_template"
#: Templates are short; a larger file is something else.
_MAX_SOURCE = 1_000_000


def templates_of(metadata: Mapping[str, object]) -> dict[str, str]:
    """Chat template texts in GGUF metadata by variant name; the unnamed one is called ``default``."""
    found: dict[str, str] = {}
    for key, value in metadata.items():
        if isinstance(value, str) and value.strip():
            if key == _KEY:
                found["default"] = value
            elif key.startswith(f"{_KEY}."):
                found[key.removeprefix(f"{_KEY}.")] = value
    return found


class ChatTemplate:
    """Turns a conversation into a prompt. Thread-safe.

    A prompt for turn N+1 starts with the prompt and answer of turn N, so that the engine evaluates only what is new,
    as long as the template does: some rewrite earlier turns (dropping reasoning, trimming answers, dating the system
    prompt), and then memory is reused up to the first difference only.
    """

    def __init__(self, source: str, *, origin: str = "template", bos_token: str = "", eos_token: str = "") -> None:
        """Compile ``source``.

        Args:
            source: jinja2 text.
            origin: What error messages call it, such as a file name.
            bos_token: Text of the model's beginning-of-sequence token, for templates that print it.
            eos_token: Text of its end-of-sequence token.

        Raises:
            ConfigError: The text is not a template; the message has the line.
        """
        if len(source) > _MAX_SOURCE:
            msg = f"{origin}: {len(source)} characters are too long for a chat template (limit {_MAX_SOURCE})"
            raise ConfigError(msg)
        self.source = source
        self.origin = origin
        self.bos_token = bos_token
        self.eos_token = eos_token
        try:
            self._template: Template = ChatEnvironment().from_string(source)
        except TemplateSyntaxError as error:
            msg = self._located(error.lineno, f"syntax error: {error.message}")
            raise ConfigError(msg) from error
        except (TemplateError, RecursionError, ValueError) as error:
            msg = f"{origin}: cannot be compiled: {error}"
            raise ConfigError(msg) from error

    @classmethod
    def from_file(cls, path: str | Path, *, bos_token: str = "", eos_token: str = "") -> ChatTemplate:
        """Read a template from a text file. Raises ConfigError when it cannot be read or compiled."""
        try:
            source = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            msg = f"cannot read the chat template {str(path)!r}: {error}"
            raise ConfigError(msg) from error
        return cls(source, origin=str(path), bos_token=bos_token, eos_token=eos_token)

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, object], *, variant: str = "default", bos_token: str = "", eos_token: str = ""
    ) -> ChatTemplate:
        """Take the template of a model.

        Raises:
            ConfigError: The model has none, or no such variant; the message says how to give one.
        """
        found = templates_of(metadata)
        if not found:
            msg = (
                "this model has no chat template; give one (template= in Python, --template FILE on the command line) "
                "or use plain generation"
            )
            raise ConfigError(msg)
        if variant not in found:
            msg = f"this model has no chat template called {variant!r}; it has: {', '.join(sorted(found))}"
            raise ConfigError(msg)
        origin = "chat template of the model" + ("" if variant == "default" else f" ({variant})")
        return cls(found[variant], origin=origin, bos_token=bos_token, eos_token=eos_token)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for a conversation.

        Args:
            messages: The conversation, checked by :func:`~specframe.chat.messages.check_messages`.
            add_generation_prompt: End with the opening of an assistant turn.
            tools: JSON schemas of tools, for templates that know them.
            variables: Further variables of the template, such as ``enable_thinking``.

        Raises:
            ConfigError: Bad messages, or the template failed; the message has its line.
        """
        values: dict[str, Any] = {
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
            "tools": [_mapping("each of tools", tool) for tool in elements("tools", tools)] if tools else None,
            **({} if variables is None else _mapping("template variables", variables)),
            "messages": check_messages(messages),
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            with metered():
                return self._render(values)
        except TemplateRaisedError as error:
            msg = self._located(_template_line(error), f"the template refused the conversation: {error}")
            raise ConfigError(msg) from error
        except RecursionError as error:
            msg = f"{self.origin}: recursion without end"
            raise ConfigError(msg) from error
        except Exception as error:
            msg = self._located(_template_line(error), f"{type(error).__name__}: {error}")
            raise ConfigError(msg) from error

    def _render(self, values: dict[str, Any]) -> str:
        pieces, size = [], 0
        for piece in self._template.generate(values):
            size += len(piece)
            if size > MAX_SIZE:
                msg = f"the output passed {MAX_SIZE} characters"
                raise LimitError(msg)
            pieces.append(piece)
        return "".join(pieces)

    def _located(self, line: int | None, problem: str) -> str:
        if line is None:
            return f"{self.origin}: {problem}"
        lines = self.source.splitlines()
        text = lines[line - 1].strip() if 0 < line <= len(lines) else ""
        shown = text if len(text) <= 120 else f"{text[:117]}..."  # noqa: PLR2004 -- one terminal line
        return f"{self.origin}, line {line}: {problem}" + (f"\n    {shown}" if shown else "")


def _mapping(what: str, value: object) -> dict[str, Any]:
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return dict(value)
    msg = f"{what} must be a mapping with names as keys, not {value!r:.80}"
    raise ConfigError(msg)


def _template_line(error: BaseException) -> int | None:
    """Line of the innermost template frame; jinja2 rewrites the traceback to template lines."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
    return lines[-1] if lines else None
