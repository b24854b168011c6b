"""What the ledger takes and tells. Records are plain dicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from actorgrid.actors.ledger.credential_records import ApiKeyRecord, JoinTokenRecord
from actorgrid.actors.ledger.record_types import AllocationRecord, HostRecord, LockRecord, MemberRecord, QuotaRecord
from actorgrid.actors.ledger.trust_records import TrustRecord
from actorgrid.supervisors.pickled_by_place import pickled_by_place

from .command import Command
from .notice_records import NoticeRecord
from .recovery_records import HostRecoveryRecord
from .retirement_records import RetirementRecord
from .schedule_records import ScheduleRecord
from .service_records import ServiceRecord
from .tables.job_table import JobTable
from .tenant_records import TenantRecord, TenantUseRecord

JobsWanted = Literal["none", "begun", "told", "all"]
"""Which jobs a server that follows the ledger has to know. A queue of 20,000 costs whoever keeps it some megabytes.

``none``: no job at all. ``begun``: it keeps those that are placed or running, and is told what happens to a job from
its first attempt, or its end, on. ``told``: it keeps the same, and is told of every change, also of steps of graphs; of
a job that waits for its first attempt only what ``followers.TOLD_OF_WAITING`` names. ``all``: it keeps all that are not
final.
"""


@pickled_by_place
@dataclass(frozen=True, slots=True)
class Propose:
    """Commit a command, exactly once per (session, seq). Answer: :class:`Proposed`.

    Raises LedgerRefused (guard; state unchanged), BadRequest (malformed), UnknownJob, DiskFull, or
    CallTimeout (outcome unknown: propose the same (session, seq) again, the answer will be that of the first).
    """

    command: Command
    session: str
    seq: int


@pickled_by_place
@dataclass(frozen=True, slots=True)
class Proposed:
    """Where the command stands in the log, and what applying it gave."""

    index: int
    result: dict[str, Any]


QueryArguments = dict[str, Any]
"""What a question names, by kind, as it came: whoever answers checks it."""


@dataclass(frozen=True, slots=True)
class Query:
    """Read what is committed. Answer: plain values, by kind:

    job {job_id}: the record, live or ended, or None · job_states {job_ids}: {"states": {id: state}} of those known ·
    payloads {behind, limit}: {"digests", "next"}, of live jobs, newest first; ``next`` is the ``behind`` of the page
    that follows, or None · files_in_use {digests, job_ids, tenant}: the same, less those that no live job (with
    ``tenant``: of that tenant) names as a payload, or waits for ·
    jobs {states, limit, before, prefix}: {"jobs", "total", "next"}, newest first; ``before`` is the job_id the page
    before ended with (its ``next``: None where no page follows), or a time; ``prefix`` is what the ids begin with
    (then ``total`` counts no more than 1,000) ·
    allocations, hosts, settings: {kind: ...} ·
    quotas: {"quotas": [{"user", "limits", "default", "used"}]} (see quotas.py) · locks: {"locks": by name} ·
    tenants: {"tenants": [TenantUsage]} · audit_heads {host_id}: {"heads": [AuditHeadRecord]}, all without it ·
    lock {name}: the record, or None ·
    events {from, limit}: {"events", "index"}, oldest first, from a log index on, the last index given whole ·
    counts: {"jobs": by state, "allocations", "hosts", "commit_latency_ms"} · status ·
    gossip_key: :class:`GossipKey` · graph {graph_id}: the job and how many steps are in which state ·
    graph_steps {graph_id, from, limit}: the records of steps by number, "next" as above; "steps" instead of from and
    limit: those alone ·
    electorate: :class:`Electors` · index: of the last entry applied ·
    hosts_heard: {"as_of", "heard": {host: when}} on the CLOCK_BOOTTIME of the leader, who alone answers, with what
    it knows as one that a majority still followed at ``as_of``.

    ``linearizable``: the answer holds everything whose commit was answered, by whichever host, before this was asked;
    without it, what this host has applied. Raises NotLeader when no majority can be asked for that.
    """

    kind: str
    args: QueryArguments = field(default_factory=dict)
    linearizable: bool = False


@dataclass(frozen=True, slots=True)
class HandOver:
    """Let another voter lead, as this host is about to stop.

    Answer, once one does or there is none: {"leader": host}.
    """


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Subscribe (or subscribe again) to changes. Answer: :class:`LedgerSnapshot`; then Applied casts."""

    jobs: JobsWanted = "all"


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """Everything live at ``index``: the jobs that were asked for, allocations, hosts, settings, locks, quotas, members,
    join tokens, API keys, of their trust, of what was done about hosts in trouble, of retired openings, schedules,
    notices and services.

    ``leader``: the host that leads, if it is known; ``leads``: it is this one. ``absent``, ``job_counts``: as in
    Applied.
    """

    index: int
    term: int
    epoch: int
    jobs: JobTable
    allocations: dict[str, AllocationRecord]
    hosts: dict[str, HostRecord]
    settings: dict[str, Any]
    locks: dict[str, LockRecord] = field(default_factory=dict)
    quotas: dict[str, QuotaRecord] = field(default_factory=dict)
    members: dict[str, MemberRecord] = field(default_factory=dict)
    join_tokens: dict[str, JoinTokenRecord] = field(default_factory=dict)
    api_keys: dict[str, ApiKeyRecord] = field(default_factory=dict)
    trust: dict[str, TrustRecord] = field(default_factory=dict)
    recoveries: dict[str, HostRecoveryRecord] = field(default_factory=dict)
    retirements: dict[str, RetirementRecord] = field(default_factory=dict)
    schedules: dict[str, ScheduleRecord] = field(default_factory=dict)
    notices: dict[str, NoticeRecord] = field(default_factory=dict)
    services: dict[str, ServiceRecord] = field(default_factory=dict)
    tenants: dict[str, TenantRecord] = field(default_factory=dict)
    tenant_uses: dict[str, TenantUseRecord] = field(default_factory=dict)
    leader: str | None = None
    absent: dict[str, float] = field(default_factory=dict)
    leads: bool = True
    job_counts: Mapping[str, int] = field(default_factory=dict)


@pickled_by_place
@dataclass(frozen=True, slots=True)
class Applied:
    """One committed command's effect. ``changes``: (kind, id, new record or None when gone), in order.

    Kinds: job, allocation, host, setting, lock (not for its renewals), lock_break (record: {"owner", "by"}), quota (by
    user), member, join_token, api_key, trust, recovery, retirement, schedule, notice, service, tenant, tenant_use,
    gossip_key (record: {"number"}), steps (of a graph; record: (number, StepRecord) of each that changed), term
    (record: (term, epoch)), leader (record: (host or None, whether it is this host)) and absent (record: hosts that
    this one, which leads, has not heard of for a while, each with when it was, on CLOCK_BOOTTIME), both told between
    entries.
    ``previous`` is the index of the Applied sent before this one: a receiver that sees a gap subscribes again.
    ``job_counts``: how many jobs are in each state, as of the last of those that are told together; else ``None``.
    """

    index: int
    previous: int
    at: float
    command_type: str
    changes: tuple[tuple[str, str, Any], ...]
    job_counts: Mapping[str, int] | None = None
