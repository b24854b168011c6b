"""How a graph ends, as its steps say, and what is decided about steps that are not run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from actorgrid.actors.ledger.graph_records import StepRecord
from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.dag.model import Condition, Graph, StepKind, Trigger
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
    number = first_failed if first_failed in failed else next(iter(failed), None)
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


def source_of(number: int, records: Mapping[int, StepRecord]) -> int:
    """The step that made the value of *number*: another one, if it took that over."""
    record = records.get(number)
    return number if record is None else record.get("same_as", number)


def without_running(
    graph: Graph, number: int, state: Sequence[str], records: Mapping[int, StepRecord]
) -> dict[str, Any] | None:
    """What is decided about a step that could begin; ``None``: it is to run."""
    step = graph.steps[number]

    def skipped(why: str) -> dict[str, Any]:
        error = StepSkipped(f"step {step.id} was passed over: {why}").to_dict()
        return {"step": number, "state": SKIPPED, "error": error}

    if step.kind is StepKind.MERGE:
        inputs = [graph.number[id] for id in step.inputs]
        given = [each for each in inputs if state[each] == SUCCEEDED]
        if given:
            same = source_of(given[-1] if step.last else given[0], records)
            return {"step": number, "state": SUCCEEDED, "same_as": same}
        return skipped("none of its inputs has a value")
    for condition in step.when:
        other = graph.number[condition.step]
        word = records[other].get("word") if state[other] == SUCCEEDED else None
        if state[other] != SUCCEEDED or same_word(word, condition.word) is condition.negated:
            return skipped(_unmet(condition))
    for other in graph.taken[number]:
        if state[other] == SKIPPED:
            return skipped(f"step {graph.steps[other].id}, from which it takes, was passed over")
    if step.trigger is not Trigger.NONE_FAILED and step.after:
        over = [id for id in step.after if state[graph.number[id]] == SKIPPED]
        if over and (step.trigger is Trigger.ALL_SUCCEEDED or len(over) == len(step.after)):
            return skipped(f"its trigger is {step.trigger.value}, and step {over[0]} was passed over")
    return None


def _unmet(condition: Condition) -> str:
    if condition.negated:
        return f"step {condition.step} gave {condition.word!r}, or was passed over"
    return f"step {condition.step} did not give {condition.word!r}"


def same_word(given: object, wanted: object) -> bool:
    """Whether two words are the same; ``True`` and ``1`` are not."""
    return given == wanted and isinstance(given, bool) == isinstance(wanted, bool)
