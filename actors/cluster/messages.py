"""What ClusterManager, LoadBalancer and FaultDetector take from the doors and from each other.

``seen`` in a request is the ledger's index its sender has seen: the answer is of that index or a later one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from actorgrid.access import EVERYTHING, Scope
from actorgrid.actors.ledger.commands import EditJob
from actorgrid.actors.ledger.messages import QueryArguments
from actorgrid.actors.ledger.record_types import JobRecord, QuotaRecord, ResourcesRecord
from actorgrid.balancing.targets import RouteTarget, RoutingRequest
from actorgrid.configs.balancing_policy import BalancingPolicy
from actorgrid.demand import DemandEdit

# -- ClusterManager


@dataclass(frozen=True, slots=True)
class AcceptJobs:
    """Accept jobs, all or none. Each is a job record without state (see ledger/commands).

    Answer: list of {"job_id", "duplicate"}; given only after the ledger committed them.
    Raises UnknownGpuModel, TooManyGpus, RequestTooLarge, QuotaExceeded (more than the user may ever hold), QueueFull,
    DiskFull, UnknownJob (dependency).
    """

    jobs: tuple[JobRecord, ...]


@dataclass(frozen=True, slots=True)
class AcceptGraph:
    """Accept a graph: a job record without state, of the kind graph, whose files are on the disks. *demands*: what its
    steps ask for, each with the id of a step that asks for it.

    Answer: {"job_id", "duplicate"}. Raises what AcceptJobs raises, UnsatisfiableCost that names the step.
    """

    graph: dict[str, Any]
    demands: tuple[tuple[str, ResourcesRecord], ...]
    cache: bool = False
    """Whether results of its steps may be taken over by later graphs."""
    grows: bool = False
    """Whether steps of it may give further ones."""
    asks_commands: bool = False
    """Whether commands of it say words, or leave files for others."""
    spec_version: int = 0
    """The version of the ledger whose hosts can read its files; 0: any."""


@dataclass(frozen=True, slots=True)
class AskGraph:
    """Answer: {"job", "states" of its steps (None: known no more), "here": what ``GraphRunner.explain`` gives, where it
    is led on by this host}. Raises UnknownJob for what is no graph."""

    graph_id: str
    seen: int = 0


@dataclass(frozen=True, slots=True)
class AnnounceRestart:
    """This host is about to start anew: let everybody wait for it a minute. Answer: the entry that says so."""


@dataclass(frozen=True, slots=True)
class RequestCancel:
    """Cancel a job in any state. Answer: the job record. Raises UnknownJob."""

    job_id: str
    by: str


@dataclass(frozen=True, slots=True)
class GetJob:
    """One job record, live or ended. With ``wait_s`` the answer comes when it is final, or at that time."""

    job_id: str
    wait_s: float = 0.0
    seen: int = 0


@dataclass(frozen=True, slots=True)
class FindResults:
    """Where the results of these function jobs lie. Answer: {job_id: ResultPlace}, of those that are known here to have
    ended, with an attempt; of others nothing."""

    job_ids: tuple[str, ...]
    seen: int = 0


@dataclass(frozen=True, slots=True)
class ResultPlace:
    """Whose job it is, and the attempt that decided it, with its host."""

    user_id: str
    host: str
    attempt_id: str


@dataclass(frozen=True, slots=True)
class ListJobs:
    """Answer: {"jobs": [records, newest first], "total": n, "next": id}. *before*: a time, or the ``next`` of the page
    before. *prefix*: what the ids begin with; *user*: only that one's; *steps*: those that run steps of graphs, too;
    *since_at*: submitted then or later; *name*: what is in the name; *labels*; *host*: an attempt of them was there;
    *tenant*: of users of that one. Raises UnknownJob for a page after a job that is not known any more."""

    states: tuple[str, ...] = ()
    limit: int = 100
    before: float | str | None = None
    prefix: str = ""
    user: str = ""
    steps: bool = False
    since_at: float | None = None
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    host: str = ""
    tenant: str = ""

    def to_query(self) -> QueryArguments:
        """The arguments of the ledger's query."""
        asked = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**asked, "states": list(self.states), "labels": dict(self.labels)}


