"""``get``: what a job kept of its directory, from whichever host has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from actorgrid.errors import NotFound

from . import candidates
from .call import CommandContext, host_command
from .printing import say
from .show import clock, progress, size, table

if TYPE_CHECKING:
    from actorgrid.client.job_files import JobFiles


@click.command()
@click.argument("what", metavar="JOB[:PATH]", shell_complete=candidates.jobs)
@click.argument("to", metavar="[DIR]", default=".", type=click.Path(file_okay=False))
@click.option("--list", "only_list", is_flag=True, help="List the files, fetch none.")
@click.option("--attempt", type=click.IntRange(min=1), help="Of this attempt; else of the latest.")
@click.option("--step", metavar="ID", help="Of a graph: the outputs of this step.")
@click.option("--rank", type=click.IntRange(0, 255), default=0, help="Of a gang: of this member; else of rank 0.")
@host_command
def command(
    call: CommandContext, /, what: str, to: str, only_list: bool, attempt: int | None, step: str | None, rank: int
) -> None:
    """Fetch files that a job kept (run --out, submit --out).

    \b
        actorgrid get 3fa2                    # all, below the current directory
        actorgrid get 3fa2:results/best.pt    # one file, or one folder
        actorgrid get 3fa2 --list
        actorgrid get 7c01 --step train       # of a graph: what that step left

    Files of these names are replaced. They are on the host that the job ran on, for as long as it keeps them
    (work.outputs_bytes_max).
    """
    from actorgrid.client.job_files import JobFiles

    from .lookup import find_job

    name, _, path = what.partition(":")
    if step is not None:
        _get_of_step(call, find_job(call.http, name)["job_id"], step, path, to, only_list)
        return
    files = JobFiles(call.http, find_job(call.http, name)["job_id"], attempt, rank)
    if only_list:
        found = files.below(path)
        if call.json:
            told = {"missing": files.missing, "problem": files.problem}
            call.document({"files": [each._asdict() for each in found], **told})
            return
        rows = [[size(each.size_bytes), clock(each.modified_at), each.path] for each in found]
        table(["SIZE>", "TIME", "PATH"], rows, "no files")
    else:
        with progress(call.json) as report:
            written = files.fetch(path, to, lambda each, done, total: report(each, done, total))
        if call.json:
            call.document(files.answer(written))
            return
        for each in written:
            say(str(each))
    warn(files)


def _get_of_step(call: CommandContext, graph_id: str, step: str, path: str, to: str, only_list: bool) -> None:
    from actorgrid.client.http import segment
    from actorgrid.dag.step_files import StepFiles, is_pack
    from actorgrid.errors import WrongState

    data = call.http.get(f"/api/graphs/{segment(graph_id)}/steps/{segment(step)}/result")
    if not isinstance(data, bytes) or not is_pack(data):
        raise WrongState(
            f"step {step} is a function: it leaves no files",
            asked=step,
            hint="client.graph(id)[step].result() in Python",
        )
    files = StepFiles(data)
    names = [name for name in files if not path or name == path or name.startswith(f"{path.rstrip('/')}/")]
    if not names:
        raise NotFound("the step left no such file or folder", asked=path, found=", ".join(list(files)[:10]) or "none")
    if only_list:
        if call.json:
            call.document({"files": [{"path": name, "size_bytes": len(files[name])} for name in names]})
        else:
            table(["SIZE>", "PATH"], [[size(len(files[name])), name] for name in names], "no files")
        return
    written = files.write_to(to, names if path else None)
    if call.json:
        call.document({"files": [str(each) for each in written]})
        return
    for each in written:
        say(str(each))


def warn(files: JobFiles) -> None:
    """Say on stderr what is not there."""
    for path in files.missing:
        say(f"actorgrid: {path} was not there when the job ended", err=True)
    if files.problem:
        say(f"actorgrid: not all is there: {files.problem}", err=True)
