"""Graphs of scientific workflows as WfCommons keeps them (WfFormat 1.3 to 1.5): traced runs with times and files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actorgrid.demand import Demand
from actorgrid.errors import InvalidGraph

from .model import Cost, Graph, GraphStep


def is_wfcommons(document: object) -> bool:
    """Whether a JSON document is a workflow of WfCommons."""
    return isinstance(document, dict) and isinstance(document.get("workflow"), dict) and "schemaVersion" in document


def graph_of(document: Mapping[str, Any]) -> Graph:
    """The graph of a document: a step for each task, which takes from its parents the files that they made.

    A task counts as one processor, and takes as long as was traced. Raises InvalidGraph, also for what is no such
    document, and what ``Graph`` raises.
    """
    try:
        workflow = document["workflow"]
        specification = workflow.get("specification", workflow)
        tasks = specification["tasks"]
        sizes = _sizes(specification, tasks)
        ran = {task.get("id", task.get("name")): task for task in workflow.get("execution", {}).get("tasks", ())}
        made = {_id(task): {str(name) for name in _files(task, "outputFiles", "output")} for task in tasks}
        steps = []
        for task in tasks:
            id = _id(task)
            parents = tuple(dict.fromkeys(map(str, task.get("parents", ()))))
            taken = {str(name) for name in _files(task, "inputFiles", "input")}
            shared = tuple(
                sum(sizes.get(name, 0) for name in made.get(parent, ()) if name in taken) for parent in parents
            )
            trace = {**task, **ran.get(id, {})}
            runtime = float(trace.get("runtimeInSeconds", trace.get("runtime", 0.0)) or 0.0)
            output = sum(sizes.get(name, 0) for name in made[id])
            steps.append(
                GraphStep(id, inputs=parents, input_bytes=shared, cost=Cost(Demand(cpu_milli=1000), runtime, output))
            )
    except InvalidGraph:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidGraph(
            "that is no workflow of WfCommons",
            found=f"{type(error).__name__}: {error}"[:200],
            hint="WfFormat 1.3 to 1.5: workflow.specification.tasks, each with id, parents and files",
        ) from None
    return Graph(steps, name=str(document.get("name", ""))[:200])


def _id(task: Mapping[str, Any]) -> str:
    return str(task["id"] if "id" in task else task["name"])


def _files(task: Mapping[str, Any], key: str, link: str) -> list[str]:
    """The names of a task's files. Before WfFormat 1.5 they are listed with their direction."""
    if key in task:
        return list(task[key])
    return [str(each.get("id", each.get("name"))) for each in task.get("files", ()) if each.get("link") == link]


def _sizes(specification: Mapping[str, Any], tasks: list[Mapping[str, Any]]) -> dict[str, int]:
    found = {str(each["id"]): int(each.get("sizeInBytes", 0)) for each in specification.get("files", ())}
    for task in tasks:
        for each in task.get("files", ()):
            found[str(each.get("id", each.get("name")))] = int(each.get("sizeInBytes", each.get("size", 0)))
    return found
