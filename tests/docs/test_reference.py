"""What a page promises to list completely, it lists: hooks, contracts, strategies, options, commands, reasons."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import attrs
import pytest
import typer.main

import specframe
from specframe import core, hookspecs
from specframe.bench.program import PARTS
from specframe.bench.sides import SERVER_TYPES
from specframe.bench.workloads import BUILT_IN as BUILT_IN_TEXTS
from specframe.cli.app import app
from specframe.core.request import FinishReason
from specframe.core.scheduler import Reason
from specframe.core.stats import RequestStats
from specframe.llm import ChatOptions, PromptOptions, SamplingOptions
from specframe.plugin_info import StrategyInfo
from specframe.plugins import Registry

DOCS = Path(__file__).resolve().parents[2] / "docs"

BUILT_IN = Registry.discover(load="").strategies()
CONTRACTS = (specframe.Strategy, specframe.BatchStrategy, specframe.Observer)


def commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Name and command, those of groups as ``group command``."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


COMMANDS: dict[str, Any] = dict(commands(typer.main.get_command(app)))


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def sections(text: str, level: str) -> dict[str, str]:
    """Title of each heading of this level -> everything up to the next one of the same or a higher level."""
    parts = re.split(rf"^(#{{1,{len(level)}}}) (.+)\n", text, flags=re.MULTILINE)[1:]
    triples = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    return {title: body for mark, title, body in triples if mark == level}


def written(function: Callable[..., Any]) -> str:
    """``name(argument: Kind) -> Kind`` as it stands in the source, without ``self``."""
    signature = inspect.signature(function)
    kept = [p for p in signature.parameters.values() if p.name != "self"]
    return function.__name__ + str(signature.replace(parameters=kept)).replace("'", "")


def methods(cls: type) -> Iterator[str]:
    """Public methods and properties of a contract, as they are written."""
    for name in dir(cls):
        member = inspect.getattr_static(cls, name)
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            assert member.fget is not None
            yield written(member.fget).replace("()", "", 1)
        elif inspect.isfunction(member):
            yield written(member)


@pytest.mark.parametrize("hook", [n for n in vars(hookspecs) if n.startswith("specframe_")])
def test_every_hook_is_in_the_guide_with_its_signature(hook: str) -> None:
    assert f"`{written(getattr(hookspecs, hook))}`" in page("plugins.md")


@pytest.mark.parametrize(("cls", "signature"), [(cls, s) for cls in CONTRACTS for s in methods(cls)])
def test_every_method_of_a_contract_is_in_its_section_of_the_guide(cls: type, signature: str) -> None:
    [section] = [body for title, body in sections(page("plugins.md"), "##").items() if title.startswith(cls.__name__)]
    assert f"`{signature}`" in section


@pytest.mark.parametrize("info", BUILT_IN, ids=lambda info: info.name)
def test_every_built_in_strategy_has_a_page_with_its_options_and_defaults(info: StrategyInfo) -> None:
    text = page(f"strategies/{info.name}.md")
    assert text.startswith(f"# {info.name}\n")
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", sections(text, "##")["Options"], re.MULTILINE)
    assert rows == [(option.name, str(option.default)) for option in info.options]
    assert f"(strategies/{info.name}.md)" in page("strategies.md")


def test_no_page_describes_a_strategy_that_is_gone() -> None:
    assert {path.stem for path in (DOCS / "strategies").glob("*.md")} == {info.name for info in BUILT_IN}


def test_every_command_has_a_section() -> None:
    assert len(COMMANDS) > 1
    assert [t.strip("`") for t in sections(page("cli.md"), "##") if t.startswith("`")] == [
        f"specframe {name}" for name in COMMANDS
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_in_its_section_or_in_one_it_points_to(name: str) -> None:
    own = sections(page("cli.md"), "##")
    text = own[f"`specframe {name}`"]
    shared = [body for title, body in own.items() if f"(#{title.lower().replace(' ', '-')})" in text]
    described = set(re.findall(r"`(-{1,2}[A-Za-z-]+)", "".join([text, *shared])))
    options = {o for p in COMMANDS[name].params for o in (*p.opts, *p.secondary_opts) if o.startswith("-")}
    assert options
    assert options - described == set()


def test_no_section_of_a_command_describes_an_option_that_is_gone() -> None:
    known = {o for c in COMMANDS.values() for p in c.params for o in (*p.opts, *p.secondary_opts)}
    described = set(re.findall(r"^\| `(-{1,2}[a-z-]+)", page("cli.md"), re.MULTILINE))
    assert described
    assert described - known == set()


def reasons() -> set[str]:
    """Codes that the core can put into ``inactive_reason``, taken from the functions that set it."""
    found = set()
    for path in Path(core.__file__).parent.glob("*.py"):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef):
                continue
            inside = list(ast.walk(function))
            sets = any(isinstance(n, ast.Attribute) and n.attr in {"deactivate", "inactive_reason"} for n in inside)
            texts = [n.value for n in inside if isinstance(n, ast.Constant) and isinstance(n.value, str)]
            if sets or path.name == "pool.py":  # which answers with the reason that the engine sets
                found |= {m[1] for text in texts if (m := re.fullmatch(r"([a-z]+(?:-[a-z]+)+)(?:: .*)?", text))}
    return found


def test_every_reason_for_not_drafting_is_explained() -> None:
    assert {"nothing-proposed", "strategy-error"} <= reasons()
    section = sections(page("troubleshooting.md"), "##")["Speculation is inactive"]
    assert set(re.findall(r"^\| `([a-z-]+)`", section, re.MULTILINE)) == reasons()


def test_every_reason_for_the_length_of_a_step_is_explained() -> None:
    [row] = [line for line in page("performance.md").splitlines() if line.startswith("| `reasons` |")]
    assert re.findall(r"`([a-z-]+)`", row)[1:] == list(get_args(Reason))


def test_every_error_is_explained() -> None:
    errors = {n for n in specframe.__all__ if n.endswith("Error")}
    assert set(re.findall(r"^\| `(\w+Error)`", page("troubleshooting.md"), re.MULTILINE)) == errors


def test_the_tutorial_explains_every_figure_and_every_end() -> None:
    text = page("tutorial.md")
    figures = {f.name for f in attrs.fields(RequestStats)} | {
        name for name, member in vars(RequestStats).items() if isinstance(member, property)
    }
    assert {figure for figure in figures if f"`{figure}`" not in text} == set()
    ends = {reason.name for reason in FinishReason if reason is not FinishReason.ERROR}
    assert {end for end in ends if f"`{end}`" not in text} == set()


def test_the_tutorial_names_every_argument_of_a_model_and_of_a_request() -> None:
    text = sections(page("tutorial.md"), "##")["The same in Python"]
    arguments = set(inspect.signature(specframe.load).parameters) - {"model"}
    for options in (PromptOptions, ChatOptions):
        arguments |= options.__annotations__.keys() - SamplingOptions.__annotations__.keys()
    assert {"reuse_prefix", "tools", "parallel"} <= arguments
    assert {argument for argument in arguments if f"`{argument}`" not in text} == set()


def test_every_text_and_peer_of_the_benchmark_is_listed() -> None:
    text = sections(page("benchmark.md"), "##")
    assert re.findall(r"^\| `([a-z-]+)` \|", text["Texts"], re.MULTILINE) == list(BUILT_IN_TEXTS)
    assert set(re.findall(r"`server:([a-z0-9-]+)", text["Sides"])) == set(SERVER_TYPES)
    assert re.findall(r"^\| `([a-z]+)` \|", text["Parts"], re.MULTILINE) == list(PARTS)


def test_the_tutorial_names_every_sampling_parameter() -> None:
    text = sections(page("tutorial.md"), "##")["Sampling"]
    assert {f.name for f in attrs.fields(specframe.SamplingParams) if f"`{f.name}`" not in text} == set()
