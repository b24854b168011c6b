"""The ledger's records by kind, one line for each field. They are plain maps of JSON values, in memory as in snapshots
and on links; a record is replaced when it changes, never written into, so that whoever has one may keep it.

A field that is ``NotRequired`` is missing where nothing is to be said, and in what earlier versions wrote. Times are
seconds since the epoch by the proposer's clock, indexes are of the log, tokens are [recovery epoch, index].
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict, cast

from actorgrid.actors.ledger.checkpoint_records import CheckpointFields
from actorgrid.container_words import ContainerWish
from actorgrid.errors import ErrorRecord

from .device_records import DeviceRecord as DeviceRecord
from .graph_records import GraphFacts, StepOfRecord, StepResultRecord
from .isolation_records import KeptApartRecord as KeptApartRecord
from .reachability import UnreachableRecord
from .service_records import ServedJobRecord
from .usage_records import UsageRecord


class ResourcesRecord(TypedDict, total=False):
    """The resources that an attempt or a lease asks for; for a gang, each of its members."""

    gpus: float
    """As people ask for it: whole devices, or a share of one."""
    gpu_count: int
    """How many devices it asks for."""
    gpu_milli: int
    """Thousandths that it asks for of each device."""
    gpu_memory_mib: int
    """MiB that it asks for of each device's memory."""
    gpu_models: list[str]
    """Models that will do; empty: any."""
    gpu_affinity: list[str]
    """UUIDs of the only devices that will do; empty: any."""
    cpu_milli: int
    """CPU, in thousandths of a core."""
    memory_mib: int
    """Memory of the host, in MiB."""
    gang: int
    """How many members start together; missing: one."""
    spread: bool
    """Whether each member of a gang is to have a host of its own."""
    hosts: list[str]
    """The only hosts that will do, by id; missing: any. Said of steps of graphs."""
    min_isolation: str
    """The least that a host is to enforce of it (``isolation_words``); missing: nothing."""
    gpu_topology: str
    """How close every two of its devices are to be (``device_words``); missing: however they lie."""


class PreemptionRecord(TypedDict):
    """The request that an attempt end for another."""

    asked_at: float
    """When it was asked for."""
    grace_s: float
    """Seconds that its processes have between SIGTERM and SIGKILL."""
    for_job: str
    """The job, or lease, that is to have its place."""


class RendezvousRecord(TypedDict):
    """The address at which the members of a gang meet."""

    address: str
    """The address of rank 0's host."""
    port: int
    """The port on which rank 0 listens."""


class EndingRecord(TypedDict):
    """The reason why the members of a gang that still run are to end."""

    rank: int
    """The rank of the first member that did not succeed."""
    at: float
    """When that member ended."""


class SupersededRecord(TypedDict):
    """The request that an attempt end because an earlier one has done the work."""

    by: int
    """The number of that attempt."""
    at: float
    """When that was heard."""


class EndFacts(TypedDict):
    """The facts of how processes ended; ``None`` where one is not known."""

    exit_code: int | None
    """The exit code of its process."""
    signal: int | None
    """The signal that killed its process."""
    max_rss_bytes: int | None
    """The most memory that one of its processes had, in bytes; all together, where their memory is limited."""
    cpu_s: float | None
    """CPU time of all its processes, in seconds."""
    result_bytes: int | None
    """The size of the result on its host's disk, in bytes."""


class GangMemberRecord(EndFacts):
    """One member of a gang's attempt."""

    rank: int
    """Its place in the gang, from 0."""
    host: str
    """The id of the host where it runs."""
    incarnation: int
    """The incarnation of that host when it was granted."""
    address: str
    """The address at which the others reach it."""
    allocation_id: str
    """The id of what it holds."""
    gpu_indexes: list[int]
    """Its devices, by index on that host."""
    gpu_uuids: list[str]
    """The same devices, by UUID."""
    state: str
    """placed, running, or the way in which it ended."""
    started_at: float | None
    """When its process was started."""
    ended_at: float | None
    """When the last of its processes was gone."""
    charged: bool
    """Whether its end counts against the job's retries."""
    error: ErrorRecord | None
    """Why it did not succeed."""
    usage: NotRequired[UsageRecord]
    """What it used of its devices."""


