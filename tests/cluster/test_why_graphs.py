"""Why a graph of steps is where it is: how far, what runs, what the rest waits for, what failed."""

from __future__ import annotations

from typing import Any

from actorgrid.actors.cluster.explain.graphs import GraphProgress, step_states
from actorgrid.actors.cluster.explain.why import JobContext, explain_job
from actorgrid.errors import StepFailed

NOW = 1000.0


def graph(**changes: Any) -> dict[str, Any]:
    return {
        "job_id": "g1",
        "name": "night",
        "kind": "graph",
        "state": "running",
        "priority": 50,
        "submitted_at": NOW - 60,
        "cancel_requested": False,
        "attempts": [],
        "ended_at": None,
        "error": None,
        "graph": {"files": ["f"], "steps": 10, "stopping": False, "retries": 0, "extensions": []},
        **changes,
    }


def step_job(number: int, state: str, steps: int = 1) -> dict[str, Any]:
    of = {"steps": [[each, 1, 0, 0] for each in range(number, number + steps)]}
    return {"job_id": f"g1.{number}-1", "name": f"part-{number}", "state": state, "step_of": of}


def why(progress: GraphProgress, **changes: Any) -> dict[str, Any]:
    return explain_job(graph(**changes), JobContext(now=NOW, graph=progress))  # type: ignore[arg-type]


def test_steps_that_nothing_was_heard_of_wait() -> None:
    found = step_states(graph(), {"succeeded": 3, "stumbled": 1, "released": 2})  # type: ignore[arg-type]
    assert found == {"succeeded": 3, "released": 2, "waiting": 5}
    assert sum(found.values()) == 10


def test_a_running_graph_tells_how_far_it_is_and_what_the_rest_waits_for() -> None:
    waits = {"headline": "it needs 1 GPU; none is free", "next_steps": []}
    jobs = (step_job(3, "running", 4), step_job(7, "queued"))
    answer = why(GraphProgress({"succeeded": 3, "released": 5}, "", jobs, waits))  # type: ignore[arg-type]
    assert answer["headline"] == "3 of 10 steps done after 1 min 0 s; 4 steps run"
    assert "part-7 (g1.7-1): it needs 1 GPU; none is free" in answer["notes"]
    assert answer["next_steps"][0] == "actorgrid why g1.7-1 tells what a step waits for"
    assert answer["steps"] == {"succeeded": 3, "released": 5, "waiting": 2}


def test_what_holds_a_graph_back_is_told() -> None:
    answer = why(GraphProgress({}, "held up: the quota of user ada has no room"))
    assert "held back: held up: the quota of user ada has no room" in answer["notes"]


def test_a_graph_that_is_asked_to_stop_tells_so() -> None:
    answer = why(GraphProgress({}, "", (step_job(0, "running"),)), cancel_requested=True)  # type: ignore[arg-type]
    assert answer["notes"][0] == "it was asked to stop: what runs is being ended, and nothing more of it begins"


def test_a_failed_graph_names_its_steps_and_how_to_go_on() -> None:
    error = StepFailed("step fit failed, and 1 more", found="ValueError: odd", step="fit", steps=["fit", "draw"])
    answer = why(GraphProgress({"succeeded": 6, "failed": 2}), state="failed", error=error.to_dict(), ended_at=NOW - 10)
    assert answer["headline"] == "step fit failed, and 1 more"
    assert "failed: fit, draw" in answer["notes"]
    assert "6 succeeded, 2 failed, 2 waiting" in answer["notes"]
    assert answer["next_steps"][0] == "actorgrid retry g1 goes on from there: 4 steps would run"


def test_a_graph_whose_steps_are_known_no_more_is_explained_all_the_same() -> None:
    answer = why(GraphProgress(None), state="succeeded", ended_at=NOW - 10)
    assert answer["headline"] == "all of its 10 steps are done; it took 50 s, and ended 10 s ago"
    assert answer["steps"] is None
