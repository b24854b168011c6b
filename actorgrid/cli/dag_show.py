"""``dag show``: a graph on the cluster and its steps, as a table that may go on live."""

from __future__ import annotations

import shutil
import time
from typing import Any

import click

from actorgrid.job_outcome import FINAL_STATES

from . import candidates
from .call import CommandContext, host_command
from .lookup import find_job
from .printing import say
from .show import coloured, lined_up, on_terminal, size, span, table, terminal_width

STATES = ["waiting", "released", "succeeded", "failed", "skipped"]
COLUMNS = ["STEP", "STATE", "ON", "TOOK>", "RUN>", "GAVE>", "JOB", "NOTE"]
SPARE = ["GAVE>", "RUN>", "JOB"]
PAGE = 5_000
JOBS = 1_000
WATCH_INTERVAL_S = 1.0
BAR = 30
DRAWN = ("running", "failed", "placed")
"""What is drawn first, before what waits for its place."""
LINES_OF_FRAME = 6


@click.command("show")
@click.argument("graph_id", metavar="GRAPH", shell_complete=candidates.jobs)
@click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="Only these; may be repeated.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="List at most so many steps.")
@click.option("--watch", is_flag=True, help="Go on, once a second, until the graph is over.")
@host_command
def show(call: CommandContext, graph_id: str, states: tuple[str, ...], limit: int, watch: bool) -> None:
    """Show a graph and its steps.

    With --watch on a terminal, how far it is and what of it runs or has failed, drawn anew each second; elsewhere each
    change of a step is a line (with --json: a document a line).
    """
    job = find_job(call.http, graph_id)
    if watch:
        _watch(call, job["job_id"], states, limit)
        return
    graph = get_graph(call, job["job_id"])
    steps = get_steps(call, job["job_id"], states)
    if call.json:
        objectives = get_objectives(call, job["job_id"])
        call.document({**graph, "objectives": objectives, "steps": steps[:limit]})
        return
    say(_headline(graph))
    say_objectives(get_objectives(call, job["job_id"]))
    table(COLUMNS, _rows(steps[:limit], running_jobs(call, job["job_id"])), "no such steps", SPARE)
    if len(steps) > limit:
        say(f"(the first {limit} of {len(steps):,}; --limit lists more, --state fewer)")


def get_graph(call: CommandContext, graph_id: str) -> dict[str, Any]:
    """A graph, as its door tells of it."""
    from actorgrid.client.http import segment

    found: dict[str, Any] = call.http.get(f"/api/graphs/{segment(graph_id)}")
    return found


def get_objectives(call: CommandContext, graph_id: str) -> dict[str, Any]:
    """What a graph is judged by, measured and planned."""
    from actorgrid.client.http import segment

    found: dict[str, Any] = call.http.get(f"/api/graphs/{segment(graph_id)}/objectives")
    return found


def get_steps(call: CommandContext, graph_id: str, states: tuple[str, ...]) -> list[dict[str, Any]]:
    """All its steps that are in one of these states (none named: in any)."""
    from actorgrid.client.http import segment

    found: list[dict[str, Any]] = []
    first: int | None = 0
    while first is not None:
        page = call.http.get(
            f"/api/graphs/{segment(graph_id)}/steps", first=first, limit=PAGE, state=",".join(states) or None
        )
        found += page["steps"]
        first = page["next"]
    return found


def running_jobs(call: CommandContext, graph_id: str) -> dict[str, dict[str, Any]]:
    """The jobs that run steps of the graph now, or wait to."""
    live = "queued,placed,running"
    jobs = call.http.get("/api/jobs", prefix=f"{graph_id}.", state=live, limit=JOBS)["jobs"]
    return {job["job_id"]: job for job in jobs}


def _headline(graph: dict[str, Any]) -> str:
    job = graph["job"]
    began, ended = job["submitted_at"], job.get("ended_at") or time.time()
    counts = ", ".join(f"{count} {state}" for state, count in (graph["states"] or {}).items())
    name = f" ({job['name']})" if job["name"] else ""
    text = f"{job['job_id']}{name} {coloured(job['state'])} after {span(ended - began)}: {graph['total']} steps"
    text += f", {counts}" if counts else ", which are known no more"
    error = job.get("error")
    return text + (f"\n{error['message']}: {error.get('found', '')}".rstrip(": ") if error else "")


