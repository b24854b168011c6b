"""Who is told of alerts: a real FaultDetector, and a real receiver."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from actorgrid.actors.alerts import kept_messages
from actorgrid.actors.alerts.core import FIRING, RESOLVED, Alert, AlertNews
from actorgrid.actors.alerts.messages import ListAlerts, ListTuning
from actorgrid.actors.alerts.rules import RULES
from actorgrid.actors.alerts.watch import AlertWatch
from actorgrid.actors.cluster.fault_detector import FaultDetector
from actorgrid.actors.notifications import sending
from tests.cluster.rig import Rig
from tests.notifications.test_sending import Receiver, serving


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    with serving(server):
        yield server


@pytest.fixture
def watch(rig: Rig) -> AlertWatch:
    rig.settings.alerts.targets = ["ops"]
    return rig.add(FaultDetector)._alerts  # type: ignore[attr-defined, no-any-return]


def name_target(rig: Rig, url: str) -> None:
    path = rig.host.paths.data_dir / "notifications.yaml"
    path.write_text(f"targets: {{ops: {{webhook: '{url}'}}}}")
    path.chmod(0o600)


def test_that_it_fires_does_not_arrive_after_that_it_is_over(
    rig: Rig, watch: AlertWatch, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of hosts with names that no header takes, and that differ in nothing else."""
    monkeypatch.setattr(sending, "time", lambda: 1e9 + rig.node.now_s)  # pauses go by with the node's clock
    alerts = [Alert(RULES[0], name, FIRING, 1.0, 1.0, 2.0) for name in ("\u65e5", "\u672c")]
    name_target(rig, f"{receiver.url}/503")
    for alert in alerts:
        watch._tell(AlertNews(alert, FIRING, 3.0))
    rig.node.settle()
    assert receiver.heard and watch.figures()["alert_messages_waiting"] == 2.0
    receiver.heard.clear()
    name_target(rig, f"{receiver.url}/204")
    for alert in alerts:
        watch._tell(AlertNews(alert, RESOLVED, 4.0))
    rig.node.run_until(lambda: not watch.figures()["alert_messages_waiting"], 600.0)
    told = [json.loads(body) for _, _, body in receiver.heard]
    assert [(each["type"], each["data"]["subject"]) for each in told] == [
        ("alert.resolved", "\u65e5"),
        ("alert.resolved", "\u672c"),
    ]
    assert len({headers["webhook-id"] for _, headers, _ in receiver.heard}) == 2


def test_where_nobody_looks_for_alerts_none_is_shown(rig: Rig, watch: AlertWatch) -> None:
    alert = Alert(RULES[0], "h2", FIRING, 1.0, 1.0, 2.0)
    watch._book.alerts[RULES[0].name, "h2"] = alert
    assert rig.node.request("fault_detector", ListAlerts())["alerts"]
    rig.settings.alerts.enabled = False
    rig.node.advance(rig.settings.alerts.interval_s + 1)
    assert rig.node.request("fault_detector", ListAlerts())["alerts"] == []
    assert json.loads(watch._file.read_bytes()) == []


def test_what_is_logged_and_shown_of_a_failure_has_no_secret_of_an_address(
    rig: Rig, watch: AlertWatch, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    rig.settings.alerts.targets = [f"webhook:{receiver.url}/410/secret"]
    watch._tell(AlertNews(Alert(RULES[0], "h2", FIRING, 1.0, 1.0, 2.0), FIRING, 3.0))
    rig.node.settle()
    shown = rig.node.request("fault_detector", ListAlerts())["problem"]
    assert "127.0.0.1" in shown and "secret" not in shown
    assert "was not told of alert.ActorgridHostDown" in caplog.text and "secret" not in caplog.text


def test_what_is_slow_is_told_from_the_figures_of_the_host(rig: Rig, watch: AlertWatch) -> None:
    assert rig.node.request("fault_detector", ListTuning())["problem"]  # nobody has looked yet
    watch._checks = lambda: {"check.network.lossy": 1.0, "check.network.peers": 2.0}
    rig.node.advance(rig.settings.alerts.interval_s + 1)
    told = rig.node.request("fault_detector", ListTuning())
    assert [each["name"] for each in told["findings"]] == ["network-loses"] and told["problem"] == ""
    rig.settings.alerts.enabled = False
    assert "alerts.enabled" in rig.node.request("fault_detector", ListTuning())["problem"]


def test_what_could_not_be_sent_is_sent_by_the_agent_that_starts_again(
    rig: Rig, watch: AlertWatch, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "time", lambda: 1e9 + rig.node.now_s)
    name_target(rig, f"{receiver.url}/503")
    watch._tell(AlertNews(Alert(RULES[0], "h2", FIRING, 1.0, 1.0, 2.0), FIRING, 1e9))
    watch._keep()
    rig.node.settle()
    kept = rig.host.paths.data_dir / "alert_messages.json"
    (row,) = json.loads(kept.read_bytes())
    assert row["kind"] == "alert.firing" and kept.stat().st_mode & 0o777 == 0o600
    (delivery,) = kept_messages.read(kept, 200)
    assert delivery == watch._sender.waiting()[0]
    name_target(rig, f"{receiver.url}/204")
    rig.node.run_until(lambda: json.loads(kept.read_bytes()) == [], 600.0)


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[1, null, {}]", b'[{"delivery_id": 1}]', b"\xff", b"[" * 5000, json.dumps([{"at": True}]).encode()],
)
def test_a_file_of_messages_that_is_none_of_ours_counts_for_nothing(rig: Rig, content: bytes) -> None:
    path = rig.host.paths.data_dir / "alert_messages.json"
    path.write_bytes(content)
    assert kept_messages.read(path, 200) == []
