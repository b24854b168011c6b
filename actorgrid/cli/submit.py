"""``submit``: a Python file as a job."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from .call import CommandContext, host_options, pass_call
from .printing import say
from .work import request, work_options


@click.command(context_settings={"allow_interspersed_args": False})
@work_options
@host_options
@click.argument("file", metavar="FILE.py", type=click.Path(exists=True, dir_okay=False, readable=True))
@click.argument("arguments", metavar="[ARGS]...", nargs=-1)
@pass_call
def command(call: CommandContext, /, file: str, arguments: tuple[str, ...], **options: Any) -> None:
    """Queue a Python file as a job.

    Prints the job's id. The file is read when the job starts: it must still be there then, unless it goes along with
    --working-dir. What --out names is kept on its host when it has ended: actorgrid get JOB. It runs in the Python of
    the active venv, else in ours; with -r, --with or --python in another.
    """
    path = os.path.abspath(file)
    options["name"] = options["name"] or os.path.basename(path)
    if options["working_dir"] is not None:
        path = os.path.relpath(path, options["working_dir"])
        if path.startswith(os.pardir):
            raise click.UsageError(f"{file} is not in the working directory {options['working_dir']}")
    interpreter = _python()
    if options["requirements"] or options["packages"] or options["python"]:
        interpreter = "python"  # of the environment, which comes first on the PATH
    wanted = request(call, [interpreter, path, *arguments], **options)
    accepted = call.http.post("/api/jobs", wanted, repeat=True)
    if call.json:
        call.document(accepted)
        return
    say(accepted["job_id"])
    if sys.stderr.isatty():
        say(f"follow it: actorgrid logs -f {accepted['job_id'][:8]}", err=True)


def _python() -> str:
    """That of the venv which is active here, which need not be the one that this command is installed in; else ours."""
    venv = os.environ.get("VIRTUAL_ENV")
    found = os.path.join(venv, "bin", "python") if venv else ""
    return found if os.access(found, os.X_OK) else sys.executable
