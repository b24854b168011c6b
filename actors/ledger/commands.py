"""The ledger's commands: one class for each verb, with its fields, their checks and who may propose it.

A new verb is a class here and the method of a table that carries it out (``entry.py``: ``applies``).
"""

from dataclasses import field
from typing import Annotated, TypeVar, cast

from .command import Command, Proposer, verb, version_of
from .field_checks import (
    ABSENT,
    Absence,
    Absent,
    Date,
    Env,
    Gang,
    Grace,
    Held,
    Id,
    Indexes,
    Isolation,
    Jobs,
    LockName,
    LockRequest,
    LockSlots,
    LockTtl,
    Number,
    Outcome,
    Plain,
    Ports,
    Priority,
    SettingKey,
    Signed,
    Since,
    Table,
    Text,
    Texts,
    Token,
    Truth,
    User,
    Value,
    WaitingBytes,
    Whole,
    is_table,
    refused,
)
from .record_checks import (
    check_api_key,
    check_bundle,
    check_grant_target,
    check_host,
    check_job,
    check_join_token,
    check_limits,
    check_resources,
    job_version,
)
from .record_types import (
    ApiKeyRecord,
    BundleRecord,
    EndFacts,
    ErrorRecord,
    HostFacts,
    JoinTokenRecord,
    QuotaRecord,
    ResourcesRecord,
)
from .records import END_FACTS, UNKNOWN_USER

LIMITS_SINCE = 2
"""The version from which a host that submits says how many bytes may wait."""
_T = TypeVar("_T")
Request = Annotated[LockRequest, Since(2)]
"""Of a lock, by a client; without one its host cannot tell one request of an owner from the next."""


def value_or_none(value: _T | Absent) -> _T | None:
    """*value*, or ``None`` where the command does not have it."""
    return None if value is ABSENT else value


# -- the cluster's own


@verb("new_term", Proposer.LEADER)
class NewTerm(Command):
    """Begin a new leadership; *epoch* only when the ledger was recovered from a backup or a single survivor."""

    term: Whole
    epoch: Whole | None = None


@verb("compare_digest", Proposer.LEADER)
class CompareDigest(Command):
    """Compare states: *digest* is the leader's at *index*, by kind of record. A voter with another one stops."""

    index: Whole
    digest: Env
    format: Whole


@verb("set_setting", Proposer.DOOR)
class SetSetting(Command):
    """Keep a setting's value over the files' one; ``None`` gives the files their say again."""

    key: SettingKey
    value: Value
    by: Text = ""


@verb("set_quota", Proposer.DOOR)
class SetQuota(Command):
    """Hold a user to *limits* (``*``: everyone without a quota of one's own); ``None`` removes the quota.

    A limit that is not named, or ``None``, is none. Lowering one stops nobody.
    """

    user: User
    limits: Annotated[QuotaRecord, is_table] | None
    by: Text = ""

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check that the limits are known ones."""
        if plain["limits"] is not None:
            check_limits(plain["limits"])


# -- hosts


@verb("register_host", Proposer.ITSELF)
class RegisterHost(Command):
    """Register a host that came up, with its devices and memory. Refused for an incarnation below the known one."""

    host: Annotated[HostFacts, is_table]

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check the host's record."""
        check_host(plain["host"])

    def about_host(self) -> object:
        """The id of the host that registers."""
        return self.host["host_id"]


@verb("confirm_host", Proposer.ITSELF)
class ConfirmHost(Command):
    """Confirm that a host is up and runs nothing unknown to the ledger; *lost_at*: the entry that lost it, if one did.

    Refused when the ledger has lost it, or found it, since.
    """

    host: Id
    incarnation: Whole
    lost_at: Whole | None


@verb("allow_absence", Proposer.ITSELF)
class AllowAbsence(Command):
    """Wait *absence_s* seconds for a host that is about to restart; 0 ends the wait that *began* at that entry."""

    host: Id
    incarnation: Whole
    absence_s: Absence
    began: Whole | None = None


