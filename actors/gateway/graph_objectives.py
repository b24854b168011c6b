"""What a graph is judged by, for whoever asks at a door: from the records of its steps, and from its plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from actorgrid.actors.jobs.graph_spec import GraphSpec
from actorgrid.actors.ledger.graph_records import StepRecord
from actorgrid.actors.ledger.record_types import HostRecord

if TYPE_CHECKING:
    from actorgrid.dag.objectives import GraphObjectives

PLANNED_STEPS_MAX = 20_000
"""Of larger graphs no plan is told: it would take seconds of a thread that others wait for."""
PLANS_KEPT = 8
_plans: dict[tuple[Any, ...], dict[str, Any]] = {}


def objectives_of(
    spec: GraphSpec, strategy: str, records: Mapping[int, StepRecord], hosts: Mapping[str, HostRecord]
) -> dict[str, Any]:
    """The answer to ``GET /api/graphs/{graph_id}/objectives``. Takes a second for a large graph: for a thread."""
    from actorgrid.actors.jobs.cluster_capacity import capacities, hosts_up
    from actorgrid.dag.objectives import MeasuredRun, measured

    runs = [
        MeasuredRun(
            number,
            record["host"],
            tuple(record.get("gpu_indexes") or ()),
            record["started_at"],
            record["ended_at"],
            record["size"],
        )
        for number, record in records.items()
        if record["state"] == "succeeded"
        and "same_as" not in record
        and record["started_at"] is not None
        and record["ended_at"] is not None
        and number < len(spec.graph)
    ]
    work = [number for number in spec.graph.running if spec.graph.steps[number].kind.is_work]
    return {
        "measured": _part(measured(spec.graph, runs, capacities(hosts.values()))),
        "planned": _planned(spec, strategy, hosts_up(hosts, ())),
        "without_estimate": sum(spec.graph.steps[number].cost.runtime_s is None for number in work),
    }


def _planned(spec: GraphSpec, strategy: str, up: list[HostRecord]) -> dict[str, Any] | None:
    from actorgrid.actors.jobs.cluster_capacity import bandwidth, capacities
    from actorgrid.dag.objectives import of_plan
    from actorgrid.dag.planning import plan_graph

    if len(spec.graph) > PLANNED_STEPS_MAX:
        return None
    hosts = capacities(up)
    key = spec.request.graph_id, len(spec.graph), strategy, tuple(hosts), bandwidth(up)
    if key in _plans:
        return _plans[key]
    try:
        found = _part(of_plan(spec.graph, plan_graph(spec.graph, hosts, strategy, bandwidth=bandwidth(up))))
    except Exception:  # noqa: BLE001 - an allocator may be anybody's, and no plan is an answer too
        return None
    if len(_plans) >= PLANS_KEPT:
        _plans.clear()
    _plans[key] = found
    return found


def _part(found: GraphObjectives) -> dict[str, Any]:
    return {**asdict(found), "steps_per_s": found.steps_per_s}
