"""LoadBalancer: sessions of clients, and which warm worker each of their leases stands for.

A session lives as long as its client renews it, on the host where it was opened: its id begins with that host's.
Leases are allocations in the ledger, so they outlive this server: after a restart it finds them there and gives every
session a full term to renew. Those of a host that is gone for as long are freed by the host that leads.
Placing is not done here: the leader's GPUCoordinator decides each allocation. A worker on another host is reached by a
relay of this host's Links.
"""

from __future__ import annotations

import platform
import secrets
from dataclasses import asdict, dataclass, field
from typing import Any

from actorgrid.actors.ledger.record_types import NO_ALLOCATION, AllocationRecord
from actorgrid.errors import ActorGridError, BadRequest, CallTimeout, PythonMismatch, TooManySessions, UnknownSession
from actorgrid.supervisors.server import handles

from ..gpu.messages import AcquireLease
from ..ledger.client import LedgerClient, LedgerFollower
from ..ledger.messages import Applied, LedgerSnapshot
from ..ledger.records import UNKNOWN_USER
from ..links.messages import AskHost, AskLeader, OpenRelay
from ..work.messages import AttachLease, DetachLease, TellWorkerEnd
from ..work.worker_end import UNKNOWN, WorkerEnding
from .core import choose_pool
from .messages import AcquireWorker, CloseSession, LeaseEnd, OpenSession, RenewSession, ReturnWorker

ATTACH_TIMEOUT_S = 30.0
PLACE_MARGIN_S = 10.0
DETACH_TIMEOUT_S = 60.0
DETACH_AGAIN_S = 0.2
CHECK_INTERVAL_S = 0.5
ENDING_TIMEOUT_S = 10.0
WORKERS_KNOWN = 256


@dataclass(slots=True)
class LiveSession:
    """A session whose client is there; ``expires_s`` is on the runtime's clock. ``pending`` leases are being granted.

    ``workers``: host and worker of the leases it was granted last, ``WORKERS_KNOWN`` of them: of those that died the
    client may ask how.
    """

    expires_s: float
    leases: set[str] = field(default_factory=set)
    pending: set[str] = field(default_factory=set)
    user_id: str = UNKNOWN_USER
    workers: dict[str, tuple[str, str]] = field(default_factory=dict)


def python_version() -> str:
    """Major and minor version: functions are exchanged between equal ones only."""
    return ".".join(platform.python_version_tuple()[:2])


