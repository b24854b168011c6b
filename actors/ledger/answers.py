"""The answers of the ledger's verbs, one line for each field: plain maps of JSON values, as records are."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from .record_types import EndingRecord, PreemptionRecord, QuotaRecord, ResourcesRecord, SupersededRecord
from .tenant_records import TenantRecord


class TermAnswer(TypedDict):
    """The leadership that began."""

    term: int
    """Its number."""
    epoch: int
    """How often the ledger was recovered, from 1."""


class SettingAnswer(TypedDict):
    """A setting that was changed."""

    key: str
    """Its name."""
    value: Any
    """What it is now; ``None``: what the files say."""
    previous: Any
    """What it was."""


class SubmittedJob(TypedDict):
    """A job that was submitted."""

    job_id: str
    """As submitted."""
    duplicate: bool
    """It was known already, and nothing has changed."""


class SubmitAnswer(TypedDict):
    """The jobs of a batch."""

    jobs: list[SubmittedJob]
    """In the order of the batch."""


class CheckpointAnswer(TypedDict):
    """A checkpoint that was entered."""

    already: bool
    """This one, or a later one of the same attempt, had been entered before."""


class CancelAnswer(TypedDict):
    """What a cancelled job is now."""

    state: str
    """As in ``JobRecord``."""
    cancel_requested: bool
    """It runs, and is to end."""


class EditAnswer(TypedDict):
    """What an edited job is submitted with now."""

    job_id: str
    """Which."""
    priority: int
    """As in ``JobRecord``."""
    max_execution_time_s: float | None
    """As in ``JobRecord``."""
    deadline: NotRequired[float | None]
    """As in ``JobRecord``; only where it was changed, as answers are part of the state."""
    resources: NotRequired[ResourcesRecord]
    """The same."""
    labels: NotRequired[dict[str, str]]
    """The same."""


class RetriedJob(TypedDict):
    """A job that was queued again."""

    job_id: str
    """Which."""
    attempts: int
    """How many it has had."""


class FailAnswer(TypedDict):
    """What a job is that was to fail."""

    state: str
    """As in ``JobRecord``."""


class GrantAnswer(TypedDict):
    """What was given to an attempt, or to a lease."""

    token: list[int]
    """Fencing token."""
    gpu_uuids: list[str]
    """The devices; of a gang, of all its members."""
    attempt_id: NotRequired[str]
    """Of an attempt."""


class StartAnswer(TypedDict):
    """What is asked of an attempt that runs."""

    already: bool
    """It was known to run."""
    cancel_requested: bool
    """Whether it is to end."""
    preemption: PreemptionRecord | None
    """As in ``AttemptRecord``; so the others."""
    superseded: NotRequired[SupersededRecord]
    ending: NotRequired[EndingRecord | None]


class PreemptAnswer(TypedDict):
    """Whether an attempt is asked anew to end."""

    already: bool
    """It was asked before."""


class EndAnswer(TypedDict):
    """What the end of an attempt, or of a member, has made of its job."""

    already: bool
    """It had ended before."""
    job_state: str
    """As in ``JobRecord``."""


class AdvanceAnswer(TypedDict):
    """What a graph was led on by."""

    released: list[str]
    """The jobs that run steps of it now."""


class EndGraphAnswer(TypedDict):
    """How a graph has ended."""

    state: str
    """As in ``JobRecord``."""


class RetryAnswer(TypedDict):
    """A graph that was begun again."""

    state: str
    """As in ``JobRecord``."""
    again: int
    """How many of its steps wait again that had failed or were passed over."""


class LateSuccessAnswer(TypedDict):
    """What a late success has made of its job."""

    taken: int | None
    """The attempt whose outcome is the job's; ``None``: of none yet, or not known any more."""
    job_state: str
    """As in ``JobRecord``."""


class ReleaseLeaseAnswer(TypedDict):
    """What is told to who frees a lease."""

    released: bool
    """Whether it was there."""


class LoseHostAnswer(TypedDict):
    """What a host that is lost takes with it."""

    ended: list[str]
    """The allocations that ended with it."""
    lost_at: int | None
    """The entry that lost it; ``None`` when it is down by its own word."""


class RegisterHostAnswer(TypedDict):
    """A host that is registered."""

    host_id: str
    """Its own."""
    incarnation: int
    """How often its agent started."""


class HostAnswer(TypedDict):
    """A host that was spoken of."""

    host: str
    """Its id."""
    draining: NotRequired[bool]
    """Of a drain: whether it takes nothing new."""
    began: NotRequired[int]
    """Of an absence: the entry that allowed it, or ended it."""
    returned: NotRequired[bool]
    """Of a confirmation: whether the host was lost before."""
    unreachable: NotRequired[bool]
    """Of what members found: whether it is marked now."""


class GossipKeyAnswer(TypedDict):
    """The members' secret that is used from now on, without itself."""

    number: int
    """Which one it is."""


class MemberAnswer(TypedDict):
    """A member as it was let in, changed or removed."""

    host_id: str
    """Its own."""
    node: int
    """Its number in Raft."""
    cluster_id: NotRequired[str]
    """Of one that was let in."""
    lost: NotRequired[list[str]]
    """Of one that was removed: the allocations that went with it."""


