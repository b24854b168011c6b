"""A host that starts anew is away for longer than most: everybody is told, and waits for it (docs/leases.md).

While ``absence_s`` stands in the host's record, the leader gives its work up only that long after it last heard of the
host, and the host may have given what it left running as much time, before it stopped. So the record may lose it only
when no such time is left: that long after the host's agent is back.
"""

from __future__ import annotations

from time import time

from actorgrid.actors.ledger.answers import HostAnswer
from actorgrid.actors.ledger.record_types import HostRecord
from actorgrid.errors import ActorGridError
from actorgrid.supervisors.server import Server

from ..ledger.client import LedgerClient
from ..ledger.commands import AllowAbsence
from .host_leases import over_after_s

ABSENCE_S = 60.0


class PlannedRestart:
    """The planned restart of this host."""

    def __init__(self, server: Server, ledger: LedgerClient) -> None:
        self._server = server
        self._ledger = ledger
        self._ends = 0
        self._asked = False

    async def allow(self) -> int:
        """Have everybody wait for this host; gives the index of the entry. Raises what the ledger refuses with."""
        host = self._server.host
        self._asked = True  # before it is told of: this life ends before its own absence is over
        answer: HostAnswer = await self._ledger.propose(
            AllowAbsence(host.host_id, host.incarnation, ABSENCE_S, at=time())
        )
        return answer["began"]

    def look(self, record: HostRecord | None) -> None:
        """Follow this host's record: an absence allowed before this start ends in its time."""
        began = None if record is None else record.get("absence_index")
        if record is None or began is None or began == self._ends or self._asked:
            return
        if record["incarnation"] == self._server.host.incarnation and not self._server.host.restart_mark.exists():
            self._ends = began
            self._server.spawn(self._end(float(record["absence_s"]), began))

    async def _end(self, absence_s: float, began: int) -> None:
        host = self._server.host
        await self._server.sleep(over_after_s(absence_s))
        try:
            await self._ledger.propose(AllowAbsence(host.host_id, host.incarnation, 0.0, at=time(), began=began))
        except ActorGridError as error:
            self._server.log.info("everybody goes on waiting longer for this host: %s", error)
