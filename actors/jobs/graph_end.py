"""How a graph ends, as its steps say, and what is said of steps that are not run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from actorgrid.actors.ledger.graph_records import StepRecord
from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.errors import ErrorRecord, StepFailed, StepSkipped

from .decisions import Finish
from .graph_spec import GraphSpec

SUCCEEDED, FAILED, SKIPPED = "succeeded", "failed", "skipped"
SETTLED = (SUCCEEDED, SKIPPED)
NAMED_MAX = 20
"""Steps that are named in the error of a graph."""
CAUSE_CHARS = 500


def finish_of(
    spec: GraphSpec,
    job: JobRecord,
    state: Sequence[str],
    records: Mapping[int, StepRecord],
    first_failed: int | None,
) -> Finish:
    """The end of a graph of which nothing runs any more: *state* and *records* are those of its steps."""
    running = spec.graph.running
    if job["cancel_requested"]:
        return Finish("cancelled", None)
    if all(state[number] in SETTLED for number in running):
        return Finish("succeeded", None)
    failed = [number for number in running if state[number] == FAILED]
    number = first_failed if first_failed is not None else next(iter(failed), None)
    if number is None:
        error = StepFailed(
            "the graph cannot go on: nothing of it runs, and nothing could begin",
            found=f"{sum(state[n] == 'waiting' for n in running)} steps wait",
        )
        return Finish("failed", error.to_dict())
    step = spec.graph.steps[number]
    cause = records[number].get("error")
    error = StepFailed(
        f"step {step.id} failed" + (f", and {len(failed) - 1} more" if len(failed) > 1 else ""),
        found="" if cause is None else f"{cause['code']}: {cause['message']}"[:CAUSE_CHARS],
        hint=f"actorgrid why {job['job_id']}; actorgrid retry {job['job_id']} goes on from there",
        step=step.id,
        steps=[spec.graph.steps[n].id for n in failed[:NAMED_MAX]],
    )
    return Finish("failed", error.to_dict())


def begun_too_often(id: str, runs: int) -> ErrorRecord:
    """Why a step has failed that never ends well."""
    error = StepFailed(
        f"step {id} was begun {runs} times and has never ended well",
        hint="actorgrid why, of its last job; what it takes may be lost again and again",
    )
    return error.to_dict()


def passed_over(id: str, why: str) -> ErrorRecord:
    """Why a step is not run."""
    return StepSkipped(f"step {id} was passed over: {why}").to_dict()


def same_word(given: object, wanted: object) -> bool:
    """Whether two words are the same; ``True`` and ``1`` are not."""
    return given == wanted and isinstance(given, bool) == isinstance(wanted, bool)