@dataclass(frozen=True, slots=True)
class ChangeDemand:
    """Have a job that waits ask for something else, with what else *edit* changes of it.

    Answer: that of the ledger. Raises what AcceptJobs raises of a job that no host could ever run, WrongState for one
    that waits no more, or runs steps of a graph.
    """

    edit: EditJob
    demand: DemandEdit
    seen: int = 0


@dataclass(frozen=True, slots=True)
class LeaveHost:
    """Have a host leave the cluster: by its id, number or name, or ``this``. Waits for at most ``wait_s``.

    ``now``: end its work, which starts again elsewhere. ``force``: remove a host that does not answer, with its work,
    which is lost. ``cancel``: it stays after all. Answer: {"host_id", "state", "waits_for", "lost"}; the state is
    draining, handing_over, left or stays; ask again to go on. Raises NotFound, WrongState, NotLeader.
    """

    host: str
    by: str
    now: bool = False
    force: bool = False
    cancel: bool = False
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LeaveStep:
    """One step of it, for the leader. Answer and errors as LeaveHost."""

    host_id: str
    by: str
    now: bool = False
    force: bool = False
    cancel: bool = False


@dataclass(frozen=True, slots=True)
class MoveWork:
    """Drain a host, and have what may be stopped there start again elsewhere; for the leader.

    Answer: {"moved", "stay"}, numbers of allocations. Raises NotFound.
    """

    host_id: str
    by: str


@dataclass(frozen=True, slots=True)
class Why:
    """Why a job is where it is. Answer: {"job_id", "state", "reasons": [...], "next_step": str, ...}."""

    job_id: str
    seen: int = 0
    scope: Scope = EVERYTHING
    """Whose work it may name."""
    output: bool = True
    """Whether it may tell what the job wrote."""


@dataclass(frozen=True, slots=True)
class ListHosts:
    """Answer: list of dicts (models.ClusterNode fields)."""

    seen: int = 0


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    """Answer: counts of hosts, GPUs, jobs by state, allocated shares; performance figures."""

    seen: int = 0


@dataclass(frozen=True, slots=True)
class ChangeSetting:
    """Set a live setting durably. Answer: {"key", "value", "previous"}. Raises ConfigError."""

    key: str
    value: Any
    by: str


@dataclass(frozen=True, slots=True)
class ChangeQuota:
    """Hold a user to ``limits`` (see ledger/tables/quotas.py), or, with ``None``, to none of one's own.

    Answer: {"user", "limits", "previous"}. Raises NotFound when there is none to remove, BadRequest.
    """

    user: str
    limits: QuotaRecord | None
    by: str


# -- LoadBalancer

SESSION = "session"
"""Kind of the owner of a session's lease."""


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Answer: {"session_id", "renew_s", "expires_s", "balancing"}. Raises TooManySessions, PythonMismatch.

    *afar*: its client is on another machine.
    """

    user_id: str
    python: str
    afar: bool = False


@dataclass(frozen=True, slots=True)
class RenewSession:
    """Keep a session alive. Answer: {"leave"}, the ids of leases that the client is to let go of when what they run has
    ended (it may ask for others). Raises UnknownSession."""

    session_id: str
    scope: Scope = EVERYTHING
    """Whose sessions are there for whoever asks, here and below."""


@dataclass(frozen=True, slots=True)
class CloseSession:
    """End a session and free its leases. Idempotent."""

    session_id: str
    scope: Scope = EVERYTHING


@dataclass(frozen=True, slots=True)
class AcquireWorker:
    """Lease a warm worker. Answer: dict of models.LeaseGrant fields.

    ``lease_id`` makes it repeatable: after a lost answer, the same id gives the same lease with a new secret.
    """

    session_id: str
    resources: ResourcesRecord
    pool: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    wait_s: float = 10.0
    lease_id: str = ""
    scope: Scope = EVERYTHING


@dataclass(frozen=True, slots=True)
class ReturnWorker:
    """Give a lease back before the session ends. Idempotent."""

    session_id: str
    lease_id: str
    scope: Scope = EVERYTHING


@dataclass(frozen=True, slots=True)
class LeaseEnd:
    """How the worker of a lease of that session ended. Answer: a work.worker_end.WorkerEnding."""

    session_id: str
    lease_id: str
    scope: Scope = EVERYTHING


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Asks what this host knows of the load of each. Answer: list of dicts (gateway.schemas.load.HostLoadAnswer)."""


