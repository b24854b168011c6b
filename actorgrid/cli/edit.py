"""``edit``: change a job that waits."""

from __future__ import annotations

from typing import Any

import click

from . import candidates
from .call import CommandContext, host_command
from .lookup import find_job
from .times import seconds_above_zero


@click.command()
@click.argument("job_id", metavar="JOB", shell_complete=candidates.live_jobs)
@click.option("--priority", type=click.IntRange(0, 100), help="Higher goes first.")
@click.option(
    "--timeout", callback=seconds_above_zero, metavar="TIME", help="Stop each attempt after this: 30, 10m, 2h."
)
@click.option("--no-timeout", is_flag=True, help="Never stop an attempt for its time.")
@host_command
def command(call: CommandContext, job_id: str, priority: int | None, timeout: float | None, no_timeout: bool) -> None:
    """Change a job that waits: priority, time limit.

    What has been placed keeps what it was started with.
    """
    from actorgrid.client.http import segment

    if timeout is not None and no_timeout:
        raise click.UsageError("--timeout and --no-timeout do not go together")
    changed: dict[str, Any] = {} if priority is None else {"priority": priority}
    if timeout is not None or no_timeout:
        changed["max_execution_time_s"] = timeout
    if not changed:
        raise click.UsageError("nothing to change: give --priority, --timeout or --no-timeout")
    job = find_job(call.http, job_id)
    answer = call.http.post(f"/api/jobs/{segment(job['job_id'])}/edit", changed, repeat=True)
    limit = answer["max_execution_time_s"]
    most = "no time limit" if limit is None else f"{limit:g} s for each attempt"
    call.answer(answer, f"{answer['job_id']} waits with priority {answer['priority']}, {most}")
