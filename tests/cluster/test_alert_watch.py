"""Who is told of alerts: a real FaultDetector, and a real receiver."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from actorgrid.actors.alerts.core import FIRING, RESOLVED, Alert, AlertNews
from actorgrid.actors.alerts.messages import ListAlerts
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
