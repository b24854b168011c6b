"""Has the ledger hold the heads of this host's audit log, so that the log's past is not this host's alone to change.

Each head goes with the proof that the log goes on from the one that is held. Where it does not, the ledger is told so,
and another log of this host begins there: nobody is kept from asking the host, and everybody sees it.

All hosts of a cluster together tell at most 100 heads a second: one of 1,000 hosts tells its own every 10 s.
"""

from __future__ import annotations

from actorgrid.errors import ActorGridError, AuditGone, HostsTooOld, NotFound, WrongState
from actorgrid.supervisors.server import Server

from ..ledger.audit_head_records import AuditHeadRecord
from ..ledger.client import LedgerClient
from ..ledger.commands import ReportAuditHead
from ..security.audit_log import AuditLog

HEADS_PER_S = 100
EVERY_S = 1.0
AGAIN_S, UPGRADE_S = 5.0, 60.0
"""Until it is tried again, when nobody leads or takes it, and while some hosts are older."""
PROPOSE_S = 10.0


class AuditHeadReports:
    """Of one host's door; in the server's thread. ``reported``: how many records the last head had that was taken."""

    def __init__(self, server: Server, ledger: LedgerClient) -> None:
        self._server, self._ledger = server, ledger
        self._log: AuditLog | None = None
        self._busy = False
        self.reported = -1
        self.began_anew = 0

    def signed(self, log: AuditLog) -> None:
        """Take note that *log* has signed a head."""
        self._log = log
        if not self._busy:
            self._busy = True
            self._server.spawn(self._report())

    async def _report(self) -> None:
        while (log := self._log) is not None:
            self._log = None
            try:
                await self._tell(log)
                wait_s = max(EVERY_S, len(self._ledger.members) / HEADS_PER_S)
            except ActorGridError as error:
                self._server.log.debug("the head of the audit log was not taken: %s", error)
                self._log = self._log or log
                wait_s = UPGRADE_S if isinstance(error, HostsTooOld) else AGAIN_S
            await self._server.sleep(wait_s)
        self._busy = False

    async def _tell(self, log: AuditLog) -> None:
        host_id = str(self._server.host.host_id)
        asked = {"host_id": host_id}  # an older host gives all of them
        heads: list[AuditHeadRecord] = (await self._ledger.read("audit_heads", asked))["heads"]
        held = next((each for each in heads if each["host_id"] == host_id), None)
        head, note = log.head()
        proof = [] if held is None else _proof(log, held, head.size)
        if proof is not None:
            if held is not None and held["size"] == head.size and held["root"] == head.root.hex():
                self.reported = head.size
                return
            command = ReportAuditHead(host_id, head.size, head.root.hex(), note, log.verifier, proof)
            try:
                await self._ledger.propose(command, PROPOSE_S)
                self.reported = head.size
                return
            except NotFound:
                return  # it is being removed
            except WrongState as error:
                self._server.log.error("the cluster holds another head of this host's audit log: %s", error)
        self.began_anew += 1
        self._server.log.error(
            "this host's audit log does not go on from what the cluster holds of it; another one begins there, and "
            "`actorgrid audit heads` shows both"
        )
        anew = ReportAuditHead(host_id, head.size, head.root.hex(), note, log.verifier, anew=True)
        await self._ledger.propose(anew, PROPOSE_S)
        self.reported = head.size


def _proof(log: AuditLog, held: AuditHeadRecord, size: int) -> list[str] | None:
    """The proof that the log goes on from the head that is held; ``None``: there is none."""
    if held["key"] != log.verifier or held["size"] > size:
        return None
    if not held["size"] or held["size"] == size:
        return []
    try:
        return [part.hex() for part in log.consistency(held["size"], size)]
    except AuditGone:
        return None
