"""What crosses a door (HTTP, command line, Python API), as pydantic models.

Units are in the names. A reading the hardware does not have is ``None``, never zero. Requests refuse
unknown fields; answers may grow fields in later versions.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from actorgrid.amounts import parse_memory
from actorgrid.checkpoint_models import CheckpointRequest
from actorgrid.container_models import ContainerRequest
from actorgrid.device_models import GpuProfile, GpuTopology, check_topology
from actorgrid.device_words import DeviceSource as DeviceSource
from actorgrid.device_words import GPUStatus as GPUStatus
from actorgrid.device_words import GPUVendor as GPUVendor
from actorgrid.isolation_models import MinIsolation
from actorgrid.labels import LABEL_CHARS_MAX, LABELS_MAX, LABELS_TEXT, checked_labels
from actorgrid.notification_words import EVENTS, TARGET_CHARS_MAX, TARGETS_MAX, TARGETS_TEXT, checked_targets, events_of
from actorgrid.output_paths import OUTPUT_PATH_BYTES_MAX, OUTPUTS_MAX, checked
from actorgrid.secret_models import SecretWishes
from actorgrid.sizes import (
    ANNOTATION_BYTES_MAX,
    ANNOTATIONS_MAX,
    ARGUMENT_BYTES_MAX,
    NAME_MAX,
    PATH_BYTES_MAX,
    WHOLE_MAX,
)
from actorgrid.usage_models import AttemptUsage

_SHA256 = r"^[0-9a-f]{64}$"


def _short_notes(notes: dict[str, str]) -> dict[str, str]:
    """Annotations that are not too long and have names."""
    if "" in notes:
        raise ValueError("an annotation has no name; write name=value")
    size = sum(len(part.encode("utf-8", "surrogatepass")) for pair in notes.items() for part in pair)
    if size > ANNOTATION_BYTES_MAX:
        raise ValueError(f"annotations of {size} bytes are too long: all of them may have {ANNOTATION_BYTES_MAX}")
    return notes


# The bounds stand before what reads other spellings: behind it they would hold, and be in no schema.
Bytes = Annotated[int, Field(ge=0, le=2**60), BeforeValidator(parse_memory)]
# Held to by ``exec_limits.py``, with an error of its own: here so that the schema says it.
ExecText = Annotated[str, Field(json_schema_extra={"maxLength": ARGUMENT_BYTES_MAX - 1})]
OutputPath = Annotated[str, Field(max_length=OUTPUT_PATH_BYTES_MAX), AfterValidator(checked)]
Name = Annotated[str, Field(max_length=NAME_MAX)]
Annotations = Annotated[dict[str, Annotated[str, Field(max_length=ANNOTATION_BYTES_MAX)]], AfterValidator(_short_notes)]
Labels = Annotated[dict[str, Annotated[str, Field(max_length=LABEL_CHARS_MAX)]], AfterValidator(checked_labels)]
Targets = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=TARGET_CHARS_MAX)]], AfterValidator(checked_targets)
]
EventWords = Annotated[list[Annotated[str, Field(max_length=80)]], AfterValidator(events_of)]
JobId = Annotated[str, Field(max_length=64)]
Token = tuple[Annotated[int, Field(ge=0, le=WHOLE_MAX)], Annotated[int, Field(ge=0, le=WHOLE_MAX)]]


def utc_now() -> datetime:
    """Now, with its zone."""
    return datetime.now(UTC)


class RequestBody(BaseModel):
    """Base of what comes in: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, ser_json_bytes="base64", val_json_bytes="base64")


class AnswerBody(BaseModel):
    """Base of what goes out."""

    model_config = ConfigDict(extra="allow")


class SchedulingPolicy(StrEnum):
    """Order in which waiting jobs are served."""

    FIFO = "fifo"
    PRIORITY = "priority"
    AFFINITY = "affinity"
    GANG = "gang"
    REAL_TIME = "real_time"


