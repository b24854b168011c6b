"""``submit``: a Python file as a job, a file with a graph of steps, or an array of jobs."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from .call import CommandContext, host_options, pass_call
from .printing import say
from .work import request, work_options

SUFFIXES = (".yaml", ".yml", ".json")
"""Of files with graphs."""
_READABLE = click.Path(exists=True, dir_okay=False, readable=True)


def _file(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    """The file, which has to be there; of an array it may be a command."""
    return value if ctx.params.get("array") is not None else str(_READABLE.convert(value, parameter, ctx))


class SubmitCommand(click.Command):
    """Options behind a Python file are the program's own; behind a graph they are ours, as it takes none."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does it, once it is known which of the two it is."""
        try:
            found, _, _ = self.make_parser(ctx).parse_args(list(args))
            ctx.allow_interspersed_args = str(found.get("file", "")).endswith(SUFFIXES)
        except click.UsageError:
            pass  # it is raised again
        return super().parse_args(ctx, args)


@click.command(cls=SubmitCommand, context_settings={"allow_interspersed_args": False})
@work_options
@click.option(
    "--array", metavar="INDEXES", help="Run it once for each of 0-999, 1,3,5-7 or 0-90:10; %50 behind: 50 at once."
)
@click.option("--strategy", metavar="NAME", help="Of a graph: who decides which step runs where (docs/graphs.md).")
@click.option(
    "--time-scale", type=click.FloatRange(0), default=1.0, metavar="X", help="Of a traced workflow: times its runtimes."
)
@click.option(
    "--bytes-scale", type=click.FloatRange(0), default=1.0, metavar="X", help="Of a traced workflow: times its sizes."
)
@click.option("--no-cache", is_flag=True, help="Of a graph: take nothing over from earlier ones; keep what it gives.")
@click.option("--busy", is_flag=True, help="Of a traced workflow: its steps compute; else they sleep.")
@host_options
@click.argument("file", metavar="FILE|-- CMD", callback=_file)
@click.argument("arguments", metavar="[ARGS]...", nargs=-1)
@pass_call
@click.pass_context
def command(ctx: click.Context, call: CommandContext, /, file: str, arguments: tuple[str, ...], **options: Any) -> None:
    """Queue a Python file as a job, or the graph of steps in a file, or an array of jobs.

    Prints the job's id. FILE ends in .yaml, .yml or .json for a graph (docs/graphs.md), which may be a traced workflow
    of WfCommons; what its steps need is said in it. A Python file is read when the job starts: it must still be there
    then, unless it goes along with --working-dir. What --out names is kept on its host when it has ended: actorgrid
    get JOB. It runs in the Python of the active venv, else in ours; with -r, --with or --python in another.

    With --array a Python file, or a command behind --, runs once for each index, in ACTORGRID_ARRAY_INDEX. It is one
    job to list, wait for, cancel and retry; ID_7 is index 7 of it (docs/jobs.md).
    """
    from .graph_file import OF_GRAPHS, refuse, submit_graph

    array = options.pop("array")
    if array is not None:
        refuse(ctx, set(options) - {*OF_GRAPHS} | {"array"}, "is about graphs, and this is an array")
        _submit_array(call, array, file, arguments, options)
        return
    if file.endswith(SUFFIXES):
        submit_graph(ctx, call, file, {**options, "arguments": arguments})
        return
    refuse(ctx, set(options) - {*OF_GRAPHS}, "is about graphs, and this file has none")
    options = {name: value for name, value in options.items() if name not in OF_GRAPHS}
    wanted = request(call, _python_command(file, arguments, options), **options)
    accepted = call.http.post("/api/jobs", wanted, repeat=True)
    if call.json:
        call.document(accepted)
        return
    say(accepted["job_id"])
    if sys.stderr.isatty():
        say(f"follow it: actorgrid logs -f {accepted['job_id'][:8]}", err=True)


def _python_command(file: str, arguments: tuple[str, ...], options: dict[str, Any]) -> list[str]:
    """What runs a Python file; puts the job's name into *options*."""
    path = os.path.abspath(file)
    options["name"] = options["name"] or os.path.basename(path)
    if options["working_dir"] is not None:
        path = os.path.relpath(path, options["working_dir"])
        if path.startswith(os.pardir):
            raise click.UsageError(f"{file} is not in the working directory {options['working_dir']}")
    interpreter = _python()
    if options["requirements"] or options["packages"] or options["python"]:
        interpreter = "python"  # of the environment, which comes first on the PATH
    return [interpreter, path, *arguments]


def _submit_array(
    call: CommandContext, text: str, file: str, arguments: tuple[str, ...], options: dict[str, Any]
) -> None:
    """Submit an array of jobs; prints its id."""
    from actorgrid.client.graph_submit import accept
    from actorgrid.job_arrays import JobArray, array_request

    from .graph_file import OF_GRAPHS

    array = JobArray.parse(text)
    options = {name: value for name, value in options.items() if name not in OF_GRAPHS}
    if file.endswith(".py") and os.path.isfile(file):
        command = _python_command(file, arguments, options)
    else:
        command = [file, *arguments]
    options["name"] = options["name"] or os.path.basename(file)
    array_id = accept(call.http, array_request(request(call, command, **options), array))
    if call.json:
        call.document({"job_id": array_id, "tasks": len(array.indexes)})
        return
    say(array_id)
    if sys.stderr.isatty():
        say(f"its first: actorgrid logs -f {array_id[:8]}_{array.indexes[0]}", err=True)


def _python() -> str:
    """That of the venv which is active here, which need not be the one that this command is installed in; else ours."""
    venv = os.environ.get("VIRTUAL_ENV")
    found = os.path.join(venv, "bin", "python") if venv else ""
    return found if os.access(found, os.X_OK) else sys.executable
