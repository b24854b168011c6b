"""Models of what the doors take and give beyond those of ``actorgrid.models``.

Answers may grow fields; requests and queries refuse what they do not know.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AliasChoices, Field

from actorgrid.models import (
    AnswerBody,
    Bytes,
    ClusterHealth,
    ClusterNode,
    GPUDevice,
    Job,
    JobState,
    PerformanceMetrics,
    RequestBody,
    SchedulingDecision,
    TaskRequest,
)
from actorgrid.supervisors.inspection import SUSPEND_S_MAX, TRACE_MAX

from .members import SiteHosts

MAX_BATCH = 1000


class Health(AnswerBody):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Readiness(AnswerBody):
    """Whether work is accepted; ``problems`` says why not: to clients of other machines by name only."""

    ready: bool
    health: ClusterHealth
    problems: list[str]


class HealthProblem(AnswerBody):
    """Something that is wrong with the cluster, as the host that answers knows it.

    ``level``: note (worth knowing), degraded, or critical (new work is not accepted). ``read_at``: when this was
    known; ``since``: since when it is so. Times are seconds since the epoch.
    """

    name: str
    level: Literal["note", "degraded", "critical"]
    what: str
    found: str
    try_: str = Field(alias="try")
    read_at: float
    since: float | None
    hosts: list[str]


class LastKnown(AnswerBody):
    """That an answer is not of now, because nobody is known to lead: of when it is, and why."""

    at: float
    age_s: float
    why: str


class ClusterAnswer(AnswerBody):
    """The cluster in figures. ``problems`` are the sentences of ``findings``, but for notes.

    ``hosts`` and ``gpus`` count all there are, ``hosts_present`` and ``gpus_present`` those of them that are there as
    far as the host that answers knows. ``can_commit``: whether anything new can be accepted. ``last_known``: null
    unless this is not of now. ``binding``: what is short for the jobs that wait: ``resource``, how many of them are
    ``waiting`` for it, the ``text``, and ``idle_gpus``; null where nothing is. ``sites``: none where no host said one.
    ``gpu_limits``: of gpu_compute and gpu_memory, how many devices there are by who would hold a share to what it has.
    ``isolation``: by aspect of work, how many hosts there are by who would enforce it at their strongest level.
    """

    name: str
    health: ClusterHealth
    ready: bool
    can_commit: bool = True
    problems: list[str]
    findings: list[HealthProblem] = []
    last_known: LastKnown | None = None
    hosts: int
    hosts_present: int | None = None
    gpus: int
    gpus_present: int | None = None
    gpu_allocated_milli: int
    gpu_capacity_milli: int
    gpu_limits: dict[str, dict[str, int]] = {}
    isolation: dict[str, dict[str, int]] = {}
    binding: dict[str, Any] | None = None
    jobs: dict[str, Any]
    performance: dict[str, Any]
    sites: dict[str, SiteHosts] = {}
    ca_fingerprint: str | None = None


class HostsAnswer(AnswerBody):
    """All hosts."""

    hosts: list[ClusterNode]
    last_known: LastKnown | None = None


class GpusAnswer(AnswerBody):
    """All devices."""

    gpus: list[GPUDevice]
    last_known: LastKnown | None = None


class GpuTotalsAnswer(AnswerBody):
    """What the GPUs of all hosts read together; ``null``: none of them tells it.

    Of another host it is what it told last: some seconds old at most, unless nothing moved.
    """

    hosts: int
    """Whose readings are in it."""
    hosts_unknown: int
    """There are so many more of which nothing is known now."""
    gpus: int
    gpus_unavailable: int
    memory_bytes: int
    memory_used_bytes: int | None
    utilization_percent: float | None
    watts: float | None
    hottest_celsius: float | None
    oldest_at: float | None


class Allocation(AnswerBody):
    """What one attempt or session lease holds."""

    allocation_id: str
    owner: dict[str, Any]
    host: str
    incarnation: int
    gpu_indexes: list[int]
    gpu_uuids: list[str]
    gpu_milli: int
    gpu_memory_mib: int
    cpu_milli: int
    memory_mib: int
    token: tuple[int, int]


class AllocationsAnswer(AnswerBody):
    """All live allocations."""

    allocations: list[Allocation]
    last_known: LastKnown | None = None


class DecisionsQuery(RequestBody):
    """How many to list."""

    limit: int = Field(default=100, ge=1, le=1024)


class DecisionsAnswer(AnswerBody):
    """The latest placements, newest first; the host keeps 1,024."""

    decisions: list[SchedulingDecision]


class PerformanceAnswer(PerformanceMetrics):
    """The host's own performance."""


