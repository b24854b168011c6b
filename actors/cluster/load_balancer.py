"""LoadBalancer: sessions of clients, and which warm worker each of their leases stands for.

A session lives as long as its client renews it, on the host where it was opened: its id begins with that host's.
Leases are allocations in the ledger, so they outlive this server: after a restart it finds them there and gives every
session a full term to renew. Those of a host that is gone for as long are freed by the host that leads.
Placing is not done here: the leader's GPUCoordinator decides each allocation; it is told which host would be less
loaded (load_gossip.py). A worker on another host is reached by a relay of this host's Links.

It also routes requests of services among targets that exist (SetTargets, SelectTarget), and has workers leave hosts
with too much to do (Rebalance).
"""

from __future__ import annotations

import platform
import secrets
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from typing import Any

from actorgrid.access import Scope
from actorgrid.actors.ledger.record_types import NO_ALLOCATION, AllocationRecord
from actorgrid.balancing.targets import balancing_policy
from actorgrid.errors import ActorGridError, BadRequest, CallTimeout, PythonMismatch, TooManySessions, UnknownSession
from actorgrid.supervisors.server import handles

from ..gpu.messages import AcquireLease
from ..ledger.client import LedgerClient, LedgerFollower
from ..ledger.messages import Applied, LedgerSnapshot
from ..ledger.records import UNKNOWN_USER
from ..links.messages import AskHost, AskLeader, OpenRelay
from ..replication.messages import StateChanged
from ..work.attempt_specs import object_store_path
from ..work.environment import host_tag
from ..work.messages import AttachLease, DetachLease, ObjectStoreWanted, TellWorkerEnd
from ..work.worker_end import UNKNOWN, WorkerEnding
from .core import choose_pool
from .host_load import PUBLISH_S
from .load_gossip import LoadGossip
from .messages import (
    AcquireWorker,
    CloseSession,
    LeaseEnd,
    LeaveLeases,
    LoadReport,
    OpenSession,
    Rebalance,
    RenewSession,
    ReturnWorker,
    SelectTarget,
    SetTargets,
    TargetDone,
)
from .rebalance import HostRoom, RebalancePlan, plan_moves
from .service_targets import ServiceTargets
from .session_homes import SessionHomes

