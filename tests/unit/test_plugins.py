"""Finding plugins: where strategies come from, what a broken one may and may not disturb."""

from __future__ import annotations

import itertools
import logging
import subprocess
import sys
import textwrap
import threading
from collections.abc import Sequence
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from typing import Any

import attrs
import pytest

from specframe import plugins
from specframe.core.errors import ConfigError
from specframe.core.ports import Need
from specframe.core.strategy import BatchStrategy, DraftRequest, Strategy, draft_strategy
from specframe.plugin_info import check_strategy_class
from specframe.plugins import LOAD_VARIABLE, Registry
from specframe.strategies.ngram_k import NgramK
from tests.support.threads import at_once

BUILTIN = {"ngram-k", "ngram-k4v"}

GOOD = """
    from specframe.core.strategy import Strategy
    from specframe.hookspecs import hookimpl

    class Mine(Strategy):
        '''Says nothing.

        At length.
        '''
        name = "{name}"
        def draft(self, request):
            return ()

    @hookimpl
    def specframe_register_strategies(register):
        register(Mine)
"""


class Site:
    """A folder of installed packages, as pip would leave it."""

    numbers = itertools.count()

    def __init__(self, path: Path) -> None:
        self.path = path

    def install(self, package: str, source: str, *, entry_point: str | None = None, version: str = "1.2") -> str:
        """Install ``package`` with one module; returns the module's name, which no other test has."""
        module = f"{package.replace('-', '_')}_{next(self.numbers)}"
        (self.path / f"{module}.py").write_text(textwrap.dedent(source))
        info = self.path / f"{module}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[specframe]\n{entry_point or package} = {module}\n")
        return module

    def entry_points(self) -> list[EntryPoint]:
        found = distributions(path=[str(self.path)])
        return [entry for dist in found for entry in dist.entry_points.select(group="specframe")]

    def discover(self, load: str | None = None) -> Registry:
        return Registry.discover(load=load, entry_points=self.entry_points())


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.syspath_prepend(tmp_path)
    return Site(tmp_path)


def names(registry: Registry) -> set[str]:
    return {info.name for info in registry.strategies()}


class Mute(Strategy):
    name = "mute"

    def draft(self, request: DraftRequest) -> Sequence[int]:
        return ()


# -- what is loaded ---------------------------------------------------------------------------------------------------


def test_builtin_strategies_need_no_plugin(site: Site) -> None:
    registry = site.discover()
    assert names(registry) >= BUILTIN
    assert registry.get("ngram-k") is NgramK
    assert registry.broken == []


def test_facts_about_a_strategy_and_where_it_comes_from(site: Site) -> None:
    module = site.install("acme-drafts", GOOD.format(name="acme"), entry_point="acme")
    info = site.discover().info("acme")
    assert (info.source.package, info.source.version, info.source.module) == ("acme-drafts", "1.2", module)
    assert (info.source.entry_point, info.source.is_builtin, info.source.in_process) == ("acme", False, False)
    assert (info.summary, info.needs, info.uses_draft_file, info.options) == ("Says nothing.", (), False, ())


def test_options_are_described() -> None:
    @attrs.frozen(kw_only=True)
    class Options:
        depth: int = attrs.field(default=3, metadata={"doc": "how deep"})
        mode: str | None = None

    class Deep(Mute):
        name = "deep"
        needs = Need.HIDDEN | Need.LAYER_INPUTS
        uses_draft_file = True

    Deep.Options = Options
    registry = Registry()
    registry.register(Deep)
    info = registry.info("deep")
    assert info.needs == ("hidden", "layer_inputs")
    assert info.uses_draft_file
    assert [(o.name, o.type, o.default, o.doc) for o in info.options] == [
        ("depth", "int", 3, "how deep"),
        ("mode", "str | None", None, ""),
    ]


def test_every_option_of_the_builtin_strategies_has_a_doc(site: Site) -> None:
    undocumented = [
        (info.name, option.name) for info in site.discover().strategies() for option in info.options if not option.doc
    ]
    assert undocumented == []


@pytest.mark.parametrize(
    ("load", "expected"),
    [(None, {"one", "two"}), ("", set()), ("p-one", {"one"}), (" p-two , p-one ", {"one", "two"}), (",", set())],
)
def test_load_variable_chooses_plugins_but_never_leaves_builtin_ones_out(
    site: Site, load: str | None, expected: set[str]
) -> None:
    site.install("p-one", GOOD.format(name="one"))
    site.install("p-two", GOOD.format(name="two"))
    registry = site.discover(load)
    assert names(registry) - BUILTIN == expected | (names(site.discover("")) - BUILTIN)
    assert names(registry) >= BUILTIN
    assert registry.broken == []


def test_a_plugin_that_is_left_out_is_not_imported(site: Site) -> None:
    module = site.install("p-one", GOOD.format(name="one"))
    site.discover("p-two")
    assert module not in sys.modules