class InspectedNode(AnswerBody):
    """A server as its supervisor knows it. ``inspect``: what it says of itself; ``error``: why it does not.

    Both are null for one that was not asked: it has no process that could answer, or too many were asked already.
    """

    name: str
    type: Literal["worker", "supervisor"]
    kind: str
    restart: str | None
    state: str
    pid: int | None
    address: str | None
    restarts: int
    last_exit: dict[str, Any] | None
    started_at: float | None
    inspect: dict[str, Any] | None
    error: dict[str, Any] | None


class TreeNode(InspectedNode):
    """A node of the supervision tree; ``left_out`` counts children that are not listed."""

    left_out: int
    children: list[TreeNode]


class InspectAnswer(AnswerBody):
    """The tree, and how the host's own servers say they are: ``error`` in place of values where one did not answer."""

    tree: TreeNode
    truncated: bool
    servers: dict[str, dict[str, Any]]
    attempts: list[dict[str, Any]]


class Inspected(InspectedNode):
    """One server; ``attributes`` are its own, as texts cut short, those with secret names hidden."""

    attributes: dict[str, str] | None


class TraceRequest(RequestBody):
    """How many messages to keep; 0 ends it and forgets them."""

    events: int = Field(default=100, json_schema_extra={"minimum": 0, "maximum": TRACE_MAX})


class TraceSet(AnswerBody):
    """So many messages are kept from now on."""

    name: str
    events: int


class TraceEvent(AnswerBody):
    """One message, and a beginning of what it said.

    ``at`` is when it went by, in seconds since the epoch; ``clock_s`` the same on a clock that never steps back.
    """

    at: float
    clock_s: float
    way: Literal["in", "out"]
    kind: str
    peer: str
    message: str


class TraceAnswer(AnswerBody):
    """The messages kept, the oldest first."""

    name: str
    traced: bool
    events: list[TraceEvent]


class SuspendRequest(RequestBody):
    """For how long, if nobody resumes it before."""

    for_s: float = Field(default=60.0, json_schema_extra={"exclusiveMinimum": 0, "maximum": SUSPEND_S_MAX})


class Suspended(AnswerBody):
    """How the server stands now; ``until``: when it goes on by itself."""

    name: str
    state: Literal["running", "suspended"]
    until: float | None


class CodeTaken(AnswerBody):
    """A server has the code that is installed now; ``old_version`` and ``new_version`` are its class's."""

    name: str
    module: str
    old_version: str
    new_version: str


class Accepted(AnswerBody):
    """The job is in the ledger. ``duplicate``: it was before; nothing new was made."""

    job_id: str
    duplicate: bool


class BatchRequest(RequestBody):
    """Jobs to accept, all or none."""

    jobs: list[TaskRequest] = Field(min_length=1, max_length=MAX_BATCH)


class BatchAccepted(AnswerBody):
    """The jobs are in the ledger, in the order they were given."""

    jobs: list[Accepted]


