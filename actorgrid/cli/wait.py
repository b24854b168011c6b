"""``wait``: until jobs have ended."""

from __future__ import annotations

from typing import Any

import click

from actorgrid.job_outcome import FINAL_STATES

from . import candidates
from .call import CommandContext, host_command
from .lookup import find_job
from .printing import say
from .show import coloured
from .times import seconds

TIMED_OUT_CODE = 124
FAILED_CODE = 1


@click.command()
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True, shell_complete=candidates.live_jobs)
@click.option("--any", "any_one", is_flag=True, help="Until one of them has ended; else until all have.")
@click.option("--timeout", callback=seconds, metavar="TIME", help="Wait at most so long: 30, 10m, 2h.")
@click.option("--notify-desktop", is_flag=True, help="Then show it on this desktop.")
@host_command
def command(
    call: CommandContext, job_ids: tuple[str, ...], any_one: bool, timeout: float | None, notify_desktop: bool
) -> int:
    """Wait until jobs have ended.

    Exits with 0 when all that ended have succeeded, 1 when one of them has not, 124 when the time is over. At most
    1,000 jobs. Ctrl-C leaves; the jobs go on.
    """
    from actorgrid.client.job_calls import wait_for

    from .desktop import check_desktop, ended_text, tell_desktop

    program = check_desktop() if notify_desktop else None

    found = dict.fromkeys(str(find_job(call.http, text)["job_id"]) for text in job_ids)
    answer = wait_for(call.http, list(found), any_one, timeout)
    ended = {job["job_id"]: job["state"] for job in answer["jobs"] if job["state"] in FINAL_STATES}
    failed = [job_id for job_id, state in ended.items() if state != "succeeded"]
    code = TIMED_OUT_CODE if not answer["done"] else FAILED_CODE if failed else 0
    over = [job for job in answer["jobs"] if job["state"] in FINAL_STATES]
    if program is not None and over:
        fault = tell_desktop(program, *ended_text(over))
        if fault:
            say(f"actorgrid: not shown on the desktop: {fault}", err=True)
    if call.json:
        call.document({**answer, "exit_code": code})
        return code
    for job_id, state in ended.items():
        say(f"{job_id} {coloured(state)}")
    if code == TIMED_OUT_CODE:
        waiting: list[dict[str, Any]] = [job for job in answer["jobs"] if job["job_id"] not in ended]
        for job in waiting[:5]:
            say(f"actorgrid: {job['job_id']} is still {job['state']}", err=True)
        if len(waiting) > 5:
            say(f"actorgrid: and {len(waiting) - 5} more", err=True)
    return code
