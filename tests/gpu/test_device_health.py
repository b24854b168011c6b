"""What follows from readings, events and losses: the state of a device, and whether it takes new work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from actorgrid.actors.gpu.device import Device
from actorgrid.actors.gpu.device_health import (
    CLEAN_SAMPLES,
    INCIDENTS_MAX,
    STORM_CLEAN_SAMPLES,
    STORM_PER_SAMPLE,
    DeviceHealth,
    HealthState,
    HostDeviceHealth,
)
from actorgrid.actors.gpu.probe_report import DeviceEvent
from actorgrid.actors.gpu.readings import Readings

WELL = Readings(512, 10.0, 40.0, 100.0, ecc_corrected=0, ecc_uncorrected=0, links_down=0, row_remap_pending=False)


def gpu(uuid: str) -> Device:
    return Device(uuid, 0, "nvidia", "H100", 80_000, "probed")


@pytest.fixture
def health() -> HostDeviceHealth:
    made = HostDeviceHealth()
    made.listed([gpu("a"), gpu("b")], {})
    made.read({"a": WELL, "b": WELL}, 1.0)
    return made


def state(health: HostDeviceHealth, uuid: str = "a") -> str:
    return health.of(uuid).state.value


def xid(code: int, uuid: str = "a") -> list[DeviceEvent]:
    return [DeviceEvent(uuid, "xid", code)]


def test_a_device_nobody_spoke_of_is_unknown_and_takes_nothing() -> None:
    assert HostDeviceHealth().of("a").state is HealthState.UNKNOWN
    assert not HostDeviceHealth().of("a").takes_work


def test_a_well_device_is_ok(health: HostDeviceHealth) -> None:
    assert health.of("a") == DeviceHealth()
    assert health.unfit() == {}
    assert not health.incidents


@pytest.mark.parametrize(
    ("code", "becomes", "takes_work"),
    [
        (13, "ok", True),
        (43, "ok", True),
        (63, "degraded", True),
        (74, "degraded", True),
        (94, "degraded", True),
        (4242, "degraded", True),
        (48, "failed", False),
        (64, "failed", False),
        (95, "failed", False),
        (119, "failed", False),
        (79, "lost", False),
    ],
)
def test_what_an_xid_means(health: HostDeviceHealth, code: int, becomes: str, takes_work: bool) -> None:
    told = health.happened(xid(code), 2.0)
    assert state(health) == becomes
    assert health.of("a").takes_work is takes_work
    assert state(health, "b") == "ok"
    assert f"XID {code}" in told[0].text


def test_what_a_program_did_is_told_and_is_not_the_devices_fault(health: HostDeviceHealth) -> None:
    (told,) = health.happened(xid(31), 2.0)
    assert (told.kind, state(health)) == ("xid", "ok")


def test_a_failure_stands_until_the_driver_is_loaded_anew(health: HostDeviceHealth) -> None:
    health.happened(xid(95), 2.0)
    for second in range(100):
        health.read({"a": WELL}, 3.0 + second)
    assert state(health) == "failed"
    health.listed([gpu("a"), gpu("b")], {}, fresh=True)
    health.read({"a": WELL}, 200.0)
    assert state(health) == "ok"


def test_what_passes_is_over_after_clean_samples(health: HostDeviceHealth) -> None:
    health.happened(xid(94), 2.0)
    for _ in range(CLEAN_SAMPLES - 1):
        health.read({"a": WELL}, 3.0)
        assert state(health) == "degraded"
    (told,) = health.read({"a": WELL}, 4.0)
    assert (state(health), told.text) == ("ok", "it is well again")


def test_a_device_off_the_bus_is_lost_until_it_answers(health: HostDeviceHealth) -> None:
    health.happened(xid(79), 2.0)
    gone = Readings.none("GPU is lost", error="GPU is lost")
    for _ in range(10):
        health.read({"a": gone}, 3.0)
        assert state(health) == "lost"
    for _ in range(CLEAN_SAMPLES):
        health.read({"a": WELL}, 4.0)
    assert state(health) == "ok"


def test_a_storm_of_corrected_errors_degrades_and_is_over_when_it_is(health: HostDeviceHealth) -> None:
    storm = replace(WELL, ecc_corrected=STORM_PER_SAMPLE)
    health.read({"a": storm}, 2.0)
    assert state(health) == "degraded"
    for _ in range(STORM_CLEAN_SAMPLES - 1):
        health.read({"a": storm}, 3.0)
    assert state(health) == "degraded"
    health.read({"a": storm}, 4.0)
    assert state(health) == "ok"


def test_a_few_corrected_errors_are_what_ecc_is_for(health: HostDeviceHealth) -> None:
    health.read({"a": replace(WELL, ecc_corrected=STORM_PER_SAMPLE - 1)}, 2.0)
    assert state(health) == "ok"


def test_an_uncorrected_error_fails_a_device_until_it_is_counted_anew(health: HostDeviceHealth) -> None:
    health.read({"a": replace(WELL, ecc_uncorrected=1)}, 2.0)
    assert state(health) == "failed"
    health.read({"a": replace(WELL, ecc_uncorrected=1)}, 3.0)
    assert state(health) == "failed"
    health.read({"a": WELL}, 4.0)
    assert state(health) == "ok"


def test_uncorrected_errors_of_before_we_looked_only_degrade() -> None:
    health = HostDeviceHealth()
    health.listed([gpu("a")], {})
    health.read({"a": replace(WELL, ecc_uncorrected=3)}, 1.0)
    assert state(health) == "degraded"


def test_counters_that_go_backwards_are_no_errors(health: HostDeviceHealth) -> None:
    health.read({"a": replace(WELL, ecc_corrected=10**9)}, 2.0)
    health.listed([gpu("a"), gpu("b")], {})
    for _ in range(STORM_CLEAN_SAMPLES):
        assert health.read({"a": WELL}, 3.0) == [] or state(health) == "ok"
    assert state(health) == "ok"


@pytest.mark.parametrize(
    ("said", "becomes"),
    [
        ({"row_remap_pending": True}, "degraded"),
        ({"row_remap_failed": True}, "failed"),
        ({"links_down": 2}, "degraded"),
        ({"error": "GPU requires restart"}, "failed"),
        ({"unknown": "nobody can say"}, "unknown"),
    ],
)
def test_what_readings_mean(health: HostDeviceHealth, said: dict[str, object], becomes: str) -> None:
    health.read({"a": replace(WELL, **said)}, 2.0)  # type: ignore[arg-type]
    assert state(health) == becomes
    health.read({"a": WELL}, 3.0)
    assert state(health) == "ok"


def test_readings_that_are_missing_are_no_trouble(health: HostDeviceHealth) -> None:
    health.read({"a": Readings.none("Not Supported")}, 2.0)
    assert state(health) == "ok"


def test_devices_nobody_can_be_asked_about_are_unknown_and_not_free(health: HostDeviceHealth) -> None:
    health.unheard(["a"], "the probe hangs", 2.0)
    assert health.unfit() == {"a": "the probe hangs"}
    health.listed([gpu("a"), gpu("b")], {})
    assert state(health) == "unknown", "a new child lists it, and has not read it yet"
    health.read({"a": WELL}, 3.0)
    assert state(health) == "ok"


def test_who_is_known_to_be_worse_does_not_become_unknown(health: HostDeviceHealth) -> None:
    health.happened(xid(95), 2.0)
    health.unheard(["a"], "the probe hangs", 3.0)
    assert state(health) == "failed"


def test_an_event_of_a_whole_device_is_of_all_its_parts() -> None:
    health = HostDeviceHealth()
    health.listed([gpu("part-1"), gpu("part-2"), gpu("b")], {"part-1": "whole", "part-2": "whole"})
    health.happened([DeviceEvent("whole", "xid", 48)], 2.0)
    assert [state(health, uuid) for uuid in ("part-1", "part-2", "b")] == ["failed", "failed", "ok"]


def test_events_of_devices_that_are_not_there_are_passed_over(health: HostDeviceHealth) -> None:
    assert health.happened([DeviceEvent("c", "xid", 79), DeviceEvent("", "lost"), DeviceEvent("a", "other")], 2.0) == []


def test_a_reset_ends_by_itself(health: HostDeviceHealth) -> None:
    health.happened([DeviceEvent("a", "reset", text="wedged")], 2.0)
    assert state(health) == "failed"
    assert "wedged" in health.of("a").reason
    for _ in range(CLEAN_SAMPLES):
        health.read({"a": WELL}, 3.0)
    assert state(health) == "ok"


def test_incidents_are_kept_with_their_times_and_bounded(health: HostDeviceHealth) -> None:
    for second in range(2 * INCIDENTS_MAX):
        health.happened(xid(31), float(second))
    assert len(health.incidents) == INCIDENTS_MAX
    assert health.incidents[-1].at == 2 * INCIDENTS_MAX - 1
