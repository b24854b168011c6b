"""How readings of a host are judged: what is slow is told, what failed counts, and what is coming is predicted."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.cluster.core import Vitals
from actorgrid.actors.cluster.faults import disk_probe
from actorgrid.actors.cluster.faults.check_results import CheckResult, CheckStatus
from actorgrid.actors.cluster.faults.checks import (
    DiskReading,
    GpuReading,
    PressureReading,
    check_clock,
    check_disk,
    check_disk_trends,
    check_gpus,
    check_memory,
    check_network,
    check_processor,
    check_servers,
    patience_factor,
)
from actorgrid.actors.cluster.faults.disk_probe import DiskProbe
from actorgrid.actors.cluster.faults.host_readings import ClockWatch, read_pressure
from actorgrid.actors.cluster.faults.pairs import PEERS_MAX, Pairs
from actorgrid.actors.cluster.faults.prediction import CountRate, TrendWindow
from tests.processes import until

GIB = 2**30
OK, DEGRADED, FAILED = CheckStatus.OK, CheckStatus.DEGRADED, CheckStatus.FAILED


@pytest.mark.parametrize(
    ("reading", "status", "word"),
    [
        (DiskReading(GIB, 2**26, (0.001,) * 5), OK, ""),
        (DiskReading(GIB, 2**26, (0.001, 0.7, 0.001)), OK, ""),
        (DiskReading(GIB, 2**26, (0.6, 0.7, 0.001)), DEGRADED, "takes 600 ms"),
        (DiskReading(GIB, 2**26, (0.001,), 0.8), DEGRADED, "takes 800 ms"),
        (DiskReading(GIB, 2**26, (0.001,), 12.0), FAILED, "not come back for 12 s"),
        (DiskReading(GIB, 2**26, (), 0.0, "EROFS: Read-only file system"), FAILED, "EROFS"),
        (DiskReading(2**20, 2**26), DEGRADED, "1 MiB free"),
    ],
)
def test_a_disk_is_judged_by_its_median_its_errors_and_what_is_left(
    reading: DiskReading, status: CheckStatus, word: str
) -> None:
    result = check_disk(reading)
    assert result.status is status and word in result.reason


def window(values: list[float], apart_s: float = 10.0) -> TrendWindow:
    found = TrendWindow()
    for number, value in enumerate(values):
        found.add(number * apart_s, value)
    return found


def test_a_disk_that_gets_slower_is_told_before_it_is_slow() -> None:
    dice = random.Random(5)
    slower = window([0.002 + 0.002 * number + dice.uniform(-0.002, 0.002) for number in range(40)])
    reading = DiskReading(GIB, 2**26, (0.08,), latency_trend=slower.trend())
    (result,) = check_disk_trends(reading)
    assert result.status is DEGRADED and result.reason.startswith("predicted: its writes get slower")
    assert result.evidence["ms_per_minute"] == pytest.approx(12.0, rel=0.1)
    assert result.evidence["in_s"] == pytest.approx((0.5 - 0.08) / 0.0002, rel=0.15)


def test_noise_and_a_few_wild_writes_are_no_trend() -> None:
    told = 0
    for seed in range(100):
        dice = random.Random(seed)
        values = [dice.uniform(0.001, 0.004) + (0.4 if dice.random() < 0.1 else 0.0) for _ in range(40)]
        (result,) = check_disk_trends(DiskReading(GIB, 2**26, (0.002,), latency_trend=window(values).trend()))
        told += result.status is not OK
    assert told <= 3, "of a hundred trendless disks"


def test_a_disk_that_fills_is_told_within_the_hour_before() -> None:
    filling = window([GIB - number * 2**20 * 20 for number in range(30)])
    results = check_disk_trends(DiskReading(GIB, 2**26, free_trend=filling.trend()))
    assert [result.reason.split(" in ")[0] for result in results] == ["predicted: the disk is full"]
    slowly = window([1000 * GIB - number * 2**10 for number in range(30)])
    assert [each.status for each in check_disk_trends(DiskReading(GIB, 2**26, free_trend=slowly.trend()))] == [OK]


@given(st.lists(st.floats(-1e6, 1e6), min_size=12, max_size=80), st.floats(-1e3, 1e3))
def test_a_line_is_found_whatever_is_added_to_all_of_it(values: list[float], slope: float) -> None:
    found = window(values).trend()
    assert found is not None
    moved = window([value + slope * 10.0 * number for number, value in enumerate(values)]).trend()
    assert moved is not None and moved.per_s == pytest.approx(found.per_s + slope, abs=1e-3, rel=1e-3)
    assert window([value + 5.0 for value in values]).trend() is not None
    assert window(values[:11]).trend() is None


def test_a_rate_is_of_the_last_hour_and_a_count_that_falls_begins_anew() -> None:
    rate = CountRate(3600.0)
    for minute in range(240):
        rate.add(60.0 * minute, 2.0 * minute)
    assert 110 <= rate.risen() <= 126
    rate.add(60.0 * 240, 3.0)
    assert rate.risen() == 0


def test_starved_hosts_are_degraded_and_their_servers_get_longer() -> None:
    assert check_processor(PressureReading(GIB, 95.0), 1.1).status is OK, "busy, and in time"
    slow = check_processor(PressureReading(GIB, 95.0), 3.0)
    assert slow.status is DEGRADED and "a second took 3.0 s" in slow.reason
    assert [patience_factor(lateness) for lateness in (0.5, 3.0, 100.0)] == [1.0, 3.0, 8.0]
    vitals = Vitals(("gateway",), 1.0, 0.0)
    vitals.beat("gateway", 1, 0, 0.0)
    assert vitals.silence(6.0, 1.0) == {"gateway": 6.0} and vitals.silence(6.0, 3.0) == {}


def test_a_server_that_was_never_heard_of_has_a_minute_to_start() -> None:
    vitals = Vitals(("gateway",), 1.0, 0.0)
    assert vitals.silence(30.0, 1.0) == {} and vitals.silence(61.0, 1.0) == {"gateway": 61.0}


def test_servers_are_failed_when_silent_and_degraded_when_restarted_often() -> None:
    restarted = {"links": [100.0, 200.0, 300.0], "gateway": [-1000.0, 100.0, 200.0]}
    found = {each.subject: each for each in check_servers({"a": 7.0}, restarted, ("a", "links", "gateway"), 350.0)}
    assert {name: each.status for name, each in found.items()} == {"a": FAILED, "links": DEGRADED, "gateway": OK}
    assert found["a"].reason == "a is silent for 7.0 s"


def test_memory_fails_only_when_none_is_left_and_all_wait_for_it() -> None:
    assert check_memory(PressureReading(GIB)).status is OK
    assert check_memory(PressureReading(2**27)).status is DEGRADED
    assert check_memory(PressureReading(2**25, memory_full_percent=5.0)).status is DEGRADED
    assert check_memory(PressureReading(2**25, memory_full_percent=80.0)).status is FAILED
    assert check_memory(PressureReading(GIB, memory_full_percent=80.0)).status is DEGRADED


def test_a_clock_is_judged_by_the_median_of_the_others() -> None:
    assert check_clock(0.0, None, []).status is OK
    assert check_clock(0.0, None, [0.01, 100.0, -0.02]).status is OK, "the one of the three is wrong"
    ahead = check_clock(0.0, None, [-3.0, -3.1, -2.9])
    assert ahead.status is DEGRADED and "3.0 s ahead" in ahead.reason
    assert "was set by +3600.0 s" in check_clock(3600.0, 30.0, []).reason
    assert check_clock(3600.0, 1000.0, []).status is OK


def test_paths_to_others_fail_this_host_only_when_most_do_not_answer() -> None:
    pairs = Pairs()
    for _ in range(4):
        pairs.lost("a", "refused")
        pairs.answered("b", 100.0, 100.5, 0.004)
        pairs.answered("c", 100.0, 100.5, 0.006)
    figures = pairs.figures()
    assert figures["a"].silent and figures["a"].why == "refused" and figures["b"].rtt_ms == pytest.approx(4.0)
    assert figures["b"].offset_s == pytest.approx(0.498)
    one = check_network(figures)
    assert one.status is DEGRADED and "a does not answer" in one.reason
    for _ in range(3):
        pairs.lost("b", "late")
    assert check_network(pairs.figures()).status is FAILED
    assert check_network({"a": figures["a"]}).status is DEGRADED, "of two hosts nobody knows whose fault it is"


def test_the_clock_sample_of_the_shortest_trip_counts_and_peers_are_bounded() -> None:
    pairs = Pairs()
    pairs.answered("a", 100.0, 102.0, 3.0)
    pairs.answered("a", 100.0, 100.011, 0.002)
    assert pairs.figures()["a"].offset_s == pytest.approx(0.01)
    for number in range(2 * PEERS_MAX):
        pairs.lost(f"p{number}", "")
    assert len(pairs.figures()) == PEERS_MAX
    pairs.keep(["p1023"])
    assert list(pairs.figures()) == ["p1023"]


def test_one_device_in_trouble_is_told_and_all_of_them_fail_the_host() -> None:
    fine, hot = GpuReading(0, "", 40.0, 0.0, 0), GpuReading(1, "GPU is lost")
    found = {each.name: each for each in check_gpus([fine, hot])}
    assert (found["gpu:0"].status, found["gpu:1"].status, found["gpus"].status) == (OK, DEGRADED, OK)
    assert {each.name: each.status for each in check_gpus([hot])}["gpus"] is FAILED
    worn = {each.name: each for each in check_gpus([GpuReading(0, "", 40.0, 150.0, 0)])}
    assert worn["gpu:0"].reason.startswith("predicted: 150 corrected memory errors an hour")
    assert "2 uncorrected" in next(iter(check_gpus([GpuReading(0, uncorrected_lately=2)]))).reason
    assert "heat" in next(iter(check_gpus([GpuReading(0, throttled="heat (hardware)")]))).reason
    assert list(check_gpus([])) == []


# -- readings of this machine


def test_a_disk_probe_measures_in_its_own_thread_and_writes_what_it_is_given(tmp_path: Path) -> None:
    probe = DiskProbe(tmp_path)
    assert probe.begin({tmp_path / "history": b"[]"})
    until(lambda: probe.reading()[3], "it is back")
    latencies, waits_s, error, probes = probe.reading()
    assert (len(latencies), waits_s, error, probes) == (1, 0.0, "", 1)
    assert (tmp_path / "history").read_bytes() == b"[]" and latencies[0] < 60


def test_a_disk_that_hangs_is_waited_for_by_nobody_and_told_by_how_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, go_on, real = [0.0], threading.Event(), os.fdatasync

    def hangs(descriptor: int) -> None:
        go_on.wait(60)
        real(descriptor)

    monkeypatch.setattr(disk_probe.os, "fdatasync", hangs)
    probe = DiskProbe(tmp_path, lambda: now[0])
    assert probe.begin()
    now[0] = 12.5
    assert probe.begin() is False, "one at a time"
    assert probe.reading()[1] == 12.5
    go_on.set()
    until(lambda: probe.reading()[3], "it is back")
    assert probe.reading()[1] == 0.0


def test_a_folder_that_cannot_be_written_is_an_error_and_a_full_disk_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = DiskProbe(tmp_path / "gone")
    gone.begin()
    until(lambda: gone.reading()[3], "it is back")
    assert gone.reading()[2].startswith("ENOENT")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    probe = DiskProbe(tmp_path)
    monkeypatch.setattr(disk_probe.os, "pwrite", full)
    probe.begin()
    until(lambda: probe.reading()[3], "it is back")
    assert probe.reading()[2] == ""


def test_pressure_is_read_where_the_kernel_has_it(tmp_path: Path) -> None:
    (tmp_path / "cpu").write_text("some avg10=12.50 avg60=1.00 avg300=0.10 total=5\nfull avg10=0.00 total=0\n")
    (tmp_path / "memory").write_text("nonsense")
    found = read_pressure(tmp_path)
    assert (found.cpu_some_percent, found.memory_full_percent, found.io_full_percent) == (12.5, None, None)
    assert found.available_bytes > 0
    assert isinstance(check_processor(read_pressure(), 1.0), CheckResult)


def test_a_clock_that_is_set_is_noticed_and_a_slow_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    boot, wall = [0.0], [1000.0]
    monkeypatch.setattr("actorgrid.actors.cluster.faults.host_readings.time", lambda: wall[0])
    watch = ClockWatch(lambda: boot[0])
    for _ in range(100):
        boot[0] += 5.0
        wall[0] += 5.0025
        watch.look()
    assert watch.stepped_ago_s is None
    wall[0] -= 3600.0
    watch.look()
    boot[0] += 7.0
    assert watch.stepped_s == pytest.approx(-3600.0, abs=0.01) and watch.stepped_ago_s == 7.0
