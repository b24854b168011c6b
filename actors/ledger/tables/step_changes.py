"""The verbs of people about single steps of a graph, as indexes of an array are: cancel, begin again. Part of the
replicated state."""

from __future__ import annotations

from actorgrid.actors.ledger.answers import RetryAnswer, StepsCancelled
from actorgrid.actors.ledger.commands import CancelSteps, RetrySteps
from actorgrid.actors.ledger.entry import EntryContext, applies
from actorgrid.actors.ledger.graph_records import StepRecord
from actorgrid.errors import TaskCancelled, WrongState

from .graphs import NEW_STEP, RELEASED, SKIPPED, Graphs
from .jobs import CANCELLED, FAILED, FINAL, QUEUED, RUNNING, SUCCEEDED, Jobs

OVER = (SUCCEEDED, FAILED, SKIPPED)


class StepChanges:
    """They change steps of *graphs*, and the *jobs* that run them."""

    def __init__(self, jobs: Jobs, graphs: Graphs) -> None:
        self._jobs = jobs
        self._graphs = graphs

    @applies(CancelSteps)
    def cancel(self, command: CancelSteps, entry: EntryContext) -> StepsCancelled:
        """Cancel steps. Raises UnknownJob, WrongState."""
        graph_id = command.graph_id
        graph = self._graphs.known_graph(graph_id)
        self._check_numbers(graph_id, graph["graph"]["steps"], command.steps)
        if graph["state"] in FINAL:
            return {"cancelled": 0, "stopping": 0, "over": len(command.steps)}
        steps = self._graphs.steps
        for step in command.steps:
            record = steps.get(graph_id, step)
            job = self._jobs.records.get(record["job_id"]) if record["state"] == RELEASED else None
            if job is not None and len(job["step_of"]["steps"]) > 1:
                raise WrongState(
                    f"step {step} of graph {graph_id} is run with others, one after the other",
                    asked="cancel it alone",
                    found=f"job {job['job_id']} of {len(job['step_of']['steps'])} steps",
                    hint=f"it takes moments; cancel the graph: actorgrid cancel {graph_id}",
                )
        error = TaskCancelled(f"it was cancelled by {command.by or 'somebody'}").to_dict()
        answer: StepsCancelled = {"cancelled": 0, "stopping": 0, "over": 0}
        changed: dict[int, None] = {}
        for step in command.steps:
            record = steps.get(graph_id, step)
            if record["state"] in OVER:
                answer["over"] += 1
                continue
            changed[step] = None
            if record["state"] != RELEASED:
                answer["cancelled"] += 1
                ended: StepRecord = {**record, "state": FAILED, "error": error, "ended_at": entry.at}
                self._graphs.put(graph_id, step, ended)
                continue
            self._graphs.put(graph_id, step, {**record, "cancelled": True, "error": error})
            job = self._jobs.records.get(record["job_id"])
            if job is not None and job["state"] == QUEUED:
                answer["cancelled"] += 1
                self._jobs.finish(job["job_id"], CANCELLED, error, entry.at)
            else:
                answer["stopping"] += 1
                if job is not None and job["state"] not in FINAL and not job["cancel_requested"]:
                    self._jobs.change(job["job_id"], cancel_requested=True)
        self._graphs.tell(graph_id, changed)
        return answer

    @applies(RetrySteps)
    def retry(self, command: RetrySteps, _entry: EntryContext) -> RetryAnswer:
        """Begin steps again. Raises UnknownJob, WrongState, QueueFull."""
        graph_id = command.graph_id
        graph = self._graphs.known_graph(graph_id)
        total = graph["graph"]["steps"]
        self._check_numbers(graph_id, total, command.steps)
        steps = self._graphs.steps
        again = [step for step in command.steps if steps.get(graph_id, step)["state"] in (FAILED, SKIPPED)]
        if not again:
            states = sorted({steps.get(graph_id, step)["state"] for step in command.steps})
            raise WrongState(
                f"nothing of that has failed in {graph_id}",
                asked=f"begin {len(command.steps)} of it again",
                found=", ".join(states) or "nothing was named",
                hint="what has succeeded stays; what waits or runs is on its way",
            )
        if graph["state"] in FINAL:
            counts = self._graphs.counts[graph_id]
            begun = sum(counts.get(state, 0) for state in OVER)
            if begun < total:
                raise WrongState(
                    f"{graph_id} {graph['state']} before all of it had ended",
                    asked="begin a part of it again",
                    found=f"{total - begun} of {total} have not ended",
                    hint=f"begin all of it again that has not succeeded: actorgrid retry {graph_id}",
                )
            self._graphs.begin_again(graph_id, graph["graph"])
        elif graph["graph"]["stopping"] or graph["cancel_requested"]:
            raise WrongState(f"{graph_id} is being stopped", asked="begin a part of it again", found=graph["state"])
        for step in again:
            self._graphs.put(graph_id, step, {**NEW_STEP, "run": steps.get(graph_id, step)["run"]})
        self._graphs.tell(graph_id, again)
        return {"state": RUNNING, "again": len(again)}

    @staticmethod
    def _check_numbers(graph_id: str, total: int, steps: list[int]) -> None:
        wrong = next((step for step in steps if step >= total), None)
        if wrong is not None:
            raise WrongState(f"{graph_id} has no step {wrong}", asked=str(wrong), found=f"{total} steps")
