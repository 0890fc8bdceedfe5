"""Messages of a conversation, checked before a template sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from specframe.core.errors import ConfigError
from specframe.core.names import resembling

#: ``{"role": ..., "content": ...}`` and whatever else the template of the model understands (``tool_calls``, ...).
Message: TypeAlias = Mapping[str, Any]

#: Roles that occur in published templates. A typo in a role would otherwise become part of the prompt.
ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")


def check_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Validate a conversation and bring text parts into one string.

    Raises:
        ConfigError: Naming the message and what is wrong with it.
    """
    given: object = messages
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        msg = f"messages must be a list of {{'role': ..., 'content': ...}}, not {type(messages).__name__}"
        raise ConfigError(msg)
    if not messages:
        msg = "messages is empty; give at least one, such as {'role': 'user', 'content': 'Hello'}"
        raise ConfigError(msg)
    return [_checked(i, message) for i, message in enumerate(messages)]


def _checked(index: int, message: object) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        msg = f"{where} must be a mapping with 'role' and 'content', not {type(message).__name__}"
        raise ConfigError(msg)
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        hint = resembling(role, ROLES, f"known roles: {', '.join(ROLES)}")
        msg = f"{where}: role {role!r} is unknown; {hint}"
        raise ConfigError(msg)
    return dict(message) | {"content": _content(where, message)}


def _content(where: str, message: Mapping[str, Any]) -> str | None:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None and message.get("tool_calls"):
        return None
    if isinstance(content, Sequence) and not isinstance(content, bytes):
        return "".join(_text_part(f"{where}.content[{i}]", part) for i, part in enumerate(content))
    msg = f"{where}: content must be text (or a list of text parts), not {content!r:.80}"
    raise ConfigError(msg)


def _text_part(where: str, part: object) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    msg = f"{where}: only {{'type': 'text', 'text': ...}} parts are supported, not {kind!r}"
    raise ConfigError(msg)
