"""Which alerts fire, and who is told: on virtual time."""

from __future__ import annotations

import re
from typing import Any

import pytest

from actorgrid.actors.alerts.core import ALERTS_MAX, CLEAR_S, FIRING, RESOLVED, AlertBook, SilenceRecord
from actorgrid.actors.alerts.figures import KEPT_S, AlertFigures, DeviceFigure, HostFigure, Thresholds
from actorgrid.actors.alerts.rules import RULES, AlertRule

THRESHOLDS = Thresholds(0.05, 86_400.0, 1.0, 1_800.0)
REPEAT_S = 14_400.0


class Host:
    """One host's alerts; time goes on by ``look``."""

    def __init__(self, leads: bool = True) -> None:
        self.figures = AlertFigures(THRESHOLDS, leads)
        self.book = AlertBook("h1")
        self.now = 1_000_000.0

    def look(self, after_s: float = 0.0, **values: float) -> list[tuple[str, str]]:
        self.now += after_s
        self.figures.take(self.now, values)
        news = self.book.look(self.figures, self.now, REPEAT_S)
        return [(each.alert.rule.name.removeprefix("Actorgrid"), each.word) for each in news]


def silence(until: float, **more: Any) -> dict[str, SilenceRecord]:
    record: Any = {"silence_id": "s", "alert": "*", "host": "*", "subject": "*", "by": "", "reason": "", **more}
    return {"s": {"only_firing_since": 0.0, **record, "until": until}}


def test_an_alert_fires_after_its_time_is_told_once_and_is_resolved_after_a_while() -> None:
    host = Host()
    assert host.look(state_down=1.0) == []
    assert host.look(59, state_down=1.0) == []
    assert host.look(1, state_down=1.0) == [("StateDown", FIRING)]
    assert host.look(15, state_down=1.0) == []
    assert host.look(15, state_down=0.0) == []
    assert host.look(CLEAR_S, state_down=0.0) == [("StateDown", RESOLVED)]
    assert [alert.rule.name for alert in host.book.resolved] == ["ActorgridStateDown"] and not host.book.alerts


def test_one_that_flickers_is_told_of_once_and_one_that_was_short_never() -> None:
    host = Host()
    host.look(state_down=1.0)
    assert host.look(30, state_down=0.0) == [] and not host.book.alerts
    host.look(state_down=1.0)
    assert host.look(60, state_down=1.0) == [("StateDown", FIRING)]
    for _ in range(20):
        assert host.look(CLEAR_S / 2, state_down=0.0) == []
        assert host.look(CLEAR_S / 4, state_down=1.0) == []


def test_what_still_fires_is_told_again_after_a_time() -> None:
    host = Host()
    host.look(gpus_heat_emergencies=1.0)
    assert host.look(REPEAT_S - 1, gpus_heat_emergencies=1.0) == []
    assert host.look(1, gpus_heat_emergencies=1.0) == [("GpuEmergency", FIRING)]


def test_what_is_silenced_fires_and_nobody_is_told_until_the_silence_ends() -> None:
    host = Host()
    host.book.silences = silence(host.now + 100, alert="ActorgridGpu*", host="h?")
    assert host.look(gpus_heat_emergencies=2.0) == []
    (alert,) = host.book.alerts.values()
    assert alert.state == FIRING and host.book.silence_of(alert, host.now) is not None
    assert host.look(100, gpus_heat_emergencies=2.0) == [("GpuEmergency", FIRING)]
    host.book.silences = silence(host.now + 1e6, host="other")
    assert host.book.silence_of(alert, host.now) is None
    assert host.book.said(alert) == "2 GPUs of h1 are about to switch themselves off"


def test_what_was_silenced_all_the_time_is_not_told_as_resolved() -> None:
    host = Host()
    host.book.silences = silence(host.now + 1e6)
    host.look(gpus_heat_emergencies=1.0)
    host.look(10)
    assert host.look(CLEAR_S) == []


def test_what_was_acknowledged_is_told_when_it_fires_anew() -> None:
    host = Host()
    assert host.look(gpus_heat_emergencies=1.0) == [("GpuEmergency", FIRING)]
    host.book.silences = silence(host.now + 1e6, only_firing_since=host.now)
    assert host.look(REPEAT_S, gpus_heat_emergencies=1.0) == []
    host.look(1)
    assert host.look(CLEAR_S) == [("GpuEmergency", RESOLVED)]
    assert host.look(1, gpus_heat_emergencies=1.0) == [("GpuEmergency", FIRING)]


def test_after_a_restart_nothing_is_told_twice_and_what_is_over_is_resolved() -> None:
    host = Host()
    host.look(gpus_heat_emergencies=1.0)
    again = Host()
    again.now = host.now
    again.book.load([*host.book.kept(), {"rule": "Gone", "subject": "", "firing_since": 1.0, "told_at": 1.0}])
    assert again.look(15, gpus_heat_emergencies=1.0) == []
    again.look(15)
    assert again.look(CLEAR_S) == [("GpuEmergency", RESOLVED)]


def test_a_clock_that_is_set_back_keeps_no_alert_from_firing_ending_or_being_told_again() -> None:
    host = Host()
    host.look(state_down=1.0)
    host.now -= 500_000.0
    assert host.look(state_down=1.0) == []
    assert host.look(60, state_down=1.0) == [("StateDown", FIRING)]
    host.now -= 100_000.0
    assert host.look(state_down=1.0) == []
    assert host.look(REPEAT_S, state_down=1.0) == [("StateDown", FIRING)]
    host.look()
    host.now -= 100_000.0
    assert host.look() == []
    assert host.look(CLEAR_S) == [("StateDown", RESOLVED)]


