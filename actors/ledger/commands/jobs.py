"""Commands of the ledger about jobs and their attempts."""

from typing import Annotated, Any, TypeVar, cast

from actorgrid.errors import ErrorRecord
from actorgrid.labels import is_label_changes

from ..command import Command, Proposer, verb, version_of
from ..field_checks import (
    ABSENT,
    Absent,
    Digest,
    Gang,
    Grace,
    Indexes,
    Jobs,
    Number,
    Outcome,
    Plain,
    Ports,
    Priority,
    Signed,
    Since,
    Text,
    Token,
    Truth,
    WaitingBytes,
    Whole,
    is_table,
)
from ..graph_checks import is_results
from ..record_checks import check_grant_target, check_job, check_resources, job_version
from ..record_types import EndFacts, ResourcesRecord
from ..records import END_FACTS
from ..usage_checks import is_usage
from ..usage_records import UsageRecord
from .graphs import GRAPHS_SINCE

LIMITS_SINCE = 2
"""The version from which a host that submits says how many bytes may wait."""
BEHIND_SINCE = 6
"""The version from which an attempt may stand behind another, and an end tells the start."""
AGAIN_SINCE = 9
"""The version from which jobs that have ended can be begun again, and a deadline can be changed."""
USAGE_SINCE = 9
"""The version from which the end of an attempt tells what it used of its devices."""
CHECKPOINTS_SINCE = 9
"""The version from which attempts enter checkpoints."""
DEMAND_SINCE = 10
"""The version from which what a waiting job asks for, and its labels, can be changed."""
_T = TypeVar("_T")


def value_or_none(value: _T | Absent) -> _T | None:
    """*value*, or ``None`` where the command does not have it."""
    return None if value is ABSENT else value


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
    """Change what a waiting job was submitted with: its priority, how long each attempt may take, by when it is to be
    done, what each attempt asks for, its labels.

    *resources* are all that it is to ask for from now on, with the *pool* for that: decided of a job whose demand had
    been changed *edits* times. *labels* are those that it is to have beside its others; null takes one away.
    """

    job_id: Text
    priority: Priority | Absent = ABSENT
    max_execution_time_s: Number | Absent | None = ABSENT
    by: Text = ""
    deadline: Annotated[Number, Since(AGAIN_SINCE)] | Absent | None = ABSENT
    resources: Annotated[ResourcesRecord, is_table, Since(DEMAND_SINCE)] | Absent = ABSENT
    pool: Annotated[Text, Since(DEMAND_SINCE)] | Absent | None = ABSENT
    edits: Annotated[Whole, Since(DEMAND_SINCE)] | Absent = ABSENT
    labels: Annotated[dict[str, str | None], is_label_changes, Since(DEMAND_SINCE)] | Absent = ABSENT
    waiting_bytes: Annotated[WaitingBytes, Since(DEMAND_SINCE)] | Absent = ABSENT

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check what it is to ask for."""
        if plain["v"] >= DEMAND_SINCE and "resources" in plain:
            check_resources(plain["resources"])


@verb("retry_job", Proposer.DOOR, since=AGAIN_SINCE, new_work=True)
class RetryJob(Command):
    """Queue a job again that has ended without success: its next attempt is one more of the same job."""

    job_id: Text
    by: Text = ""


@verb("fail_job", Proposer.LEADER)
class FailJob(Command):
    """End a waiting job that can never run."""

    job_id: Text
    error: Annotated[ErrorRecord, is_table]


@verb("grant_attempt", Proposer.LEADER, new_work=True)
class GrantAttempt(Command):
    """Give a queued job what it asks for; the amounts are those of the job record.

    *behind* names an attempt on that host, of the same user and amounts, whose place it gets when that is over
    (tables/allocations.py). *edits*: how often the job's demand had been changed when this was decided, where it was.
    """

    job_id: Text
    number: Whole
    host: Text
    incarnation: Whole
    gpu_indexes: Indexes
    term: Whole
    placement_latency_us: Number | None = None
    behind: Annotated[Text, Since(BEHIND_SINCE)] | Absent = ABSENT
    edits: Annotated[Whole, Since(DEMAND_SINCE)] | Absent = ABSENT


@verb("grant_gang", Proposer.LEADER, new_work=True)
class GrantGang(Command):
    """Give all *members* of a queued gang what they ask for, or none; each is {host, incarnation, gpu_indexes}.

    *ports* are the first and the last at which rank 0 may listen for the others. *edits*: as in ``GrantAttempt``.
    """

    job_id: Text
    number: Whole
    members: Gang
    ports: Ports
    term: Whole
    placement_latency_us: Number | None = None
    edits: Annotated[Whole, Since(DEMAND_SINCE)] | Absent = ABSENT

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
    """End an attempt whose processes are gone. *charge*: whether it counts against the job's retries.

    *started_at*: when it was started, where no ``StartAttempt`` told it. *results*: of steps of a graph, how each of
    them ended. *usage*: what it used of its devices, where it had any.
    """

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
    started_at: Annotated[Number, Since(BEHIND_SINCE)] | Absent = ABSENT
    results: Annotated[list[Plain], is_results, Since(GRAPHS_SINCE)] | Absent = ABSENT
    usage: Annotated[UsageRecord, is_usage, Since(USAGE_SINCE)] | Absent = ABSENT


@verb("checkpoint_attempt", Proposer.ITS_WORK, since=CHECKPOINTS_SINCE)
class CheckpointAttempt(Command):
    """Enter a checkpoint: from now on it is what the job's next attempt begins with.

    *attempt_id* is a gang's member of rank 0 where the job is a gang. *number* counts the attempt's checkpoints.
    """

    attempt_id: Text
    token: Token
    digest: Digest
    number: Whole
    size_bytes: Whole


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
    results: Annotated[list[Plain], is_results, Since(GRAPHS_SINCE)] | Absent = ABSENT


def end_facts(command: EndAttempt | TakeSuccess) -> EndFacts:
    """What is known of how the processes ended, under the field names of a record."""
    return cast("EndFacts", {name: value_or_none(getattr(command, name)) for name in END_FACTS})


def told_usage(command: EndAttempt) -> Any:
    """The field of a record with what was used of devices; none where nothing is told of that."""
    return {} if command.usage is ABSENT else {"usage": command.usage}


@verb("preempt_attempt", Proposer.LEADER)
class PreemptAttempt(Command):
    """Ask for the end of an attempt, within *grace_s*, so that *for_job* (a job, or a session's lease) can start."""

    attempt_id: Text
    token: Token
    grace_s: Grace
    for_job: Text
    term: Whole