@verb("lose_host", Proposer.LEADER)
class LoseHost(Command):
    """Declare a host lost, not heard of since *heard_at*: longer than the named work (allocation, token) may go on.

    Refused when the host has said since *seen_index* that it is there.
    """

    host: Id
    incarnation: Whole
    seen_index: Whole
    heard_at: Date
    allocations: Held
    term: Whole


@verb("measure_host", Proposer.ITSELF, new_work=True)
class MeasureHost(Command):
    """Record what a host measured of its disk and network: figures by name, with their units in the names."""

    host: Id
    incarnation: Whole
    measured: Table


@verb("drain_host", Proposer.DOOR)
class DrainHost(Command):
    """Grant a host nothing new, whatever its incarnation, until the drain is ended; its present work goes on."""

    host: Id
    draining: Truth
    by: Text = ""


# -- jobs and their attempts


@verb("submit_jobs", Proposer.DOOR, new_work=True)
class SubmitJobs(Command):
    """Accept jobs, all or none; a job_id already known is a duplicate and changes nothing."""

    jobs: Jobs
    waiting_bytes: Annotated[WaitingBytes, Since(LIMITS_SINCE)] | Absent = ABSENT

    @property
    def format_version(self) -> int:
        """The lowest ledger version that knows this command with these fields, those of its jobs included."""
        names = () if self.waiting_bytes is ABSENT else ("waiting_bytes",)
        return max([version_of(SubmitJobs, names), *map(job_version, self.jobs)])

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check each job."""
        for job in plain["jobs"]:
            check_job(job, plain["v"])


@verb("cancel_job", Proposer.DOOR)
class CancelJob(Command):
    """Cancel a waiting job at once; ask for the end of a placed one."""

    job_id: Text
    by: Text = ""


@verb("edit_job", Proposer.DOOR, since=3)
class EditJob(Command):
    """Change what a waiting job was submitted with: its priority, and how long each attempt may take."""

    job_id: Text
    priority: Priority | Absent = ABSENT
    max_execution_time_s: Number | Absent | None = ABSENT
    by: Text = ""


@verb("fail_job", Proposer.LEADER)
class FailJob(Command):
    """End a waiting job that can never run."""

    job_id: Text
    error: Annotated[ErrorRecord, is_table]


@verb("grant_attempt", Proposer.LEADER, new_work=True)
class GrantAttempt(Command):
    """Give a queued job what it asks for; the amounts are those of the job record."""

    job_id: Text
    number: Whole
    host: Text
    incarnation: Whole
    gpu_indexes: Indexes
    term: Whole
    placement_latency_us: Number | None = None


@verb("grant_gang", Proposer.LEADER, new_work=True)
class GrantGang(Command):
    """Give all *members* of a queued gang what they ask for, or none; each is {host, incarnation, gpu_indexes}.

    *ports* are the first and the last at which rank 0 may listen for the others.
    """

    job_id: Text
    number: Whole
    members: Gang
    ports: Ports
    term: Whole
    placement_latency_us: Number | None = None

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check each member's place."""
        for place in plain["members"]:
            check_grant_target(place)


@verb("start_attempt", Proposer.ITS_WORK)
class StartAttempt(Command):
    """Record that an attempt's process runs.

    *attempt_id* is a member's where the job is a gang; so in ``EndAttempt``.
    """

    attempt_id: Text
    token: Token


@verb("end_attempt", Proposer.ITS_WORK)
class EndAttempt(Command):
    """End an attempt whose processes are gone. *charge*: whether it counts against the job's retries."""

    attempt_id: Text
    token: Token
    outcome: Outcome
    charge: Truth = True
    error: Annotated[ErrorRecord, is_table] | Absent | None = ABSENT
    retry_at: Number | None = None
    exit_code: Signed | Absent | None = ABSENT
    signal: Signed | Absent | None = ABSENT
    max_rss_bytes: Whole | Absent | None = ABSENT
    cpu_s: Number | Absent | None = ABSENT
    result_bytes: Whole | Absent | None = ABSENT


