"""What loading refuses before it reads a model, and what importing the package does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import specframe
from specframe.core.errors import ConfigError
from specframe.llm.loading import context_length

# -- loading -----------------------------------------------------------------------------------------------------------


def test_context_lengths(caplog: pytest.LogCaptureFixture) -> None:
    assert context_length(None, 2048) == 2048
    assert context_length(None, 32768) == 4096
    assert context_length(None, 0) == 4096
    assert context_length(100, 2048) == 100
    assert not caplog.records
    assert context_length(4096, 2048) == 2048
    assert "more than the 2048 tokens" in caplog.text
    for value in (0, "x", 1.5, True):
        with pytest.raises(ConfigError, match=f"n_ctx must be a whole number .* not {value!r}"):
            context_length(value, 2048)  # type: ignore[arg-type]


def test_load_checks_before_it_opens(tmp_path: Path, zoo: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError):
        specframe.load(tmp_path / "missing.gguf")
    model = zoo("llama")
    for missing in (str(tmp_path / "missing"), "", "zoo:missing"):
        with pytest.raises(ConfigError, match=f"the draft: there is no .*'{missing}'"):
            specframe.load(model, draft=missing)
    with pytest.raises(ConfigError, match=r"^the draft: 7 is neither a file nor a model"):
        specframe.load(model, draft=7)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"the draft: .* is a directory"):
        specframe.load(model, draft=tmp_path)
    with pytest.raises(ConfigError, match="observers must be a sequence, not 3"):
        specframe.load(model, observers=3)  # type: ignore[arg-type]
    draft = tmp_path / "d.gguf"
    draft.write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match="does not use a draft file"):
        specframe.load(model, strategy="ngram-k", draft=draft)
    with pytest.raises(ConfigError, match="ngram-k"):
        specframe.load(model, strategy="ngramk")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_batch", None),
        ("n_ubatch", 0),
        ("parallel", 0),
        ("parallel", 257),
        ("parallel", True),
        ("threads", 513),
        ("threads_batch", 0),
        ("offload_kqv", 1),
        ("ctx_checkpoints", -1),
        ("checkpoint_interval", 0),
        ("checkpoint_mib", -1),
        ("checkpoint_mib", 1.5),
        ("flash_attn", 1),
        ("checkpoint_on_device", "yes"),
        ("numerics", "best"),
    ],
)
def test_load_names_its_argument_before_it_looks_for_the_model(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be .* not {value!r}"):
        specframe.load(tmp_path / "missing.gguf", **{name: value})


def test_load_wants_a_token_of_a_batch_for_each_request(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"n_batch \(2\) must be at least parallel \(3\)"):
        specframe.load(tmp_path / "missing.gguf", n_batch=2, parallel=3)


# -- the package -------------------------------------------------------------------------------------------------------


def test_every_public_name_exists() -> None:
    for name in specframe.__all__:
        assert getattr(specframe, name) is not None
    assert set(specframe.__all__) <= set(dir(specframe))
    with pytest.raises(AttributeError):
        specframe.nothing  # noqa: B018 -- an attribute
