"""``work``: work by the name of its type."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from actorgrid.job_outcome import FINAL_STATES

from .call import CommandContext, host_command
from .printing import say, say_json
from .show import table
from .times import seconds_above_zero
from .work import size_text


@click.group()
def command() -> None:
    """Submit work by the name of its type, with arguments that are checked by its schema.

    \b
        actorgrid work types
        actorgrid work submit gpu_computation --args '{"operation": "matmul", "size": 4096}' --gpus 0.5
    """


@command.command("types")
@host_command
def types(call: CommandContext) -> None:
    """List the types of work, those of installed packages included."""
    from actorgrid.work_types.registry import work_types

    found, broken = work_types()
    if call.json:
        shown = [{"name": each.name, "summary": each.summary, "schema": each.schema()} for each in found]
        call.document({"types": shown, "broken": [{"name": b.name, "from": b.value, "why": b.reason} for b in broken]})
        return
    table(["TYPE", "WHAT IT DOES"], [[each.name, each.summary] for each in found], "")
    for each in broken:
        say(f"{each.name} of an installed package cannot be used: {each.reason}", err=True)


@command.command("show")
@click.argument("kind", metavar="TYPE")
@host_command
def show(call: CommandContext, kind: str) -> None:
    """Show what arguments a type takes, as JSON schema."""
    from actorgrid.work_types.registry import find_work_type

    schema = find_work_type(kind).schema()
    if call.json:
        call.document(schema)
    else:
        say(json.dumps(schema, indent=2))


@command.command("submit")
@click.argument("kind", metavar="TYPE")
@click.option("--args", "text", metavar="JSON", help="The arguments, as a JSON object; - reads them from stdin.")
@click.option("--args-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A file that has them.")
@click.option("--gpus", type=click.FloatRange(0, 1024), metavar="N", help="GPUs: a share of one, or a whole number.")
@click.option("--gpu-memory", callback=size_text, metavar="SIZE", help="Device memory on each GPU.")
@click.option("--cpus", type=click.FloatRange(min=0), metavar="N", help="CPUs.")
@click.option("--memory", callback=size_text, metavar="SIZE", help="Host memory.")
@click.option("--timeout", callback=seconds_above_zero, metavar="TIME", help="Stop each attempt after this: 30, 10m.")
@click.option("--retries", type=click.IntRange(0, 100), help="Attempts after a failure.")
@click.option("--priority", type=click.IntRange(0, 100), help="Higher goes first.")
@click.option("-d", "--detach", is_flag=True, help="Print the job's id and leave.")
@host_command
def submit(
    call: CommandContext, /, kind: str, text: str | None, args_file: Path | None, detach: bool, **options: Any
) -> int:
    """Submit work of TYPE and print what it gives: a function's value as JSON, a command's output as it is."""
    from actorgrid.client.http import segment
    from actorgrid.client.typed_work import typed_work_body

    asked = {name: value for name, value in options.items() if value is not None}
    body = typed_work_body(call.http, kind, _arguments(text, args_file), asked)
    accepted = call.http.post("/api/jobs", body, repeat=True)
    job_id = accepted["job_id"]
    if detach:
        call.answer(accepted, job_id)
        return 0
    job = {"state": ""}
    while job["state"] not in FINAL_STATES:
        job = call.http.get(f"/api/jobs/{segment(job_id)}", wait_s=20.0, timeout_s=50.0)
    return _tell(call, job)


def _arguments(text: str | None, file: Path | None) -> Any:
    if (text is None) == (file is None):
        raise click.UsageError("one of --args and --args-file has the arguments; none are '{}'")
    source = file.read_text(encoding="utf-8") if file is not None else sys.stdin.read() if text == "-" else str(text)
    try:
        return json.loads(source)
    except ValueError as error:
        raise click.BadParameter(f"the arguments are no JSON: {error}") from None


def _tell(call: CommandContext, job: dict[str, Any]) -> int:
    from actorgrid.client.durable import failure_of, value_of_result
    from actorgrid.client.http import segment

    from .logs import binary
    from .run import exit_code

    job_id = job["job_id"]
    if job["state"] != "succeeded" and (job["kind"] == "command" or job["state"] in ("cancelled", "lost")):
        say(f"actorgrid: {failure_of(job)}", err=True)
        return exit_code(job)
    if job["kind"] == "command":
        output = call.plain_http.get(f"/api/jobs/{segment(job_id)}/logs", stream="stdout")
        if call.json:
            call.document({"job_id": job_id, "job": job})
        else:
            binary("stdout").write(output if isinstance(output, bytes) else str(output).encode())
        return 0
    value = value_of_result(call.plain_http.get(f"/api/jobs/{segment(job_id)}/result"))
    shown = json.loads(json.dumps(value, default=repr))
    if call.json:
        call.document({"job_id": job_id, "value": shown})
    else:
        say_json(shown)
    return 0
