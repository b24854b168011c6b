"""Commands of the ledger about graphs of steps: taken, led on, ended, begun again."""

from typing import Annotated, cast

from actorgrid.errors import ErrorRecord

from ..command import Command, Proposer, verb, version_of
from ..field_checks import ABSENT, Absent, JobId, Plain, Since, Text, Truth, WaitingBytes, Whole, is_table
from ..graph_checks import (
    STREAMS_SINCE,
    CachedSteps,
    Extensions,
    GraphEnd,
    GraphJob,
    Releases,
    Settled,
    StepNumbers,
    Withdrawn,
    check_extension,
    check_graph,
    check_release,
    check_settled,
    releases_streams,
)
from ..record_checks import job_version
from ..record_types import JobRecord

GRAPHS_SINCE = 8
"""The version from which there are graphs."""
CACHE_SINCE = 9
"""The version from which graphs take results over from earlier ones, and grow."""

SPEC_SINCE = 10
"""The version from which a graph says who can read its files."""


@verb("submit_graph", Proposer.DOOR, since=GRAPHS_SINCE, new_work=True)
class SubmitGraph(Command):
    """Accept a graph, a job of its own that runs nothing; one whose id is known already is a duplicate and changes
    nothing. *cache*: later graphs may take over what its steps gave, which is kept for that. *grows*: steps of it
    may give further ones. *asks_commands*: commands of it say words or leave files for others, which hosts of before
    would not have them do. *spec_version*: that of the ledger whose hosts can read its files."""

    graph: GraphJob
    waiting_bytes: WaitingBytes | Absent = ABSENT
    cache: Annotated[Truth, Since(CACHE_SINCE)] | Absent = ABSENT
    grows: Annotated[Truth, Since(CACHE_SINCE)] | Absent = ABSENT
    asks_commands: Annotated[Truth, Since(CACHE_SINCE)] | Absent = ABSENT
    spec_version: Annotated[Whole, Since(SPEC_SINCE)] | Absent = ABSENT

    @property
    def format_version(self) -> int:
        """The lowest ledger version that knows this command with these fields, those of its graph included."""
        later = ("cache", "grows", "asks_commands", "spec_version")
        names = (name for name in later if getattr(self, name) is not ABSENT)
        reads = 0 if self.spec_version is ABSENT else self.spec_version
        return max(version_of(SubmitGraph, names), job_version(cast("JobRecord", self.graph)), reads)

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check the graph."""
        check_graph(plain["graph"])


@verb("advance_graph", Proposer.LEADER, since=GRAPHS_SINCE)
class AdvanceGraph(Command):
    """Lead a graph on: all of it, or nothing.

    *releases* are jobs that run steps. *settled* is what is decided about steps without running them: skipped, failed,
    succeeded with the value of another, or waiting again, because what they gave is lost. *withdrawn* are its waiting
    jobs that are to be released anew. *extensions* are further steps that steps gave. *stop*: nothing more of it
    begins, and what runs is to end. *cached* are steps that take a result over: their number, the graph of the same
    user that has it, and the number there.
    """

    graph_id: JobId
    term: Whole
    releases: Releases
    settled: Settled
    withdrawn: Withdrawn
    extensions: Extensions
    stop: Truth = False
    cached: Annotated[CachedSteps, Since(CACHE_SINCE)] | Absent = ABSENT

    @property
    def format_version(self) -> int:
        """The lowest ledger version that knows this command with these fields, those of its jobs included."""
        names = () if self.cached is ABSENT else ("cached",)
        streams = STREAMS_SINCE if any(map(releases_streams, self.releases)) else 0
        return max(version_of(AdvanceGraph, names), streams)

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check each part."""
        for job in plain["releases"]:
            check_release(job, plain["v"])
        for settled in plain["settled"]:
            check_settled(settled)
        for extension in plain["extensions"]:
            check_extension(extension)


@verb("end_graph", Proposer.LEADER, since=GRAPHS_SINCE)
class EndGraph(Command):
    """End a graph of which nothing runs."""

    graph_id: JobId
    term: Whole
    state: GraphEnd
    error: Annotated[ErrorRecord, is_table] | None = None


@verb("retry_graph", Proposer.DOOR, since=GRAPHS_SINCE, new_work=True)
class RetryGraph(Command):
    """Begin a graph again that has not succeeded: steps that have succeeded stay as they are."""

    graph_id: JobId
    by: Text = ""


@verb("cancel_steps", Proposer.DOOR, since=CACHE_SINCE)
class CancelSteps(Command):
    """Have steps of a graph that runs end as failed: those that have not begun at once, others as soon as their jobs
    have ended. Nothing else of the graph is touched by it."""

    graph_id: JobId
    steps: StepNumbers
    by: Text = ""


@verb("retry_steps", Proposer.DOOR, since=CACHE_SINCE, new_work=True)
class RetrySteps(Command):
    """Have steps of a graph run again that have failed, or were passed over; a graph that has ended with them, too."""

    graph_id: JobId
    steps: StepNumbers
    by: Text = ""
