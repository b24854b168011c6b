"""``dag``: plans of graphs, and what they are like on the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .call import CommandContext, host_command, host_options
from .dag_pictures import picture, timeline
from .dag_show import show
from .planned_graph import graph_of_file, host_for
from .show import size, table

if TYPE_CHECKING:
    from actorgrid.dag.model import Graph
    from actorgrid.dag.plan import GraphPlan

PROCESSORS_MAX = 10_000


@click.group()
@host_options
@click.pass_context
def command(ctx: click.Context) -> None:
    """Plan graphs of steps (DAGs), look at them, draw them."""


for each in (show, picture, timeline):
    command.add_command(each)


def _counts(_ctx: click.Context, _param: click.Parameter, text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = [0]
    if not all(0 < count <= PROCESSORS_MAX for count in found):
        raise click.BadParameter(f"{text!r} is no list of numbers from 1 to {PROCESSORS_MAX}: write 4 or 4,16")
    return found


@command.command("plan")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--processors", "counts", default="4", callback=_counts, metavar="N[,N]", help="Hosts of one CPU each.")
@click.option("--gpus", type=click.IntRange(0, 64), default=0, metavar="N", help="GPUs that each of them has.")
@click.option("--strategy", default="time_optimized", metavar="NAME", show_default=True, help="Or `all`: side by side.")
@click.option("--bandwidth", default="125MB", metavar="SIZE", show_default=True, help="A second, from host to host.")
@click.option("--steps/--no-steps", "with_steps", default=False, help="Every step with its host and times.")
@host_command
def plan(
    call: CommandContext, file: Path, counts: list[int], gpus: int, strategy: str, bandwidth: str, with_steps: bool
) -> None:
    """Check a graph and plan it on hosts that are not there.

    FILE is YAML or JSON (docs/graphs.md), or a workflow of WfCommons. Nothing is sent anywhere. Says how long the graph
    takes by the runtimes that its steps were given, how long it takes at least, and which steps that hangs on.
    """
    from actorgrid.amounts import parse_bytes
    from actorgrid.dag.allocators import BUILT_IN
    from actorgrid.dag.planning import plan_graph

    try:
        speed = parse_bytes(bandwidth)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--bandwidth") from None
    if not isinstance(speed, int) or speed <= 0:
        raise click.BadParameter("write bytes a second, as 125MB", param_hint="--bandwidth")
    graph = graph_of_file(file)
    found: list[tuple[int, str, GraphPlan]] = []
    for count in counts:
        hosts = [host_for(graph, number + 1, gpus) for number in range(count)]
        for name in BUILT_IN if strategy == "all" else (strategy,):
            found.append((count, name, plan_graph(graph, hosts, name, bandwidth=float(speed))))
    if call.json:
        plans = [_document(graph, count, name, each, with_steps) for count, name, each in found]
        call.document({"graph": graph.name, "steps": len(graph), "plans": plans})
        return
    rows = [_row(count, name, each) for count, name, each in found]
    columns = ["PROCESSORS>", "STRATEGY", "TAKES>", "AT LEAST>", "STEPS/S>", "BETWEEN HOSTS>", "COST>", "FRAGMENTED>"]
    table(columns, rows, "", spare=("FRAGMENTED>", "COST>", "STEPS/S>"))
    for count, name, each in found:
        if with_steps:
            runs = [[graph.steps[run.step].id, run.host, f"{run.start_s:.1f}", f"{run.end_s:.1f}"] for run in each.runs]
            table([f"{name} ON {count}", "HOST", "FROM>", "TO>"], runs, "")
    from actorgrid.dag.model import shown_path

    from .printing import say

    last = found[-1]
    say(f"hangs on: {shown_path([graph.steps[step].id for step in last[2].critical_path])}")


def _row(count: int, name: str, plan: GraphPlan) -> list[str]:
    return [
        str(count),
        name,
        f"{plan.makespan_s:.1f} s",
        f"{plan.lower_bound_s:.1f} s",
        f"{plan.steps_per_s:.3g}",
        size(plan.bytes_moved),
        f"{plan.cost:.3g}",
        "-" if plan.fragmented is None else f"{plan.fragmented:.1%}",
    ]


def _document(graph: Graph, count: int, name: str, plan: GraphPlan, with_steps: bool) -> dict[str, Any]:
    runs = [
        {"step": graph.steps[run.step].id, "host": run.host, "start_s": run.start_s, "end_s": run.end_s}
        for run in plan.runs
    ]
    return {
        "processors": count,
        "strategy": name,
        "makespan_s": plan.makespan_s,
        "lower_bound_s": plan.lower_bound_s,
        "critical_path_s": plan.critical_path_s,
        "critical_path": [graph.steps[step].id for step in plan.critical_path],
        "bytes_moved": plan.bytes_moved,
        "steps_per_s": plan.steps_per_s,
        "cost": plan.cost,
        "fragmented": plan.fragmented,
        **({"runs": runs} if with_steps else {}),
    }