ATTACH_TIMEOUT_S = 30.0
PLACE_MARGIN_S = 10.0
DETACH_TIMEOUT_S = 60.0
DETACH_AGAIN_S = 0.2
CHECK_INTERVAL_S = 0.5
ENDING_TIMEOUT_S = 10.0
AT_HOME_S = 4.0
WORKERS_KNOWN = 256
LEAVE_S = 5.0
HOME_FULL, MUCH_LESS = 0.9, 0.5
"""A lease goes to its client's host, until that has so much load for each CPU and another at most half of it."""
STATUS_HOSTS = 100
AFAR = "-afar"
"""What the ids of sessions of clients on other machines end in, so that it is known after a restart, too."""
NEAR_S = 30.0
"""How long the next lease of a session is tried first where a plan said that its worker should go."""


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
    leave: set[str] = field(default_factory=set)
    """Leases that the client is to let go of; it is told at each renewal until they are gone."""
    near: tuple[str, float] = ("", 0.0)
    """The host that is tried first for its next leases, and until when."""


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
        self._homes = SessionHomes(self, self._ledger, self._expire_s)
        self._leases_left_total = 0
        self._gossip = LoadGossip(self, self._ledger)
        self._services = ServiceTargets()
        # Chance spreads requests over hosts that are as good; it guards nothing.
        self._draw = secrets.SystemRandom().randrange
        await self._ledger.start()
        self.every(CHECK_INTERVAL_S, self._close_expired)
        self.every(PUBLISH_S, self._read_load)
        self.spawn(self._gossip.watch())

    def peer_restarted(self, name: str) -> None:
        """Watch the others' loads again; what a server that started again had sent to services is over."""
        super().peer_restarted(name)
        self._services.forget_caller(name, self.runtime.monotonic())
        if name == "distributed_state":
            self.spawn(self._gossip.watch())

    def _on_snapshot(self, snapshot: LedgerSnapshot) -> None:
        self._gossip.look_at_hosts()
        held: dict[str, set[str]] = {}
        users: dict[str, str] = {}
        for allocation_id, allocation in snapshot.allocations.items():
            if self._is_ours(allocation):
                held.setdefault(allocation["owner"]["session_id"], set()).add(allocation_id)
                users[allocation["owner"]["session_id"]] = allocation["user_id"]
        for session_id, session in self._sessions.items():
            session.leases = held.pop(session_id, set()) - session.pending - self._releasing
        for session_id, leases in held.items():
            self._sessions[session_id] = LiveSession(self._deadline(session_id), leases, user_id=users[session_id])

    def _on_applied(self, message: Applied) -> None:
        if any(kind in ("host", "absent") for kind, _, _ in message.changes):
            self._gossip.look_at_hosts()
        for kind, lease_id, record in message.changes:
            if kind != "allocation":
                continue
            if record is None:
                for session in self._sessions.values():
                    session.leases.discard(lease_id)
                    session.leave.discard(lease_id)
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

    def _deadline(self, session_id: str) -> float:
        return self.runtime.monotonic() + self._expire_s(session_id)

    def _expire_s(self, session_id: str) -> float:
        settings = self.host.settings.sessions
        return float(settings.expire_afar_s if session_id.endswith(AFAR) else settings.expire_s)

    def _in_reach(self, session_id: str, scope: Scope) -> LiveSession | None:
        session = self._sessions.get(session_id)
        return session if session is not None and scope.covers(session.user_id) else None

    def _session(self, session_id: str, scope: Scope) -> LiveSession:
        session = self._in_reach(session_id, scope)
        if session is None:
            raise UnknownSession(
                "the session is not open here",
                asked=session_id,
                found=f"{sum(scope.covers(each.user_id) for each in self._sessions.values())} open session(s)",
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
        session_id = f"{self.host.host_id}.{secrets.token_hex(8)}{AFAR if request.afar else ''}"
        self._sessions[session_id] = LiveSession(self._deadline(session_id), user_id=request.user_id)
        settings = self.host.settings.sessions
        self.cast("worker_manager", ObjectStoreWanted())
        return {
            "session_id": session_id,
            "renew_s": settings.renew_s,
            "expires_s": self._expire_s(session_id),
            "balancing": self._balancing(),
            "objects": self._object_store(),
        }

    def _object_store(self) -> str:
        """The socket of this host's object store; empty where there is none."""
        paths = self.host.paths
        there = self.host.settings.objects.enabled
        return str(object_store_path(paths.work_sockets_dir, host_tag(paths.data_dir))) if there else ""

    def _balancing(self) -> dict[str, str]:
        """By pool, which worker gets a task."""
        return {name: pool["balancing"] for name, pool in self.host.settings.work.pools.model_dump(mode="json").items()}

    @handles(RenewSession)
    async def _renew(self, request: RenewSession) -> dict[str, Any]:
        if home := self._homes.elsewhere(request.session_id):
            answer: dict[str, Any] = await self._homes.ask(home, request, AT_HOME_S)
            return answer
        session = self._session(request.session_id, request.scope)
        session.expires_s = self._deadline(request.session_id)
        return {"leave": sorted(session.leave)}

    @handles(CloseSession)
    async def _close_session(self, request: CloseSession) -> None:
        if home := self._homes.elsewhere(request.session_id):
            await self._homes.ask(home, request, AT_HOME_S)
        else:
            self._close(request)

    def _close(self, request: CloseSession) -> None:
        session = self._in_reach(request.session_id, request.scope)
        if session is not None:
            del self._sessions[request.session_id]
            self._release(session.leases)

    @handles(AcquireWorker)
    async def _acquire(self, request: AcquireWorker) -> dict[str, Any]:
        if home := self._homes.elsewhere(request.session_id):
            timeout_s = request.wait_s + PLACE_MARGIN_S + ATTACH_TIMEOUT_S
            there: dict[str, Any] = await self._homes.ask(home, request, timeout_s)
            return there
        session = self._session(request.session_id, request.scope)
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
        ask = AcquireLease(lease_id, request.session_id, *wanted, session.user_id, self._near(session))
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
            self._session(request.session_id, request.scope)
        session.leases.add(lease_id)
        session.workers[lease_id] = host_id, str(grant["worker_id"])
        while len(session.workers) > WORKERS_KNOWN:
            del session.workers[next(iter(session.workers))]
        session.expires_s = max(session.expires_s, self._deadline(request.session_id))
        self._granted_total += 1
        return grant

    def _near(self, session: LiveSession) -> str:
        """The host to try first for a lease; empty: this one, where its client is, and one socket is enough."""
        near, until = session.near
        if self.runtime.monotonic() < until and self._gossip.is_reachable(near):
            return near
        here = self._gossip.per_cpu(self.host.host_id)
        if here is None or here < HOME_FULL:
            return ""
        others = {
            host_id: load
            for host_id in self._gossip.balancer.targets
            if self._gossip.is_reachable(host_id) and (load := self._gossip.per_cpu(host_id)) is not None
        }
        least = min(others, key=lambda host_id: (others[host_id], host_id), default="")
        return least if least and others[least] <= MUCH_LESS * here else ""

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
        relay = await self.call("links", OpenRelay(host_id, lease_id))
        return {**grant, "socket_path": relay, "host_id": host_id}

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
    async def _return(self, request: ReturnWorker) -> None:
        if home := self._homes.elsewhere(request.session_id):
            await self._homes.ask(home, request, AT_HOME_S)
            return
        session = self._in_reach(request.session_id, request.scope)
        if session is not None and request.lease_id in session.leases:
            session.leases.discard(request.lease_id)
            self._release({request.lease_id})

    @handles(LeaseEnd)
    async def _lease_end(self, request: LeaseEnd) -> WorkerEnding:
        if home := self._homes.elsewhere(request.session_id):
            there: WorkerEnding = await self._homes.ask(home, request, ENDING_TIMEOUT_S)
            return there
        host_id, worker_id = self._session(request.session_id, request.scope).workers.get(request.lease_id, ("", ""))
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
        return {
            lease_id
            for home, since in self._gone_since.items()
            for lease_id in gone[home]
            if now_s - since > self._expire_s(self._ledger.allocations[lease_id]["owner"]["session_id"])
        }

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

    # -- load

    async def _read_load(self) -> None:
        here = [held for held in self._ledger.allocations.values() if held["host"] == self.host.host_id]
        leases = sum(held["owner"]["kind"] == "session" for held in here)
        waiting = sum(len(session.pending) for session in self._sessions.values())
        await self._gossip.read(len(here) - leases, leases, waiting)

    @handles(StateChanged)
    def _state_changed(self, change: StateChanged) -> None:
        self._gossip.changed(change)

    @handles(LoadReport)
    def _load_report(self, _request: LoadReport) -> list[dict[str, Any]]:
        return self._gossip.shown()

    # -- requests of services

    @handles(SetTargets)
    def _set_targets(self, request: SetTargets) -> None:
        self._services.set_targets(request.service, request.targets, balancing_policy(request.policy))

    @handles(SelectTarget)
    def _select(self, request: SelectTarget, sender: str) -> dict[str, Any]:
        policy = balancing_policy(request.policy) if request.policy else None
        balancer, now_s = self._gossip.balancer, self.runtime.monotonic()
        known = {host: history.newest for host, history in balancer.histories.items()}
        newest = {host: sample for host, sample in known.items() if sample is not None}
        self._services.heard(newest, balancer.unreachable, request.service)
        choice = self._services.select(sender, request.service, request.request, policy, now_s, self._draw)
        return {
            "target": choice.target.id,
            "host": choice.target.host,
            "policy": choice.policy.value,
            "why": choice.why,
            "considered": choice.considered,
        }

    @handles(TargetDone)
    def _target_done(self, request: TargetDone, sender: str) -> None:
        self._services.ended(sender, request.service, request.target, self.runtime.monotonic())

    # -- workers that leave

    @handles(Rebalance)
    async def _rebalance(self, request: Rebalance) -> RebalancePlan:
        plan = self._plan(request.exclude)
        plan["dry_run"] = request.dry_run
        if request.dry_run:
            return plan
        near: dict[str, dict[str, str]] = {}
        for move in plan["moves"]:
            near.setdefault(move["home"], {})[move["lease_id"]] = move["to"]
        left: set[str] = set()
        for home, leases in near.items():
            try:
                if home == self.host.host_id:
                    left.update(self._leave(LeaveLeases(leases)))
                else:
                    ask = AskHost(home, "leave_leases", {"near": leases}, LEAVE_S)
                    left.update(await self.call("links", ask, LEAVE_S + 1))
            except ActorGridError as error:
                self.log.info("host %s does not have its clients let go: %s", home, error)
        for move in plan["moves"]:
            move["done"] = move["lease_id"] in left
        return plan

    def _plan(self, exclude: Collection[str]) -> RebalancePlan:
        hosts = self._ledger.hosts
        for host_id in exclude:
            if host_id not in hosts:
                raise BadRequest("no host of that id", asked=host_id[:80], hint="actorgrid hosts --json has the ids")
        cpu_free = {host_id: host["cpu_milli"] for host_id, host in hosts.items()}
        memory_free = {host_id: host["memory_mib"] for host_id, host in hosts.items()}
        homes: dict[str, str] = {}
        for lease_id, held in self._ledger.allocations.items():
            if held["owner"]["kind"] == "session":
                homes[lease_id] = self._home(held)
            if held["host"] in hosts:
                cpu_free[held["host"]] -= held["cpu_milli"]
                memory_free[held["host"]] -= held["memory_mib"]
        rooms = [
            HostRoom(
                host_id,
                self._gossip.balancer.targets[host_id].weight,
                self._gossip.per_cpu(host_id),
                cpu_free[host_id],
                memory_free[host_id],
            )
            for host_id in hosts
            if self._gossip.is_reachable(host_id)
        ]
        return plan_moves(rooms, self._ledger.allocations, exclude, homes)

    @handles(LeaveLeases)
    def _leave(self, request: LeaveLeases) -> list[str]:
        told: list[str] = []
        for session in self._sessions.values():
            for lease_id in sorted(session.leases & request.near.keys()):
                session.leave.add(lease_id)
                session.near = request.near[lease_id], self.runtime.monotonic() + NEAR_S
                told.append(lease_id)
        self._leases_left_total += len(told)
        return told

    # -- how we are

    def metrics(self) -> dict[str, float]:
        """Sessions and leases, now and in all; the load of this host as it is told; what was heard of others."""
        here, balancer = self.host.host_id, self._gossip.balancer
        load, now_s = self._gossip.loads.get(here), self.runtime.monotonic()
        return {
            "sessions": len(self._sessions),
            "session_leases": sum(len(session.leases) for session in self._sessions.values()),
            "session_leases_granted_total": self._granted_total,
            "session_leases_left_total": self._leases_left_total,
            "sessions_expired_total": self._expired_total,
            "host_load": balancer.host_load(here, now_s) or 0.0,
            "host_load_cpu_ratio": load["cpu"] if load else 0.0,
            "host_load_memory_ratio": load["memory"] if load else 0.0,
            "host_loads_known": sum(balancer.is_known(host_id, now_s) for host_id in balancer.targets),
            "host_loads_published_total": self._gossip.published_total,
            "host_loads_heard_total": self._gossip.heard_total,
            "host_loads_refused_total": self._gossip.refused_total,
            "services_routed": len(self._services),
        }

    def status(self) -> dict[str, Any]:
        """Open sessions; of each host what load is expected; of each service what is in flight where."""
        sessions = {
            key: {"leases": sorted(s.leases), "user": s.user_id, "leave": sorted(s.leave)}
            for key, s in self._sessions.items()
        }
        shown = ("state", "load", "expected", "trend_per_s", "age_s")
        hosts = {each["hostname"]: {name: each[name] for name in shown} for each in self._gossip.shown()[:STATUS_HOSTS]}
        return {
            "balancing": self._balancing(),
            "sessions": sessions,
            "hosts": hosts,
            "services": self._services.in_flight(),
        }
