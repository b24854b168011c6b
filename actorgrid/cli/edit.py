"""``edit``: change a job that waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from actorgrid.amounts import mebibytes

from . import candidates
from .call import CommandContext, host_command
from .label_option import labels_option
from .lookup import find_job
from .times import deadline_of, seconds_above_zero, until
from .work import gpu_count, size_text

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
@click.option("--gpus", callback=gpu_count, metavar="N", help="GPUs: a share of one (0.25), a whole number, or 0.")
@click.option("--gpu-memory", callback=size_text, metavar="SIZE", help="Device memory on each GPU, as in 10GiB.")
@click.option(
    "--gpu-model",
    "gpu_models",
    multiple=True,
    metavar="MODEL",
    help="Accept this model, vendor or architecture (hopper, cc8.0+); may be repeated.",
)
@click.option("--cpus", type=click.FloatRange(min=0), metavar="N", help="CPUs.")
@click.option("--memory", callback=size_text, metavar="SIZE", help="Host memory; 0MiB: not limited.")
@click.option(
    "--label", "labels", callback=labels_option, multiple=True, metavar="K=V", help="Give it this label; repeat."
)
@click.option("--no-label", "no_labels", multiple=True, metavar="K", help="Take this label away; repeat.")
@host_command
def command(
    call: CommandContext,
    /,
    job_id: str,
    priority: int | None,
    timeout: float | None,
    no_timeout: bool,
    deadline: float | datetime | None,
    no_deadline: bool,
    labels: dict[str, str] | None,
    no_labels: tuple[str, ...],
    **demand: Any,
) -> None:
    """Change a job that waits: priority, time limit, deadline, labels, what it asks for.

    What no host could give is refused, as at its submission. What has been placed keeps what it was started with.
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
    changed.update((name, value) for name, value in demand.items() if value is not None and value != ())
    if twice := sorted(set(no_labels) & (labels or {}).keys()):
        raise click.UsageError(f"--label and --no-label do not go together: {', '.join(twice)}")
    if labels or no_labels:
        changed["labels"] = {**(labels or {}), **dict.fromkeys(no_labels)}
    if not changed:
        raise click.UsageError(
            "nothing to change: give --priority, --timeout, --deadline, --gpus, --gpu-memory, --gpu-model, --cpus,"
            " --memory, --label, --no-timeout, --no-deadline or --no-label"
        )
    job = find_job(call.http, job_id)
    answer = call.http.post(f"/api/jobs/{segment(job['job_id'])}/edit", changed, repeat=True)
    limit = answer["max_execution_time_s"]
    most = "no time limit" if limit is None else f"{limit:g} s for each attempt"
    due = "" if answer.get("deadline") is None else f", to be done by {until(answer['deadline'])}"
    more = "" if not answer.get("resources") else f", asks for {_demand_text(answer['resources'])}"
    if answer.get("labels") is not None:
        more += f", labels: {' '.join(f'{key}={text}' for key, text in answer['labels'].items()) or 'none'}"
    call.answer(answer, f"{answer['job_id']} waits with priority {answer['priority']}, {most}{due}{more}")


def _demand_text(resources: dict[str, Any]) -> str:
    """What each attempt asks for, in words."""
    gpus, cpus = resources["gpus"], resources["cpu_milli"] / 1000
    parts = [f"{gpus:g} GPU{'' if gpus == 1 else 's'}"] if gpus else []
    if resources["gpu_models"]:
        parts[-1] += f" ({' or '.join(resources['gpu_models'])})"
    if resources["gpu_memory_mib"]:
        parts.append(f"{mebibytes(resources['gpu_memory_mib'])} of GPU memory")
    parts.append(f"{cpus:g} CPU{'' if cpus == 1 else 's'}")
    if resources["memory_mib"]:
        parts.append(f"{mebibytes(resources['memory_mib'])} of memory")
    return ", ".join(parts)
