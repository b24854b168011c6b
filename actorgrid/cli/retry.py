"""``retry``: jobs and graphs that have ended without success, again."""

from __future__ import annotations

from typing import Any

import click

from . import candidates
from .call import CommandContext, host_command
from .lookup import find_job
from .printing import say


@click.command()
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True, shell_complete=candidates.jobs)
@host_command
def command(call: CommandContext, job_ids: tuple[str, ...]) -> None:
    """Begin jobs again that have failed, were lost or cancelled; graphs from where they stopped.

    A job stays the same one, with one more attempt; the last 1,000 that ended can be begun again. Of a graph, steps
    that have succeeded stay as they are; what failed, was passed over for that, or did not begin, runs. All names are
    looked up before the first begins. Of an array also some indexes: JOB[7], 'JOB[0-9]', JOB_7.
    """
    from actorgrid.amounts import counted
    from actorgrid.client.http import segment

    from .array_part import find_part

    parts = {text: part for text in job_ids if (part := find_part(call.http, text)) is not None}
    found = {job["job_id"]: job for job in (find_job(call.http, text) for text in job_ids if text not in parts)}
    answers: list[dict[str, Any]] = []
    for text, part in parts.items():
        answer = part.ask(call.http, "retry")
        answers.append({"job_id": part.array_id, "indexes": part.indexes, **answer})
        if not call.json:
            say(f"{text}: {answer['again']} of its indexes begin again")
    for job_id, job in found.items():
        kind = "graphs" if job.get("kind") == "graph" else "jobs"
        answer = call.http.post(f"/api/{kind}/{segment(job_id)}/retry", repeat=kind == "graphs")
        answers.append({"job_id": job_id, **answer})
        if call.json:
            continue
        if kind == "graphs":
            say(f"{job_id} goes on: {counted(answer['again'], 'step')} begin again")
        else:
            say(f"{job_id} waits again, after {counted(answer['attempts'], 'attempt')}")
    if call.json:
        call.document(answers[0] if len(answers) == 1 else {"jobs": answers})
