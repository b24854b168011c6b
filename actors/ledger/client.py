"""A server's own copy of what is live in the ledger, kept current by the Applied casts it is sent.

It lags by what is on its way, never more: a gap in the chain of casts makes it subscribe again. A proposal
whose answer has arrived is already in the copy, because Consensus casts before it answers. Two copies may be
at different indexes: who has seen one and asks the server of another says how far it has seen (``reached``), or it
could be told that a job still runs whose end it was told before. Terry et al., "Session Guarantees for Weakly
Consistent Replicated Data", 1994, call that monotonic reads.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from actorgrid.actors.ledger.credential_records import ApiKeyRecord, JoinTokenRecord
from actorgrid.actors.ledger.record_types import AllocationRecord, HostRecord, MemberRecord, QuotaRecord
from actorgrid.actors.ledger.trust_records import TrustRecord
from actorgrid.errors import ActorDown, ActorError, ActorGridError, CallTimeout, MailboxFull, NoQuorum, NotLeader
from actorgrid.supervisors.envelope import SettingChanged
from actorgrid.supervisors.runtime import Waiter
from actorgrid.supervisors.server import Server, handles

from .command import UNSTAMPED, Command
from .messages import Applied, JobsWanted, LedgerSnapshot, Propose, Proposed, Query, Subscribe
from .notice_records import NoticeRecord
from .recovery_records import HostRecoveryRecord
from .retirement_records import RetirementRecord
from .schedule_records import ScheduleRecord
from .service_records import ServiceRecord
from .tables.job_table import JobTable
from .tables.jobs import BEGUN, QUEUED
from .tenant_records import TenantRecord, TenantUseRecord

CONSENSUS = "consensus"
TRY_TIMEOUT_S = 10.0
BACKOFF_FIRST_S = 0.02
BACKOFF_MAX_S = 0.5
LANES_MAX = 256
WAITING_MAX = 10_000
LEADERLESS_S = 6.0
"""Patience of one who waits at a door with a ledger that nobody leads: several elections could have been held."""
REACH_S = 5.0
"""Patience of a reader for the copy to come as far as what it has seen already."""


class LedgerClient:
    """One server's copy of the ledger, and its way to propose commands and ask questions.

    ``jobs`` holds those that *jobs* asks for (see ``JobsWanted``): say the least that the server can do with, since a
    queue may be long and every server that keeps it pays for it. ``job_counts`` says how many there are of each state,
    whatever is kept. ``allocations``, ``hosts``, ``settings`` and ``quotas`` all there are, by
    id. They are empty until ``start`` ends. The records are to be read, not written.
    """

    def __init__(
        self,
        server: Server,
        on_snapshot: Callable[[LedgerSnapshot], None] | None = None,
        on_applied: Callable[[Applied], None] | None = None,
        jobs: JobsWanted = "all",
    ) -> None:
        self._server = server
        self._on_snapshot = on_snapshot
        self._on_applied = on_applied
        self._following = False
        self._subscribing = False
        self._lanes = _Lanes(f"{server.host.host_id}/{server.name}")
        self._calls: dict[int, Waiter] = {}
        self._behind: list[tuple[int, Waiter]] = []
        self._wanted: JobsWanted = jobs
        self.jobs = JobTable()
        self.job_counts: Mapping[str, int] = {}
        self.allocations: dict[str, AllocationRecord] = {}
        self.hosts: dict[str, HostRecord] = {}
        self.settings: dict[str, Any] = {}
        self.quotas: dict[str, QuotaRecord] = {}
        self.members: dict[str, MemberRecord] = {}
        self.join_tokens: dict[str, JoinTokenRecord] = {}
        self.api_keys: dict[str, ApiKeyRecord] = {}
        self.trust: dict[str, TrustRecord] = {}
        self.recoveries: dict[str, HostRecoveryRecord] = {}
        self.retirements: dict[str, RetirementRecord] = {}
        self.schedules: dict[str, ScheduleRecord] = {}
        self.notices: dict[str, NoticeRecord] = {}
        self.services: dict[str, ServiceRecord] = {}
        self.tenants: dict[str, TenantRecord] = {}
        self.tenant_uses: dict[str, TenantUseRecord] = {}
        self.leader: str | None = None
        self.leads = False
        self.absent: dict[str, float] = {}
        self._homes = self._by_kind()
        self.index = 0
        self.term = 0
        self.epoch = 0

    @property
    def is_filled(self) -> bool:
        """Whether the copy holds anything yet: before, what is not in it may well be in the ledger."""
        return self._following

    async def catch_up(self, timeout_s: float = 10.0) -> None:
        """Return when the copy holds all that was committed anywhere when this was called; for whom ``reached`` is.

        Raises NotLeader, CallTimeout or what Consensus raises.
        """
        await self.reached(await self.read("index", {}, timeout_s), timeout_s)

    async def start(self) -> None:
        """Subscribe, waiting for Consensus as long as it takes; the snapshot is in when this returns."""
        await self._subscribe()

    def peer_restarted(self, name: str) -> None:
        """Call from ``Server.peer_restarted``: a new Consensus knows no subscribers and answers no old calls."""
        if name != CONSENSUS:
            return
        for waiter in list(self._calls.values()):
            waiter.fail(ActorDown("consensus restarted before it answered"))
        self._resubscribe()

    def applied(self, message: Applied) -> None:
        """Call from the server's handler of :class:`Applied`."""
        if not self._following or self._subscribing:
            return
        if message.previous != self.index:
            self._resubscribe()
            return
        homes = self._homes
        for kind, identity, record in message.changes:
            if kind == "job":
                if record is None or not self._keeps(record["state"]):
                    self.jobs.pop(identity, None)
                else:
                    self.jobs[identity] = record
            elif kind == "term":
                self.term, self.epoch = record
            elif kind == "leader":
                self.leader, self.leads = record
            elif kind == "absent":
                self.absent = record
            elif kind in homes:
                if record is None:
                    homes[kind].pop(identity, None)
                else:
                    homes[kind][identity] = record
        self.index = message.index
        if message.job_counts is not None:
            self.job_counts = message.job_counts
        for kind, identity, record in message.changes:
            if kind == "setting" and record is not None:
                self._server.change_setting(SettingChanged(identity, record))
        if self._on_applied is not None:
            self._on_applied(message)
        self._wake_readers()

    def _keeps(self, state: str) -> bool:
        return state in BEGUN or (self._wanted == "all" and state == QUEUED)

    def _by_kind(self) -> dict[str, dict[str, Any]]:
        return {
            "allocation": self.allocations,
            "host": self.hosts,
            "setting": self.settings,
            "quota": self.quotas,
            "member": self.members,
            "join_token": self.join_tokens,
            "api_key": self.api_keys,
            "trust": self.trust,
            "recovery": self.recoveries,
            "retirement": self.retirements,
            "schedule": self.schedules,
            "notice": self.notices,
            "service": self.services,
            "tenant": self.tenants,
            "tenant_use": self.tenant_uses,
        }

    async def reached(self, index: int, within_s: float = REACH_S) -> None:
        """Return when the copy holds all that the ledger held at *index*. Raises CallTimeout after *within_s*.

        For servers that are told of all jobs: others are not told of entries that do not concern them.
        """
        if self.index >= index:
            return
        waiter = Waiter()
        late = CallTimeout(
            f"{self._server.name} is behind the ledger",
            asked=f"index {index}",
            found=f"index {self.index}",
            hint="ask again in a moment; if it stays so, actorgrid doctor",
        )
        timer = self._server.runtime.after(within_s, lambda: waiter.fail(late))
        self._behind.append((index, waiter))
        try:
            await waiter
        finally:
            timer.cancel()
            self._behind = [entry for entry in self._behind if entry[1] is not waiter]

    def _wake_readers(self) -> None:
        for index, waiter in list(self._behind):
            if self.index >= index:
                waiter.set(None)

    async def propose(self, command: Command, timeout_s: float = 30.0, *, leaderless_s: float | None = None) -> Any:
        """Commit *command* exactly once and give its result, which is its verb's of ``answers.py``; ``at`` is put in
        where it was made without a clock.

        Goes on while Consensus restarts. Raises what the ledger refuses with (LedgerRefused, BadRequest, DiskFull, ...)
        or CallTimeout after *timeout_s*: then whether the command was committed is unknown. With *leaderless_s*,
        NoQuorum is raised when nobody has led the ledger for that long. Any number may be under way at once, in no
        promised order; beyond 256 they wait here, beyond 10,000 MailboxFull is raised.
        """
        if command.at == UNSTAMPED:
            command = replace(command, at=time.time())
        deadline = self._server.runtime.monotonic() + timeout_s
        backoff_s = BACKOFF_FIRST_S
        leaderless_at: float | None = None
        perhaps = False
        lane, seq = await self._lanes.take()
        try:
            while True:
                left_s = deadline - self._server.runtime.monotonic()
                if left_s <= 0:
                    raise CallTimeout(
                        f"the ledger did not commit {command.verb} in {timeout_s:g} s",
                        hint="it may be restarting; whether the command was committed is unknown",
                    )
                try:
                    answer: Proposed = await self.ask(Propose(command, lane, seq), min(left_s, TRY_TIMEOUT_S))
                except (ActorError, MailboxFull) as error:
                    self._server.log.debug("proposing again: %s", error)
                    perhaps = perhaps or bool(error.details.get("taken", not isinstance(error, MailboxFull)))
                    now = self._server.runtime.monotonic()
                    if not isinstance(error, NotLeader):
                        leaderless_at = None
                    elif leaderless_at is None:
                        leaderless_at = now
                    elif leaderless_s is not None and now - leaderless_at >= leaderless_s:
                        raise _no_quorum(command.verb, now - leaderless_at, perhaps) from error
                    await self._server.sleep(min(backoff_s, max(0.0, left_s)))
                    backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)
                    continue
                return answer.result
        finally:
            self._lanes.give_back(lane, seq)

    async def read(self, kind: str, args: dict[str, Any], timeout_s: float = 10.0) -> Any:
        """Ask the ledger for what it holds once it holds all that was committed anywhere when this was called.

        Goes on while leaders change. Raises NotLeader, CallTimeout or what Consensus raises after *timeout_s*.
        """
        deadline = self._server.runtime.monotonic() + timeout_s
        backoff_s = BACKOFF_FIRST_S
        while True:
            left_s = deadline - self._server.runtime.monotonic()
            try:
                return await self.ask(Query(kind, args, linearizable=True), max(left_s, BACKOFF_FIRST_S))
            except (ActorError, MailboxFull):
                if left_s <= backoff_s:
                    raise
            await self._server.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)

    async def ask(self, request: Any, timeout_s: float) -> Any:
        """Ask Consensus; fails at once with ActorDown when that ends before it answered."""
        waiter = self._server.call(CONSENSUS, request, timeout_s)
        self._calls[id(waiter)] = waiter
        try:
            return await waiter
        finally:
            del self._calls[id(waiter)]

    def _resubscribe(self) -> None:
        if self._following and not self._subscribing:
            self._server.spawn(self._subscribe())

    async def _subscribe(self) -> None:
        self._subscribing = True
        backoff_s = BACKOFF_FIRST_S
        while True:
            try:
                snapshot: LedgerSnapshot = await self.ask(Subscribe(self._wanted), TRY_TIMEOUT_S)
                break
            except ActorGridError as error:
                self._server.log.debug("subscribing again: %s", error)
            await self._server.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)
        self.jobs, self.job_counts = snapshot.jobs, snapshot.job_counts
        self.allocations = snapshot.allocations
        self.hosts = snapshot.hosts
        self.settings = snapshot.settings
        self.quotas, self.members = snapshot.quotas, snapshot.members
        self.join_tokens, self.api_keys = snapshot.join_tokens, snapshot.api_keys
        self.trust, self.recoveries = snapshot.trust, snapshot.recoveries
        self.retirements, self.schedules = snapshot.retirements, snapshot.schedules
        self.notices, self.services = snapshot.notices, snapshot.services
        self.tenants, self.tenant_uses = snapshot.tenants, snapshot.tenant_uses
        self._homes = self._by_kind()
        self.leader, self.leads, self.absent = snapshot.leader, snapshot.leads, snapshot.absent
        self.index, self.term, self.epoch = snapshot.index, snapshot.term, snapshot.epoch
        self._following, self._subscribing = True, False
        for key, value in self.settings.items():
            self._server.change_setting(SettingChanged(key, value))
        if self._on_snapshot is not None:
            self._on_snapshot(snapshot)
        self._wake_readers()