class NodeHealth(StrEnum):
    """Health of a host."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNREACHABLE = "unreachable"
    LOST = "lost"
    FAILED = "failed"
    UNKNOWN = "unknown"


class ClusterHealth(StrEnum):
    """Health of the cluster as one host knows it. Work is accepted there while it is healthy or degraded."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    """Work is accepted; a host, a device, a disk or a certificate needs somebody to look at it."""
    NOT_READY = "not_ready"
    """A process of the host that was asked is not up."""
    STALLED = "stalled"
    """There is a leader, and commits do not come through."""
    ELECTING = "electing"
    """Nobody leads just now; an election takes about a second."""
    NO_QUORUM = "no_quorum"
    """Nobody can lead as far as this host knows: it hears no majority of the voters."""


class HostPresence(StrEnum):
    """Whether a host is there, as another one knows it."""

    PRESENT = "present"
    AWAY = "away"
    """Not heard of for a while; its work goes on, or is over, by its own patience."""
    LOST = "lost"
    """Away for so long that its work was given up."""
    UNKNOWN = "unknown"
    """Only whoever leads could say, and nobody is known to."""


class Pool(StrEnum):
    """Kinds of warm workers."""

    GPU_COMPUTE = "gpu_compute"
    CPU_INTENSIVE = "cpu_intensive"
    IO_BOUND = "io_bound"
    GENERAL = "general"


class JobState(StrEnum):
    """Life of a job; the last four are final."""

    QUEUED = "queued"
    PLACED = "placed"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"

    @property
    def final(self) -> bool:
        """Whether the state never changes again."""
        return self in _FINAL


class AttemptState(StrEnum):
    """Life of one attempt; all but the first two are ends. What ran past its time limit has failed."""

    PLACED = "placed"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"
    PREEMPTED = "preempted"


_FINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.LOST})


def share_or_whole(gpus: float) -> float:
    """The same. Raises ValueError for what is neither a share of one GPU nor a whole number of them."""
    if gpus > 1 and not float(gpus).is_integer():
        raise ValueError(f"gpus={gpus:g}: ask for a share of one GPU (below 1) or a whole number of GPUs")
    if 0 < gpus < 0.001:
        raise ValueError(f"gpus={gpus:g}: the smallest share is 0.001")
    return gpus


class Resources(RequestBody):
    """What one attempt (or one session lease) needs of a host."""

    gpus: float = Field(
        default=0.0,
        ge=0,
        le=1024,
        validation_alias=AliasChoices("gpus", "compute_required"),
        description="GPUs: a fraction of one (0 < x < 1), or a whole number",
    )
    gpu_memory_bytes: Bytes = Field(
        default=0,
        validation_alias=AliasChoices("gpu_memory_bytes", "gpu_memory", "memory_required"),
        description="device memory needed on each GPU",
    )
    gpu_models: list[Name] = Field(default_factory=list, max_length=64, description="acceptable models; empty: any")
    gpu_profile: GpuProfile = ""
    gpu_topology: GpuTopology = ""
    gpu_affinity: list[Name] = Field(default_factory=list, max_length=64, description="acceptable UUIDs; empty: any")
    cpus: float = Field(default=1.0, ge=0, le=4096)
    memory_bytes: Bytes = Field(
        default=0,
        validation_alias=AliasChoices("memory_bytes", "memory"),
        description="host memory; 0: not counted, not limited",
    )
    min_isolation: MinIsolation = ""

    @model_validator(mode="after")
    def _whole_or_share(self) -> Resources:
        if self.gpu_profile:
            if self.gpus not in (0, 1):
                raise ValueError(f"gpus={self.gpus:g} with gpu_profile: a program has one instance; leave gpus out")
            self.gpus = 1.0
        share_or_whole(self.gpus)
        check_topology(self.gpu_topology, self.gpus, self.gpu_profile)
        if self.gpus == 0:
            # A wish about a GPU that nobody asked for would be dropped in silence, and the work run without one.
            for name in ("gpu_memory_bytes", "gpu_models", "gpu_affinity", "gpu_topology"):
                if getattr(self, name):
                    asked = name.removesuffix("_bytes")
                    raise ValueError(f"{asked} without gpus: say how much of a GPU, for example gpus=0.25 or gpus=1")
        return self


class TaskRequest(Resources):
    """A job to accept: a shell command or a pickled Python call. The resources are those of each member of a gang."""

    task_id: str = Field(default_factory=lambda: uuid.uuid4().hex, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    user_id: str = Field(default="local", max_length=128)
    name: str = Field(default="", max_length=200)
    kind: Literal["command", "function"] = "command"
    command: list[ExecText] = Field(default_factory=list, max_length=4096, description="argv, for kind=command")
    payload: bytes | None = Field(default=None, description="for kind=function: opaque bytes for the worker (base64)")
    stdin: bytes | None = Field(default=None, description="what the command reads (base64 in JSON)")
    python: str = Field(default="", max_length=32, description="client's major.minor, for kind=function")
    priority: int = Field(default=50, ge=0, le=100, description="higher is served first")
    scheduling_policy: SchedulingPolicy = Field(
        default=SchedulingPolicy.PRIORITY, validation_alias=AliasChoices("scheduling_policy", "policy")
    )
    gang: int = Field(
        default=1, ge=1, le=256, description="members that start together or not at all, each with the resources asked"
    )
    spread: bool = Field(default=False, description="of a gang: no two members on one host")
    env: dict[str, ExecText] = Field(default_factory=dict, max_length=1024)
    cwd: str | None = Field(default=None, max_length=PATH_BYTES_MAX)
    max_execution_time_s: float | None = Field(
        default=None,
        gt=0,
        le=1e9,
        validation_alias=AliasChoices("max_execution_time_s", "max_execution_time", "timeout_s"),
        description="each attempt is stopped after this long",
    )
    retries: int = Field(default=0, ge=0, le=100, description="further attempts after a failure")
    pool: Pool | None = Field(default=None, description="None: chosen by what is asked for")
    depends_on: list[JobId] = Field(default_factory=list, max_length=1000, description="jobs that must succeed first")
    max_isolation_s: float | None = Field(
        default=None,
        ge=3,
        le=86400,
        description="how long an attempt goes on without its agent; less than 3 s gains nothing",
    )
    deadline_s: float | None = Field(default=None, gt=0, le=1e9, description="to be done in so many seconds from now")
    deadline: AwareDatetime | None = Field(
        default=None, description="it is to be done by then: a time with its zone; instead of deadline_s"
    )
    preemptible: bool = Field(default=True, description="may be stopped so that another can start; it runs again")
    grace_s: float | None = Field(
        default=None,
        ge=0,
        le=3600,
        description="when preempted, time between SIGTERM and SIGKILL; without it, work.kill_grace_s",
    )
    working_dir: str | None = Field(
        default=None,
        pattern=_SHA256,
        description="SHA-256 of an archive that was sent to /api/working-dirs: it runs in what that holds",
    )
    environment: str | None = Field(default=None, pattern=_SHA256, description="as /api/environments gave it")
    container: ContainerRequest | None = Field(default=None, description="for kind=command: run it in there")
    pty: bool = Field(default=False, description="for kind=command: give it a terminal, which people attach to")
    outputs: list[OutputPath] = Field(
        default_factory=list,
        max_length=OUTPUTS_MAX,
        description="files and folders, relative to its directory, that its host keeps when an attempt ends",
    )
    annotations: Annotations = Field(
        default_factory=dict, max_length=ANNOTATIONS_MAX, description="what the submitter notes about it, 4,096 bytes"
    )
    labels: Labels = Field(default_factory=dict, max_length=LABELS_MAX, description=LABELS_TEXT)
    checkpoint: CheckpointRequest | None = Field(default=None, description="what its next attempt goes on from")
    stop_when_idle_s: float | None = Field(
        default=None, ge=1, le=1e9, description="it is ended once all its GPUs have been idle for so long"
    )
    notify: Targets = Field(default_factory=list, max_length=TARGETS_MAX, description=TARGETS_TEXT)
    notify_on: EventWords = Field(
        default_factory=list, max_length=len(EVENTS) + 1, description=f"of what: {', '.join(EVENTS)}; empty: its end"
    )
    traceparent: str | None = Field(default=None, max_length=200, description="W3C's; else the header of that name")
    secrets: SecretWishes = Field(default_factory=list)
    created_at: datetime = Field(default_factory=utc_now)

    @model_validator(mode="after")
    def _one_kind(self) -> TaskRequest:
        if self.kind == "command" and not self.command:
            raise ValueError("kind=command needs a command: a list of the program and its arguments")
        if self.kind == "function" and self.payload is None:
            raise ValueError("kind=function needs a payload: use the Python client to make one")
        if self.deadline is not None and self.deadline_s is not None:
            raise ValueError("deadline and deadline_s say the same thing twice: give one of them")
        if self.working_dir is not None and (self.cwd is not None or (self.kind == "function" and self.stdin)):
            raise ValueError("a job with a working directory has no cwd, and a function no standard input beside it")
        if self.container is not None and (self.kind != "command" or self.environment is not None):
            raise ValueError("a container is for commands, and brings its own Python: no function, no environment")
        if self.pty and (self.kind != "command" or self.stdin is not None):
            raise ValueError("a terminal is for commands, which read it: no function, no standard input beside it")
        if self.stop_when_idle_s is not None and not self.gpus:
            raise ValueError("stop_when_idle_s without gpus: only what has GPUs can leave them idle")
        if self.notify_on and not self.notify:
            raise ValueError("notify_on without notify: say whom it is to tell")
        if self.kind == "command" and any("\0" in part for part in self.command):
            raise ValueError("a command holds a NUL byte")
        return self


DESCRIPTIVE = ("name", "annotations", "labels")
"""Fields of a job that say what it is to whoever reads it, and decide nothing: shown where the job is explained."""


class LeaseRequest(Resources):
    """Ask for a warm worker to send session tasks to."""

    pool: Pool | None = None
    env: dict[str, ExecText] = Field(default_factory=dict, max_length=1024)
    python: str = Field(default="", max_length=32)
    wait_s: float = Field(default=10.0, ge=0, le=60, description="how long to queue for room")
    lease_id: str | None = Field(
        default=None,
        pattern=r"^[0-9a-f]{16}$",
        description="the lease's id; asking again with the same one gives the same lease. None: the host makes one",
    )


class LeaseGrant(AnswerBody):
    """A leased worker: where it listens and what to say to it."""

    lease_id: str
    worker_id: str
    socket_path: str
    secret: str
    token: tuple[int, int]
    gpu_uuids: list[str]
    enforcement: str
    """The weakest of ``enforced_by``."""
    enforced_by: dict[str, str] = {}
    """Who holds it to its gpu_compute and gpu_memory: hardware, kernel, driver, cooperative, none."""
    tenancy: str
    python: str
    containment: str = "unknown"
    """What the worker is kept in: cgroup, freezer, pid_namespace; none: what it forks may escape its end."""
    containment_limit: str | None = None
    """What its work may still do to get away from there; empty: nothing is known of. ``None``: the host did not say."""
    host_id: str = ""
    """The host of the worker, where that is not the session's: then the socket is a relay's, which may break."""


class Preemption(AnswerBody):
    """An attempt was asked to end within *grace_s*, so that *for_job* (a job, or a session's lease) can start."""

    asked_at: float
    grace_s: float
    for_job: str


class Superseded(AnswerBody):
    """An attempt is stopped, as attempt number *by*, which was taken for lost, had done the work before."""

    by: int
    at: float


class Member(AnswerBody):
    """One member of a gang's attempt, by its rank from 0: where it is, and how it goes."""

    rank: int
    host: str
    address: str
    allocation_id: str
    state: AttemptState
    gpu_uuids: list[str] = []
    gpu_indexes: list[int] = []
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    error: dict[str, Any] | None = None
    max_rss_bytes: int | None = None
    cpu_s: float | None = None
    usage: AttemptUsage | None = None


class Rendezvous(AnswerBody):
    """Where rank 0 of a gang listens for the other members."""

    address: str
    port: int


class Attempt(AnswerBody):
    """One try at a job, numbered from 1. Of a gang's, host and GPUs are those of rank 0."""

    number: int
    attempt_id: str
    host: str
    state: AttemptState
    token: tuple[int, int]
    gpu_uuids: list[str] = []
    gpu_indexes: list[int] = []
    placed_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    error: dict[str, Any] | None = None
    preemption: Preemption | None = None
    superseded: Superseded | None = None
    late_success_at: float | None = None
    """When its host, which had been lost, told that it had succeeded; ``taken`` of the job says whether that counts."""
    placement_latency_us: float | None = None
    max_rss_bytes: int | None = None
    cpu_s: float | None = None
    usage: AttemptUsage | None = Field(default=None, description="of a gang, its members have it")
    members: list[Member] = Field(default=[], description="of a gang, by rank")
    rendezvous: Rendezvous | None = None


class Job(AnswerBody):
    """A job as people see it; times are seconds since the epoch."""

    job_id: str
    name: str
    user_id: str
    kind: str
    command: list[str] = []
    state: JobState
    priority: int
    resources: dict[str, Any]
    submitted_at: float
    ended_at: float | None = None
    retries_left: int
    cancel_requested: bool = False
    deadline: float | None = None
    preemptible: bool = True
    grace_s: float | None = None
    preemptions: int = 0
    depends_on: list[str] = []
    annotations: dict[str, Any] = {}
    labels: dict[str, Any] = {}
    environment: str | None = None
    outputs: list[str] = []
    pty: bool = False
    notify: list[str] = []
    notify_on: list[str] = []
    checkpoint: dict[str, Any] | None = None
    last_checkpoint: dict[str, Any] | None = None
    """Of the last checkpoint: the number of its attempt, which of that attempt's it is, its size and time."""
    error: dict[str, Any] | None = None
    attempts: list[Attempt] = []
    enforced_by: dict[str, str] = {}
    """Who enforces what the latest attempt was granted, by aspect: hardware, kernel, driver, cooperative, none."""
    unconfirmed: str | None = None
    """Why its state is only what was last known: its host is away or lost, or cannot be asked about."""
    taken: int | None = None
    """The number of the attempt whose outcome is the job's, where that is not the last."""


class GPUDevice(AnswerBody):
    """A device and its latest readings."""

    device_id: str
    vendor: GPUVendor
    model: str
    host: str
    index: int
    source: DeviceSource
    memory_total_bytes: int
    memory_allocated_bytes: int = 0
    memory_used_bytes: int | None = None
    allocated_milli: int = 0
    share_milli: int = 1000
    """How much it is of a whole device: a MIG instance is less."""
    compute_capability: str | None = None
    pcie_bus_id: str | None = None
    numa_node: int | None = None
    temperature_celsius: float | None = None
    power_usage_watts: float | None = None
    utilization_percent: float | None = None
    status: GPUStatus = GPUStatus.AVAILABLE
    unfit: str | None = None
    """Why it takes nothing new, on whichever host it is; ``None``: it does."""
    presence: HostPresence = HostPresence.PRESENT
    """Whether its host is there."""
    jobs: list[str] = []


class Unreachable(AnswerBody):
    """That nobody reaches a host, as the ledger holds it."""

    since: float
    """When it was found, seconds since the epoch."""
    witnesses: list[str]
    """The ids of hosts that did not reach it, each by itself."""


class ClusterNode(AnswerBody):
    """A host."""

    node_id: str
    hostname: str
    ip_address: str
    port: int
    incarnation: int
    gpus: list[GPUDevice] = []
    cpu_milli: int
    cpu_milli_allocated: int = 0
    memory_mib: int
    memory_mib_allocated: int = 0
    health: NodeHealth = NodeHealth.HEALTHY
    presence: HostPresence = HostPresence.PRESENT
    problems: list[str] = []
    last_heartbeat: float | None = None
    node: int | None = None
    """Its number in the cluster; ``None``: it is alone."""
    raft_role: str = "leader"
    """leader, voter or learner; none: it is no member any more."""
    site: str | None = None
    """The site (data centre) that it is in; ``None``: none was said."""
    url: str | None = None
    """Where clients of other machines reach it; ``None``: nowhere."""
    draining: bool = False
    """It gets nothing new."""
    unreachable: Unreachable | None = None
    """Who found that nobody reaches it; ``None``: nobody did. Such a host gets nothing new, and what it has goes on."""
    reached_by: list[str] = []
    """The ids of hosts that reach it, where the leader does not."""
    containment: str | None = None
    """What its work is kept in: cgroup, freezer, pid_namespace; none: work may escape its end. ``None``: not known."""
    measured: dict[str, Any] | None = None
    kept_apart: dict[str, Any] | None = None
    """Its disk and network: at, fdatasync_ms, write_mb_per_s, to, round_trip_ms, network_mb_per_s."""


class SchedulingDecision(AnswerBody):
    """Where something was placed, and how long deciding took."""

    task_id: str
    node_id: str
    gpu_ids: list[str]
    scheduled_at: float
    execution_time_estimate_s: float | None = None
    decision_latency_us: float


class PerformanceMetrics(AnswerBody):
    """The host's own performance; latencies are medians over the last 1,024 decisions."""

    timestamp: datetime = Field(default_factory=utc_now)
    scheduling_latency_us: float | None
    scheduling_latency_p99_us: float | None
    memory_allocation_latency_us: float | None = None
    commit_latency_ms: float | None
    gpu_allocated_percent: float | None
    gpu_utilization_percent: float | None
    cluster_throughput_tasks_per_second: float
    active_tasks: int
    queued_tasks: int


class SettingChange(RequestBody):
    """A new value for a live setting."""

    value: Any


class ErrorBody(AnswerBody):
    """Every answer with a status of 400 or more."""

    error: dict[str, Any]