class AttemptRecord(EndFacts):
    """One try to run a job. For a gang, host and devices are those of rank 0."""

    number: int
    """Its place among the job's attempts, from 1."""
    attempt_id: str
    """Its id: JOB.NUMBER."""
    allocation_id: str
    """The id of what it holds."""
    host: str
    """The id of the host where it runs."""
    incarnation: int
    """The incarnation of that host when it was granted."""
    state: str
    """placed, running, or the way in which it ended."""
    token: list[int]
    """The fencing token of its grant."""
    gpu_indexes: list[int]
    """Its devices, by index on that host."""
    gpu_uuids: list[str]
    """The same devices, by UUID."""
    placed_at: float
    """When it was granted."""
    started_at: float | None
    """When its process was started."""
    ended_at: float | None
    """When the last of its processes was gone."""
    error: ErrorRecord | None
    """Why it did not succeed."""
    preemption: PreemptionRecord | None
    """Set when it is to end for another."""
    placement_latency_us: float | None
    """How long the decision to place it took, in microseconds."""
    members: NotRequired[list[GangMemberRecord]]
    """The members of a gang, by rank."""
    rendezvous: NotRequired[RendezvousRecord]
    """Where the members of a gang meet."""
    ending: NotRequired[EndingRecord | None]
    """Of a gang: set when its members are to end."""
    superseded: NotRequired[SupersededRecord]
    """Set when it is to end because the work is done."""
    late_success_at: NotRequired[float]
    """When it was heard that it had succeeded though it counted as lost."""
    results: NotRequired[list[StepResultRecord]]
    """Of steps of a graph: how each of them ended, in their order; those behind the last one were not begun."""
    usage: NotRequired[UsageRecord]
    """What it used of its devices; of a gang, each member has its own."""


class JobRecord(CheckpointFields):
    """A job, from its acceptance on."""

    job_id: str
    """Its id, given by whoever submits."""
    name: str
    """Its name, for people."""
    user_id: str
    """The user whose quota it counts for."""
    kind: str
    """command, function or graph."""
    command: list[str]
    """The program and its arguments; empty for a function."""
    payload_digest: str | None
    """SHA-256 of the pickled function, in hex; of a command, of the archive of its working directory, if it has one."""
    stdin_digest: str | None
    """SHA-256 of what its standard input holds, in hex; of a function, of the archive of its working directory."""
    python: str | None
    """The Python that the function needs, as major.minor."""
    priority: int
    """0 to 100, higher first."""
    policy: str
    """The policy under which it was submitted."""
    env: dict[str, str]
    """The environment variables that it asked for."""
    cwd: str | None
    """Its working directory."""
    max_execution_time_s: float | None
    """How long each attempt may run, in seconds."""
    pool: str | None
    """The pool of workers, for a function."""
    max_isolation_s: float
    """Seconds that it may go on without its cluster."""
    retries_left: int
    """How many more attempts may fail."""
    deadline: float | None
    """By when it was promised to end."""
    preemptible: bool
    """Whether it may be stopped for others."""
    grace_s: float
    """Seconds that it gets between SIGTERM and SIGKILL when it is stopped for others."""
    submitted_at: float
    """When it was submitted, by its submitter's clock."""
    depends_on: list[str]
    """The ids of jobs that have to succeed first."""
    resources: ResourcesRecord
    """The resources that each attempt asks for."""
    ordinal: int
    """Its place in the order of acceptance, from 1."""
    state: str
    """queued, placed, running, or a final one (``JobState``)."""
    cancel_requested: bool
    """Whether it is to end."""
    preemptions: int
    """How often it was stopped for others."""
    submitted_index: int
    """The index of the entry that accepted it."""
    not_before: float
    """When its next attempt may begin."""
    ended_at: float | None
    """When it came to its final state."""
    error: ErrorRecord | None
    """Why it did not succeed."""
    attempts: list[AttemptRecord]
    """Its attempts: the first, and the latest 49."""
    annotations: NotRequired[dict[str, str]]
    """What its submitter noted about it."""
    labels: NotRequired[dict[str, str]]
    """The words by which it is found."""
    stop_when_idle_s: NotRequired[float]
    """How long (s) all its devices may be idle before it is ended."""
    notify: NotRequired[list[str]]
    """Whom it tells of its states."""
    notify_on: NotRequired[list[str]]
    """Of which events; where it is not there, of its end."""
    environment: NotRequired[str]
    """SHA-256 of the spec of its Python environment, in hex."""
    outputs: NotRequired[list[str]]
    """The paths that are kept when an attempt ends, relative to its directory."""
    container: NotRequired[ContainerWish]
    """The container that its command runs in."""
    traceparent: NotRequired[str]
    """Its place in a trace: the span that tells of its submission."""
    pty: NotRequired[bool]
    """Whether its command has a terminal, which people attach to."""
    secrets: NotRequired[list[str]]
    """The secrets that it is given: NAME, or NAME:VARIABLE."""
    edits: NotRequired[int]
    """How often what it asks for was changed while it waited, where it was."""
    taken: NotRequired[int]
    """The attempt whose late success is the job's."""
    graph: NotRequired[GraphFacts]
    """Of a graph."""
    step_of: NotRequired[StepOfRecord]
    """Of a job that runs steps of a graph."""
    near: NotRequired[str]
    """The host on which it is tried first."""
    service: NotRequired[ServedJobRecord]
    """Of a job that is a replica of a service."""