class RecoveryAnswer(TypedDict):
    """An action about a host in trouble that was begun, or ended."""

    host: str
    """Its id."""
    number: int
    """The action's among those of its host."""
    undrain: bool
    """Whether a drain was of what is over now, and is to be ended."""


class MaintenanceAnswer(TypedDict):
    """A maintenance window that was begun, changed or ended."""

    host: str
    """Its id."""
    until: float | None
    """When it ends by itself; ``None``: it is over."""
    was: bool
    """Whether one was open before."""


class RetirementAnswer(TypedDict):
    """Openings of the shared state that were retired."""

    host: str
    """Whose."""
    floor: int
    """Those of earlier incarnations."""
    level: int
    """The number of the retirement."""


class CredentialAnswer(TypedDict):
    """A join token or API key that was made."""

    id: str
    """First part of its text."""
    expires_at: float
    """Until when it is good."""


class RevokeAnswer(TypedDict):
    """A join token or API key that was revoked."""

    id: str
    """First part of its text."""
    revoked_at: float | None
    """When, the first time."""


class BundleAnswer(TypedDict):
    """A trust bundle that was published."""

    version: int
    """The bundle's."""


class CertificateRequestAnswer(TypedDict):
    """A certificate that was asked for."""

    request: int
    """The number of the request."""


class MemberTrustAnswer(TypedDict):
    """A member whose part in the trust has changed."""

    host_id: str
    """Its own."""
    generation: NotRequired[int]
    """Of a key that was handed to it."""


class HoldAnswer(TypedDict):
    """What an owner is told of a lock that it asked for or renewed."""

    held: bool
    """Whether it holds the lock now."""
    token: list[int] | None
    """Its fencing token, once it does."""
    position: int
    """Its place among those who wait, from 1; 0 of one who holds it."""
    slots: int
    """How many may hold it."""
    ttl_s: float
    """How long it is held without a sign of life."""
    renewals: int
    """Signs of life so far."""
    request: NotRequired[list[Any]]
    """As in ``LockEntry``."""


class ReleaseAnswer(TypedDict):
    """What is told to who gives a lock back, or leaves its line."""

    released: bool
    """Whether it held the lock or waited until now."""


class QuotaAnswer(TypedDict):
    """A quota that was set, or removed."""

    user: str
    """Whose."""
    limits: QuotaRecord | None
    """What it is now; ``None``: removed."""
    previous: QuotaRecord | None
    """What it was."""


class QuotaUseRecord(TypedDict):
    """What the quota of a user is, and how much of it is in use."""

    user: str
    """Whose."""
    limits: QuotaRecord | None
    """``None``: not limited."""
    default: bool
    """They are everyone's."""
    used: dict[str, int]
    """What the user's allocations hold, and the jobs that wait, by limit."""


class ScheduleAnswer(TypedDict):
    """What a schedule is now."""

    name: str
    """Which."""
    revision: int
    """As in ``ScheduleRecord``."""
    unchanged: bool
    """It was so before."""


class RemoveScheduleAnswer(TypedDict):
    """What a schedule was that is no more."""

    name: str
    """Which."""
    live: str | None
    """Its job that goes on."""


class FireAnswer(TypedDict):
    """What became of due times of a schedule."""

    started: list[str]
    """The jobs that were made."""
    held: int
    """How many stand in line."""
    skipped: int
    """How many were not run, as another run was not over, or as there was no room for the job."""


class ServiceAnswer(TypedDict):
    """What a service is now."""

    name: str
    """Which."""
    revision: str
    """What its replicas run, or are exchanged for."""
    unchanged: bool
    """It was so before."""
    rolling_out: bool
    """They are being exchanged."""


class RemoveServiceAnswer(TypedDict):
    """What a service was that is no more."""

    name: str
    """Which."""
    ending: list[str]
    """The jobs of its replicas, which end."""


class AdvanceServiceAnswer(TypedDict):
    """What became of what was decided about a service."""

    name: str
    """Which."""
    started: list[str]
    """The jobs that were made."""


class ReplicaAnswer(TypedDict):
    """What a replica is now."""

    state: str
    """As in ``ReplicaRecord``."""


class StepsCancelled(TypedDict):
    """Steps that were cancelled."""

    cancelled: int
    """How many are over with it."""
    stopping: int
    """How many run, and are to end."""
    over: int
    """How many had ended before."""


class SettledNotices(TypedDict):
    """What became of notices."""

    sent: int
    """How many were sent, of those that waited."""
    failed: int
    """How many were given up."""


class ClearedNotices(TypedDict):
    """Notices that were forgotten."""

    cleared: int
    """How many."""


class AuditHeadAnswer(TypedDict):
    """A head of an audit log that is held from now on."""

    host_id: str
    log: int
    """Which log of the host."""
    size: int
    """How many records the head has."""


class SecretAnswer(TypedDict):
    """A secret that was set, sealed anew or removed."""

    name: str
    tenant: str


class TenantAnswer(TypedDict):
    """A tenant that was created, changed or removed."""

    tenant: TenantRecord
    """As it is now."""
    previous: TenantRecord | None
    """As it was; none: there was no record."""
