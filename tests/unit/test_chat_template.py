"""Chat templates: rendering as models expect it, clear errors, and a sandbox that holds."""

from __future__ import annotations

import json
import time
from datetime import datetime

import pytest

from specframe.chat import ChatTemplate, templates_of
from specframe.core.errors import ConfigError

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
USER = [{"role": "user", "content": "Hi"}]

CHATML = """{% for message in messages %}
    {%- if loop.first and message['role'] != 'system' %}
        {{- '<|im_start|>system\nBe helpful<|im_end|>\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
"""


def render(source: str, **kwargs: object) -> str:
    return ChatTemplate(source, **TOKENS).render(USER, **kwargs)  # type: ignore[arg-type]


def test_a_chatml_conversation() -> None:
    text = ChatTemplate(CHATML).render(
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}, {"role": "user", "content": "?"}]
    )
    assert text == (
        "<|im_start|>system\nBe helpful<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nYo<|im_end|>\n<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_prompt_of_the_next_turn_starts_with_this_turn_and_its_answer() -> None:
    template = ChatTemplate(CHATML)
    first = template.render(USER)
    answered = [*USER, {"role": "assistant", "content": "Yo"}, {"role": "user", "content": "More"}]
    assert template.render(answered).startswith(first + "Yo<|im_end|>\n")


def test_generation_prompt_can_be_left_out() -> None:
    assert not ChatTemplate(CHATML).render(USER, add_generation_prompt=False).endswith("assistant\n")


def test_blocks_are_trimmed_and_tokens_are_known() -> None:
    assert render("{{ bos_token }}\n  {% if true %}\nx{% endif %}\n{{ eos_token }}") == "<s>\nx</s>"


def test_tojson_keeps_characters_as_they_are() -> None:
    assert render("{{ {'a': \"<é'&>\"} | tojson }}") == '{"a": "<é\'&>"}'
    assert render("{{ {'b': 1, 'a': [1, 2]} | tojson(indent=2) }}") == json.dumps({"b": 1, "a": [1, 2]}, indent=2)


def test_strftime_now_is_today() -> None:
    assert render("{{ strftime_now('%Y') }}") == datetime.now().strftime("%Y")  # noqa: DTZ005 -- what templates mean


def test_loop_controls_and_generation_tag() -> None:
    source = "{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    assert render(source + "{% generation %}|a{% endgeneration %}") == "012|a"


def test_loop_variables_survive_metering() -> None:
    source = "{% for c in 'abc' %}{{ loop.index }}{{ c }}{{ loop.length }}{% if loop.last %}!{% endif %}{% endfor %}"
    assert render(source) == "1a32b33c3!"


def test_recursive_loops_and_macros_work() -> None:
    tree = "{% for x in [[1, [2]]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{% endif %}"
    assert render(tree + "{% endfor %}") == "(1(2))"
    assert render("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(1) ~ m('b') }}") == "<1><b>"


def test_filters_of_published_templates_work() -> None:
    assert render("{{ ' x ' | trim }}{{ [1, 2] | join(',') }}{{ messages | map(attribute='role') | list }}") == (
        "x1,2['user']"
    )
    assert render("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}") == "1"
    assert (
        render("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}")
        == "1"
    )
    assert render("{{ 'a\nb' | indent(2) }}{{ 'a-b'.split('-')[-1] }}{{ '%s-%d' | format('x', 3) }}") == "a\n  bbx-3"
    assert render("{{ '{}:{}'.format(1, 'z') }}{{ {'k': 1}.items() | list }}{{ 70000000 | string }}") == (
        "1:z[('k', 1)]70000000"
    )


def test_tools_and_variables_reach_the_template() -> None:
    source = "{% if tools %}{{ tools[0].name }}{% endif %}{% if not enable_thinking %}no{% endif %}"
    assert render(source, tools=[{"name": "f"}], variables={"enable_thinking": False}) == "fno"


@pytest.mark.parametrize(
    ("source", "line", "problem"),
    [
        ("ok\n{% if %}", 2, "syntax error"),
        ("a\nb\n{% for m in messages %}{{ m.role }}", 3, "syntax error"),
        ("a\n{{ nothing.at.all }}", 2, "'nothing' is undefined"),
        ("a\n\n{{ messages[0].content + 1 }}", 3, "TypeError"),
        ("{{ 1 }}\n{{ raise_exception('roles must alternate') }}", 2, "roles must alternate"),
        ("{% macro f(x) %}\n{{ x.y.z }}\n{% endmacro %}\n{{ f(none) }}", 2, "has no attribute"),
        ("x\n{{ 1 // 0 }}", 2, "ZeroDivisionError"),
        ("{{ 'x' | nofilter }}", 1, "nofilter"),
    ],
)
def test_broken_templates_name_their_line(source: str, line: int, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ChatTemplate(source, origin="my.jinja").render(USER)
    assert str(caught.value).startswith(f"my.jinja, line {line}:")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages[0]['__class__'] }}{{ messages.__init__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ range.__globals__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ messages | map(attribute='__class__') | list }}",
        "{{ ''|attr('__class__') }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(x=1) }}",
        "{{ self.__init__ }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ lipsum() }}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    with pytest.raises(ConfigError):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ range(10 ** 9) | list }}",
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ [0] * 1000000000 }}",
        "{{ 2 ** 100000000 }}",
        "{{ 'x'.ljust(10000000000) }}",
        "{{ 'x' | center(10000000000) }}",
        "{{ 'x' | indent(10000000000) }}",
        "{{ '{:10000000000}'.format('x') }}",
        "{{ '%10000000000d' % 1 }}",
        "{{ '%*d' % (100000000, 1) }}",
        "{{ '%10000000000d' | format(1) }}",
        "{% set x = 'a' * 1000000 %}{{ x.replace('a', x) }}",
        "{% set x = 'a' * 1000000 %}{{ x | replace('a', x) }}",
        "{% set x = 'a' * 1000000 %}{{ x.join(x) }}",
        "{% set x = 'a' * 1000000 %}{% for i in range(100) %}{{ x }}{% endfor %}",
    ],
)
def test_greedy_templates_are_stopped(source: str) -> None:
    started = time.monotonic()
    with pytest.raises(ConfigError, match=r"template"):
        render(source)
    assert time.monotonic() - started < 20  # seconds; a runaway would take hours


