"""``replay``: a production trace through the engine and the scheduler of a live cluster, on a clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from actorgrid.errors import BadRequest

from .call import CommandContext, json_option, pass_call
from .printing import say
from .show import progress, span, table

if TYPE_CHECKING:
    from actorgrid.replay.runs import Run
    from actorgrid.replay.workload import TraceNode, TraceTask

MODES = ("inflate", "churn", "queue")
PICTURE = click.Path(path_type=Path, dir_okay=False)
FILE = click.Path(path_type=Path)


@click.command()
@click.argument("trace", required=False)
@click.option("--mode", type=click.Choice(MODES), help="Fill up; arrive and depart; or wait in a queue too [by trace].")
@click.option(
    "--policy", "policies", multiple=True, metavar="NAME", help="Placement policy; repeat to compare [the engine's]."
)
@click.option("--queue", "queues", multiple=True, metavar="NAME", help="Scheduling policy; repeat to compare [fifo].")
@click.option("--seeds", type=click.IntRange(1, 1000), default=1, show_default=True, help="How many seeds to run.")
@click.option("--seed", type=int, default=0, show_default=True, help="The first seed.")
@click.option("--scale", type=float, default=1.0, show_default=True, help="Times as many nodes.")
@click.option("--until", type=float, default=1.3, show_default=True, help="inflate: arrivals over the cluster's GPUs.")
@click.option("--load", type=float, help="Move arrivals so that GPU-time asked for is this share of the cluster.")
@click.option("--limit", type=click.IntRange(1), help="Only the first tasks.")
@click.option("--estimates", type=float, default=1.0, show_default=True, help="Told run time over the true; 0: none.")
@click.option("--checkpoint", type=float, help="Seconds between saves of a job [it saves when told to stop].")
@click.option("--restart", type=float, default=30.0, show_default=True, help="Seconds a stopped job needs to resume.")
@click.option("--grace", type=float, default=0.0, show_default=True, help="Seconds a job takes to stop.")
@click.option("--nodes", "nodes_file", type=FILE, metavar="FILE", help="Nodes from a CSV file.")
@click.option("--cluster", metavar="NODESxGPUS", help="Equal nodes instead, as 16x8.")
@click.option("--tasks", "tasks_file", type=FILE, metavar="FILE", help="Tasks from a CSV file.")
@click.option("--map", "maps", multiple=True, metavar="COLUMN=FIELD", help="What a column of the files is (repeat).")
@click.option("--plot", "picture", type=PICTURE, metavar="FILE", help="Draw it too: a .png or .svg file.")
@json_option
@pass_call
def command(
    call: CommandContext,
    /,
    trace: str | None,
    mode: str | None,
    policies: Sequence[str],
    queues: Sequence[str],
    seeds: int,
    seed: int,
    picture: Path | None,
    **options: Any,
) -> None:
    """Replay a production trace; compare policies.

    TRACE is openb or a mix of it (openb-cpu100, -cpu200, -gpushare20, -gpushare40, -gpushare80, -gpuspec10, -gpuspec20,
    -gpuspec25, -multigpu20), philly, philly-11cb48, philly-ee9e8c or chronus, all of them in the package; or give files
    of your own. Needs no host. The same seed gives the same figures, latencies apart.
    """
    from actorgrid.hotpath import PlacementEngine
    from actorgrid.replay import plots, runs

    if picture is not None:
        plots.check(picture)
    name, found_mode, nodes, tasks = _read(trace, options)
    mode = mode or found_mode
    if queues and mode != "queue":
        raise BadRequest(f"--mode {mode} has no queue", asked=f"--queue {queues[0]}", hint="add --mode queue")
    for option in ("estimates", "restart", "grace"):
        if options[option] < 0:
            raise BadRequest(f"--{option} is not negative", asked=f"--{option} {options[option]:g}", hint="0 or more")
    if options["checkpoint"] is not None and not options["checkpoint"] > 0:
        raise BadRequest("--checkpoint is an interval", asked=f"{options['checkpoint']:g}", hint="more than 0 seconds")
    setup = runs.prepare(
        runs.Setup(
            nodes,
            tasks,
            mode,
            tuple(dict.fromkeys(policies)) or (PlacementEngine().policy,),
            tuple(dict.fromkeys(queues)) or ("fifo",),
            tuple(range(seed, seed + seeds)),
            options["until"],
            options["load"],
            options["estimates"] or None,
            options["checkpoint"],
            options["restart"],
            options["grace"],
        )
    )
    about = runs.describe(setup)
    if not call.json:
        _introduce(name, about)
    done: list[Run] = []
    interrupted = False
    try:
        count = len(runs.combinations(setup)) * seeds
        with progress(call.json) as bar:

            def report(label: str, fraction: float) -> None:
                number = len(done) + 1
                bar(f"{label} ({number} of {count})", len(done) + fraction, count)

            for run in runs.replay(setup, report):
                done.append(run)
    except KeyboardInterrupt:
        interrupted = True
    summary = runs.summarise(done)
    if call.json:
        call.document(_document(name, about, done, summary, interrupted))
    elif done:
        _print(mode, summary)
    if picture is not None and done:
        plots.draw(picture, mode, _title(name, about), done)
        if not call.json:
            say(f"drawn: {picture}")
    if interrupted:
        raise KeyboardInterrupt


# -- what is replayed


def _read(trace: str | None, options: dict[str, Any]) -> tuple[str, str, list[TraceNode], list[TraceTask]]:
    """Name, mode, nodes and tasks. Raises BadRequest."""
    from actorgrid.replay import catalogue, tables, workload

    nodes_file, tasks_file = options["nodes_file"], options["tasks_file"]
    columns = tables.parse_map(options["maps"])
    files = [path for path in (nodes_file, tasks_file) if path is not None]
    if columns and not files:
        raise BadRequest("--map is for files of your own", asked=options["maps"][0], hint="add --tasks FILE")
    tables.check_map_is_used(columns, files)
    if nodes_file is not None and options["cluster"]:
        raise BadRequest("--nodes and --cluster both say what the nodes are", hint="give one of them")
    if trace is None and tasks_file is None:
        raise BadRequest(
            "nothing to replay", found="no trace, no --tasks", hint=f"name a trace ({', '.join(catalogue.TRACES)})"
        )
    if trace is not None and tasks_file is not None:
        raise BadRequest("a trace and --tasks both say what the tasks are", asked=trace, hint="give one of them")
    if trace is not None:
        known = catalogue.find(trace)
        name, mode, cluster = known.name, known.mode, known.cluster
        tasks = catalogue.tasks_of(known)
    else:
        name, mode, cluster = tasks_file.name, "", ""
        tasks = tables.read_tasks(tasks_file, columns)
        timed = all(task.submit_s is not None and task.duration_s is not None for task in tasks)
        mode = "queue" if timed else "inflate"
    if nodes_file is not None:
        nodes = tables.read_nodes(nodes_file, columns)
    else:
        cluster = options["cluster"] or cluster
        if not cluster:
            raise BadRequest("the tasks need nodes", hint="add --nodes FILE, or --cluster NODESxGPUS")
        nodes = catalogue.nodes_of(cluster)
    return name, mode, workload.scaled(nodes, options["scale"]), tasks[: options["limit"]]


def _introduce(name: str, about: dict[str, Any]) -> None:
    load = about["offered_load"]
    asked = f"load {load:.2f}" if load is not None else f"asking for {100 * about['asked_over_capacity']:.0f} % of them"
    what = f"{about['tasks']:,} tasks on {about['nodes']:,} nodes with {about['gpus']:,} GPUs"
    say(f"{name}, {about['mode']}: {what}, {asked}")


def _title(name: str, about: dict[str, Any]) -> str:
    return f"actorgrid replay: {name} on {about['nodes']:,} nodes, {about['gpus']:,} GPUs ({about['mode']})"


# -- what came of it


def _document(
    name: str, about: dict[str, Any], done: Sequence[Run], summary: list[dict[str, Any]], interrupted: bool
) -> dict[str, Any]:
    return {
        "trace": name,
        **about,
        "interrupted": interrupted,
        "summary": summary,
        "runs": [
            {
                "policy": run.policy,
                "queue": run.queue,
                "seed": run.seed,
                "figures": run.figures,
                "latency_us": run.latency_us,
                "curve": run.curve,
            }
            for run in done
        ],
    }


def _print(mode: str, summary: Sequence[dict[str, Any]]) -> None:
    rows = INFLATION_ROWS if mode == "inflate" else TIME_ROWS
    shown = []
    for label, name, form in rows:
        cells = [form(each["mean"].get(name), each["deviation"].get(name, 0.0)) for each in summary]
        if any(cell != "-" for cell in cells):
            shown.append([label, *cells])
    columns = ["", *(f"{each['label']}>" for each in summary)]
    table(columns, shown, "nothing to show")
    if mode == "queue":
        say()
        table(["WAITING, BY GPUS", *columns[1:]], _waits(summary), "nothing ran")


def _waits(summary: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Mean and percentiles for each size of job, with how many started."""
    prefix = "waiting_s_by_gpus."
    sizes: dict[str, None] = {}
    for each in summary:
        sizes.update((name[len(prefix) :].rpartition(".")[0], None) for name in each["mean"] if name.startswith(prefix))
    found = []
    for size in sizes:
        for title, part in (("jobs", "count"), ("mean", "mean"), ("p50", "p50"), ("p99", "p99"), ("p99.9", "p999")):
            values = [each["mean"].get(f"{prefix}{size}.{part}") for each in summary]
            form = _count if part == "count" else _time
            found.append([f"{size}: {title}", *(form(value, 0.0) for value in values)])
    return found


