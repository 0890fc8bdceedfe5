from __future__ import annotations

from pathlib import Path

import pytest

from specframe.bench import workloads
from specframe.bench.workloads import BUILT_IN, REUSE, Workload, built_in, from_file
from specframe.chat import ChatTemplate
from specframe.core.errors import ConfigError


def test_every_built_in_text_is_one_of_its_own() -> None:
    texts = [workload.text(None) for workload in built_in()] + [workloads.warm_up()]
    assert len(set(texts)) == len(BUILT_IN) + 1
    assert all(len(text) > 100 for text in texts)
    assert set(BUILT_IN) > REUSE
    assert len({workload.digest for workload in built_in()}) == len(BUILT_IN)


def test_every_file_of_texts_is_used() -> None:
    names = {path.stem for path in (Path(workloads.__file__).parent / "prompts").iterdir()}
    assert names == {*BUILT_IN, "warm-up"}


def test_a_long_context_is_long() -> None:
    texts = {workload.name: workload.text(None) for workload in built_in()}
    assert len(texts["long-context"]) > 2 * max(len(text) for name, text in texts.items() if name != "long-context")


def test_unknown_texts_are_refused() -> None:
    with pytest.raises(ConfigError, match="there are code-rewrite"):
        built_in(["poetry"])


def test_a_chat_is_rendered_or_a_transcript() -> None:
    chat = Workload(name="c", messages=({"role": "user", "content": "Hi"},))
    template = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", bos_token="")
    assert chat.text(template) == "<user>Hi"
    assert chat.text(None) == "User: Hi\n\nAssistant:"


def test_a_text_file_is_one_prompt(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear\n", encoding="utf-8")
    assert from_file(path) == [Workload(name="letter", prompt="Dear")]


def test_a_jsonl_file_has_a_prompt_in_each_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(
        '{"prompt": "a"}\n\n{"name": "b", "messages": [{"role": "user", "content": "x"}]}\n', encoding="utf-8"
    )
    one, two = from_file(path)
    assert (one.name, one.prompt) == ("mine-1", "a")
    assert (two.name, two.messages) == ("b", ({"role": "user", "content": "x"},))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: no JSON"),
        ("[]", "line 2: give an object"),
        ('{"name": "x"}', "either 'prompt' or 'messages'"),
        ('{"prompt": "a", "messages": []}', "either"),
        ('{"prompt": ""}', "'prompt' must be a text"),
        ('{"prompt": 3}', "'prompt' must be a text"),
        ('{"prompt": "a", "text": "b"}', "no key 'text'"),
        ('{"messages": []}', "'messages' must be"),
        ('{"messages": [{"role": "user"}]}', "'messages' must be"),
        ('{"messages": "hello"}', "'messages' must be"),
        ('{"name": "mine-1", "prompt": "b"}', "the name 'mine-1' twice"),
        ('{"name": null, "prompt": "b"}', "line 2: the name of a text must .* not None"),
        ('{"name": " ", "prompt": "b"}', "the name of a text must"),
        (r'{"name": "a\nb", "prompt": "b"}', "the name of a text must"),
        (r'{"name": "\ud800", "prompt": "b"}', "the name of a text must"),
        (r'{"prompt": "a\ud800"}', "'prompt' must be a text"),
        (r'{"messages": [{"role": "user", "content": "\udc80"}]}', "'messages' must be"),
        ('{"messages": [{"role": "usr", "content": "a"}]}', "line 2: .*role 'usr' is unknown"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(f'{{"prompt": "a"}}\n{line}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        from_file(path)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.txt", b"one\r\ntwo\r\n"),
        ("b.txt", b"\xef\xbb\xbfone\ntwo"),
        ("c.jsonl", b'\xef\xbb\xbf{"prompt": "one\\ntwo"}\r\n'),
        ("d.JSONL", b'{"prompt": "one\\ntwo"}'),
    ],
)
def test_how_an_editor_ends_lines_and_begins_files_does_not_matter(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    (only,) = from_file(tmp_path / name)
    assert only.prompt == "one\ntwo"


def test_separators_that_json_allows_in_a_text_end_no_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "a\u2028b\u0085c"}\n{"prompt": "d"}\n', encoding="utf-8")
    assert [workload.prompt for workload in from_file(path)] == ["a\u2028b\u0085c", "d"]


def test_a_template_without_a_system_role_gets_its_text_in_the_first_message() -> None:
    said = ({"role": "system", "content": "S"}, {"role": "user", "content": "U"}, {"role": "assistant", "content": "A"})
    template = ChatTemplate(
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "<{{ m.role }}>{{ m.content }}{% endfor %}"
    )
    assert Workload(name="c", messages=said).text(template) == "<user>S\n\nU<assistant>A"
    with pytest.raises(ConfigError, match="no system"):
        Workload(name="c", messages=said[:1]).text(template)


@pytest.mark.parametrize("name", ["empty.txt", "empty.jsonl"])
def test_a_file_without_prompts_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(" \n", encoding="utf-8")
    with pytest.raises(ConfigError, match="no prompt in"):
        from_file(tmp_path / name)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        from_file(tmp_path / "missing.txt")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        from_file(tmp_path / "binary.txt")