class LedgerFollower(Server):
    """A server that follows the ledger by ``_ledger``, which its ``start`` makes and starts."""

    _ledger: LedgerClient

    def peer_restarted(self, name: str) -> None:
        """Follow the ledger again when Consensus comes back."""
        self._ledger.peer_restarted(name)

    @handles(Applied)
    def _applied(self, message: Applied) -> None:
        self._ledger.applied(message)


def _no_quorum(asked: str, for_s: float, perhaps: bool) -> NoQuorum:
    return NoQuorum(
        "no majority of the cluster's voters can be reached from this host, so nothing new is accepted here",
        asked=asked,
        found=f"nobody has led the ledger for {for_s:.0f} s",
        hint="what runs goes on; ask a host on the side of the majority, or bring voters back"
        + ("; this may have been accepted just before: look before you repeat it" if perhaps else ""),
        perhaps=perhaps,
    )


class _Lanes:
    """Ledger sessions of one server, one proposal under way in each.

    The ledger keeps the last result of a session, so two proposals of one session may not be under way
    together: one that has to be repeated would find a later one's result in its place.
    """

    def __init__(self, name: str) -> None:
        # A name of its own for each life of the server: what a past life left unanswered is never mistaken for ours.
        # The host's comes first: the leader takes it from nobody else (admission.py).
        self._prefix = f"{name}-{os.urandom(6).hex()}"
        self._free: list[tuple[str, int]] = []
        self._waiting: deque[Waiter] = deque()
        self._made = 0

    async def take(self) -> tuple[str, int]:
        """Take a session that nobody uses now, with the next sequence number in it."""
        if self._free:
            lane, seq = self._free.pop()
            return lane, seq + 1
        if self._made < LANES_MAX:
            self._made += 1
            return f"{self._prefix}-{self._made}", 1
        if len(self._waiting) >= WAITING_MAX:
            raise MailboxFull(
                "too many proposals are under way",
                asked="one more",
                found=f"{WAITING_MAX} wait",
                hint="await some before proposing more",
            )
        waiter = Waiter()
        self._waiting.append(waiter)
        lane, seq = await waiter
        return lane, seq + 1

    def give_back(self, lane: str, seq: int) -> None:
        """Give a session back: its proposal *seq* has its answer, or its caller gave up."""
        if self._waiting:
            self._waiting.popleft().set((lane, seq))
        else:
            self._free.append((lane, seq))
