"""The answers to :class:`~.messages.Query` by kind, one line for each field: plain maps, as records are."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from .answers import QuotaUseRecord
from .audit_head_records import AuditHeadRecord
from .credential_records import ApiKeyRecord, JoinTokenRecord
from .graph_records import StepRecord
from .record_types import AllocationRecord, HostRecord, JobRecord, LockRecord
from .secret_records import SecretRecord
from .tenant_records import TenantUsage


class JobStates(TypedDict):
    """To ``job_states``."""

    states: dict[str, str]
    """By job_id, of those that are known."""


class PayloadsPage(TypedDict):
    """To ``payloads``."""

    digests: list[str]
    """Files that live jobs name as payload or standard input, of the newest job first."""
    next: str | None
    """The ``behind`` of the page that follows; ``None``: this was the last."""


class FilesInUse(TypedDict):
    """To ``files_in_use``: of the names that were asked for."""

    digests: list[str]
    """Those that a live job names as payload or standard input."""
    job_ids: list[str]
    """Those that a live job waits for."""
    cached_job_ids: list[str]
    """Those of graphs that are over, whose results later graphs may take over."""


class GraphStates(TypedDict):
    """To ``graph``."""

    job: JobRecord
    """The graph itself."""
    states: dict[str, int] | None
    """How many of its steps are in which state, of those that have a record; ``None``: they are known no more."""


class GraphSteps(TypedDict):
    """To ``graph_steps``."""

    steps: list[tuple[int, StepRecord]]
    """By number; those without a record have never been begun."""
    next: int | None
    """The ``from`` of the page that follows; ``None``: this was the last."""


class CachedGraphs(TypedDict):
    """To ``cached_graphs``."""

    graphs: list[JobRecord]
    """The newest first."""


class JobsPage(TypedDict):
    """To ``jobs``."""

    jobs: list[JobRecord]
    """Newest submitted first."""
    total: int
    """How many there are of these states; of a part (by prefix or user) at most 1,000 are counted."""
    next: str | None
    """The ``before`` of the page that follows; ``None``: this was the last."""


class HistoryEvent(TypedDict):
    """A row of the ledger's history: one change by one entry."""

    number: int
    """Of the row, from 1."""
    index: int
    """The entry's."""
    at: float
    """The entry's time, s since 1970."""
    type: str
    """The verb."""
    kind: str
    """Of the record."""
    id: str
    """Of the record."""
    state: str
    """Of the record after it; ``""`` where it has none."""


class EventsPage(TypedDict):
    """To ``events``."""

    events: list[HistoryEvent]
    """Oldest first."""
    index: int
    """Of the last entry applied."""


class LedgerCounts(TypedDict):
    """To ``counts``."""

    jobs: dict[str, int]
    """All jobs by state, also those that left memory."""
    allocations: int
    """That are out."""
    hosts: int
    """That are known."""
    commit_latency_ms: NotRequired[float | None]
    """Median of the latest commits on this host; ``None``: there was none. Consensus adds it."""


class HostsHeard(TypedDict):
    """To ``hosts_heard``, on the CLOCK_BOOTTIME of the leader, in s."""

    as_of: float
    """A majority has confirmed the leader after this."""
    heard: dict[str, float]
    """When anything came of each host."""


class RefusedSnapshot(TypedDict):
    """A snapshot that was sent here and refused."""

    sender: str
    """Who led, by its address or node."""
    reason: str
    """Why."""
    ago_s: float
    """How long ago."""
    behind: bool
    """Nothing has come to the ledger since."""


class CommitStalls(TypedDict):
    """What does not go on, as far as this host sees."""

    commits_stalled_s: float | None
    """How long something proposed has waited while nothing was committed; ``None``: nothing waits."""
    behind_s: dict[str, float]
    """On the leader, by host: for how long it has taken nothing, of those that answer and lack what is committed."""


class Electors(TypedDict):
    """To ``electorate``: who votes, as of what is applied on this host."""

    nodes: list[int]
    """Those that vote, in both halves of a joint configuration."""
    epoch: int
    """As in ``status``."""
    index: int
    """As in ``status``."""
    term: int
    """As in ``status``."""


class LedgerStatus(CommitStalls):
    """To ``status``: the ledger on this host."""

    role: str
    """Raft's: leader, follower, candidate, learner."""
    leader: str | None
    """The host that leads, as far as this one knows."""
    voters: list[int]
    """Their nodes."""
    nodes: list[int]
    """Those of all who are sent anything of the log."""
    contact_s: dict[str, float]
    """By host: how long ago anything of it came here."""
    snapshot_refused: RefusedSnapshot | None
    """The last one, a while long."""
    term: int
    """Of the last leadership that was applied."""
    index: int
    """Of the last entry applied."""
    epoch: int
    """How often the ledger was recovered, from 1."""
    snapshot_index: int
    """The last entry in the newest snapshot."""
    log_bytes: int
    """Of all segments."""
    segments: int
    """Of the log."""
    subscribers: list[str]
    """Servers of this host that follow it."""
    free_bytes: int
    """Of its disk."""
    accepts_new_work: bool
    """Its disk has room, and it has not failed."""
    waiting_job_bytes: int
    """Of jobs that wait."""
    waiting_job_bytes_most: tuple[str, int] | None
    """The user with the most of them, and how many; ``None``: nothing waits."""


class AllocationRecords(TypedDict):
    """To ``allocations``."""

    allocations: list[AllocationRecord]
    """All that are out."""


class HostRecords(TypedDict):
    """To ``hosts``."""

    hosts: list[HostRecord]
    """By host_id."""


class LockRecords(TypedDict):
    """To ``locks``."""

    locks: list[LockRecord]
    """By name."""


class QuotaRecords(TypedDict):
    """To ``quotas``."""

    quotas: list[QuotaUseRecord]
    """By user."""


class JoinTokenRecords(TypedDict):
    """To ``join_tokens``."""

    join_tokens: list[JoinTokenRecord]
    """In the order in which they were made."""


class ApiKeyRecords(TypedDict):
    """To ``api_keys``."""

    api_keys: list[ApiKeyRecord]
    """In the order in which they were made."""


class AuditHeadRecords(TypedDict):
    """To ``audit_heads``."""

    heads: list[AuditHeadRecord]
    """By host."""


class SecretRecords(TypedDict):
    """To ``secrets``."""

    secrets: list[SecretRecord]
    """In the order in which they were set first; sealed."""


class SettingValues(TypedDict):
    """To ``settings``."""

    settings: dict[str, Any]
    """Those that were changed while the cluster ran, by name."""


class TenantRows(TypedDict):
    """To ``tenants``."""

    tenants: list[TenantUsage]
    """By name: those with a record, with something held, with jobs that wait."""
