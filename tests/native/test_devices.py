"""Which devices a model uses: by name, none, or a clear error; draft files follow the target unless told otherwise."""

from __future__ import annotations

import re
from typing import Any

import pytest

import specframe
from specframe.backends.llama.devices import device_array, device_names, devices
from specframe.backends.llama.library import Library, load_library
from specframe.backends.llama.model import Model
from specframe.backends.llama.target import LlamaTarget
from specframe.core.errors import ConfigError
from specframe.core.strategy import BatchStrategy
from specframe.strategies.dflash import Dflash
from specframe.strategies.draft_model import DraftModel
from specframe.strategies.eagle3 import Eagle3
from specframe.strategies.mtp import Mtp
from tests.support.drafting import engine, request, spec, strategy_of
from tests.support.llama import Zoo


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


def test_the_processor_is_a_device(library: Library) -> None:
    assert [device.kind for device in devices(library)][-1] == "cpu"


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (None, None),
        ("none", ("none",)),
        ("CUDA0, CUDA1,CUDA0", ("CUDA0", "CUDA1")),
        (["CUDA0", "Vulkan0"], ("CUDA0", "Vulkan0")),
    ],
)
def test_names_are_given_in_a_text_or_a_list(given: str | list[str] | None, names: tuple[str, ...] | None) -> None:
    assert device_names(given) == names


@pytest.mark.parametrize("given", ["", " ", "CPU,,CPU", [], [1], ["CPU", ""]])
def test_what_names_nothing_is_refused(given: str | list[str]) -> None:
    with pytest.raises(ConfigError, match="devices must be names"):
        device_names(given)


def test_the_processor_alone_is_an_empty_list(library: Library) -> None:
    null = library.ffi.NULL
    assert device_array(library, None) == null
    for names in (["none"], ["CPU"], ["cpu"]):
        chosen = device_array(library, names)
        assert chosen != null
        assert [*chosen] == [null]


@pytest.mark.parametrize("names", [["CUDA9"], ["CPU", "CUDA9"], ["CPU", "none"]])
def test_a_wrong_name_is_answered_with_those_there_are(library: Library, names: list[str]) -> None:
    with pytest.raises(
        ConfigError, match=re.escape(f"no device {names[-1]!r}; the library ({library.source}) knows CPU")
    ):
        device_array(library, names)


@pytest.mark.parametrize("given", ["none", "CPU"])
def test_a_model_on_the_processor_says_the_same(zoo: Zoo, given: str) -> None:
    texts = []
    for chosen in (None, given):
        with specframe.load(zoo("llama"), strategy="none", devices=chosen, n_ctx=256, threads=1) as llm:
            texts.append(llm.generate("abc", max_tokens=12, temperature=0).text)
    assert texts[0] == texts[1]


def test_a_model_that_is_refused_for_its_device_leaves_nothing_open(zoo: Zoo) -> None:
    with pytest.raises(ConfigError, match="no device 'CUDA9'"):
        specframe.load(zoo("llama"), devices="CUDA9")
    with specframe.load(zoo("llama"), n_ctx=256) as llm:
        assert llm.generate("abc", max_tokens=2).completion_tokens == 2


def test_a_draft_file_follows_the_target_unless_told_otherwise(zoo: Zoo) -> None:
    wanted = {None: ("CPU",), "none": ("none",)}
    for given, found in wanted.items():
        with Model(zoo("qwen35"), devices="CPU") as model, LlamaTarget(model, n_ctx=256, n_threads=1) as target:
            draft = target.services.open_model(zoo("mtp-qwen35"), load_mtp=True, devices=given)
            assert draft.devices == found
            draft.close()


@pytest.mark.parametrize(
    ("target", "draft", "cls"),
    [
        ("qwen35", "mtp-qwen35", Mtp),
        ("llama", "eagle3", Eagle3),
        ("llama", "draft-simple", DraftModel),
        ("llama", "dflash", Dflash),
    ],
)
def test_a_draft_file_has_devices_of_its_own(zoo: Zoo, target: str, draft: str, cls: type[BatchStrategy]) -> None:
    with engine(zoo(target), zoo(draft)) as (running, _):
        plain = running.submit(request(b"abcabc", n=20)).result()
        chosen = spec(zoo(draft), cls, devices="none")
        drafted = running.submit(request(b"abcabc", chosen, n=20)).result()
        assert drafted.tokens == plain.tokens
        assert drafted.stats.accepted > 0
        assert strategy_of(running, chosen)._model.devices == ("none",)
        with pytest.raises(ConfigError, match="no device 'CUDA9'"):
            running.submit(request(b"abc", spec(zoo(draft), cls, devices="CUDA9")))


@pytest.mark.parametrize("option", [{"devices": "none"}, {"n_gpu_layers": 0}])
def test_heads_in_the_targets_file_stay_where_it_is(zoo: Zoo, option: dict[str, Any]) -> None:
    with (
        engine(zoo("qwen35-mtp")) as (running, _),
        pytest.raises(ConfigError, match=f"option '{next(iter(option))}' .* is for a draft file"),
    ):
        running.submit(request(b"abc", spec(**option)))