class GangPlace(TypedDict):
    """The place that a grant names for one member of a gang."""

    host: str
    """The id of the host."""
    incarnation: int
    """The incarnation of that host."""
    gpu_indexes: list[int]
    """Its devices, by index on that host."""


class OwnerRecord(TypedDict):
    """The owner of an allocation."""

    kind: str
    """attempt or session."""
    job_id: NotRequired[str]
    """The job, of an attempt."""
    attempt: NotRequired[int]
    """The attempt's number."""
    rank: NotRequired[int]
    """The rank, of a gang's member."""
    session_id: NotRequired[str]
    """The session, of a lease."""
    lease_id: NotRequired[str]
    """The lease's id."""


class HeldAmounts(TypedDict):
    """The amounts that are held on a host."""

    gpu_indexes: list[int]
    """Its devices, by index on that host."""
    gpu_milli: int
    """Thousandths of each device."""
    gpu_memory_mib: int
    """MiB of each device's memory."""
    cpu_milli: int
    """CPU, in thousandths of a core."""
    memory_mib: int
    """Memory of the host, in MiB."""


class AllocationRecord(HeldAmounts):
    """The resources given out to one attempt, member of a gang, or lease."""

    allocation_id: str
    """Its id: that of the attempt, member or lease."""
    owner: OwnerRecord
    """The attempt, member or lease that has it."""
    host: str
    """The id of the host whose resources they are."""
    incarnation: int
    """The incarnation of that host."""
    gpu_uuids: list[str]
    """Its devices, by UUID."""
    token: list[int]
    """The fencing token of its grant."""
    granted_at: float
    """When it was granted."""
    pool: str | None
    """The pool of workers that it is for."""
    env: dict[str, str]
    """The environment variables of a lease's worker."""
    user_id: str
    """The user whose quota it counts for."""
    max_isolation_s: NotRequired[float]
    """Seconds that it may go on without its cluster."""
    port: NotRequired[int | None]
    """At which its gang meets, of rank 0."""
    behind: NotRequired[str]
    """The id of the one whose place it gets when that has ended; until then it holds nothing itself."""
    gpu_parents: NotRequired[list[str]]
    """The whole devices that its MIG instances are parts of, by UUID."""
    charge: NotRequired[dict[str, int]]
    """The amounts that it counts as for its tenant (``tenant_records``); of one granted while there were tenants."""


class HostFacts(TypedDict):
    """The facts that a host registers of itself. Those of earlier versions lack what ``records.new_host`` puts in."""

    host_id: str
    """Its id, which it keeps for good."""
    incarnation: int
    """How often its agent started."""
    cpu_milli: int
    """CPU that work may have, in thousandths of a core."""
    memory_mib: int
    """Memory that work may have, in MiB."""
    devices: list[DeviceRecord]
    """Its devices, by index."""
    hostname: str
    """Its name, for people."""
    boot_id: NotRequired[str]
    """The id of the agent's start."""
    state: str
    """up, down or lost."""
    address: str | None
    """The address of its HTTP door."""
    port: int | None
    """The port of its HTTP door."""
    rack: NotRequired[str | None]
    """Where it stands."""
    told: NotRequired[int]
    """Which of its registrations this is: one that was told before, and comes later, counts for nothing."""
    kept_apart: NotRequired[KeptApartRecord]
    """How far it keeps work apart, as it found by trying; missing until it has tried."""