def test_each_device_and_each_host_is_an_alert_of_its_own() -> None:
    host = Host()
    host.figures.devices = (DeviceFigure("0 (a)", "failed", True), DeviceFigure("1 (b)", "lost", True))
    host.figures.hosts = (HostFigure("h2", "away"), HostFigure("h3", "lost"), HostFigure("h1", "present"))
    host.look()
    host.look(120)
    found = {(alert.rule.name.removeprefix("Actorgrid"), alert.subject) for alert in host.book.alerts.values()}
    assert {("GpuUnhealthy", "0 (a)"), ("GpuUnhealthy", "1 (b)"), ("HostDown", "h2"), ("HostDown", "h3")} <= found
    assert ("HostDown", "h1") not in found


def test_the_clusters_alerts_are_those_of_whoever_leads() -> None:
    host = Host(leads=False)
    host.figures.hosts = (HostFigure("h2", "away"),)
    host.look(notices_failed=1.0)
    assert host.look(60) == [] and not host.book.alerts
    host.figures.leads = True
    assert ("NotificationsFail", FIRING) in host.look(notices_failed=1.0)
    host.figures.leads = False
    assert host.look(notices_failed=1.0) == [] and not host.book.alerts, "its successor tells of it"


def test_alerts_are_bounded() -> None:
    host = Host()
    host.figures.hosts = tuple(HostFigure(f"h{number}", "lost") for number in range(ALERTS_MAX + 50))
    host.look()
    assert len(host.book.alerts) == ALERTS_MAX


def test_increases_are_looked_at_over_their_time_and_survive_a_server_that_begins_anew() -> None:
    figures = AlertFigures(THRESHOLDS)
    for at, value in enumerate((0.0, 2.0, 5.0, 1.0, 3.0)):
        figures.take(60.0 * at, {"server_restarts_total": value, "other": 1.0})
    assert figures.increase("server_restarts_total", 600) == 2 + 3 + 1 + 2
    assert figures.increase("server_restarts_total", 60) == 2
    assert figures.increase("missing_total", 600) is None
    for number in range(1_000):
        figures.take(300.0 + number * 60, {})
    assert figures.known_for_s("server_restarts_total") == 0.0 and len(figures._past) <= KEPT_S / 60 + 1


HEALTHY = {
    "cluster_no_quorum": 0.0,
    "cluster_can_commit": 1.0,
    "cluster_stalled": 0.0,
    "cluster_degraded": 0.0,
    "ledger_commit_seconds_p99": 0.01,
    "state_down": 0.0,
    "gpus_heat_drained": 0.0,
    "gpus_heat_emergencies": 0.0,
    "gpu_processes_ungranted": 0.0,
    "queue_length": 5.0,
    "disk_free_ratio": 0.5,
    "certificate_left_seconds": 1e7,
    "clock_offset_seconds": -0.2,
    "notices_failed": 0.0,
}
TROUBLE = {
    "NoQuorum": {"cluster_no_quorum": 1.0, "cluster_can_commit": 0.0},
    "Stalled": {"cluster_stalled": 1.0},
    "Degraded": {"cluster_degraded": 1.0},
    "LedgerSlow": {"ledger_commit_seconds_p99": 0.6},
    "StateDown": {"state_down": 1.0},
    "GpuHot": {"gpus_heat_drained": 1.0},
    "GpuEmergency": {"gpus_heat_emergencies": 1.0},
    "GpuForeignProcesses": {"gpu_processes_ungranted": 1.0},
    "DiskNearlyFull": {"disk_free_ratio": 0.04},
    "CertificateExpires": {"certificate_left_seconds": 3_600.0},
    "ClockOff": {"clock_offset_seconds": -1.5},
    "NotificationsFail": {"notices_failed": 1.0},
}
COUNTS = {
    "ServersRestart": {"server_restarts_total": 4.0},
    "JobsFail": {"jobs_failed_total": 11.0, "jobs_succeeded_total": 3.0},
    "LeasesLapse": {"lease_lapses_total": 1.0},
}


@pytest.mark.parametrize("name", TROUBLE)
def test_each_trouble_is_its_alert_and_no_other(name: str) -> None:
    host = Host()
    host.look(**HEALTHY)
    assert not host.book.alerts
    host.look(15, **{**HEALTHY, **TROUBLE[name]})
    assert [alert.rule.name for alert in host.book.alerts.values()] == [f"Actorgrid{name}"]


@pytest.mark.parametrize("name", COUNTS)
def test_each_count_that_grows_too_fast_is_its_alert(name: str) -> None:
    host = Host()
    host.look(**HEALTHY, **dict.fromkeys(COUNTS[name], 0.0))
    host.look(15, **HEALTHY, **COUNTS[name])
    assert [alert.rule.name for alert in host.book.alerts.values()] == [f"Actorgrid{name}"]


def test_a_queue_stands_when_nothing_of_it_was_placed_for_half_an_hour() -> None:
    host = Host()
    for _ in range(121):
        host.look(15, **HEALTHY, grants_total=7.0)
    assert [alert.rule.name for alert in host.book.alerts.values()] == ["ActorgridQueueStands"]
    host.look(15, **HEALTHY, grants_total=8.0)
    assert not host.book.alerts, "it did not fire yet"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_prometheus_is_told_of_the_same_figures(rule: AlertRule) -> None:
    """What decides here by a figure stands in the expression, with the prefix that /metrics gives it."""
    name = rule.name.removeprefix("Actorgrid")
    for figure in (*TROUBLE.get(name, ()), *COUNTS.get(name, ())):
        assert f"actorgrid_{figure}" in rule.expression
    assert rule.said.format(host="h1", subject="0", value=1.0)
    assert not re.search(r"[{}]", rule.said.format(host="h1", subject="0", value=1.0))
    assert rule.action and rule.wait_s >= 0
