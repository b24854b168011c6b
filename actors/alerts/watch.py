"""Watches this host for alerts, and tells who is to be told: a part of FaultDetector.

What fires is kept in a file, so that an agent that starts again tells of nothing twice. Nothing here needs the ledger
to be led: silences are in the shared state, and what is sent goes out from this host.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from time import time
from typing import Any, cast

from actorgrid.actors.files.identity import write_atomically
from actorgrid.actors.gpu.messages import OwnReadings
from actorgrid.actors.ledger.client import LedgerClient
from actorgrid.actors.notifications.deliveries import Delivery, SettledDelivery
from actorgrid.actors.notifications.outgoing import OutgoingMessage, one_line
from actorgrid.actors.notifications.sending import MessageSender
from actorgrid.actors.replication.messages import ReadPrefix
from actorgrid.actors.replication.namespaces import cluster_key
from actorgrid.errors import ActorGridError, WrongState
from actorgrid.notification_words import shown_target
from actorgrid.supervisors.background import Background
from actorgrid.supervisors.envelope import GetMetrics
from actorgrid.supervisors.server import Server

from . import kept_messages
from .core import FIRING, PENDING, SILENCES_MAX, Alert, AlertBook, AlertNews, SilenceRecord
from .figures import AlertFigures, DeviceFigure, HostFigure, Thresholds
from .tuning_rules import TuningView, findings

ASK_S = 2.0
WAITING_MAX = 200
FILE = "alerts.json"
FILE_BYTES_MAX = 1 << 20
SILENCES = cluster_key("alerts", "silences") + "/"


class AlertWatch:
    """The alerts of the host that *server*, its FaultDetector, runs on. *names*: the servers whose figures count;
    *own*: gives those of *server*, *hosts*: the hosts of the cluster with their presence, *checks*: what checks of this
    host measured, by ``check.NAME.FIGURE``."""

    def __init__(
        self,
        server: Server,
        ledger: LedgerClient,
        names: Iterable[str],
        own: Callable[[], dict[str, float]],
        hosts: Callable[[], Iterable[tuple[str, str]]],
        checks: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._server, self._ledger = server, ledger
        self._names = tuple(name for name in names if name != server.name)
        self._own, self._hosts, self._checks = own, hosts, checks
        self._file: Path = server.host.paths.data_dir / FILE
        self._book = AlertBook(server.host.hostname)
        self._book.load(_read(self._file))
        self._figures = AlertFigures(self._thresholds())
        self._sender = MessageSender(server, self._settled, WAITING_MAX)
        self._writer = Background(server.runtime, "alerts")
        self._messages_file: Path = server.host.paths.data_dir / kept_messages.FILE
        self._messages_unsaved = False
        self._looking = self._saving = self._unsaved = False
        self._problem = ""

    def start(self) -> None:
        """Begin to look, and send what the agent before could not."""
        for delivery in kept_messages.read(self._messages_file, WAITING_MAX):
            self._sender.put(delivery)
        self._server.every(self._server.host.settings.alerts.interval_s, self.look)

    async def look(self) -> None:
        """Gather figures and decide by them, unless that is under way."""
        if self._looking:
            return
        if not self._server.host.settings.alerts.enabled:
            if self._book.alerts:  # nobody looks whether they are over
                self._book.alerts.clear()
                self._unsaved = True
            self._keep()
            return
        self._looking = True
        try:
            values: dict[str, float] = {}
            for name in self._names:
                if self._server.whereis(name) is not None:
                    values.update(await self._asked(name, GetMetrics(), {}))
            values.update(self._own())
            values.update(self._checks())
            readings: dict[str, dict[str, Any]] = await self._asked("gpu_coordinator", OwnReadings(), {})
            silences = await self._asked("distributed_state", ReadPrefix(SILENCES, SILENCES_MAX), None)
            figures = self._figures
            figures.thresholds, figures.leads = self._thresholds(), self._ledger.leads
            figures.devices = self._devices(readings)
            figures.hosts = tuple(HostFigure(name, presence) for name, presence in self._hosts())
            figures.take(self._server.runtime.boottime(), values)
            if silences is not None:
                self._book.silences = {
                    str(each["key"]): found for each in silences if (found := silence_record(each["value"]))
                }
            self._decide()
        finally:
            self._looking = False

    def _decide(self) -> None:
        before = self._book.kept()
        for news in self._book.look(self._figures, time(), self._server.host.settings.alerts.repeat_s):
            self._tell(news)
        self._unsaved = self._unsaved or self._book.kept() != before
        self._keep()

    def _keep(self) -> None:
        if (self._unsaved or self._messages_unsaved) and not self._saving:
            self._server.spawn(self._save())

    async def _save(self) -> None:
        """Keep what fires; in a thread, as a disk may hang and this server is listened to for its beats."""
        self._saving = True
        messages, alerts = self._messages_unsaved, self._unsaved
        self._messages_unsaved = self._unsaved = False
        # The messages first: what is noted as told must be one of them, or sent.
        waiting = kept_messages.to_bytes(self._sender.waiting(), WAITING_MAX) if messages else b""
        data = json.dumps(self._book.kept()).encode("ascii")

        def write() -> None:
            if messages:
                write_atomically(self._messages_file, waiting, 0o600)
            if alerts:
                write_atomically(self._file, data, 0o600)

        try:
            await self._writer.run(write)
        except (OSError, ActorGridError) as error:
            self._messages_unsaved = self._unsaved = True  # at the next look
            self._server.log.warning("what alerts fire is not kept: %s", error)
        finally:
            self._saving = False

    def _devices(self, readings: dict[str, dict[str, Any]]) -> tuple[DeviceFigure, ...]:
        record = self._ledger.hosts.get(self._server.host.host_id)
        devices = [] if record is None else record["devices"]
        return tuple(
            DeviceFigure(
                f"{each['index']} ({each['uuid']})",
                str(readings.get(each["uuid"], {}).get("health", "")),
                each.get("source") == "probed",
            )
            for each in devices
        )

    async def _asked(self, name: str, request: Any, missing: Any) -> Any:
        try:
            return await self._server.call(name, request, ASK_S)
        except ActorGridError:  # it starts again, or is gone: its figures are not known
            return missing

    def _thresholds(self) -> Thresholds:
        said = self._server.host.settings.alerts
        return Thresholds(said.disk_free_ratio, said.certificate_left_s, said.clock_offset_s, said.queue_stands_s)

    # -- telling

    def _tell(self, news: AlertNews) -> None:
        alert = news.alert
        text = self._book.said(alert)
        log = self._server.log
        (log.info if news.word != FIRING else log.warning)("alert %s is %s: %s", alert.rule.name, news.word, text)
        identity = f"{self._server.host.host_id} {alert.rule.name} {alert.subject} {int(alert.firing_since)}"
        # By a digest: a header has no room for all that a subject may be.
        stem = f"alert.{alert.rule.name}.{hashlib.sha256(identity.encode()).hexdigest()[:24]}."
        for waiting in self._sender.ids():
            # What could not be said until now is out of date: that it fires must not arrive after that it is over.
            if waiting.startswith(stem):
                self._sender.drop(waiting)
                self._messages_unsaved = True
        # A reminder is another message than the first one.
        message_id = f"{stem}{news.word}.{int(news.at)}"
        self._send(message_id, f"alert.{news.word}", f"{news.word} {alert.rule.severity}: {text}", _data(self, alert))

    def _send(self, message_id: str, kind: str, text: str, data: dict[str, Any]) -> None:
        cluster = self._server.host.settings.cluster.name
        message = OutgoingMessage(message_id, kind, time(), one_line(f"{cluster}: {text}"), data)
        for target in self._server.host.settings.alerts.targets:
            if not self._sender.put(Delivery(f"{message_id} {target}", target, message)):
                self._problem = f"{WAITING_MAX} messages wait to be sent"
            self._messages_unsaved = True

    def _settled(self, settled: SettledDelivery) -> None:
        self._messages_unsaved = True
        self._keep()
        self._problem = f"{shown_target(settled.delivery.target)}: {settled.failure}"[:500] if settled.failure else ""

    def test(self, by: str) -> dict[str, Any]:
        """Send a made-up alert. Raises WrongState."""
        targets = self._server.host.settings.alerts.targets
        if not targets:
            raise WrongState(
                "nobody is told of alerts here",
                asked="send one to try it",
                found="alerts.targets is empty",
                hint="actorgrid config set alerts.targets '[\"ops\"]' (docs/alerts.md)",
            )
        self._send(f"alert.test.{secrets.token_hex(8)}", "alert.test", f"a test of alerts, asked for by {by}", {})
        self._keep()
        return {"targets": [shown_target(each) for each in targets]}

    # -- answering

    def listed(self) -> dict[str, Any]:
        """The alerts of this host as people see them."""
        now = time()
        return {
            "alerts": [self.view(each, now) for each in self._book.alerts.values()],
            "resolved": [self.view(each, now) for each in self._book.resolved],
            "problem": self._problem,
        }

    def tuning(self) -> dict[str, Any]:
        """What is slow here, and which setting to change, by the same figures."""
        settings = self._server.host.settings
        if not settings.alerts.enabled:
            return {"findings": [], "problem": "alerts.enabled is off here, and nobody gathers figures"}
        if not self._figures.values:
            return {"findings": [], "problem": "no figures yet: ask again in a minute"}
        found = findings(self._book.host, TuningView(self._figures, settings.get), settings.is_live)
        return {"findings": [asdict(each) for each in found], "problem": ""}

    def view(self, alert: Alert, now: float) -> dict[str, Any]:
        """One of them."""
        silence = self._book.silence_of(alert, now) if alert.state == FIRING else None
        return {
            "alert": alert.rule.name,
            "severity": alert.rule.severity.value,
            "state": alert.state,
            "host": self._book.host,
            "subject": alert.subject,
            "of_cluster": alert.rule.of_cluster,
            "value": alert.value,
            "since": alert.since,
            "firing_since": alert.firing_since or None,
            "told_at": alert.told_at or None,
            "text": self._book.said(alert),
            "action": alert.rule.action,
            "silenced_until": None if silence is None else silence["until"],
            "silenced_by": None if silence is None else silence["by"],
        }

    def figures(self) -> dict[str, float]:
        """How many are pending and firing, silenced ones included."""
        states = [each.state for each in self._book.alerts.values()]
        return {
            "alerts_firing": float(states.count(FIRING)),
            "alerts_pending": float(states.count(PENDING)),
            "alert_messages_waiting": float(len(self._sender)),
            "alert_messages_sent_total": float(self._sender.sent_total),
            "alert_messages_given_up_total": float(self._sender.failed_total),
        }


def _data(watch: AlertWatch, alert: Alert) -> dict[str, Any]:
    told = watch.view(alert, time())
    return {name: told[name] for name in ("alert", "severity", "state", "host", "subject", "value", "since", "action")}


def silence_record(value: Any) -> SilenceRecord | None:
    """A silence as the shared state has it; what is none counts for nothing."""
    texts = ("silence_id", "alert", "host", "subject", "by", "reason")
    if not isinstance(value, dict) or not all(isinstance(value.get(name), str) for name in texts):
        return None
    if not all(isinstance(value.get(name), int | float) for name in ("until", "only_firing_since")):
        return None
    return cast("SilenceRecord", value)


def _read(path: Path) -> list[Any]:
    """What fired before; nothing, where the file is missing or is none of ours."""
    try:
        if os.stat(path).st_size > FILE_BYTES_MAX:
            return []
        kept = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return []
    shape = {"rule": str, "subject": str, "firing_since": float, "told_at": float}
    rows = kept if isinstance(kept, list) else []
    return [
        each
        for each in rows
        if isinstance(each, dict) and all(isinstance(each.get(name), kind) for name, kind in shape.items())
    ]