def test_load_variable_naming_what_is_not_installed_is_reported(site: Site) -> None:
    site.install("p-one", GOOD.format(name="one"))
    registry = site.discover("p-oen")
    [broken] = registry.broken
    assert broken.message == f"{LOAD_VARIABLE} names 'p-oen', but no such plugin is installed; installed: p-one"
    with pytest.raises(ConfigError, match="p-oen"):
        registry.get("one")


def test_the_shared_registry_reads_the_variable_and_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_shared", None)
    monkeypatch.setenv(LOAD_VARIABLE, "no-such-plugin")
    made = at_once(lambda _: plugins.registry())
    assert len(made) == 8
    assert len(set(map(id, made))) == 1
    assert "no-such-plugin" in made[0].broken[0].message
    assert plugins.register(Mute) is Mute
    assert made[0].get("mute") is Mute


def test_a_plugin_that_registers_like_an_application_is_told_of_the_hook(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = "import specframe\n" + textwrap.dedent(GOOD.format(name="eager")) + "\nspecframe.register(Mine)\n"
    site.install("p-eager", register)
    site.install("p-good", GOOD.format(name="good"))
    monkeypatch.setattr(plugins, "_shared", None)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: site.entry_points())
    asking = threading.Thread(target=plugins.registry, daemon=True)
    asking.start()
    asking.join(60)
    assert not asking.is_alive(), "it waits for itself"
    with pytest.raises(ConfigError, match=r"'p-eager'.* hook specframe_register_strategies"):
        plugins.registry().get("eager")
    assert "good" in names(plugins.registry())