Form = Callable[[float | None, float], str]


def _percent(value: float | None, deviation: float) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.2f} ± {100 * deviation:.2f} %" if deviation else f"{100 * value:.2f} %"


def _time(value: float | None, _deviation: float) -> str:
    return span(value)


def _count(value: float | None, _deviation: float) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _ratio(value: float | None, _deviation: float) -> str:
    return "-" if value is None else f"{value:,.3g}"


def _micros(value: float | None, _deviation: float) -> str:
    return "-" if value is None else f"{value:,.1f} µs"


_PLACING: tuple[tuple[str, str, Form], ...] = (
    ("place p50", "latency_us.place.p50", _micros),
    ("place p99", "latency_us.place.p99", _micros),
    ("place p99.9", "latency_us.place.p999", _micros),
)
INFLATION_ROWS: tuple[tuple[str, str, Form], ...] = (
    ("allocated at 100 % arrived", "allocated_at_100", _percent),
    ("allocated at the end", "allocated_at_end", _percent),
    ("arrived at the end", "arrived_at_end", _percent),
    ("fragments, of the free, at 100 %", "fragmented_at_100", _percent),
    ("tasks arrived", "tasks", _count),
    ("tasks dropped", "dropped", _count),
    *_PLACING,
    ("refuse p99", "latency_us.refuse.p99", _micros),
)
TIME_ROWS: tuple[tuple[str, str, Form], ...] = (
    ("finished", "finished", _count),
    ("refused", "refused", _count),
    ("never started", "never_started", _count),
    ("allocated, mean", "allocated_mean", _percent),
    ("fragments, of the free, mean", "fragmented_mean", _percent),
    ("waiting, mean", "waiting_s.mean", _time),
    ("waiting, p99", "waiting_s.p99", _time),
    ("waiting, p99.9", "waiting_s.p999", _time),
    ("completion, mean", "jct_s.mean", _time),
    ("completion, p50", "jct_s.p50", _time),
    ("completion, p99", "jct_s.p99", _time),
    ("makespan", "makespan_s", _time),
    ("rho, mean", "fairness.rho_mean", _ratio),
    ("rho, max", "fairness.rho_max", _ratio),
    ("rho over 1", "fairness.rho_over_1", _percent),
    ("Jain index over tenants", "fairness.jain", _ratio),
    ("deadlines missed", "deadlines.missed_share", _percent),
    ("preemptions", "preemptions", _count),
    ("GPU-hours lost", "lost_gpu_hours", _ratio),
    *_PLACING,
    ("schedule p50", "latency_us.schedule.p50", _micros),
    ("schedule p99", "latency_us.schedule.p99", _micros),
    ("schedule p99.9", "latency_us.schedule.p999", _micros),
)
