"""A graph that was submitted: how far it is, and what its steps gave."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from actorgrid.dag.step_files import StepFiles, is_pack
from actorgrid.dag.step_items import is_items, items_of
from actorgrid.errors import ActorGridError, NotFound, StepFailed, WrongState, error_from_dict
from actorgrid.job_outcome import FINAL_STATES

from .durable import value_of_result
from .http import segment
from .pickling import loads_value

if TYPE_CHECKING:
    from .client import Client
    from .dag import Dag, Step

STEP_FINAL = frozenset({"succeeded", "failed", "skipped"})
PAGE = 5_000
POLL_FIRST_S, POLL_MAX_S = 0.02, 0.5


class GraphRun:
    """A graph on a cluster. It goes on whether anybody looks or not; ``client.graph(id)`` finds it again."""

    def __init__(self, client: Client, graph_id: str, dag: Dag | None = None) -> None:
        self.id = graph_id
        self._client = client
        self._dag = dag
        self._values: dict[int, Any] = {}

    def __repr__(self) -> str:
        return f"<graph {self.id}>"

    @property
    def _path(self) -> str:
        return f"/api/graphs/{segment(self.id)}"

    def look(self) -> dict[str, Any]:
        """The graph as it is now: its job, how many steps are in which state, what holds it up. Raises UnknownJob."""
        found: dict[str, Any] = self._client.http.get(self._path)
        return found

    @property
    def state(self) -> str:
        """running, succeeded, failed or cancelled."""
        return str(self.look()["job"]["state"])

    @property
    def states(self) -> dict[str, int]:
        """How many steps are in which state."""
        return self.look()["states"] or {}

    def steps(self, state: str = "") -> list[dict[str, Any]]:
        """Its steps, as the HTTP API has them; only those in one of these states (by commas). Raises ResultGone."""
        found: list[dict[str, Any]] = []
        first: int | None = 0
        while first is not None:
            page = self._client.http.get(f"{self._path}/steps", first=first, limit=PAGE, state=state or None)
            found += page["steps"]
            first = page["next"]
        return found

    def wait(self, timeout: float | None = None) -> dict[str, Any]:
        """The graph's job once it is over. Raises TimeoutError after *timeout* seconds."""
        return self._client.wait(self.id, timeout)

    def cancel(self) -> bool:
        """Cancel it; ``True`` when it will not succeed."""
        return self._client.cancel(self.id)

    def retry(self) -> dict[str, Any]:
        """Begin it again after it has failed or was cancelled; what has succeeded stays. Raises WrongState."""
        answer: dict[str, Any] = self._client.http.post(f"{self._path}/retry")
        return answer

    def result(self, timeout: float | None = None) -> dict[str, Any]:
        """What the steps gave from which no other takes, and on which none depends, by id, once the graph is over.

        Raises StepFailed (or what ended it), with what the step raised as its cause; TimeoutError.
        """
        job = self.wait(timeout)
        if job["state"] != "succeeded":
            raise self._failure(job)
        steps = self.steps()
        taken = {each for step in steps for each in (*step["inputs"], *step["when"])}
        no_value = {step["id"] for step in steps if step["kind"] == "command" and not step["outputs"]}
        return {
            step["id"]: self._fetch(step["number"])
            for step in steps
            if step["state"] == "succeeded"
            and step["id"] not in taken
            and (step.get("same_as") or step["id"]) not in no_value
        }

    def __getitem__(self, step: Step[Any] | str) -> StepRun:
        """One step: ``run[step].result()``. Raises NotFound."""
        if isinstance(step, str):
            for each in self.steps():
                if each["id"] == step:
                    return StepRun(self, each["number"], step)
            raise NotFound(f"the graph has no step {step!r}", asked=step)
        return StepRun(self, step.number, step.id)

    def __iter__(self) -> Iterator[StepRun]:
        return (StepRun(self, each["number"], each["id"]) for each in self.steps())

    def _failure(self, job: dict[str, Any]) -> ActorGridError:
        error = error_from_dict(job["error"]) if job.get("error") else StepFailed(f"graph {self.id} {job['state']}")
        step = error.details.get("step")
        if step is not None:
            try:
                self[str(step)].result(0.0)
            except Exception as cause:  # noqa: BLE001 - what the step raised, whatever that is
                error.__cause__ = cause
        return error

    def _fetch(self, number: int) -> Any:
        if number not in self._values:
            data = self._client.http.get(f"{self._path}/steps/{number}/result")
            if is_items(data):
                self._values[number] = [loads_value(each) for each in items_of(data)]
            else:
                self._values[number] = StepFiles(data) if is_pack(data) else value_of_result(cast("bytes", data))
        return self._values[number]


class StepRun:
    """One step of a graph that was submitted."""

    def __init__(self, run: GraphRun, number: int, id: str) -> None:
        self._run = run
        self.number = number
        self.id = id

    def __repr__(self) -> str:
        return f"<step {self.id} of graph {self._run.id}>"

    def look(self) -> dict[str, Any]:
        """The step as it is now."""
        path = f"/api/graphs/{segment(self._run.id)}/steps"
        found: dict[str, Any] = self._run._client.http.get(path, first=self.number, limit=1)["steps"][0]
        return found

    @property
    def state(self) -> str:
        """waiting, released, succeeded, failed or skipped."""
        return str(self.look()["state"])

    def result(self, timeout: float | None = None) -> Any:
        """What the step gave, once it has. Raises what it raised, StepSkipped for one that was passed over, WrongState
        when the graph ended without it, TimeoutError."""
        until = None if timeout is None else time.monotonic() + timeout
        pause_s = POLL_FIRST_S
        while True:
            seen = self.look()
            if seen["state"] in STEP_FINAL:
                break
            if self._run.state in FINAL_STATES:
                seen = self.look()
                break
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"step {self.id} is {seen['state']}")
            time.sleep(pause_s if until is None else max(0.0, min(pause_s, until - time.monotonic())))
            pause_s = min(2 * pause_s, POLL_MAX_S)
        if seen["state"] == "succeeded" or (seen["state"] == "failed" and seen["size"]):
            return self._run._fetch(self.number)
        if seen["error"]:
            raise error_from_dict(seen["error"])
        raise WrongState(
            f"step {self.id} has no value", asked=self.id, found=f"it is {seen['state']}, its graph is over"
        )