class JobsQuery(RequestBody):
    """Which jobs to list."""

    state: str = Field(default="", max_length=256, description="states, separated by commas; empty: all")
    limit: int = Field(default=100, ge=1, le=1000)
    before: float | None = Field(
        default=None, ge=0, le=1e12, description="only jobs submitted before this time (seconds since the epoch)"
    )
    cursor: str | None = Field(
        default=None, min_length=1, max_length=256, description="the next page: `next` of the one before"
    )
    prefix: str = Field(default="", max_length=256, description="only jobs whose ids begin so")
    label: str = Field(
        default="", max_length=2_100, description="only jobs with these labels: key=value, separated by commas"
    )
    name: str = Field(default="", max_length=200, description="only jobs with this in their names")
    user: str = Field(default="", max_length=128, description="only this user's")
    host: str = Field(default="", max_length=128, description="only jobs of which an attempt was on this host, by id")
    since_s: float | None = Field(
        default=None, ge=0, le=1e9, description="only jobs submitted in the last so many seconds"
    )


class JobsAnswer(AnswerBody):
    """Jobs, newest first; ``total`` counts those that match, listed or not (by anything but state: up to 1,000).

    ``next`` is the cursor of the page that follows, or null. Between two pages jobs come and go: one that was there
    all the time, in a state that was asked for, is on one of them, and none is on two.
    """

    jobs: list[Job]
    total: int
    next: str | None = None
    last_known: LastKnown | None = None


class WaitQuery(RequestBody):
    """How long to wait for the job's end."""

    wait_s: float = Field(default=0.0, ge=0, le=600, allow_inf_nan=False)


class WhyConstraint(AnswerBody):
    """Something that hosts fail; ``name`` is the engine's."""

    name: str
    text: str
    hosts: int


class WhyAnswer(AnswerBody):
    """Why a job is where it is. ``headline`` says it in a sentence; times are seconds since the epoch.

    ``notes`` are the reasons that no other field holds. ``position`` of ``waiting`` in the line; ``openings``: what
    could be asked for instead and would fit now; ``held_by``: who holds the room on the nearest host;
    ``quota``: {"user", "limits", "used", "short"} where that is what it waits for; ``held_by`` then says who holds it;
    ``held_up_by``: jobs that the room is reserved for; ``reservation``: {"starts_at", "nodes", "stopping"};
    ``estimated_start``: {"at", "from"}, where *from* is reservation, time_limits (of what runs there) or retry.
    ``explain`` is the engine's own answer. ``steps``: of a graph, how many of its steps are in which state.
    """

    job_id: str
    state: JobState
    reasons: list[str]
    next_step: str
    headline: str = ""
    notes: list[str] = []
    next_steps: list[str] = []
    constraints: list[WhyConstraint] = []
    total_hosts: int | None = None
    position: int | None = None
    waiting: int | None = None
    policy: str = ""
    priority: int | None = None
    waiting_s: float | None = None
    depends_on: list[dict[str, str]] = []
    not_before: float | None = None
    reservation: dict[str, Any] | None = None
    quota: dict[str, Any] | None = None
    estimated_start: dict[str, Any] | None = None
    held_by: list[dict[str, Any]] = []
    binding: dict[str, Any] | None = None
    held_up_by: list[str] = []
    openings: list[str] = []
    attempts: list[dict[str, Any]] = []
    stderr_tail: list[str] = []
    explain: dict[str, Any] | None = None
    steps: dict[str, int] | None = None
    enforced_by: dict[str, str] = {}
    """Of a job that is placed or runs: who enforces what it was granted, by aspect."""


class LogsQuery(RequestBody):
    """Which output, from where, and for how long."""

    stream: Literal["stdout", "stderr"] = "stdout"
    attempt: int | None = Field(default=None, ge=1, le=2**31, description="its number; without it, the latest")
    rank: int = Field(default=0, ge=0, le=255, description="of a gang: which member")
    offset: int = Field(default=0, ge=0, le=2**62, description="bytes to leave out at the start")
    follow: bool = Field(default=False, description="go on until the job is final (with attempt: until that one ended)")
    since_s: float | None = Field(
        default=None, ge=0, le=1e9, description="only what came in the last so many seconds, by the clock of its host"
    )
    tail: int | None = Field(default=None, ge=0, le=1_000_000, description="only the last so many lines")
    grep: str = Field(
        default="", max_length=1_000, description="only lines in which this regular expression (RE2's syntax) is found"
    )


