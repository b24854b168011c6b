"""The ledger's records by kind, one line for each field. They are plain maps of JSON values, in memory as in snapshots
and on links; a record is replaced when it changes, never written into, so that whoever has one may keep it.

A field that is ``NotRequired`` is missing where nothing is to be said, and in what earlier versions wrote. Times are
seconds since the epoch by the proposer's clock, indexes are of the log, tokens are [recovery epoch, index].
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict, cast

ErrorRecord = dict[str, Any]
"""An error as ``ActorGridError.to_dict`` writes it."""


class ResourcesRecord(TypedDict, total=False):
    """The resources that an attempt or a lease asks for; for a gang, each of its members."""

    gpus: float
    """As people ask for it: whole devices, or a share of one."""
    gpu_count: int
    """How many devices."""
    gpu_milli: int
    """Thousandths of each device."""
    gpu_memory_mib: int
    """MiB of each device's memory."""
    gpu_models: list[str]
    """Models that will do; empty: any."""
    gpu_affinity: list[str]
    """UUIDs of the only devices that will do; empty: any."""
    cpu_milli: int
    """Thousandths of a core."""
    memory_mib: int
    """MiB of the host's memory."""
    gang: int
    """How many members start together; missing: one."""
    spread: bool
    """Whether each member of a gang is to have a host of its own."""


class PreemptionRecord(TypedDict):
    """The request that an attempt end for another."""

    asked_at: float
    """When it was asked."""
    grace_s: float
    """Seconds between SIGTERM and SIGKILL."""
    for_job: str
    """The job, or lease, that is to have its place."""


class RendezvousRecord(TypedDict):
    """The address at which the members of a gang meet."""

    address: str
    """Of the host of rank 0."""
    port: int
    """At which rank 0 listens."""


class EndingRecord(TypedDict):
    """The reason why the members of a gang that still run are to end."""

    rank: int
    """Of the first that did not succeed."""
    at: float
    """When it ended."""


class SupersededRecord(TypedDict):
    """The request that an attempt end because an earlier one has done the work."""

    by: int
    """The number of that attempt."""
    at: float
    """When that was heard."""


class EndFacts(TypedDict):
    """The facts of how processes ended; ``None`` where one is not known."""

    exit_code: int | None
    """Of the process."""
    signal: int | None
    """That killed it."""
    max_rss_bytes: int | None
    """The most memory that a process of it had."""
    cpu_s: float | None
    """CPU seconds of all its processes."""
    result_bytes: int | None
    """Of the result on its host's disk."""


class GangMemberRecord(EndFacts):
    """One member of a gang's attempt."""

    rank: int
    """From 0."""
    host: str
    """Where it runs."""
    incarnation: int
    """Of that host."""
    address: str
    """At which the others reach it."""
    allocation_id: str
    """Of what it holds."""
    gpu_indexes: list[int]
    """Its devices, by index on that host."""
    gpu_uuids: list[str]
    """The same devices."""
    state: str
    """placed, running, or how it ended."""
    started_at: float | None
    """When its process ran."""
    ended_at: float | None
    """When its processes were gone."""
    charged: bool
    """Whether its end counts against the job's retries."""
    error: ErrorRecord | None
    """Why it did not succeed."""


class AttemptRecord(EndFacts):
    """One try to run a job. For a gang, host and devices are those of rank 0."""

    number: int
    """From 1."""
    attempt_id: str
    """JOB.NUMBER."""
    allocation_id: str
    """Of what it holds."""
    host: str
    """Where it runs."""
    incarnation: int
    """Of that host."""
    state: str
    """placed, running, or how it ended."""
    token: list[int]
    """Fencing token of its grant."""
    gpu_indexes: list[int]
    """Its devices, by index on that host."""
    gpu_uuids: list[str]
    """The same devices."""
    placed_at: float
    """When it was granted."""
    started_at: float | None
    """When its process ran."""
    ended_at: float | None
    """When its processes were gone."""
    error: ErrorRecord | None
    """Why it did not succeed."""
    preemption: PreemptionRecord | None
    """Set when it is to end for another."""
    placement_latency_us: float | None
    """How long the decision took."""
    members: NotRequired[list[GangMemberRecord]]
    """Of a gang, by rank."""
    rendezvous: NotRequired[RendezvousRecord]
    """Of a gang."""
    ending: NotRequired[EndingRecord | None]
    """Of a gang: set when its members are to end."""
    superseded: NotRequired[SupersededRecord]
    """Set when it is to end because the work is done."""
    late_success_at: NotRequired[float]
    """When it was heard that it had succeeded though it counted as lost."""