@dataclass(frozen=True, slots=True)
class SetTargets:
    """All targets of a service, from whoever runs it: replicas that exist. None of them: the service is forgotten.

    ``policy``: that of its requests. Raises BadRequest, and Overloaded beyond 1,024 services.
    """

    service: str
    targets: tuple[RouteTarget, ...]
    policy: str = BalancingPolicy.LEAST_LOADED.value


@dataclass(frozen=True, slots=True)
class SelectTarget:
    """Asks which target of a service gets a request; it counts as in flight there until TargetDone, or until who asked
    starts again.

    Answer: {"target", "host", "policy", "why", "considered"}. ``policy`` is that of this request; empty: the service's.
    Raises NotFound (no such service), NoSuitableTarget, BadRequest.
    """

    service: str
    request: RoutingRequest = field(default_factory=RoutingRequest)
    policy: str = ""


@dataclass(frozen=True, slots=True)
class TargetDone:
    """A request that was sent to a target has ended, however. A cast."""

    service: str
    target: str


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Have sessions' workers leave overloaded hosts, and those of ``exclude``. Answer: a rebalance.RebalancePlan.

    With ``dry_run`` nothing is done. Else their clients are told at the next renewal: they end what these workers have,
    give them back and ask for others. Raises BadRequest for a host that is not known.
    """

    exclude: tuple[str, ...] = ()
    dry_run: bool = True


@dataclass(frozen=True, slots=True)
class LeaveLeases:
    """Have the clients of this host's sessions let go of leases. Answer: the ids that are of such sessions.

    ``near``: by lease, the host that is tried first for the next lease of its session.
    """

    near: dict[str, str]


# -- FaultDetector


@dataclass(frozen=True, slots=True)
class HealthReport:
    """How this host is. Answer: {"health": NodeHealth, "problems": [...], "servers": {name: {...}}, "ready": bool,
    "cluster": as for ClusterHealthReport}, of what is known already: nobody else is asked.
    """


@dataclass(frozen=True, slots=True)
class ClusterHealthReport:
    """How the cluster is, as this host knows it (``health.Verdict.to_plain``). The host that leads is asked whom it
    misses, for a second at most.
    """


@dataclass(frozen=True, slots=True)
class NoticeStates:
    """For the host that leads. Answer: {id of a notice that waits: {"tries", "last_failure", "next_at"}}; of another
    host: nothing."""


@dataclass(frozen=True, slots=True)
class HostsAway:
    """For the host that leads. Answer: {"quiet_s": {host: for how long it was not heard of}, "behind_s": {host: for how
    long it takes nothing of what is committed, although it answers}}. Raises NotLeader."""


@dataclass(frozen=True, slots=True)
class FaultReport:
    """What this host says of itself. Answer: {"checks", "events", "pairs"} (``faults/host_checks.py``)."""


@dataclass(frozen=True, slots=True)
class WhyHost:
    """Why a host is as it is, and what would be done about it: for the host that leads. Answer: ``faults/explain.py``.

    Raises NotFound, NotLeader.
    """

    host_id: str


@dataclass(frozen=True, slots=True)
class ListFaults:
    """What happened to hosts and was done about them, newest first; for the host that leads.

    Answer: {"faults": [...]}, at most *limit*, of one host or of all. Raises NotLeader.
    """

    host_id: str = ""
    limit: int = 100
