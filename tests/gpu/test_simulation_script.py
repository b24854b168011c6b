"""What simulated devices read over time, by a script."""

from __future__ import annotations

import json

import pytest

from actorgrid.actors.gpu.readings import Readings
from actorgrid.actors.gpu.simulation_script import SimulationScript
from actorgrid.errors import InvalidSetting

MODELLED = Readings(utilization_percent=1.0, temperature_celsius=32.0, power_watts=70.0, memory_used_mib=5)


def script(*steps: dict[str, object], **more: object) -> SimulationScript:
    return SimulationScript(json.dumps({"steps": steps, **more}), 4)


def test_a_value_holds_until_a_later_step_says_another() -> None:
    played = script({"at_s": 10, "celsius": 60}, {"at_s": 20, "celsius": 90, "watts": 500, "memory_mib": 7})
    assert played.readings(0, 9.9, MODELLED) == MODELLED
    assert played.readings(0, 10, MODELLED).temperature_celsius == 60
    late = played.readings(3, 1000, MODELLED)
    assert (late.temperature_celsius, late.power_watts, late.memory_used_mib) == (90, 500, 7)
    assert late.utilization_percent == 1.0


def test_a_ramp_is_come_to_evenly() -> None:
    played = script({"at_s": 0, "celsius": 40}, {"at_s": 10, "celsius": 90, "ramp": True}, {"at_s": 20, "celsius": 30})
    assert [played.readings(0, at, MODELLED).temperature_celsius for at in (0, 5, 9, 10, 15, 20)] == [
        40, 65, 85, 90, 90, 30,
    ]  # fmt: skip


def test_steps_are_of_the_devices_that_they_name() -> None:
    played = script({"at_s": 0, "load_percent": 5}, {"at_s": 0, "gpus": [1], "load_percent": 80})
    assert [played.load_percent(index, 1) for index in (0, 1)] == [5, 80]


@pytest.mark.parametrize("fault", ["lost", "failed", "unknown"])
def test_a_fault_takes_all_readings_until_it_is_over(fault: str) -> None:
    played = script({"at_s": 5, "gpus": [2], "fault": fault}, {"at_s": 9, "gpus": [2], "fault": "none"})
    ill = played.readings(2, 6, MODELLED)
    assert (ill.temperature_celsius, bool(ill.error or ill.unknown)) == (None, True)
    assert fault == "unknown" or fault in ill.error
    assert played.readings(1, 6, MODELLED) == played.readings(2, 9, MODELLED) == MODELLED


def test_an_xid_is_told_once() -> None:
    played = script({"at_s": 5, "gpus": [2], "xid": 79})
    assert [list(played.xids(*span)) for span in ((0, 4), (4, 5), (5, 100))] == [[], [(2, 79)], []]


def test_a_script_that_repeats_begins_again() -> None:
    played = script({"at_s": 0, "celsius": 40}, {"at_s": 5, "celsius": 80, "xid": 31}, repeat_s=10)
    assert [played.readings(0, at, MODELLED).temperature_celsius for at in (4, 6, 14, 16)] == [40, 80, 40, 80]
    assert [len(list(played.xids(*span))) for span in ((-1, 4), (4, 6), (6, 14), (14, 16), (16, 500))] == [
        0, 4, 0, 4, 4,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("steps: [", "no YAML"),
        ("", "the whole"),
        ("steps: []", "steps"),
        ("steps: [{at_s: -1}]", "steps.0.at_s"),
        ("steps: [{at_s: 1, celcius: 90}]", "celcius"),
        ("steps: [{at_s: 1, fault: tired}]", "fault"),
        ("steps: [{at_s: 1, celsius: .nan}]", "celsius"),
        ("{repeat_s: 5, steps: [{at_s: 5, celsius: 9}]}", "never reached"),
    ],
)
def test_what_is_no_script_is_refused_with_the_place(text: str, word: str) -> None:
    with pytest.raises(InvalidSetting, match=word):
        SimulationScript(text, 1)
