"""The job that runs steps of a graph, as the leader releases it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.dag.requests import StepRequest
from actorgrid.demand import Demand

from .graph_spec import GraphSpec
from .take_overs import PutBack

ORDER_STEPS = 2**20
"""More than any graph has steps: graphs are served in the order of their acceptance, steps in that of their plan."""
NAME_CHARS = 200


def job_id_of(graph_id: str, step: int, run: int) -> str:
    """The id of the job that runs *step*, the first of those it runs, for the *run*-th time."""
    return f"{graph_id}.{step}-{run}"


def step_job(
    spec: GraphSpec,
    graph_job: JobRecord,
    steps: Sequence[tuple[int, int]],
    *,
    inputs: Sequence[int],
    depends_on: Sequence[str],
    place: int,
    hosts: Sequence[str] = (),
    near: str = "",
    retries: int = 0,
    not_before: float = 0.0,
    puts_back: PutBack | None = None,
    streams: Sequence[int] = (),
) -> dict[str, Any]:
    """A job that runs *steps*, each with the number of its run. All of them are alike but for what they call. What it
    has of its graph (user, priority, variables) the ledger puts in.

    With *puts_back*, a step of another graph, it only puts the outputs of that one into its directory. *streams* are
    those of its *inputs* that run now, beside which it is to take their items.

    *place* is its place in the graph's order; *hosts* are the only ones that will do (empty: any), *near* the best.
    """
    number, run = steps[0]
    first = spec.step(number)
    request = spec.request
    calls = [spec.step(each).call for each, _ in steps]
    places = [(call.offset, call.size) if call is not None else (0, 0) for call in calls]
    demand = Demand.of_request(first)
    resources: dict[str, Any] = {**demand.to_record(), "gpus": first.gpus}
    if hosts:
        resources["hosts"] = list(hosts)
    is_call = first.call is not None
    job: dict[str, Any] = {
        "job_id": job_id_of(graph_job["job_id"], number, run),
        "name": _name(spec, steps),
        "kind": "function" if is_call else "command",
        "command": [] if is_call else list(first.command),
        "env": dict(first.env),
        "cwd": first.cwd,
        "max_execution_time_s": first.max_execution_time_s,
        "pool": _pool(first),
        "depends_on": list(depends_on),
        "resources": resources,
        "retries_left": retries,
        "step_of": {
            "graph_id": graph_job["job_id"],
            "steps": [[each, its_run, *at] for (each, its_run), at in zip(steps, places, strict=True)],
            "inputs": sorted(inputs),
            "order": graph_job["submitted_index"] * ORDER_STEPS + place,
        },
    }
    if is_call:
        job["payload_digest"] = spec.bundles[number]
        if request.working_dir is not None:
            job["stdin_digest"] = request.working_dir
    elif request.working_dir is not None:
        job["payload_digest"] = request.working_dir
    if request.environment is not None:
        job["environment"] = request.environment
    if first.outputs:
        job["outputs"] = list(first.outputs)
    if first.checkpoint is not None and puts_back is None:
        job["checkpoint"] = first.checkpoint.model_dump(exclude_none=True)
    if puts_back is not None:
        job["command"] = ["true"] if puts_back.word is None else ["printf", "%s", str(puts_back.word)]
        job["step_of"]["puts_back"] = [puts_back.graph_id, puts_back.step]
    if not is_call and number in spec.graph.asked_words:
        job["step_of"]["tells"] = True
    if streams:
        job["step_of"]["streams"] = sorted(streams)
    if near:
        job["near"] = near
    if not_before:
        job["not_before"] = not_before
    return job


def _pool(step: StepRequest) -> str:
    if step.pool is not None:
        return step.pool.value
    return "gpu_compute" if step.gpus else "general"


def _name(spec: GraphSpec, steps: Sequence[tuple[int, int]]) -> str:
    first = spec.step(steps[0][0]).id
    return (first if len(steps) == 1 else f"{first} and {len(steps) - 1} more")[:NAME_CHARS]
