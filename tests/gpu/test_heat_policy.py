"""What a device's heat asks for, on a clock moved by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.gpu.heat_policy import CALM_S, STEP_S, DeviceHeat, HeatStage, HeatThresholds, PowerRange

H100 = HeatThresholds.of("nvidia", 87.0, 92.0)
RANGE = PowerRange(200.0, 700.0)


def test_thresholds_lie_around_the_drivers_own() -> None:
    assert HeatThresholds(cap=80.0, drain=85.0, stop=91.0) == H100
    assert HeatThresholds.of("nvidia", 87.0, None).stop == 91.0
    assert HeatThresholds.of("amd", None, None) == HeatThresholds(93.0, 98.0, 104.0)


@pytest.mark.parametrize("nonsense", [0.0, -1.0, 4294967295.0])
def test_what_cannot_be_a_threshold_is_taken_for_unknown(nonsense: float) -> None:
    assert HeatThresholds.of("intel", nonsense, nonsense) == HeatThresholds.of("intel", None, None)


def test_an_owner_may_want_them_cooler_and_not_hotter() -> None:
    assert HeatThresholds.of("nvidia", 87.0, 92.0, limit=70.0) == HeatThresholds(63.0, 68.0, 74.0)
    assert HeatThresholds.of("nvidia", 87.0, 92.0, limit=120.0) == H100


@given(st.floats(50, 150), st.floats(50, 150), st.floats(0, 150))
def test_stages_are_always_in_their_order(slowdown: float, shutdown: float, limit: float) -> None:
    found = HeatThresholds.of("nvidia", slowdown, shutdown, limit)
    assert found.cap < found.drain < found.stop <= shutdown - 1.0 + 1e-9


def heat(*samples: tuple[float, float | None], power: PowerRange | None = RANGE) -> DeviceHeat:
    """A device after samples of (seconds, °C)."""
    device = DeviceHeat(H100)
    for now_s, celsius in samples:
        device.take(celsius, power, now_s)
    return device


def test_a_stage_begins_with_the_first_sample_at_its_threshold() -> None:
    assert heat((0, 79.9)).stage is HeatStage.NORMAL
    assert heat((0, 80.0)).stage is HeatStage.CAPPED
    assert heat((0, 85.0)).stage is HeatStage.DRAINED
    assert heat((0, 91.0)).stage is HeatStage.EMERGENCY


def test_a_stage_ends_after_half_a_minute_well_below_it_and_not_before() -> None:
    hot = heat((0, 85.0), power=None)
    for now_s in range(1, 60):
        hot.take(81.0, None, float(now_s))
    assert hot.stage is HeatStage.DRAINED, "not 5 degrees below"
    hot.take(79.0, None, 60.0)
    hot.take(79.0, None, 60.0 + CALM_S - 1)
    assert hot.stage is HeatStage.DRAINED
    hot.take(82.0, None, 60.0 + CALM_S - 0.5)  # once warm again: the half minute begins anew
    hot.take(79.0, None, 60.0 + CALM_S)
    hot.take(79.0, None, 60.0 + 2 * CALM_S - 1)
    assert hot.stage is HeatStage.DRAINED
    hot.take(79.0, None, 60.0 + 2 * CALM_S)
    assert hot.stage is HeatStage.CAPPED, "one stage at a time"


def test_a_sample_without_a_temperature_neither_cools_nor_heats() -> None:
    hot = heat((0, 85.0), (1, None), (100, None), (200, None))
    assert hot.stage is HeatStage.DRAINED
    assert hot.celsius == 85.0


def test_power_goes_down_in_steps_and_back_to_what_it_was() -> None:
    device = heat((0, 82.0))
    assert device.limit_watts == pytest.approx(630.0)
    device.take(82.0, RANGE, STEP_S / 2)
    assert device.limit_watts == pytest.approx(630.0), "heat follows power only after a while"
    device.take(82.0, RANGE, STEP_S)
    assert device.limit_watts == pytest.approx(567.0)
    now_s, seen = STEP_S, [device.limit_watts]
    while device.stage is not HeatStage.NORMAL:
        now_s += STEP_S
        assert now_s < 1000, "it never came back"
        device.take(60.0, RANGE, now_s)
        seen.append(device.limit_watts)
    assert device.limit_watts is None
    given_back = [watts for watts in seen if watts is not None]
    assert given_back == sorted(given_back)
    assert len(set(given_back)) > 3, "in steps, not at once"


def test_in_an_emergency_it_gets_the_least_at_once() -> None:
    assert heat((0, 91.0)).limit_watts == 200.0


def test_where_power_cannot_be_set_no_limit_is_asked_for() -> None:
    assert heat((0, 95.0), power=None).limit_watts is None
    assert heat((0, 95.0), power=PowerRange(700.0, 700.0)).limit_watts is None


@given(st.lists(st.tuples(st.floats(0, 30), st.none() | st.floats(20, 110)), max_size=60))
def test_whatever_it_reads_a_limit_is_within_its_range_and_a_stage_is_what_its_heat_says_at_least(
    steps: list[tuple[float, float | None]],
) -> None:
    device, now_s = DeviceHeat(H100), 0.0
    for passed_s, celsius in steps:
        now_s += passed_s
        device.take(celsius, RANGE, now_s)
        assert device.limit_watts is None or RANGE.least <= device.limit_watts < RANGE.most
        if celsius is not None:
            assert device.stage >= H100.stage(celsius)
        if device.stage is HeatStage.EMERGENCY:
            assert device.limit_watts == RANGE.least
