"""``specframe chat``: turns, commands, templates, interrupts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import specframe

Cli = Callable[..., Any]
GREEDY = ("--temperature", "0", "-n", "6")


def expected(model: Path, *turns: str, **options: Any) -> str:
    messages: list[dict[str, str]] = []
    system = options.pop("system", None)
    if system:
        messages.append({"role": "system", "content": system})
    said = []
    with specframe.load(model, strategy="none") as llm:
        for turn in turns:
            messages.append({"role": "user", "content": turn})
            said.append(llm.chat(messages, max_tokens=6, temperature=0).text)
            messages.append({"role": "assistant", "content": said[-1]})
    return "".join(text + "\n" for text in said)


def test_turns_from_a_pipe(cli: Cli, model: Path) -> None:
    answer = cli("chat", model, *GREEDY, stdin="hello\n\nand\n")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == expected(model, "hello", "and")


def test_a_system_message_survives_a_reset(cli: Cli, model: Path) -> None:
    answer = cli("chat", model, *GREEDY, "--system", "be brief", stdin="hello\n/reset\nhello\n/exit\nnot read\n")
    assert answer.out == expected(model, "hello", system="be brief") * 2
    assert "forgotten" in answer.err


def test_the_second_turn_evaluates_only_what_is_new(cli: Cli, model: Path) -> None:
    answer = cli("chat", model, *GREEDY, "--stats", stdin="hello there, how are you\nok\n")
    first, second = (line for line in answer.err.splitlines() if "prompt tokens" in line)
    assert "(0 from memory)" in first
    n_first = int(first.split()[0])
    n_second, cached = int(second.split()[0]), int(second.split("(")[1].split()[0])
    assert cached >= n_first, "the second turn must find the whole first prompt in memory"
    assert n_second > cached


def test_commands(cli: Cli, model: Path) -> None:
    answer = cli("chat", model, *GREEDY, stdin="/help\n/bogus now\n/quit\nnot read\n")
    assert (answer.code, answer.out) == (0, "")
    assert answer.err.count("/reset") == 2
    assert "there is no command /bogus" in answer.err


def test_templates_from_a_file(cli: Cli, model: Path, tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages[-1].content }}")
    with specframe.load(model, strategy="none") as llm:
        plain = llm.generate("hello", max_tokens=6, temperature=0).text
    answer = cli("chat", model, *GREEDY, "--template", template, stdin="hello\n")
    assert answer.out == plain + "\n"


def test_a_broken_template_is_named_before_the_first_message(cli: Cli, model: Path, tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("a\n{% if %}")
    answer = cli("chat", model, "--template", template, stdin="hello\n")
    assert answer.code == 2
    assert f"{template}, line 2: syntax error" in answer.err


def test_a_model_without_template(cli: Cli, zoo: Callable[[str], Path]) -> None:
    answer = cli("chat", zoo("llama"), stdin="hello\n")
    assert answer.code == 2
    assert "--template FILE" in answer.err


def test_a_conversation_that_is_too_long_can_be_reset(cli: Cli, model: Path) -> None:
    answer = cli("chat", model, *GREEDY, "--ctx", "64", stdin=f"{'long ' * 200}\n/reset\nhi\n")
    assert answer.code == 0
    assert "/reset starts anew" in answer.err
    assert answer.out.strip()


def test_an_interrupt_stops_the_answer_and_stays(cli: Cli, model: Path, interrupt_step: Callable[[int], None]) -> None:
    whole = expected(model, "hello", "and").splitlines()
    interrupt_step(4)
    answer = cli("chat", model, *GREEDY, stdin="hello\nand\n")
    assert answer.code == 0
    assert "[stopped]" in answer.err
    stopped, second = answer.out.splitlines()
    assert whole[0].startswith(stopped)
    assert len(stopped) < len(whole[0])
    assert second


def test_a_session_goes_on_with_the_conversation(cli: Cli, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "chat.session"
    chat = ("chat", model, *GREEDY, "--stats", "--session", file)
    first = cli(*chat, "--system", "be brief", stdin="hello\n")
    second = cli(*chat, stdin="and\n")
    assert first.out + second.out == expected(model, "hello", "and", system="be brief")
    n_prompt, cached = (int(n) for n in re.findall(r"(\d+) (?:prompt tokens|from memory)", second.err))
    assert n_prompt > cached >= int(first.err.split()[0])
    other = cli(*chat, "--system", "be long", stdin="and\n")
    assert (other.code, other.out) == (2, "")
    assert "--system differs" in other.err


def test_a_chat_without_a_message_writes_no_session(cli: Cli, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "chat.session"
    assert cli("chat", model, "--session", file, stdin="/help\n").code == 0
    assert not file.exists()
