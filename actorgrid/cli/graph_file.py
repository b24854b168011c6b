"""Graphs in files, for ``submit``: steps that are commands, and workflows that were traced."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from .call import CommandContext
from .printing import say
from .work import python_environment, sent_along

OF_A_GRAPH = frozenset(
    {
        "file",
        "arguments",
        "name",
        "priority",
        "no_preempt",
        "max_isolation_s",
        "env",
        "env_from_me",
        "working_dir",
        "exclude",
        "requirements",
        "packages",
        "python",
        "annotations",
        "labels",
        "notify",
        "notify_on",
        "strategy",
        "time_scale",
        "bytes_scale",
        "busy",
        "no_cache",
    }
)
"""Options that are said of a graph as a whole; what else there is its file says, step by step."""
_OF_A_DAG = ("strategy", "priority", "annotations", "labels", "notify", "notify_on")
OF_A_WORKFLOW = ("time_scale", "bytes_scale", "busy")
OF_GRAPHS = ("strategy", "no_cache", *OF_A_WORKFLOW)
"""Options that are about nothing else."""


def submit_graph(ctx: click.Context, call: CommandContext, file: str, options: dict[str, Any]) -> None:
    """Submit the graph in *file*; prints its id. Raises InvalidGraph and what else a graph is refused with."""
    from actorgrid.client.graph_submit import accept
    from actorgrid.dag import wfcommons
    from actorgrid.dag.graph_documents import read_graph_file

    if options["arguments"]:
        raise click.UsageError("a graph takes no arguments: its steps say what they run")
    refuse(ctx, OF_A_GRAPH, "is said step by step, in the file")
    document = read_graph_file(Path(file))
    if wfcommons.is_wfcommons(document):
        graph_id = _submit_workflow(call, document, options)
    else:
        refuse(ctx, OF_A_GRAPH - set(OF_A_WORKFLOW), "is about traced workflows (WfCommons)")
        graph_id = accept(call.http, _request(call, document, options))
    if call.json:
        call.document({"job_id": graph_id})
        return
    say(graph_id)
    if sys.stderr.isatty():
        say(f"watch it: actorgrid dag show --watch {graph_id[:8]}", err=True)


def refuse(ctx: click.Context, known: frozenset[str] | set[str], why: str) -> None:
    """Refuse each option that was given and is not *known* (by its parameter's name). Raises UsageError."""
    for parameter in ctx.command.params:
        name = parameter.name or ""
        if (
            isinstance(parameter, click.Option)
            and name not in known
            and name in ctx.params
            and ctx.get_parameter_source(name) is not ParameterSource.DEFAULT
        ):
            raise click.UsageError(f"{parameter.opts[0]} {why}")


def _request(call: CommandContext, document: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """The body of the request for a graph of commands; it is checked here, so that its file is named right."""
    from actorgrid.client.user import user_name
    from actorgrid.dag.graph_documents import checked_request

    from .work import variables_sent

    document = {"user_id": user_name(), **document, **_said(options)}
    base = options["working_dir"] or os.getcwd()
    sent = sent_along(call, options)
    if sent is not None:
        document["working_dir"] = sent
    else:
        here = os.getcwd()
        steps = document.get("steps")
        for step in steps if isinstance(steps, list) else ():
            if isinstance(step, dict) and isinstance(step.get("cwd", ""), str):
                step["cwd"] = os.path.join(here, step.get("cwd", ""))
    environment = python_environment(options)
    variables = variables_sent(call, options["env"], options["env_from_me"])
    document["env"] = {**variables, **(document.get("env") or {})}
    document = checked_request(document, base, refresh=options["no_cache"])
    if environment is not None:
        document["environment"] = environment.send_to_door(call.http, for_functions=False)
    return document


def _submit_workflow(call: CommandContext, document: dict[str, Any], options: dict[str, Any]) -> str:
    from actorgrid.client.graph_submit import submit
    from actorgrid.client.workflow import workflow_dag

    said = _said(options)
    dag = workflow_dag(
        document,
        str(said.pop("name", "")),
        time_scale=options["time_scale"],
        bytes_scale=options["bytes_scale"],
        busy=options["busy"],
        **{name: said[name] for name in _OF_A_DAG if name in said},
    )
    return submit(call.http, dag)


def _said(options: dict[str, Any]) -> dict[str, Any]:
    """What was said of the graph as a whole beside its file, which it goes before."""
    ctx = click.get_current_context()
    names = ("name", "max_isolation_s", *_OF_A_DAG)
    said = {
        name: options[name]
        for name in names
        if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT and options[name] is not None
    }
    return {**said, "preemptible": False} if options["no_preempt"] else said
