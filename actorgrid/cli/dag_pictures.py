"""``dag picture`` and ``dag timeline``: a graph drawn, from a file, or as it runs or ran on the cluster."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import candidates
from .call import CommandContext, host_command
from .dag_show import get_graph, get_objectives, get_steps, running_jobs
from .lookup import find_job
from .planned_graph import graph_of_file, host_for
from .printing import say
from .show import span

if TYPE_CHECKING:
    from actorgrid.dag.step_view import GraphView, StepView

ENDS_OF_FILES = (".yaml", ".yml", ".json")
OUTPUT = click.Path(dir_okay=False, writable=True, path_type=Path)


def output_option(default: str) -> Callable[[Any], Any]:
    """``--output``, for an SVG that is written into the file *default* unless another is named."""
    return click.option(
        "--output",
        "-o",
        default=default,
        show_default=True,
        help="Where the SVG goes; - is stdout.",
        type=OUTPUT,
        metavar="FILE",
    )


@click.command("picture")
@click.argument("graph", metavar="GRAPH|FILE", shell_complete=candidates.jobs)
@output_option("graph.svg")
@click.option(
    "--group",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="Whether steps that do the same share a box.",
)
@host_command
def picture(call: CommandContext, graph: str, output: Path, group: str) -> None:
    """Draw a graph: its steps in boxes, coloured by state.

    Of a graph that runs or ran, by its id; or of a file (docs/graphs.md), before it is submitted. Of more than 150
    steps, those that do the same share a box, with a cell for each.
    """
    from actorgrid.dag.picture import draw_graph

    view = _view(call, graph, None)
    _write(call, output, draw_graph(view, group), view)


@click.command("timeline")
@click.argument("graph", metavar="GRAPH|FILE", shell_complete=candidates.jobs)
@output_option("timeline.svg")
@click.option("--perfetto", help="Write a trace for ui.perfetto.dev as well; - is stdout.", type=OUTPUT, metavar="FILE")
@click.option("--processors", type=click.IntRange(1, 10_000), default=4, help="Of a file: hosts of one CPU each.")
@click.option("--strategy", default="time_optimized", metavar="NAME", help="Of a file: by which it is planned.")
@host_command
def timeline(
    call: CommandContext, graph: str, output: Path, perfetto: Path | None, processors: int, strategy: str
) -> None:
    """Draw when each step ran and where, with the critical path.

    Of a graph that runs or ran, by its id; of a file, as it is planned on hosts that are not there.
    """
    from actorgrid.dag.perfetto import trace_json
    from actorgrid.dag.timeline import draw_timeline

    view = _view(call, graph, (processors, strategy))
    if perfetto is not None:
        _write(call, perfetto, trace_json(view), None)
    _write(call, output, draw_timeline(view), view)


def _write(call: CommandContext, output: Path, text: str, view: GraphView | None) -> None:
    if str(output) == "-":
        say(text.removesuffix("\n"))
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.FileError(str(output), error.strerror or "cannot be written") from error
    if view is not None:
        counts = ", ".join(f"{count:,} {state}" for state, count in view.states.items())
        call.answer({"file": str(output), "states": view.states}, f"{output}: {counts}")


def _view(call: CommandContext, text: str, planned: tuple[int, str] | None) -> GraphView:
    """What is to be drawn: a file, *planned* with so many processors and a strategy, or a graph of the cluster."""
    from actorgrid.dag.planning import plan_graph
    from actorgrid.dag.step_view import view_of_graph

    path = Path(text)
    if not (path.is_file() or text.endswith(ENDS_OF_FILES) or path.parent != Path()):
        return _view_of_cluster(call, find_job(call.http, text)["job_id"], with_plan=planned is not None)
    if not path.is_file():
        raise click.BadParameter(f"there is no file {text}", param_hint="GRAPH|FILE")
    graph = graph_of_file(path)
    title = graph.name or path.name
    if planned is None:
        return view_of_graph(graph, title)
    hosts = [host_for(graph, number + 1, 0) for number in range(planned[0])]
    return view_of_graph(graph, title, plan_graph(graph, hosts, planned[1]))


def _view_of_cluster(call: CommandContext, graph_id: str, *, with_plan: bool) -> GraphView:
    from actorgrid.dag.step_view import GraphView

    graph = get_graph(call, graph_id)
    job = graph["job"]
    documents = get_steps(call, graph_id, ())
    jobs = {} if job.get("ended_at") else running_jobs(call, graph_id)
    names = _host_names(call)
    began = min((step["started_at"] for step in documents if step["started_at"]), default=job["submitted_at"])
    numbers = {step["number"]: place for place, step in enumerate(documents)}
    steps = tuple(_step(step, jobs.get(step["job_id"]), numbers, min(began, time.time())) for step in documents)
    plan = get_objectives(call, graph_id)["planned"] if with_plan else None
    return GraphView(
        job["name"] or graph_id,
        steps,
        f"{job['state']} · submitted {span(time.time() - job['submitted_at'])} ago",
        {id: name for id, name in names.items() if any(step.host == id for step in steps)},
        plan and plan["makespan_s"],
    )


def _host_names(call: CommandContext) -> dict[str, str]:
    """What hosts are called, by id; those that share a name by their numbers too."""
    hosts = call.http.get("/api/hosts")["hosts"]
    counts = Counter(host["hostname"] for host in hosts)
    return {
        host["node_id"]: host["hostname"] if counts[host["hostname"]] == 1 else f"{host['node']} ({host['hostname']})"
        for host in hosts
    }


def _step(document: dict[str, Any], job: dict[str, Any] | None, numbers: dict[int, int], began: float) -> StepView:
    from actorgrid.dag.early_stopping import STOPPED
    from actorgrid.dag.step_view import StepView

    state, host, gpus = document["state"], document["host"], document.get("gpu_indexes") or ()
    start, end = document["started_at"], document["ended_at"]
    if state == "released" and job is not None:
        state = job["state"]
        attempt = job["attempts"][-1] if job["attempts"] else {}
        if state == "running":
            host, gpus = attempt.get("host", ""), attempt.get("gpu_indexes") or ()
            start, end = attempt.get("started_at"), time.time()
    if document.get("cached_from"):
        state = "cached"
    elif document.get("word") == STOPPED:
        state = "stopped"
    ran = state in ("succeeded", "stopped", "failed", "running") and start and end
    error = document.get("error")
    return StepView(
        document["id"],
        state,
        tuple(numbers[each] for each in document["producers"] if each in numbers),
        host if ran else "",
        tuple(gpus),
        max(0.0, start - began) if ran else None,
        max(0.0, end - began) if ran else None,
        document["expected_s"],
        document["size"],
        str(error.get("message", ""))[:120] if error else "",
        merges=document["kind"] == "merge",
    )