def test_finding_strategies_loads_no_native_code() -> None:
    code = """
        import sys
        from specframe.plugins import Registry
        assert Registry.discover(load="").strategies()
        print(sorted({"cffi", "_cffi_backend", "xllamacpp"} & set(sys.modules)))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- broken plugins ---------------------------------------------------------------------------------------------------


BROKEN = {
    "import error": ("import no_such_module_at_all", "ModuleNotFoundError: No module named 'no_such_module_at_all'"),
    "syntax error": ("def", "SyntaxError"),
    "exit at import": ("raise SystemExit(3)", "SystemExit: 3"),
    "wrong argument": (
        """
        from specframe.hookspecs import hookimpl
        @hookimpl
        def specframe_register_strategies(registry): ...
        """,
        "registry",
    ),
    "unknown hook": (
        """
        from specframe.hookspecs import hookimpl
        @hookimpl
        def specframe_register_strategy(register): ...
        """,
        "unknown hook 'specframe_register_strategy'",
    ),
    "no decorator": (
        "def specframe_register_strategies(register): ...",
        "implements no hook: decorate a function called specframe_register_strategies or",
    ),
    "hook raises": (
        """
        from specframe.hookspecs import hookimpl
        @hookimpl
        def specframe_register_strategies(register):
            raise KeyError("oops")
        """,
        "KeyError: 'oops'",
    ),
    "not a strategy": (
        """
        from specframe.hookspecs import hookimpl
        @hookimpl
        def specframe_register_strategies(register):
            register(int)
        """,
        "<class 'int'> is not a subclass of specframe.Strategy",
    ),
    "not an observer": (
        """
        from specframe.hookspecs import hookimpl
        @hookimpl
        def specframe_register_observers(register):
            register(print)
        """,
        "is not a subclass of specframe.Observer",
    ),
}


@pytest.mark.parametrize(("source", "reason"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_plugin_is_reported_and_disturbs_no_other(
    site: Site, source: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    site.install("bad-drafts", source, entry_point="bad")
    site.install("good-drafts", GOOD.format(name="good"))
    with caplog.at_level(logging.WARNING):
        registry = site.discover()
    assert registry.get("good").name == "good"
    assert registry.get("ngram-k") is NgramK
    [broken] = registry.broken
    assert reason in broken.message
    assert "package bad-drafts 1.2" in broken.message
    assert f"leave it out by setting {LOAD_VARIABLE}" in broken.message
    assert [record.getMessage() for record in caplog.records] == [broken.message]
    with pytest.raises(ConfigError, match=r"package bad-drafts 1\.2"):
        registry.get("bad")
    assert site.discover("good-drafts").broken == []


def test_a_plugin_that_fails_half_way_offers_nothing_and_its_names_say_why(site: Site) -> None:
    source = textwrap.dedent(GOOD).format(name="half") + "    raise OSError('disk on fire')\n"
    site.install("half-drafts", source)
    registry = site.discover()
    assert "half" not in names(registry)
    with pytest.raises(ConfigError) as caught:
        registry.get("half")
    assert str(caught.value) == registry.broken[0].message
    assert "disk on fire" in str(caught.value)


def test_a_broken_plugin_cannot_take_a_working_strategy_away(site: Site) -> None:
    site.install("half-drafts", textwrap.dedent(GOOD).format(name="ngram-k") + "    raise OSError('x')\n")
    assert site.discover().get("ngram-k") is NgramK


def make(**body: Any) -> type[Strategy]:
    return type("Made", (Strategy,), {"draft": lambda self, request: (), **body})


@attrs.frozen
class Positional:
    n: int = 3


@attrs.frozen(kw_only=True)
class NoDefault:
    n: int


@attrs.define(kw_only=True)
class Mutable:
    n: int = 3


@attrs.frozen(kw_only=True)
class BadDefault:
    n: int = attrs.field(default=0, validator=attrs.validators.ge(1))


@pytest.mark.parametrize(
    ("cls", "reason"),
    [
        (make(), "has no name"),
        (make(name="No Spaces"), "has the name 'No Spaces'"),
        (make(name="-x"), "has the name '-x'"),
        (make(name="a--b"), "has the name 'a--b'"),
        (make(name="a\n"), "has the name 'a"),
        (make(name=3), "has the name 3"),
        (make(name="none"), "other than auto, extend, first-of, none"),
        (make(name="first-of"), "other than auto, extend, first-of, none"),
        (type("Made", (Strategy,), {"name": "x"}), "does not implement draft()"),
        (type("Made", (BatchStrategy,), {"name": "x"}), "does not implement draft()"),
        (make(name="x", needs="hidden"), "needs='hidden'"),
        (make(name="x", Options=dict), "@attrs.frozen(kw_only=True)"),
        (make(name="x", Options={"n": 3}), "@attrs.frozen(kw_only=True)"),
        (make(name="x", Options=Positional), "option 'n' must be keyword-only"),
        (make(name="x", Options=NoDefault), "option 'n' must be keyword-only (@attrs.frozen(kw_only=True)) and have"),
        (make(name="x", Options=Mutable), "not hashable"),
        (make(name="x", Options=BadDefault), "default Options are invalid"),
        (Mute, None),
        ("mute", "'mute' is not a subclass"),
    ],
)
def test_what_makes_a_class_a_strategy(cls: object, reason: str | None) -> None:
    if reason is None:
        check_strategy_class(cls)
    else:
        with pytest.raises(ConfigError) as caught:
            check_strategy_class(cls)
        assert reason in str(caught.value)


# -- names ------------------------------------------------------------------------------------------------------------


def test_a_name_offered_twice_is_an_error_naming_both_packages(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.install("acme-drafts", GOOD.format(name="quick"), version="1.0")
    site.install("other-drafts", GOOD.format(name="quick"), version="2.0")
    site.install("third-drafts", GOOD.format(name="third"))
    with caplog.at_level(logging.WARNING):
        registry = site.discover()
    assert "quick" not in names(registry)
    assert registry.get("third").name == "third"
    with pytest.raises(ConfigError) as caught:
        registry.get("quick")
    assert "package acme-drafts 1.0 and package other-drafts 2.0" in str(caught.value)
    assert LOAD_VARIABLE in str(caught.value)
    [broken] = registry.broken
    assert (broken.message, broken.strategies) == (str(caught.value), ("quick",))
    assert [record.getMessage() for record in caplog.records] == [broken.message]
    assert site.discover("acme-drafts").get("quick").name == "quick"


def test_a_plugin_cannot_silently_replace_a_builtin_strategy(site: Site) -> None:
    site.install("acme-drafts", GOOD.format(name="ngram-k"))
    with pytest.raises(ConfigError, match=r"package specframe .* and package acme-drafts 1\.2.*without 'acme-drafts'"):
        site.discover().get("ngram-k")


def test_an_unknown_name_gets_close_matches(site: Site) -> None:
    with pytest.raises(ConfigError, match=r"there is no strategy 'ngram-k4'; did you mean 'ngram-k4v' or 'ngram-k'\?"):
        site.discover().get("ngram-k4")
    with pytest.raises(ConfigError, match=r"available: .*ngram-k, ngram-k4v"):
        site.discover().get("zzz")
    with pytest.raises(ConfigError, match="available: none"):
        Registry().get("zzz")


# -- classes of the application ---------------------------------------------------------------------------------------


def test_an_application_registers_a_class(site: Site) -> None:
    registry = site.discover()
    assert registry.register(Mute) is Mute
    registry.register(Mute)  # importing the module twice is no collision
    assert registry.get("mute") is Mute
    source = registry.info("mute").source
    assert (source.package, source.module, source.in_process) == (None, __name__, True)


def test_a_decorated_function_can_be_registered() -> None:
    registry = Registry()

    @registry.register
    @draft_strategy("again")
    def again(request: DraftRequest) -> Sequence[int]:
        """The last token again."""
        return [request.history[-1]]

    assert registry.get("again") is again
    assert registry.info("again").summary == "The last token again."


def test_a_taken_name_is_refused_unless_an_own_class_is_replaced(site: Site) -> None:
    registry = site.discover()
    registry.register(Mute)
    second = make(name="mute")
    with pytest.raises(ConfigError, match="strategy 'mute' is offered by this process"):
        registry.register(second)
    assert registry.get("mute") is Mute
    registry.register(second, replace=True)
    assert registry.get("mute") is second
    with pytest.raises(ConfigError, match="package specframe"):
        registry.register(make(name="ngram-k"), replace=True)
    assert registry.get("ngram-k") is NgramK


def test_an_unusable_class_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="has the name 'Loud!'"):
        Registry().register(make(name="Loud!"))