class MeasuredFigures(TypedDict, total=False):
    """What a host measured of its disk and its network, at most once a day."""

    at: float
    """When, s since 1970; 0: not all of it could be measured, and is tried again."""
    fdatasync_ms: float
    """Median time until 4 KiB are durable."""
    write_mb_per_s: float
    """How fast bytes become durable, one after the other."""
    to: str
    """The host to which the network was measured."""
    round_trip_ms: float
    """Median time of a call to it and the answer."""
    network_mb_per_s: float
    """How fast bytes get there, several calls in flight."""


class HostRecord(HostFacts):
    """A host that has registered for work."""

    registered_at: float
    """When it registered."""
    seen_index: NotRequired[int]
    """Where it last said that it is there."""
    draining: NotRequired[bool]
    """Whether it takes nothing new."""
    measured: NotRequired[MeasuredFigures]
    """What its disk and network do, by name with unit."""
    absence_s: NotRequired[float]
    """How long to wait for it, from its last word on."""
    absence_index: NotRequired[int]
    """Where it said so."""
    lost_at: NotRequired[int]
    """The entry that lost it."""
    heard_at: NotRequired[float]
    """When it was last heard of before that."""
    unreachable: NotRequired[UnreachableRecord]
    """Who found that nobody reaches it; not there while it is reached."""


class MemberRecord(TypedDict):
    """A host that belongs to the cluster."""

    host_id: str
    """The id of the host."""
    node: int
    """Its number in Raft, never given twice."""
    addresses: dict[str, str]
    """Its ADDRESS:PORT, by what listens there: raft, calls, join, https."""
    fingerprints: list[str]
    """Of the certificates that are believed, the newest last."""
    rack: str | None
    """Where it stands."""
    version: str
    """The version of its software."""
    ledger_version: int
    """The version of the commands that it knows."""
    votes: bool
    """Whether it may become a voter."""
    joined_at: float
    """When it joined."""
    site: NotRequired[str]
    """The site (data centre) that it said it is in; empty: none."""


class LockEntry(TypedDict):
    """A holder of a lock, or a waiter in its line."""

    owner: str
    """The thread that asks, not a user."""
    user_id: str
    """The user whose it is."""
    ttl_s: float
    """Seconds that it is held without a sign of life."""
    renewals: int
    """Signs of life so far."""
    since: float
    """When it was granted, or asked for."""
    token: list[int] | None
    """Fencing token; ``None`` of one who waits."""
    request: NotRequired[list[Any]]
    """[number, id] of the request it was given to; an empty id is nobody's."""


class LockRecord(TypedDict):
    """A lock, or a semaphore, that somebody holds."""

    name: str
    """What it is known by."""
    slots: int
    """How many may hold it."""
    holders: list[LockEntry]
    """In the order of their grants."""
    waiters: list[LockEntry]
    """In the order in which they asked."""


class QuotaRecord(TypedDict):
    """The limits of what a user may hold at once; ``None`` is no limit."""

    gpu_milli: int | None
    """Devices, in thousandths."""
    gpu_memory_mib: int | None
    """Memory of devices, in MiB."""
    cpu_milli: int | None
    """CPU, in thousandths of a core."""
    memory_mib: int | None
    """Memory of hosts, in MiB."""
    jobs_waiting: int | None
    """How many jobs may wait."""


class RemovedRecord(TypedDict):
    """A host that was a member and is none any more."""

    node: int
    """The number that it had in Raft."""
    at: float
    """When it was removed."""
    by: str
    """The one on whose word it was removed."""
    left: bool
    """Whether it left in order, by its own will or as planned."""


NO_JOB = cast("JobRecord", {})
NO_ATTEMPT = cast("AttemptRecord", {})
NO_ALLOCATION = cast("AllocationRecord", {})
NO_HOST = cast("HostRecord", {})
NO_MEMBER = cast("MemberRecord", {})
NO_ERROR = cast("ErrorRecord", {})
"""In the place of a record that is not there, for ``get`` with a value for what it does not say."""