def test_oversized_source_is_refused() -> None:
    with pytest.raises(ConfigError, match="too long"):
        ChatTemplate("x" * 2_000_000)


def test_templates_are_found_by_variant() -> None:
    metadata = {
        "tokenizer.chat_template": "plain",
        "tokenizer.chat_template.tool_use": "tools",
        "tokenizer.chat_templates": ["tool_use"],
        "general.name": "x",
    }
    assert templates_of(metadata) == {"default": "plain", "tool_use": "tools"}
    assert ChatTemplate.from_metadata(metadata, variant="tool_use").render(USER) == "tools"
    with pytest.raises(ConfigError, match=r"'rag'; it has: default, tool_use"):
        ChatTemplate.from_metadata(metadata, variant="rag")


def test_a_model_without_template_says_how_to_give_one() -> None:
    with pytest.raises(ConfigError, match=r"--template FILE"):
        ChatTemplate.from_metadata({"general.name": "x"})


def test_from_file(tmp_path: object) -> None:
    path = tmp_path / "t.jinja"  # type: ignore[operator]
    path.write_text("[{{ messages[0].content }}]")
    assert ChatTemplate.from_file(path).render(USER) == "[Hi]"
    with pytest.raises(ConfigError, match="cannot read"):
        ChatTemplate.from_file(path.with_name("missing"))
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot read"):
        ChatTemplate.from_file(path)