@verb("take_success", Proposer.ITS_WORK, since=2)
class TakeSuccess(Command):
    """Take a late success: an attempt that the leader ended as lost had succeeded on its host before that."""

    attempt_id: Text
    token: Token
    exit_code: Signed | Absent | None = ABSENT
    signal: Signed | Absent | None = ABSENT
    max_rss_bytes: Whole | Absent | None = ABSENT
    cpu_s: Number | Absent | None = ABSENT
    result_bytes: Whole | Absent | None = ABSENT


def end_facts(command: EndAttempt | TakeSuccess) -> EndFacts:
    """What is known of how the processes ended, under the field names of a record."""
    return cast("EndFacts", {name: value_or_none(getattr(command, name)) for name in END_FACTS})


@verb("preempt_attempt", Proposer.LEADER)
class PreemptAttempt(Command):
    """Ask for the end of an attempt, within *grace_s*, so that *for_job* (a job, or a session's lease) can start."""

    attempt_id: Text
    token: Token
    grace_s: Grace
    for_job: Text
    term: Whole


# -- leases of sessions


@verb("grant_lease", Proposer.LEADER, new_work=True)
class GrantLease(Command):
    """Give a client's session a worker with these devices."""

    lease_id: Id
    session_id: Text
    host: Text
    incarnation: Whole
    gpu_indexes: Indexes
    resources: Annotated[ResourcesRecord, is_table]
    term: Whole
    pool: Text | None = None
    env: Env = field(default_factory=dict)
    user_id: Text = UNKNOWN_USER
    max_isolation_s: Isolation | Absent = ABSENT

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check the resources: a session's worker is one process."""
        check_resources(plain["resources"])
        if "gang" in plain["resources"]:
            raise refused("a session's worker is one process", found=f"gang={plain['resources']['gang']}")


@verb("release_lease", Proposer.ITS_WORK)
class ReleaseLease(Command):
    """Free a session's allocation; one that is gone is no error."""

    lease_id: Text


# -- locks


@verb("acquire_lock", Proposer.DOOR, new_work=True)
class AcquireLock(Command):
    """Acquire a lock, or wait in line for it. *owner* names one holder: a thread that asks, not a user.

    *request*: [the number that a client gave its request, 0 for none; the id that its host gave it], under which
    ``ReleaseLock`` takes it back, for a client that did not hear of it.
    """

    name: LockName
    owner: Id
    ttl_s: LockTtl
    wait: Truth = False
    slots: LockSlots = 1
    user_id: Text = UNKNOWN_USER
    request: Request | Absent = ABSENT


@verb("renew_lock", Proposer.DOOR)
class RenewLock(Command):
    """Renew the lease of a holder or waiter; *request*: which request waits, as the host says where it does."""

    name: LockName
    owner: Id
    token: Token | None = None
    request: Request | Absent = ABSENT


@verb("release_lock", Proposer.DOOR)
class ReleaseLock(Command):
    """Give a lock back, or leave the line. Whoever gives up for an owner that is gone says what it knows of it: the
    *request* that it was given to, unless he was told or has asked again, or the *renewals* it has seen."""

    name: LockName
    owner: Id
    token: Token | None = None
    renewals: Whole | Absent = ABSENT
    request: Request | Absent = ABSENT


@verb("expire_lock", Proposer.LEADER)
class ExpireLock(Command):
    """End a lock's lease: the leader of *term* saw no renewal after the *renewals*-th in time."""

    name: LockName
    owner: Id
    renewals: Whole
    term: Whole


@verb("break_lock", Proposer.DOOR)
class BreakLock(Command):
    """Take a lock, or a place in line, from its owner by force, on the word of *by*."""

    name: LockName
    owner: Id
    by: User


# -- members


@verb("found_cluster", Proposer.LEADER)
class FoundCluster(Command):
    """Make the ledger a cluster's, with the host it lies on as its first member."""

    cluster_id: Id
    host_id: Id
    addresses: Env
    fingerprint: Text


