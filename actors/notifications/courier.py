"""Sends the notices of jobs, where the ledger is led. A part of ClusterManager; it holds nothing that is not there.

What was sent is noted in the ledger, which then forgets it. A host that begins to lead waits for a moment before it
sends what waited before: the one before it may have sent it, and its note be on its way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actorgrid.actors.ledger.client import LedgerClient
from actorgrid.actors.ledger.commands import SettleNotices
from actorgrid.actors.ledger.commands.notices import FAILURE_CHARS_MAX, SETTLED_MAX
from actorgrid.actors.ledger.messages import Applied
from actorgrid.actors.ledger.notice_records import NoticeRecord
from actorgrid.actors.ledger.record_types import NO_HOST
from actorgrid.actors.ledger.tables.notices import WAITING_MAX
from actorgrid.errors import ActorGridError
from actorgrid.supervisors.server import Server

from .deliveries import Delivery, SettledDelivery
from .outgoing import message_of
from .sending import MessageSender

GRACE_S = 2.0
AGAIN_S = 1.0
"""Until what could not be noted is noted again."""
HEARD = ("notice", "leader")


class NoticeCourier:
    """The notices of a cluster, on the host that leads its ledger."""

    def __init__(self, server: Server, ledger: LedgerClient) -> None:
        self._server = server
        self._ledger = ledger
        self._sender = MessageSender(server, self._settled, WAITING_MAX)
        self._led = False
        self._sending = False
        self._done: dict[str, SettledDelivery] = {}
        self._noting = False

    def begin(self) -> None:
        """Begin with what the ledger has, if this host leads it; else forget all."""
        if not self._ledger.leads:
            self._led = self._sending = False
            self._done.clear()
        elif not self._led:
            self._led = True
            self._server.spawn(self._begin_to_send())
        self._look()

    def applied(self, message: Applied) -> None:
        """Follow what the ledger tells."""
        heard = [change for change in message.changes if change[0] in HEARD]
        if any(kind == "leader" for kind, _, _ in heard):
            self.begin()
        elif heard and self._sending:
            for _, notice_id, record in heard:
                self._put(notice_id, record)

    def states(self) -> dict[str, dict[str, Any]]:
        """How far each is that waits here, by its id; nothing, where another host leads."""
        found = ((notice_id, self._sender.state_of(notice_id)) for notice_id in self._ledger.notices)
        return {
            notice_id: {"tries": state.tries, "last_failure": state.last_failure, "next_at": state.next_at}
            for notice_id, state in found
            if state is not None
        }

    async def _begin_to_send(self) -> None:
        await self._server.sleep(GRACE_S)
        if self._led:
            self._sending = True
            self._look()

    def _look(self) -> None:
        """Send what waits by the ledger, and nothing else."""
        for notice_id in self._sender.ids():
            if not self._sending or notice_id not in self._ledger.notices:
                self._sender.drop(notice_id)
        if self._sending:
            for notice_id, record in self._ledger.notices.items():
                self._put(notice_id, record)

    def _put(self, notice_id: str, record: NoticeRecord | None) -> None:
        if record is None or record["failed_at"] is not None:
            self._sender.drop(notice_id)
            self._done.pop(notice_id, None)
        elif notice_id not in self._done:
            host = self._ledger.hosts.get(record["host"] or "", NO_HOST).get("hostname") or record["host"]
            message = message_of(record, self._server.host.settings.cluster.name, host)
            self._sender.put(Delivery(notice_id, record["target"], message))

    def _settled(self, settled: SettledDelivery) -> None:
        self._done[settled.delivery.delivery_id] = settled
        if not self._noting:
            self._noting = True
            self._server.spawn(self._note())

    async def _note(self) -> None:
        """Note in the ledger what became of those that are done, until none is left."""
        try:
            while self._done and self._led:
                some = list(self._done.items())[:SETTLED_MAX]
                told = [
                    {"notice_id": notice_id, "failure": each.failure[:FAILURE_CHARS_MAX], "tries": each.tries}
                    for notice_id, each in some
                ]
                try:
                    await self._ledger.propose(SettleNotices(told))
                except ActorGridError as error:
                    self._server.log.warning("what became of notifications cannot be noted yet: %s", error)
                    await self._server.sleep(AGAIN_S)
                else:
                    for notice_id, _ in some:
                        self._done.pop(notice_id, None)
        finally:
            self._noting = False

    def figures(self) -> Mapping[str, float]:
        """Notices that wait and that were given up, by the ledger; and what this host sent."""
        failed = sum(record["failed_at"] is not None for record in self._ledger.notices.values())
        return {
            "notices_waiting": float(len(self._ledger.notices) - failed),
            "notices_failed": float(failed),
            "notices_sent_total": float(self._sender.sent_total),
            "notices_given_up_total": float(self._sender.failed_total),
            "notice_tries_total": float(self._sender.tries_total),
        }
