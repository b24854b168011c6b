"""Why a graph of steps is where it is: how far it is, what of it runs, what the rest waits for, what failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from actorgrid.actors.ledger.record_types import NO_ERROR, JobRecord
from actorgrid.amounts import counted, duration
from actorgrid.models import JobState

from .phrases import listed

SHOWN = 5
"""Jobs of steps that are named."""
STATES = ("succeeded", "failed", "skipped", "released", "waiting")


@dataclass(frozen=True, slots=True)
class GraphProgress:
    """How far a graph is. *states*: how many of its steps are in which state (``None``: nobody knows any more);
    *held_by*: what keeps it from going on, as the host says that leads it; *jobs*: those that run steps of it now, or
    wait to (some, the oldest first); *waits*: why the first of them waits, as it is told of any job."""

    states: Mapping[str, int] | None
    held_by: str = ""
    jobs: Sequence[JobRecord] = ()
    waits: Mapping[str, Any] | None = None


@dataclass(slots=True)
class GraphStory:
    """What is said of it: the parts of a ``why``."""

    headline: str
    notes: list[str]
    steps: list[str]
    more: dict[str, Any]


def explain_graph(graph: JobRecord, progress: GraphProgress, now: float) -> GraphStory:
    """Explain where *graph* is, a record of a job that is one."""
    states = step_states(graph, progress.states)
    story = GraphStory("", [], [], {"steps": states})
    if graph["state"] == JobState.RUNNING:
        _running(story, graph, progress, states, now)
    else:
        _ended(story, graph, states, now)
    return story


def step_states(graph: JobRecord, counted_states: Mapping[str, int] | None) -> dict[str, int] | None:
    """How many steps are in which state, those that nothing was heard of included."""
    if counted_states is None:
        return None
    found = dict(counted_states)
    begun = sum(found.values())
    found["waiting"] = found.pop("stumbled", 0) + found.get("waiting", 0) + graph["graph"]["steps"] - begun
    if graph["state"] == JobState.SUCCEEDED:
        del found["waiting"]  # values and inlined calls, which are not run
    return {state: found[state] for state in STATES if found.get(state)}


def _running(
    story: GraphStory, graph: JobRecord, progress: GraphProgress, states: dict[str, int] | None, now: float
) -> None:
    done = _done(states)
    total = graph["graph"]["steps"]
    on = [job for job in progress.jobs if job["state"] == JobState.RUNNING]
    queued = [job for job in progress.jobs if job["state"] == JobState.QUEUED]
    parts = [f"{done} of {counted(total, 'step')} done after {duration(now - graph['submitted_at'])}"]
    if on:
        parts.append(f"{counted(_steps_in(on), 'step')} {'runs' if _steps_in(on) == 1 else 'run'}")
    story.headline = "; ".join(parts)
    id = graph["job_id"]
    if graph["cancel_requested"] or graph["graph"]["stopping"]:
        why = "it was asked to stop" if graph["cancel_requested"] else "a step of it failed"
        story.notes.append(f"{why}: what runs is being ended, and nothing more of it begins")
        story.steps.append("wait a moment; actorgrid ps --steps shows what is left")
        return
    if on:
        story.notes.append(f"runs: {listed([_title(job) for job in on[:SHOWN]])}" + _and_more(len(on) - SHOWN))
    if queued:
        story.notes.append(f"waits for its place: {listed([_title(job) for job in queued[:SHOWN]])}")
        story.steps.append(f"actorgrid why {queued[0]['job_id']} tells what a step waits for")
    if progress.waits is not None:
        story.notes.append(f"{_title(queued[0])}: {progress.waits['headline']}")
    if progress.held_by:
        story.notes.append(f"held back: {progress.held_by}")
    if states and states.get("failed"):
        story.notes.append(f"{counted(states['failed'], 'step')} failed, and the others go on")
    if not progress.jobs and not progress.held_by:
        story.notes.append("its next steps are being released")
    story.steps.append(f"actorgrid dag show {id} lists its steps")


def _ended(story: GraphStory, graph: JobRecord, states: dict[str, int] | None, now: float) -> None:
    ended = graph.get("ended_at") or now
    took = f"it took {duration(ended - graph['submitted_at'])}, and ended {duration(now - ended)} ago"
    id = graph["job_id"]
    error = graph.get("error") or NO_ERROR
    details = error.get("details") or {}
    if graph["state"] == JobState.SUCCEEDED:
        story.headline = f"all of its {counted(graph['graph']['steps'], 'step')} are done; {took}"
        story.steps = [f"actorgrid dag show {id} lists its steps"]
        return
    story.headline = error.get("message") or f"it was {graph['state']}"
    if error.get("found"):
        story.notes.append(f"found: {error['found']}")
    steps = details.get("steps")
    if isinstance(steps, list) and len(steps) > 1:
        story.notes.append(f"failed: {listed([str(each) for each in steps[:SHOWN]])}{_and_more(len(steps) - SHOWN)}")
    if states is not None:
        story.notes.append(", ".join(f"{count} {state}" for state, count in states.items()))
    story.notes.append(took)
    if states is not None:
        left = graph["graph"]["steps"] - _done(states)
        story.steps.append(f"actorgrid retry {id} goes on from there: {counted(left, 'step')} would run")
    story.steps.append(f"actorgrid dag show {id} --state failed names the jobs that ran them; actorgrid logs JOB")


def _done(states: Mapping[str, int] | None) -> int:
    return sum((states or {}).get(state, 0) for state in ("succeeded", "skipped"))


def _steps_in(jobs: Sequence[JobRecord]) -> int:
    return sum(len(job["step_of"]["steps"]) for job in jobs if "step_of" in job)


def _title(job: JobRecord) -> str:
    return f"{job.get('name') or job['job_id']} ({job['job_id']})"


def _and_more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""
