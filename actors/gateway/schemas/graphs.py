"""What the routes of graphs take and give beyond ``actorgrid.dag.requests``."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from actorgrid.job_arrays import TEXT_CHARS_MAX
from actorgrid.models import AnswerBody, Job, RequestBody

ITEMS_BYTES_MAX = 512 * 1024


class GraphAccepted(AnswerBody):
    """A graph that was accepted."""

    job_id: str
    duplicate: bool


class GraphFileRequest(RequestBody):
    """A file with what steps run, or the question whether it is here."""

    digest: str = Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the file")
    content: bytes | None = Field(default=None, description="base64 in JSON; without it: is it here?")


class GraphFileAnswer(AnswerBody):
    """Whether the file is here; if so, it stays for ten minutes at least, and for as long as a graph names it."""

    digest: str
    here: bool


class GraphAnswer(AnswerBody):
    """A graph: the job that it is, and how many of its steps are in which state."""

    job: Job
    strategy: str
    on_failure: str
    total: int
    states: dict[str, int] | None = Field(
        description="waiting: not begun; released: a job waits or runs for it; succeeded, failed, skipped. null: its"
        " steps are known no more"
    )
    retries: int
    stopping: bool
    held_by: str | None = Field(default=None, description="why nothing more of it begins now, as far as is known here")


class StepsQuery(RequestBody):
    """Which steps to list."""

    first: int = Field(default=0, ge=0, le=100_000, description="the number of the first")
    limit: int = Field(default=1_000, ge=1, le=10_000)
    state: str = Field(default="", max_length=100, description="only steps in one of these states, by commas")


class StepAnswer(AnswerBody):
    """One step. Times are seconds since the epoch."""

    number: int
    id: str
    kind: str
    state: str
    inputs: list[str] = []
    after: list[str] = []
    when: list[str] = Field(default=[], description="steps whose words decide whether it runs")
    producers: list[int] = Field(default=[], description="numbers of the steps that must have ended well before it")
    outputs: list[str] = Field(default=[], description="of a command: files and folders that it leaves for others")
    expected_s: float | None = Field(default=None, description="how long it was said to take")
    run: int = 0
    failures: int = 0
    job_id: str = ""
    attempt_id: str = ""
    host: str = ""
    gpu_indexes: list[int] = []
    started_at: float | None = None
    ended_at: float | None = None
    size: int = 0
    word: Any = None
    same_as: str | None = None
    cached_from: dict[str, Any] | None = Field(
        default=None, description="the graph, and the number of its step, whose result was taken over: it never ran"
    )
    error: dict[str, Any] | None = None


class StepsAnswer(AnswerBody):
    """Steps by number."""

    steps: list[StepAnswer]
    total: int
    next: int | None


class ObjectivesPart(AnswerBody):
    """What a graph is judged by."""

    steps: int = Field(description="that have ended well; of a plan: all")
    makespan_s: float = Field(description="from the first start to the last end")
    steps_per_s: float
    bytes_moved: int = Field(description="what crossed from host to host, each result to each host once")
    fragmented: float | None = Field(
        description="the part of all GPU time that was free on devices of which another part was taken; null: no GPUs"
    )
    cost: float = Field(description="in the unit of the hosts' prices")


class ObjectivesAnswer(AnswerBody):
    """What came of a graph, and what its plan on the hosts that are up now says."""

    measured: ObjectivesPart
    planned: ObjectivesPart | None = Field(description="null: too many steps, or no host could serve one of them")
    without_estimate: int = Field(description="steps that the plan counts with 0.5 s")


class IndexesRequest(RequestBody):
    """Which indexes of an array."""

    indexes: str = Field(min_length=1, max_length=TEXT_CHARS_MAX, description="0-9, 1,3,5-7 or 0-90:10")


class IndexesCancelled(AnswerBody):
    """Indexes of an array that were cancelled, that run and are to end, and that had ended before."""

    cancelled: int
    stopping: int
    over: int


class GraphRetried(AnswerBody):
    """A graph that was begun again."""

    state: str
    again: int


class ItemsRequest(RequestBody):
    """Where somebody is with the items of a step."""

    attempt_id: str = Field(default="", max_length=128, description="whose items they are; empty: nobody has come yet")
    position: int = Field(default=0, ge=0, le=2**53, description="bytes to leave out at the start")
    size: int = Field(default=0, ge=0, le=ITEMS_BYTES_MAX, description="at most so many bytes; 0: only how it goes")
    taken: int = Field(
        default=0, ge=0, le=2**53, description="items that were taken: who makes them is held back by it"
    )
    by: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$", description="the attempt that takes them")
    wait_s: float = Field(default=0.0, ge=0, le=5)


class ItemsAnswer(AnswerBody):
    """Items of a step, from a position on."""

    state: str
    """running; over (it has succeeded, and *size* is all of it); away: no attempt of it runs; gone: what it gave is
    nowhere any more."""
    attempt_id: str
    size: int
    """Bytes that there are by now."""
    data: bytes = Field(description="base64 in JSON")
