"""The score of a device: 60 % free memory, 40 % idle compute, less for heat; what is not known is the middle."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.gpu.device_score import (
    COMPUTE_WEIGHT,
    HEAT_PENALTY_MAX,
    HOT_CELSIUS,
    MEMORY_WEIGHT,
    ONE,
    WARM_CELSIUS,
    HeatLimits,
    score_device,
)
from actorgrid.errors import BadRequest

GIB = 2**30
free_bytes = st.integers(0, 80 * GIB)
percents = st.floats(0, 100)
celsius = st.floats(-50, HOT_CELSIUS - 0.001)


def total(free: int | None = 0, used_percent: float | None = 0.0, temperature: float | None = 30.0) -> int:
    return score_device(free, 80 * GIB, used_percent, temperature).total


def test_a_free_idle_cool_device_scores_one() -> None:
    assert total(80 * GIB) == ONE == MEMORY_WEIGHT + COMPUTE_WEIGHT


def test_free_memory_weighs_six_tenths_and_idle_compute_four() -> None:
    assert total(80 * GIB, 100.0) == 600_000
    assert total(0, 0.0) == 400_000
    assert total(40 * GIB, 50.0) == 500_000


def test_a_device_with_a_third_of_its_memory_and_half_its_compute_in_use_scores_six_tenths() -> None:
    score = score_device(16_000_000_000, 24_000_000_000, 50.0, 65.0)
    assert (score.memory, score.compute, score.heat, score.total) == (400_000, 200_000, 0, 600_000)


def test_heat_counts_from_the_warm_threshold_in_a_straight_line() -> None:
    middle = (WARM_CELSIUS + HOT_CELSIUS) / 2
    assert total(80 * GIB, 0.0, WARM_CELSIUS) == ONE
    assert total(80 * GIB, 0.0, middle) == ONE - HEAT_PENALTY_MAX // 2
    assert total(80 * GIB, 0.0, math.nextafter(HOT_CELSIUS, 0)) == ONE - HEAT_PENALTY_MAX


def test_a_hot_device_is_excluded_and_says_how_hot_it_is() -> None:
    assert not score_device(80 * GIB, 80 * GIB, 0.0, math.nextafter(HOT_CELSIUS, 0)).excluded
    assert "90 °C" in score_device(80 * GIB, 80 * GIB, 0.0, HOT_CELSIUS).excluded


def test_other_limits_may_be_set_but_not_the_wrong_way_round() -> None:
    limits = HeatLimits(40.0, 50.0)
    assert score_device(80 * GIB, 80 * GIB, 0.0, 45.0, limits).heat == HEAT_PENALTY_MAX // 2
    for warm, hot in ((50.0, 50.0), (60.0, 50.0), (math.nan, 90.0), (75.0, math.inf)):
        with pytest.raises(BadRequest):
            HeatLimits(warm, hot)


def test_what_is_not_known_counts_as_the_middle_and_is_named() -> None:
    score = score_device(None, 80 * GIB, None, None)
    assert (score.memory, score.compute, score.heat) == (300_000, 200_000, 150_000)
    assert score.unknown == ("memory", "utilization", "temperature")
    assert not score.excluded
    assert score_device(0, 0, 0.0, 30.0).unknown == ("memory",)


@given(free_bytes, percents, celsius)
def test_an_unknown_reading_is_neither_better_than_the_best_nor_worse_than_the_worst(
    free: int, busy: float, temperature: float
) -> None:
    assert total(0, busy, temperature) <= total(None, busy, temperature) <= total(80 * GIB, busy, temperature)
    assert total(free, 100.0, temperature) <= total(free, None, temperature) <= total(free, 0.0, temperature)
    assert total(free, busy, HOT_CELSIUS) <= total(free, busy, None) <= total(free, busy, WARM_CELSIUS)


@given(free_bytes, free_bytes, percents, percents, celsius, celsius)
def test_more_free_memory_less_load_and_less_heat_never_lower_the_score(
    free: int, more_free: int, busy: float, idler: float, hot: float, cooler: float
) -> None:
    free, more_free = sorted((free, more_free))
    idler, busy = sorted((busy, idler))
    cooler, hot = sorted((hot, cooler))
    assert total(free, busy, hot) <= total(more_free, idler, cooler)


@given(free_bytes, percents, celsius)
def test_an_engine_gets_whole_thousandths_that_keep_the_order(free: int, busy: float, temperature: float) -> None:
    score = score_device(free, 80 * GIB, busy, temperature)
    assert 0 <= score.permille <= 1000
    assert score.permille == max(0, score.total // 1000)
