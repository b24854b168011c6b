"""Records of graphs: the graph itself, the jobs that run its steps, how far each step is and what it gave."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from actorgrid.errors import ErrorRecord


class StepResultRecord(TypedDict):
    """The end of one step of a graph, within the attempt that ran it."""

    ok: bool
    """Whether it gave a value."""
    offset: int
    """Where what it gave begins in the attempt's result file, in bytes."""
    size: int
    """How long that is, in bytes."""
    took_s: float
    """How long it ran, in seconds."""
    word: NotRequired[Any]
    """What it said to the graph: a number, a truth or a short text, by which others are chosen."""
    digest: NotRequired[str]
    """SHA-256 of what it gave, in hex."""


class ExtensionRecord(TypedDict):
    """Further steps of a graph, which one of its steps gave."""

    parent: int
    """The number of the step that gave them."""
    first: int
    """The number of the first of them."""
    steps: int
    """How many they are."""
    file: str
    """SHA-256 of the file that describes them, in hex."""


class GraphFacts(TypedDict):
    """A graph, beside what it has in common with other jobs. Its steps are in a file."""

    files: list[str]
    """SHA-256 of its files, in hex: the first describes it, the others hold what its steps run."""
    steps: int
    """How many steps it has, with those that came later."""
    strategy: str
    """Who decides which step runs where."""
    on_failure: str
    """fail_fast or continue."""
    stopping: bool
    """Whether nothing more of it begins."""
    retries: int
    """How often it was begun again after it had failed."""
    extensions: list[ExtensionRecord]
    """The steps that came later, in their order."""
    cache: NotRequired[bool]
    """Whether what its steps gave may be taken over by later graphs, and is kept for that."""
    grows: NotRequired[bool]
    """Whether steps of it may give further ones."""


class StepOfRecord(TypedDict):
    """The steps of a graph that a job runs, one after the other."""

    graph_id: str
    """The graph."""
    steps: list[list[int]]
    """Of each: its number, the number of its run, and where in the payload its call begins and how long that is."""
    inputs: list[int]
    """The numbers of the steps whose values they take, beside each other's."""
    order: int
    """Its place in the scheduler's order, among all that is as urgent: that of its graph, and its own in that."""
    tells: NotRequired[bool]
    """Of a command: whether the last line that it prints is its word."""
    puts_back: NotRequired[list[Any]]
    """The graph, and the number of the step in it, whose outputs are put where this one's are to be."""
    streams: NotRequired[list[int]]
    """Of the inputs, the steps that ran when it was released: it takes their items as they come."""


class StepRecord(TypedDict):
    """How far one step of a graph is. A step without a record waits, and has never been begun."""

    state: str
    """waiting (again), released (a job is to run it), succeeded, failed, stumbled (it failed beside others, and may
    run again by itself), skipped."""
    run: int
    """How often it was released."""
    failures: int
    """How often it failed."""
    job_id: str
    """The job of its last run."""
    attempt_id: str
    """The attempt that decided it; empty while none has."""
    host: str
    """Where that ran, and where its result is."""
    offset: int
    """Where what it gave begins in that attempt's result file, in bytes."""
    size: int
    """How long that is, in bytes."""
    started_at: float | None
    """When it began."""
    ended_at: float | None
    """When it ended."""
    alone: NotRequired[bool]
    """Whether it has to run by itself from now on."""
    gpu_indexes: NotRequired[list[int]]
    """The devices that it had, by index on that host."""
    word: NotRequired[Any]
    """As in ``StepResultRecord``."""
    digest: NotRequired[str]
    """As in ``StepResultRecord``."""
    error: NotRequired[ErrorRecord]
    """Why it failed, or was skipped."""
    same_as: NotRequired[int]
    """The step whose value is this one's."""
    cancelled: NotRequired[bool]
    """Whether its job is to end, and it with that: ``error`` says who asked for it."""
    cached_from: NotRequired[list[Any]]
    """The graph, and the number of the step in it, whose result was taken over, or put back: this one never ran."""
