"""Costs are learnt from noisy timings, and kept for the next process."""

from __future__ import annotations

import itertools
import json
import logging
import random
from pathlib import Path
from typing import Any

import pytest

from specframe.core.costs import CostModel, Curve, Level
from specframe.core.errors import ConfigError
from specframe.llm.costs import KeptCosts

SCALE_TOO_LARGE = '{"scale": [1e9, 1], "slope": 0, "points": []}'
POINT_IS_NO_NUMBER = '{"scale": [0, 1], "slope": null, "points": [[2, NaN, 1]]}'
GOOD = '{"scale": [0, 1], "slope": null, "points": []}'
TRUE = {1: 6.2e-3, 2: 12.6e-3, 4: 16.6e-3, 8: 25e-3, 16: 45.4e-3}


def document(bucket: str, curve: str) -> str:
    batches = f'{{"{bucket}": {curve}}}'
    return f'{{"format": 1, "costs": {{"drafts": {{}}, "processing": {{}}, "batches": {batches}}}}}'


def learnt(*, noise: float = 0.05, outliers: float = 0.03, seed: int = 0) -> CostModel:
    dice = random.Random(seed)
    model = CostModel()
    for _ in range(40):
        for width, seconds in TRUE.items():
            late = 5 if dice.random() < outliers else 1
            model.batch(300).measure(width, seconds * dice.lognormvariate(0, noise) * late)
    return model


@pytest.mark.parametrize("seed", range(5))
def test_measured_widths_are_known_in_spite_of_noise_and_outliers(seed: int) -> None:
    curve = learnt(seed=seed).batch(300)
    for width, seconds in TRUE.items():
        assert curve.at(width) == pytest.approx(seconds, rel=0.15)
    assert 12.6e-3 * 0.9 < curve.at(3) < 16.6e-3 * 1.1
    rising = [curve.at(width) for width in range(1, 65)]
    assert all(a <= b for a, b in itertools.pairwise(rising))
    assert all(curve.least(width) <= seconds for width, seconds in enumerate(rising, 1))


def test_wide_batches_are_guessed_from_how_long_a_prompt_took() -> None:
    curve = Curve()
    curve.measure_prompt(200, 0.45)  # before any single row: kept until one is measured
    for _ in range(3):
        curve.measure(1, 6.2e-3)
    assert curve.at(8) == pytest.approx(25e-3, rel=0.2)


def test_slower_machine_is_followed_at_every_width() -> None:
    curve = learnt(outliers=0).batch(300)
    for _ in range(40):
        curve.measure(1, 2 * TRUE[1])
    assert curve.at(8) == pytest.approx(2 * TRUE[8], rel=0.15)


def test_disturbed_first_timing_is_forgotten_at_once() -> None:
    level = Level()
    for seconds in (0.05, 0.01, 0.01):
        level.measure(seconds)
    assert 0.009 < level.value < 0.02


def test_first_timing_is_forgotten_for_a_shorter_one() -> None:
    level = Level()
    for seconds in (0.012, 0.011, 0.01):
        level.measure(seconds)
    assert level.value == pytest.approx(0.01)


def test_width_that_was_measured_often_enough_holds_no_hope() -> None:
    curve = Curve()
    for _ in range(3):
        curve.measure(1, 0.01)
    expected = curve.at(8)
    assert curve.least(8) < 0.8 * expected
    for _ in range(5):
        curve.measure(8, expected)
    assert curve.least(8) == curve.at(8) == pytest.approx(expected)


def test_plain_steps_may_be_faster_than_an_earlier_process_found_until_one_is_measured() -> None:
    curve = CostModel.from_dict(learnt().to_dict()).batch(300)
    assert curve.least(1) < 0.8 * curve.at(1)
    curve.measure(1, TRUE[1])
    assert curve.least(1) == curve.at(1)


def test_slow_width_is_believed_when_it_is_slow_again() -> None:
    curve = Curve()
    for width in (1, 1, 1, 8, 8):
        curve.measure(width, 0.01)
    before = curve.at(10)
    curve.measure(10, 0.05)
    assert curve.at(10) < 1.2 * before
    for _ in range(3):
        curve.measure(10, 0.05)
    assert curve.at(10) > 0.035


def test_timing_of_a_coarse_clock_is_no_measurement() -> None:
    level, curve = Level(), Curve()
    level.measure(0.0)
    curve.measure(1, 0.0)
    assert (level.known, level.value, curve.known) == (False, 0.0, False)


def test_longer_context_starts_from_what_the_shorter_one_knows() -> None:
    model = learnt()
    assert model.batch(3000).at(8) == pytest.approx(model.batch(300).at(8), rel=1e-6)


def test_costs_survive_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path))
    kept = KeptCosts.of("key")
    for _ in range(3):
        for width, seconds in TRUE.items():
            kept.model.batch(300).measure(width, seconds)
    kept.model.draft("lookup").measure(4, 1e-5)
    kept.save()
    again = KeptCosts.of("key").model
    assert again.to_dict().keys() == kept.model.to_dict().keys()
    for width in TRUE:
        assert again.batch(300).at(width) == pytest.approx(kept.model.batch(300).at(width))
    assert again.draft("lookup").at(4) == pytest.approx(1e-5)
    assert [p.name for p in (tmp_path / "costs").iterdir()] == ["key.json"]


def test_nothing_measured_leaves_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path))
    KeptCosts.of("key").save()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        "null",
        '{"format": 1}',
        '{"format": 1, "costs": {"batches": {"0": {}}, "drafts": {}, "processing": {}}}',
        document("0", SCALE_TOO_LARGE),
        document("0", POINT_IS_NO_NUMBER),
        document("x", GOOD),
    ],
)
def test_damaged_file_is_a_warning_and_is_replaced(
    damage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path))
    file = tmp_path / "costs" / "key.json"
    file.parent.mkdir()
    file.write_text(damage, encoding="utf-8")
    caplog.set_level(logging.WARNING)
    kept = KeptCosts.of("key")
    assert "key.json" in caplog.text
    kept.model.batch(0).measure(1, 0.01)
    kept.save()
    assert json.loads(file.read_text(encoding="utf-8"))["format"] == 1


def test_place_that_cannot_be_written_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    monkeypatch.setenv("SPECFRAME_CACHE", str(blocked))
    kept = KeptCosts.of("key")
    kept.model.batch(0).measure(1, 0.01)
    kept.save()
    assert "cannot be kept" in caplog.text


@pytest.mark.parametrize("data", [{}, {"batches": 1}, {"batches": {}, "drafts": {}, "processing": {"a": {"scale": 1}}}])
def test_costs_that_are_none_are_refused(data: Any) -> None:
    with pytest.raises(ConfigError, match="not a cost"):
        CostModel.from_dict(data)