class JobRecord(TypedDict):
    """A job, from its acceptance on."""

    job_id: str
    """Given by whoever submits."""
    name: str
    """For people."""
    user_id: str
    """Whose quota it counts for."""
    kind: str
    """command or function."""
    command: list[str]
    """Its argv; empty for a function."""
    payload_digest: str | None
    """SHA-256 of the pickled function."""
    stdin_digest: str | None
    """SHA-256 of what its standard input holds."""
    python: str | None
    """major.minor that the function needs."""
    priority: int
    """0 to 100, higher first."""
    policy: str
    """Which policy it was submitted under."""
    env: dict[str, str]
    """Variables it asked for."""
    cwd: str | None
    """Its working directory."""
    max_execution_time_s: float | None
    """Of each attempt."""
    pool: str | None
    """Of workers, for a function."""
    max_isolation_s: float
    """How long it may go on without its cluster."""
    retries_left: int
    """How many more attempts may fail."""
    deadline: float | None
    """By when it was promised to end."""
    preemptible: bool
    """Whether it may be stopped for others."""
    grace_s: float
    """Seconds it gets then."""
    submitted_at: float
    """By its submitter's clock."""
    depends_on: list[str]
    """Jobs that have to succeed first."""
    resources: ResourcesRecord
    """What each attempt asks for."""
    ordinal: int
    """In the order of acceptance, from 1."""
    state: str
    """queued, placed, running, or a final one (``JobState``)."""
    cancel_requested: bool
    """Whether it is to end."""
    preemptions: int
    """How often it was stopped for others."""
    submitted_index: int
    """The entry that accepted it."""
    not_before: float
    """When its next attempt may begin."""
    ended_at: float | None
    """When it came to its final state."""
    error: ErrorRecord | None
    """Why it did not succeed."""
    attempts: list[AttemptRecord]
    """The first, and the latest 49."""
    annotations: NotRequired[dict[str, str]]
    """What its submitter noted about it."""
    taken: NotRequired[int]
    """The attempt whose late success is the job's."""


class OwnerRecord(TypedDict):
    """The owner of an allocation."""

    kind: str
    """attempt or session."""
    job_id: NotRequired[str]
    """Of an attempt."""
    attempt: NotRequired[int]
    """Its number."""
    rank: NotRequired[int]
    """Of a member of a gang."""
    session_id: NotRequired[str]
    """Of a lease."""
    lease_id: NotRequired[str]
    """The lease."""


class AllocationRecord(TypedDict):
    """The resources given out to one attempt, member of a gang, or lease."""

    allocation_id: str
    """That of the attempt, member or lease."""
    owner: OwnerRecord
    """Whose it is."""
    host: str
    """Where."""
    incarnation: int
    """Of that host."""
    gpu_indexes: list[int]
    """Its devices, by index on that host."""
    gpu_uuids: list[str]
    """The same devices."""
    gpu_milli: int
    """Thousandths of each."""
    gpu_memory_mib: int
    """MiB of each."""
    cpu_milli: int
    """Thousandths of a core."""
    memory_mib: int
    """MiB of the host's memory."""
    token: list[int]
    """Fencing token."""
    granted_at: float
    """When."""
    pool: str | None
    """Of workers."""
    env: dict[str, str]
    """Of a lease's worker."""
    user_id: str
    """Whose quota it counts for."""
    max_isolation_s: NotRequired[float]
    """How long it may go on without its cluster."""
    port: NotRequired[int | None]
    """At which its gang meets, of rank 0."""


class DeviceRecord(TypedDict):
    """A device as its host registered it."""

    uuid: str
    """The vendor's."""
    index: int
    """On its host."""
    memory_mib: int
    """In all."""
    vendor: str
    """nvidia, amd, intel, or simulated."""
    model: str
    """As the vendor calls it."""
    source: str
    """What it is known from."""
    compute_capability: str | None
    """major.minor, of CUDA."""
    pcie_bus_id: str | None
    """domain:bus:device.function."""
    numa_node: int | None
    """It is nearest to."""
    unfit: NotRequired[str]
    """Why it gets nothing new."""


class HostRecord(TypedDict):
    """A host that has registered for work."""

    host_id: str
    """Its own, for good."""
    incarnation: int
    """How often its agent started."""
    cpu_milli: int
    """Thousandths of a core that work may have."""
    memory_mib: int
    """MiB that work may have."""
    devices: list[DeviceRecord]
    """By index."""
    hostname: str
    """For people."""
    boot_id: NotRequired[str]
    """Of the agent's start."""
    state: str
    """up, down or lost."""
    address: str | None
    """Of its door."""
    port: int | None
    """Of its door."""
    rack: NotRequired[str | None]
    """Where it stands."""
    registered_at: float
    """When it came up."""
    seen_index: NotRequired[int]
    """Where it last said that it is there."""
    draining: NotRequired[bool]
    """Whether it takes nothing new."""
    measured: NotRequired[dict[str, Any]]
    """What its disk and network do, by name with unit."""
    absence_s: NotRequired[float]
    """How long to wait for it, from its last word on."""
    absence_index: NotRequired[int]
    """Where it said so."""
    lost_at: NotRequired[int]
    """The entry that lost it."""
    heard_at: NotRequired[float]
    """When it was last heard of before that."""