@verb("add_member", Proposer.LEADER)
class AddMember(Command):
    """Let a host in; the answer names its node. *addresses* by what listens there: raft, calls, join."""

    host_id: Id
    addresses: Env
    fingerprint: Text
    rack: Text | None = None
    version: Text = ""
    votes: Truth | Absent = ABSENT
    ledger_version: Whole | Absent = ABSENT


@verb("change_member", Proposer.ITSELF)
class ChangeMember(Command):
    """Change a member's record: its addresses, its software, one more certificate, whether it may vote."""

    host_id: Id
    addresses: Env | Absent = ABSENT
    fingerprint: Text | Absent = ABSENT
    rack: Text | Absent | None = ABSENT
    version: Text | Absent = ABSENT
    votes: Truth | Absent = ABSENT
    ledger_version: Whole | Absent = ABSENT


@verb("remove_member", Proposer.LEADER)
class RemoveMember(Command):
    """Remove a member, which never returns under this node number. *force*: also when it has work, which is
    lost then."""

    host_id: Id
    by: Text = ""
    force: Truth = False


# -- trust


@verb("publish_bundle", Proposer.VOTER)
class PublishBundle(Command):
    """Publish the next trust bundle, as plain values: the first, or one step from the one that the ledger has."""

    bundle: Annotated[BundleRecord, is_table]

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check the bundle."""
        check_bundle(plain["bundle"])


@verb("report_trust", Proposer.ITSELF)
class ReportTrust(Command):
    """Report what a member has: its certificate (PEM), the version of the bundle, and which authorities' keys."""

    host_id: Id
    certificate: Text
    fingerprint: Text
    generation: Whole
    valid_until: Number
    bundle_version: Whole
    keys: Indexes


@verb("request_certificate", Proposer.ITSELF)
class RequestCertificate(Command):
    """Ask for a certificate for a member; *csr* is the request (PKCS #10) in hex. Answer: its number."""

    host_id: Id
    csr: Text
    addresses: Texts


@verb("issue_certificate", Proposer.VOTER)
class IssueCertificate(Command):
    """Issue the certificate asked for under that number; proposed by a host that has the authority's key."""

    host_id: Id
    request: Whole
    certificate: Text
    fingerprint: Text


@verb("seal_authority", Proposer.VOTER)
class SealAuthority(Command):
    """Hand an authority's key to a member, sealed (hex) for its certificate's key."""

    host_id: Id
    generation: Whole
    fingerprint: Text
    sealed: Text


# -- tokens and keys


@verb("create_join_token", Proposer.VOTER, new_work=True)
class CreateJoinToken(Command):
    """Create a join token; *token* is the record of ``ledger/join_tokens.py``, which holds no secret."""

    token: Annotated[JoinTokenRecord, is_table]

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check the token's record."""
        check_join_token(plain["token"])


@verb("revoke_join_token", Proposer.DOOR)
class RevokeJoinToken(Command):
    """Revoke a join token: it lets nobody in any more."""

    token_id: Text


@verb("redeem_join_token", Proposer.VOTER)
class RedeemJoinToken(Command):
    """Use a token, and with that let its holder in as a member: one entry, so that neither is without the other.

    The same host with the same key gets the same answer again.
    """

    token_id: Text
    host_id: Id
    addresses: Env
    fingerprint: Text
    rack: Text | None = None
    version: Text = ""
    votes: Truth | Absent = ABSENT
    ledger_version: Whole | Absent = ABSENT


@verb("create_api_key", Proposer.VOTER, new_work=True)
class CreateApiKey(Command):
    """Create an API key, good on every host; *key* is the record of ``ledger/api_keys.py``, which holds no secret."""

    key: Annotated[ApiKeyRecord, is_table]

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check the key's record."""
        check_api_key(plain["key"])


@verb("revoke_api_key", Proposer.DOOR)
class RevokeApiKey(Command):
    """Revoke an API key: it opens nothing any more."""

    key_id: Text
    by: Text = ""
