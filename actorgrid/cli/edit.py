"""``edit``: change a job that waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from . import candidates
from .call import CommandContext, host_command
from .lookup import find_job
from .times import deadline_of, seconds_above_zero, until

if TYPE_CHECKING:
    from datetime import datetime


@click.command()
@click.argument("job_id", metavar="JOB", shell_complete=candidates.live_jobs)
@click.option("--priority", type=click.IntRange(0, 100), help="Higher goes first.")
@click.option(
    "--timeout", callback=seconds_above_zero, metavar="TIME", help="Stop each attempt after this: 30, 10m, 2h."
)
@click.option("--no-timeout", is_flag=True, help="Never stop an attempt for its time.")
@click.option(
    "--deadline", callback=deadline_of, metavar="TIME", help="To be done by then: 30m, 2h, or 2030-01-31T18:00."
)
@click.option("--no-deadline", is_flag=True, help="To be done whenever.")
@host_command
def command(
    call: CommandContext,
    job_id: str,
    priority: int | None,
    timeout: float | None,
    no_timeout: bool,
    deadline: float | datetime | None,
    no_deadline: bool,
) -> None:
    """Change a job that waits: priority, time limit, deadline.

    What has been placed keeps what it was started with.
    """
    from actorgrid.client.http import segment

    if timeout is not None and no_timeout:
        raise click.UsageError("--timeout and --no-timeout do not go together")
    if deadline is not None and no_deadline:
        raise click.UsageError("--deadline and --no-deadline do not go together")
    changed: dict[str, Any] = {} if priority is None else {"priority": priority}
    if timeout is not None or no_timeout:
        changed["max_execution_time_s"] = timeout
    if isinstance(deadline, float):
        changed["deadline_s"] = deadline
    elif deadline is not None or no_deadline:
        changed["deadline"] = None if deadline is None else deadline.isoformat()
    if not changed:
        raise click.UsageError(
            "nothing to change: give --priority, --timeout, --deadline, --no-timeout or --no-deadline"
        )
    job = find_job(call.http, job_id)
    answer = call.http.post(f"/api/jobs/{segment(job['job_id'])}/edit", changed, repeat=True)
    limit = answer["max_execution_time_s"]
    most = "no time limit" if limit is None else f"{limit:g} s for each attempt"
    due = "" if answer.get("deadline") is None else f", to be done by {until(answer['deadline'])}"
    call.answer(answer, f"{answer['job_id']} waits with priority {answer['priority']}, {most}{due}")