class MemberRecord(TypedDict):
    """A host that belongs to the cluster."""

    host_id: str
    """Its own."""
    node: int
    """Its number in Raft, never given twice."""
    addresses: dict[str, str]
    """By what listens there: raft, calls, join."""
    fingerprints: list[str]
    """Of the certificates that are believed, the newest last."""
    rack: str | None
    """Where it stands."""
    version: str
    """Of its software."""
    ledger_version: int
    """Of the commands that it knows."""
    votes: bool
    """Whether it may become a voter."""
    joined_at: float
    """When."""


class LockEntry(TypedDict):
    """A holder of a lock, or a waiter in its line."""

    owner: str
    """Who asks: a thread, not a user."""
    user_id: str
    """Whose it is."""
    ttl_s: float
    """How long it is held without a sign of life."""
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
    """Thousandths of devices."""
    gpu_memory_mib: int | None
    """MiB of device memory."""
    cpu_milli: int | None
    """Thousandths of a core."""
    memory_mib: int | None
    """MiB of memory."""
    jobs_waiting: int | None
    """Jobs."""


class JoinTokenRecord(TypedDict):
    """A join token as the ledger keeps it: nothing of it opens anything."""

    id: str
    """First part of the token's text."""
    cluster_id: str
    """Which cluster it is for."""
    authority: str
    """Fingerprint of the cluster's authority."""
    verify_key: str
    """By which a claim to the token is checked, in hex."""
    made_by: str
    """Whoever asked for it."""
    made_at: float
    """When."""
    expires_at: float
    """Until when it lets anybody in."""
    uses_max: int
    """How many hosts."""
    roles: list[str]
    """What they become."""
    used_by: list[Any]
    """[host, fingerprint] of each."""
    revoked_at: float | None
    """When it was taken back."""


class ApiKeyRecord(TypedDict):
    """An API key as the ledger keeps it."""

    id: str
    """First part of the key's text."""
    sha256: str
    """Of the text, in hex."""
    user_id: str
    """Whom it opens doors for."""
    roles: list[str]
    """What may be done with it."""
    made_by: str
    """Whoever asked for it."""
    made_at: float
    """When."""
    expires_at: float
    """Until when it opens anything."""
    revoked_at: float | None
    """When it was taken back."""


class RemovedRecord(TypedDict):
    """A host that was a member and is none any more."""

    node: int
    """The number it had."""
    at: float
    """When it was removed."""
    by: str
    """On whose word."""
    left: bool
    """In order, by its own will or as planned."""


class AuthorityRecord(TypedDict):
    """One generation of the cluster's authority, in a bundle."""

    generation: int
    """From 1."""
    state: str
    """waiting, signing or accepted."""
    certificate: str
    """PEM."""
    endorsements: dict[str, str]
    """By the generations around it: signatures in hex."""


class BundleRecord(TypedDict):
    """The trust bundle: the authorities that the cluster accepts."""

    format: int
    """Of the bundle."""
    cluster_id: str
    """Whose it is."""
    version: int
    """From 1; each step is one more."""
    authorities: list[AuthorityRecord]
    """One or two."""


class CertificateRequestRecord(TypedDict):
    """A certificate that a host asks for."""

    id: int
    """The entry that asked."""
    csr: str
    """PKCS #10, in hex."""
    addresses: list[str]
    """That it is to name."""


class IssuedRecord(TypedDict):
    """A certificate that was made and not taken yet."""

    certificate: str
    """PEM."""


class TrustRecord(TypedDict, total=False):
    """A host's part in the cluster's trust: its certificate, keys and requests; under ``@bundle`` the bundle alone."""

    bundle: BundleRecord
    """The cluster's."""
    host_id: str
    """Whose record it is."""
    certificate: str
    """PEM; empty before it said so."""
    fingerprint: str
    """Of that certificate."""
    generation: int
    """That issued it."""
    valid_until: float
    """Of that certificate."""
    bundle_version: int
    """Of the bundle that it has."""
    keys: list[int]
    """Generations whose key it has."""
    sealed: dict[str, str]
    """Keys on their way to it, by generation, in hex."""
    request: CertificateRequestRecord | None
    """Set while it waits for a certificate."""
    issued: IssuedRecord | None
    """Set until it has taken it."""


NO_JOB = cast("JobRecord", {})
NO_ATTEMPT = cast("AttemptRecord", {})
NO_ALLOCATION = cast("AllocationRecord", {})
NO_HOST = cast("HostRecord", {})
NO_MEMBER = cast("MemberRecord", {})
"""In the place of a record that is not there, for ``get`` with a value for what it does not say."""