class LoadBalancer(LedgerFollower):
    """The server of sessions and leases: ``sessions.max_sessions``, each with ``max_leases_per_session``, at most."""

    name = "load_balancer"

    async def start(self) -> None:
        """Find the leases that are out."""
        self._sessions: dict[str, LiveSession] = {}
        self._releasing: set[str] = set()
        self._expired_total = 0
        self._granted_total = 0
        self._gone_since: dict[str, float] = {}  # hosts with sessions that are not heard of
        self._ledger = LedgerClient(self, self._on_snapshot, self._on_applied, jobs="none")
        await self._ledger.start()
        self.every(CHECK_INTERVAL_S, self._close_expired)

    def _on_snapshot(self, snapshot: LedgerSnapshot) -> None:
        held: dict[str, set[str]] = {}
        users: dict[str, str] = {}
        for allocation_id, allocation in snapshot.allocations.items():
            if self._is_ours(allocation):
                held.setdefault(allocation["owner"]["session_id"], set()).add(allocation_id)
                users[allocation["owner"]["session_id"]] = allocation["user_id"]
        for session_id, session in self._sessions.items():
            session.leases = held.pop(session_id, set()) - session.pending - self._releasing
        for session_id, leases in held.items():
            self._sessions[session_id] = LiveSession(self._deadline(), leases, user_id=users[session_id])

    def _on_applied(self, message: Applied) -> None:
        for kind, lease_id, record in message.changes:
            if kind != "allocation":
                continue
            if record is None:
                for session in self._sessions.values():
                    session.leases.discard(lease_id)
            elif self._is_ours(record) and not self._wanted(record["owner"]["session_id"], lease_id):
                # Granted after we had given up waiting for it.
                self._release({lease_id})

    def _is_ours(self, allocation: AllocationRecord) -> bool:
        """Whether the lease is of a session that was opened on this host."""
        return allocation["owner"]["kind"] == "session" and self._home(allocation) == str(self.host.host_id)

    def _home(self, allocation: AllocationRecord) -> str:
        """The host where the lease's session was opened; ids of before there were several hosts name none."""
        return str(allocation["owner"]["session_id"]).rpartition(".")[0] or str(self.host.host_id)

    def _wanted(self, session_id: str, lease_id: str) -> bool:
        session = self._sessions.get(session_id)
        return session is not None and (lease_id in session.leases or lease_id in session.pending)

    def _deadline(self) -> float:
        return self.runtime.monotonic() + float(self.host.settings.sessions.expire_s)

    def _session(self, session_id: str) -> LiveSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise UnknownSession(
                "the session is not open here",
                asked=session_id,
                found=f"{len(self._sessions)} open session(s)",
                hint="it was closed or not renewed in time; open a new one and send unfinished tasks again",
            )
        return session

    @handles(OpenSession)
    def _open(self, request: OpenSession) -> dict[str, Any]:
        if request.python and request.python != python_version():
            raise PythonMismatch(
                "functions can only be exchanged between equal Python versions",
                asked=f"client Python {request.python}",
                found=f"worker Python {python_version()}",
                hint=f"run the client with Python {python_version()}, or submit a command instead of a function",
            )
        limit = self.host.settings.sessions.max_sessions
        if len(self._sessions) >= limit:
            raise TooManySessions(
                "this host serves its maximum of sessions",
                found=f"{len(self._sessions)} of {limit}",
                hint="close clients that are done, or raise sessions.max_sessions",
            )
        session_id = f"{self.host.host_id}.{secrets.token_hex(8)}"
        self._sessions[session_id] = LiveSession(self._deadline(), user_id=request.user_id)
        settings = self.host.settings.sessions
        return {"session_id": session_id, "renew_s": settings.renew_s, "expires_s": settings.expire_s}

    @handles(RenewSession)
    def _renew(self, request: RenewSession) -> None:
        self._session(request.session_id).expires_s = self._deadline()

    @handles(CloseSession)
    def _close(self, request: CloseSession) -> None:
        session = self._sessions.pop(request.session_id, None)
        if session is not None:
            self._release(session.leases)

    @handles(AcquireWorker)
    async def _acquire(self, request: AcquireWorker) -> dict[str, Any]:
        session = self._session(request.session_id)
        lease_id = request.lease_id or secrets.token_hex(8)
        await self._settled(request.session_id, lease_id)
        limit = self.host.settings.sessions.max_leases_per_session
        if len((session.leases | session.pending) - {lease_id}) >= limit:
            raise TooManySessions(
                "the session holds its maximum of workers",
                found=f"{len(session.leases)} leased, {len(session.pending)} being granted, of {limit}",
                hint="return leases that are idle, or raise sessions.max_leases_per_session",
            )
        pool = choose_pool(request.resources, request.pool)
        wanted = request.resources, pool, dict(request.env), request.wait_s
        ask = AcquireLease(lease_id, request.session_id, *wanted, session.user_id)
        session.pending.add(lease_id)
        try:
            host_id = (await self._place(ask))["host"]
            grant = await self._attach(lease_id, host_id)
        except ActorGridError:
            # The grant may be committed though its answer was lost: releasing what is not there is harmless.
            self._release({lease_id})
            raise
        finally:
            session.pending.discard(lease_id)
        if self._sessions.get(request.session_id) is not session:
            self._release({lease_id})
            self._session(request.session_id)
        session.leases.add(lease_id)
        session.workers[lease_id] = host_id, str(grant["worker_id"])
        while len(session.workers) > WORKERS_KNOWN:
            del session.workers[next(iter(session.workers))]
        session.expires_s = max(session.expires_s, self._deadline())
        self._granted_total += 1
        return grant

    async def _place(self, ask: AcquireLease) -> AllocationRecord:
        """Have whoever leads place the lease; gives its allocation."""
        timeout_s = ask.wait_s + PLACE_MARGIN_S
        if self.host.enrolment is None:
            placed: AllocationRecord = await self.call("gpu_coordinator", ask, timeout_s)
        else:
            placed = await self.call("links", AskLeader("acquire_lease", asdict(ask), timeout_s), timeout_s + 1)
        return placed

    async def _attach(self, lease_id: str, host_id: str) -> dict[str, Any]:
        if host_id == self.host.host_id:
            grant: dict[str, Any] = await self.call("worker_manager", AttachLease(lease_id), ATTACH_TIMEOUT_S)
            return grant
        ask = AskHost(host_id, "attach_lease", {"lease_id": lease_id}, ATTACH_TIMEOUT_S)
        grant = await self.call("links", ask, ATTACH_TIMEOUT_S + 1)
        return {**grant, "socket_path": await self.call("links", OpenRelay(host_id, lease_id))}

    async def _settled(self, session_id: str, lease_id: str) -> None:
        """Wait until nothing is under way about a lease that is asked for again. Raises BadRequest, CallTimeout."""
        deadline_s = self.runtime.monotonic() + ATTACH_TIMEOUT_S
        while lease_id in self._releasing or any(lease_id in other.pending for other in self._sessions.values()):
            if self.runtime.monotonic() > deadline_s:
                raise CallTimeout(f"lease {lease_id} is still being settled", hint="ask again, or for another lease")
            await self.sleep(DETACH_AGAIN_S)
        held = self._ledger.allocations.get(lease_id)
        if held is not None and held["owner"].get("session_id") != session_id:
            raise BadRequest("the lease is another session's", asked=lease_id, hint="choose a random lease_id")

    @handles(ReturnWorker)
    def _return(self, request: ReturnWorker) -> None:
        session = self._sessions.get(request.session_id)
        if session is not None and request.lease_id in session.leases:
            session.leases.discard(request.lease_id)
            self._release({request.lease_id})

    @handles(LeaseEnd)
    async def _lease_end(self, request: LeaseEnd) -> WorkerEnding:
        host_id, worker_id = self._session(request.session_id).workers.get(request.lease_id, ("", ""))
        if not worker_id:
            return UNKNOWN
        if host_id == self.host.host_id:
            ask = TellWorkerEnd(worker_id, request.lease_id)
            ending: WorkerEnding = await self.call("worker_manager", ask, ENDING_TIMEOUT_S)
            return ending
        fields = {"worker_id": worker_id, "lease_id": request.lease_id}
        return {**UNKNOWN, **await self.call("links", AskHost(host_id, "worker_end", fields, ENDING_TIMEOUT_S), 11.0)}

    def _close_expired(self) -> None:
        now_s = self.runtime.monotonic()
        for session_id, session in list(self._sessions.items()):
            if session.expires_s < now_s and not session.pending:
                del self._sessions[session_id]
                self._expired_total += 1
                self.log.info("session %s was not renewed: its %d lease(s) are freed", session_id, len(session.leases))
                self._release(session.leases)
        if self._ledger.leads and self._ledger.members:
            self._release(self._orphans(now_s))

    def _orphans(self, now_s: float) -> set[str]:
        """The leases of sessions whose host has not been heard of for as long as a session lives without its client."""
        gone: dict[str, set[str]] = {}
        for lease_id, allocation in self._ledger.allocations.items():
            if allocation["owner"]["kind"] == "session":
                home = self._home(allocation)
                if home in self._ledger.absent or home not in self._ledger.members:
                    gone.setdefault(home, set()).add(lease_id)
        self._gone_since = {home: self._gone_since.get(home, now_s) for home in gone}
        expire_s = float(self.host.settings.sessions.expire_s)
        return {id for home, since in self._gone_since.items() if now_s - since > expire_s for id in gone[home]}

    def _release(self, leases: set[str]) -> None:
        for lease_id in sorted(leases - self._releasing):
            self._releasing.add(lease_id)
            self.spawn(self._detach(lease_id))

    async def _detach(self, lease_id: str) -> None:
        """Have the worker let go, then free the lease: its devices go to nobody while a process holds them."""
        host_id = self._ledger.allocations.get(lease_id, NO_ALLOCATION).get("host", self.host.host_id)
        try:
            while True:
                try:
                    if host_id == self.host.host_id:
                        await self.call("worker_manager", DetachLease(lease_id), DETACH_TIMEOUT_S)
                    else:
                        ask = AskHost(host_id, "detach_lease", {"lease_id": lease_id}, DETACH_TIMEOUT_S)
                        await self.call("links", ask, DETACH_TIMEOUT_S + 1)
                except ActorGridError as error:
                    self.log.info("lease %s is not released yet: %s", lease_id, error)
                # Still there: its end is on its way to us, or it was granted while it was being ended.
                if lease_id not in self._ledger.allocations:
                    return
                await self.sleep(DETACH_AGAIN_S)
                host_id = self._ledger.allocations.get(lease_id, NO_ALLOCATION).get("host", host_id)
        finally:
            self._releasing.discard(lease_id)

    def metrics(self) -> dict[str, float]:
        """Sessions and leases, now and in all."""
        return {
            "sessions": len(self._sessions),
            "session_leases": sum(len(session.leases) for session in self._sessions.values()),
            "session_leases_granted_total": self._granted_total,
            "sessions_expired_total": self._expired_total,
        }

    def status(self) -> dict[str, Any]:
        """Open sessions."""
        return {"sessions": {key: {"leases": sorted(s.leases), "user": s.user_id} for key, s in self._sessions.items()}}