class EventsQuery(RequestBody):
    """Where to start."""

    from_: int | None = Field(
        default=None, alias="from", ge=0, le=2**62, description="index of the first event; without it, from now on"
    )


class Setting(AnswerBody):
    """One setting. ``origin``: where its value was written. ``live``: whether it may change without a restart."""

    key: str
    value: Any
    default: Any
    origin: str
    live: bool
    description: str


class SettingsAnswer(AnswerBody):
    """All settings, in order."""

    settings: list[Setting]


class SettingChanged(AnswerBody):
    """The setting's value now and before."""

    key: str
    value: Any
    previous: Any


class QuotaRequest(RequestBody):
    """What one user may hold at once, and have waiting; what is not given, or null, is not limited."""

    gpus: float | None = Field(default=None, ge=0, le=1_000_000)
    gpu_memory_bytes: Bytes | None = Field(
        default=None,
        validation_alias=AliasChoices("gpu_memory_bytes", "gpu_memory"),
        description="of all devices together, as far as it is asked for",
    )
    cpus: float | None = Field(default=None, ge=0, le=1_000_000)
    memory_bytes: Bytes | None = Field(default=None, validation_alias=AliasChoices("memory_bytes", "memory"))
    jobs_waiting: int | None = Field(default=None, ge=0, le=2**31)


class QuotaLimits(AnswerBody):
    """As it was set; null is no limit."""

    gpus: float | None
    gpu_memory_bytes: int | None
    cpus: float | None
    memory_bytes: int | None
    jobs_waiting: int | None


class QuotaUse(AnswerBody):
    """What a user holds and has waiting."""

    gpus: float
    gpu_memory_bytes: int
    cpus: float
    memory_bytes: int
    jobs_waiting: int


class Quota(AnswerBody):
    """A user, what limits apply (null: none), and what is used now; ``default``: the limits are those of ``*``."""

    user: str
    limits: QuotaLimits | None
    default: bool
    used: QuotaUse


class QuotasAnswer(AnswerBody):
    """Who has a quota, holds something or has jobs waiting, by name."""

    quotas: list[Quota]


class QuotaSet(AnswerBody):
    """The user's own quota now and before; null: none."""

    user: str
    limits: QuotaLimits | None
    previous: QuotaLimits | None


class TokenRequest(RequestBody):
    """How long a join token lives, and how many hosts it lets in."""

    ttl_s: float = Field(default=3600.0, ge=60, le=30 * 86_400)
    uses: int = Field(default=1, ge=1, le=1000)


class TokenMade(AnswerBody):
    """A new join token. ``token`` is shown here and nowhere else; ``join`` is the address to give with it."""

    token: str
    id: str
    expires_at: float
    uses_max: int
    join: str


class JoinToken(AnswerBody):
    """What the cluster knows of a join token: no secret."""

    id: str
    made_by: str
    made_at: float
    expires_at: float
    uses_max: int
    used_by: list[dict[str, Any]]
    revoked_at: float | None


class TokensAnswer(AnswerBody):
    """All join tokens that are remembered, in the order they were made."""

    tokens: list[JoinToken]


class TokenRevoked(AnswerBody):
    """It lets nobody in from then on."""

    id: str
    revoked_at: float


class RestartAnswer(AnswerBody):
    """The host stops now, and starts anew: ``incarnation`` is of the start that ends."""

    host_id: str
    incarnation: int


class DrainRequest(RequestBody):
    """Whether the host is to get nothing new."""

    draining: bool = True
    move: bool = Field(default=False, description="what may be preempted starts again elsewhere now")


class DrainAnswer(AnswerBody):
    """It is so now. ``moved``: how many allocations were asked to end, to start again elsewhere."""

    host: str
    draining: bool
    moved: int = 0


class SessionRequest(RequestBody):
    """Who opens a session, with which Python."""

    user_id: str = Field(default="local", max_length=128)
    python: str = Field(default="", max_length=32, description="major.minor of the client")
    afar: bool = Field(default=False, description="the client is on another machine: it may be cut off for a while")


class Done(AnswerBody):
    """It is so now."""

    done: bool = True
