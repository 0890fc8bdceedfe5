"""Conversations are checked before a template sees them."""

from __future__ import annotations

from typing import Any

import pytest

from specframe.chat import check_messages
from specframe.core.errors import ConfigError


def test_text_parts_become_one_string() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert check_messages([{"role": "user", "content": parts, "name": "n"}]) == [
        {"role": "user", "content": "ab", "name": "n"}
    ]


def test_tool_calls_may_have_no_content() -> None:
    assert check_messages([{"role": "assistant", "tool_calls": [{"id": 1}]}])[0]["content"] is None


def test_the_input_is_not_changed() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "a"}]}
    check_messages([message])
    assert message == {"role": "user", "content": [{"type": "text", "text": "a"}]}


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "messages is empty"),
        ("hello", "must be a list"),
        ({"role": "user", "content": "x"}, "must be a list"),
        (["hello"], r"messages\[0\] must be a mapping"),
        ([{"content": "x"}], "role None is unknown"),
        ([{"role": "asistant", "content": "x"}], "did you mean 'assistant'"),
        ([{"role": "wizard", "content": "x"}], "known roles: system"),
        ([{"role": "user", "content": "x"}, {"role": "user"}], r"messages\[1\]: content must be text"),
        ([{"role": "user", "content": 3}], "content must be text"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"content\[0\]: only .* not 'image_url'"),
        ([{"role": "user", "content": ["x"]}], "not 'str'"),
    ],
)
def test_mistakes_are_named(messages: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_messages(messages)