def say_objectives(objectives: dict[str, Any]) -> None:
    """Print what came of a graph beside what was planned; nothing before a step has ended."""
    if not objectives["measured"]["steps"]:
        return
    rows = []
    for name in ("measured", "planned"):
        each = objectives[name]
        if each is None:
            continue
        fragmented = "-" if each["fragmented"] is None else f"{each['fragmented']:.1%}"
        took, moved = f"{each['makespan_s']:.3g} s", size(each["bytes_moved"])
        rows.append([name, took, f"{each['steps_per_s']:.3g}", moved, fragmented, f"{each['cost']:.3g}"])
    table(["", "TAKES>", "STEPS/S>", "BETWEEN HOSTS>", "FRAGMENTED>", "COST>"], rows, "", ["COST>"])
    unknown = objectives["without_estimate"]
    if objectives["planned"] is not None and unknown:
        say(f"(the plan counts {unknown:,} steps with 0.5 s, as nobody said how long they take)")


def _rows(steps: list[dict[str, Any]], jobs: dict[str, dict[str, Any]]) -> list[list[str]]:
    return [_row(step, jobs.get(step["job_id"])) for step in steps]


def _row(step: dict[str, Any], job: dict[str, Any] | None) -> list[str]:
    from actorgrid.dag.early_stopping import STOPPED

    state = step["state"]
    began, ended = step.get("started_at"), step.get("ended_at")
    host, gpus = step["host"], step.get("gpu_indexes", [])
    if step.get("cached_from"):
        state = "cached"
    elif step.get("word") == STOPPED:
        state = "stopped"
    if state == "released" and job is not None:
        state = job["state"]
        attempt = job["attempts"][-1] if job["attempts"] else {}
        if state != "queued":
            host, gpus = attempt.get("host", ""), attempt.get("gpu_indexes", [])
            began, ended = attempt.get("started_at"), time.time()
    where = " ".join(filter(None, [host[:8], f"gpu {','.join(map(str, gpus))}" if gpus else ""]))
    return [
        step["id"],
        state,
        where or "-",
        _took(ended - began) if began and ended and state not in ("waiting", "queued") else "-",
        str(step["run"] or "-"),
        size(step["size"]) if step["size"] else "-",
        step["job_id"] or "-",
        _note(step),
    ]


def _took(seconds: float) -> str:
    return f"{max(0.0, seconds):.2f}s" if seconds < 10 else span(seconds)


def _note(step: dict[str, Any]) -> str:
    error = step.get("error")
    if error and step["state"] not in ("succeeded", "released"):
        return str(error.get("message") or error.get("found"))[:80]
    if step.get("cached_from"):
        return f"taken over from {step['cached_from']['graph_id'][:8]}"
    if step.get("same_as"):
        return f"as {step['same_as']}"
    return f"{step['failures']} failed before" if step["failures"] else ""


# -- live


def _watch(call: CommandContext, graph_id: str, states: tuple[str, ...], limit: int) -> None:
    drawing = on_terminal() and not call.json
    seen: dict[int, tuple[str, int]] = {}
    first = True
    while True:
        graph = get_graph(call, graph_id)
        over = graph["job"]["state"] in FINAL_STATES
        if drawing:
            _draw(call, graph, graph_id, states or ("released", "failed"), limit)
        else:
            for step in get_steps(call, graph_id, states):
                now = (step["state"], step["run"])
                if seen.get(step["number"]) != now and not (first and step["state"] == "waiting"):
                    call.answer(step, f"{step['id']} {step['state']} {_note(step)}".rstrip())
                seen[step["number"]] = now
            first = False
        if over:
            if not drawing:
                call.answer(graph, _headline(graph))
            return
        time.sleep(WATCH_INTERVAL_S)


def _draw(call: CommandContext, graph: dict[str, Any], graph_id: str, states: tuple[str, ...], limit: int) -> None:
    room = min(limit, max(1, shutil.get_terminal_size().lines - LINES_OF_FRAME))
    steps = get_steps(call, graph_id, states)
    rows = _rows(steps, running_jobs(call, graph_id))
    rows.sort(key=lambda row: DRAWN.index(row[1]) if row[1] in DRAWN else len(DRAWN))
    lines = lined_up(COLUMNS, rows[:room], terminal_width(), SPARE) if rows else []
    more = [f"and {len(rows) - room} more"] if len(rows) > room else []
    click.clear()
    say("\n".join([f"{time.strftime('%H:%M:%S')}  Ctrl-C leaves", _headline(graph), _bar(graph), *lines, *more]))


def _bar(graph: dict[str, Any]) -> str:
    states = graph["states"] or {}
    done = sum(states.get(state, 0) for state in ("succeeded", "skipped"))
    full = round(BAR * done / max(1, graph["total"]))
    return f"[{'#' * full}{'.' * (BAR - full)}] {done / max(1, graph['total']):.0%}"
