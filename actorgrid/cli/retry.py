"""``retry``: a graph that has failed, from where it stopped."""

from __future__ import annotations

import click

from . import candidates
from .call import CommandContext, host_command
from .lookup import find_job


@click.command()
@click.argument("graph_id", metavar="GRAPH", shell_complete=candidates.jobs)
@host_command
def command(call: CommandContext, graph_id: str) -> None:
    """Go on with a graph that has failed or was cancelled.

    Steps that have succeeded stay as they are; what failed, was passed over for that, or did not begin, runs.
    """
    from actorgrid.amounts import counted
    from actorgrid.client.http import segment

    job = find_job(call.http, graph_id)
    answer = call.http.post(f"/api/graphs/{segment(job['job_id'])}/retry", repeat=True)
    again = counted(answer["again"], "step")
    call.answer({"job_id": job["job_id"], **answer}, f"{job['job_id']} goes on: {again} begin again")
