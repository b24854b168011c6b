"""``sbatch`` and ``srun``: work in Slurm's words."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from actorgrid.errors import BadRequest, TargetNotAllowed, UnknownTarget

from ..call import CommandContext, host_options, pass_call
from ..printing import say
from .directives import Asked, read_options
from .request import SHELLS, Translation, interpreter_of

R = TypeVar("R")
SCRIPT, OUT, ERR = "ACTORGRID_BATCH_SCRIPT", "ACTORGRID_BATCH_OUTPUT", "ACTORGRID_BATCH_ERROR"
PYTHON = "ACTORGRID_BATCH_PYTHON"
SCRIPT_BYTES_MAX = 100_000
PROLOGUE = r"""
export SLURM_JOB_ID="$ACTORGRID_JOB_ID" SLURM_JOBID="$ACTORGRID_JOB_ID" SLURM_JOB_USER="$(id -un)"
export SLURM_PROCID="${RANK:-0}" SLURM_LOCALID="${LOCAL_RANK:-0}" SLURM_NODEID="${GROUP_RANK:-0}"
export SLURMD_NODENAME="$(uname -n)" SLURM_RESTART_COUNT="$((${ACTORGRID_ATTEMPT_NUMBER:-1} - 1))"
export SLURM_JOB_NODELIST="${MASTER_ADDR:-$SLURMD_NODENAME}" SLURM_TASK_PID="$$"
if [ -n "$ACTORGRID_ARRAY_INDEX" ]; then export SLURM_ARRAY_TASK_ID="$ACTORGRID_ARRAY_INDEX"; fi
place() {
  printf %s "$1" | sed -e "s|%j|$SLURM_JOB_ID|g" -e "s|%A|${ACTORGRID_ARRAY_ID:-$SLURM_JOB_ID}|g" \
    -e "s|%a|${ACTORGRID_ARRAY_INDEX:-0}|g" -e "s|%N|$SLURMD_NODENAME|g" -e "s|%n|$SLURM_NODEID|g" \
    -e "s|%t|$SLURM_PROCID|g" -e "s|%u|$SLURM_JOB_USER|g" -e "s|%%|%|g"
}
if [ -n "$ACTORGRID_BATCH_OUTPUT" ]; then exec >>"$(place "$ACTORGRID_BATCH_OUTPUT")" || exit 1; fi
if [ -n "$ACTORGRID_BATCH_ERROR" ]; then exec 2>>"$(place "$ACTORGRID_BATCH_ERROR")" || exit 1
elif [ -n "$ACTORGRID_BATCH_OUTPUT" ]; then exec 2>&1; fi
unset ACTORGRID_BATCH_OUTPUT ACTORGRID_BATCH_ERROR
"""
"""What comes before a batch script: what Slurm tells it, and where its output goes."""
IN_A_SHELL = 'script="$ACTORGRID_BATCH_SCRIPT"; unset ACTORGRID_BATCH_SCRIPT; eval "$script"'
IN_A_FILE = r"""
file="$(mktemp)" && printf %s "$ACTORGRID_BATCH_SCRIPT" >"$file" || exit 1
unset ACTORGRID_BATCH_SCRIPT
interpreter="$1"; shift
trap 'kill -TERM "$child" 2>/dev/null' TERM
"$interpreter" "$file" "$@" &
child=$!
wait "$child"; code=$?
while kill -0 "$child" 2>/dev/null; do wait "$child"; code=$?; done
rm -f "$file"; exit "$code"
"""
SRUN_HERE = (
    "command -v srun >/dev/null 2>&1 || srun() {"
    ' if command -v actorgrid >/dev/null 2>&1 || ! [ -x "$ACTORGRID_BATCH_PYTHON" ];'
    ' then actorgrid slurm srun "$@"; else "$ACTORGRID_BATCH_PYTHON" -m actorgrid slurm srun "$@"; fi; }'
)
"""In place of a script's first line: ``srun`` inside of it is ours where there is no other, by the PATH of the job, or
by the program that submitted it where that is on its host."""

RAW = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": ["--help"]}


@click.command(context_settings=RAW)
@host_options
@click.argument("words", metavar="[OPTIONS] SCRIPT [ARGS]...", nargs=-1, type=click.UNPROCESSED)
@pass_call
def sbatch(call: CommandContext, /, words: tuple[str, ...]) -> int:
    """Queue a batch script; its #SBATCH lines are read.

    Options are Slurm's; those of the command line count before those in the script. The script itself goes along, what
    it names has to be on the host. Without --output, its output is for actorgrid logs. With several tasks it runs once
    for each of them, and srun inside of it runs its command there, once.
    """
    asked, script = _script(words)
    job = Translation(asked)
    _tell(job.notes + ["--pty has no meaning here"] * bool(asked["--pty"]))
    if job.members > 1:
        _tell([f"the script runs once for each of its {job.members} tasks; srun inside of it runs its command there"])
    job.options["name"] = job.options["name"] or (os.path.basename(asked.words[0]) if asked.words else "wrap")
    job.variables["SLURM_JOB_NAME"] = job.options["name"]
    accepted = _or_untold(job, lambda: _submit(call, job, script))
    job_id = str(accepted["job_id"])
    if not asked["--wait"]:
        if call.json:
            call.document(accepted)
        else:
            say(job_id if asked["--parsable"] else f"Submitted batch job {job_id}")
        return 0
    from actorgrid.client.job_calls import wait_for

    from ..run import exit_code

    if not call.json:
        say(job_id if asked["--parsable"] else f"Submitted batch job {job_id}")
    wait_for(call.http, [job_id], False, None)
    job_now = call.http.get(f"/api/jobs/{job_id}")
    code = exit_code(job_now)
    if call.json:
        call.document({**accepted, "state": job_now["state"], "exit_code": code})
    return code


@click.command(context_settings=RAW)
@host_options
@click.argument("words", metavar="[OPTIONS] CMD [ARGS]...", nargs=-1, required=True, type=click.UNPROCESSED)
@pass_call
@click.pass_context
def srun(ctx: click.Context, call: CommandContext, /, words: tuple[str, ...]) -> Any:
    """Run a command as a job; its output and exit status are yours. Inside of a job it runs there, as a part of it.

    Options are Slurm's, as for sbatch.
    """
    asked = read_options(words)
    if not asked.words:
        raise click.UsageError("say what to run: srun [OPTIONS] CMD [ARGS]")
    if os.environ.get("ACTORGRID_JOB_ID"):
        _run_here(asked)
    for option in ("--array", "--wrap"):
        if asked[option] is not None:
            raise click.UsageError(f"{option} is of sbatch")
    job = Translation(asked)
    notes = job.notes + [f"{name} has no meaning here" for name in ("--output", "--error") if asked[name] is not None]
    _tell(notes)
    from ..run import command as run

    job.options["env"] = {**job.variables, **job.options["env"]}
    job.options["pty"] = bool(asked["--pty"])
    words = tuple(asked.words)
    return _or_untold(
        job,
        lambda: ctx.invoke(run, words=words, send_stdin=False, detach=False, **_known(run, _without_pool(job.options))),
    )


def _known(command: click.Command, options: dict[str, Any]) -> dict[str, Any]:
    """The options of *command*: those that were asked for, and the others as they are by default."""
    ctx = click.Context(command)
    others = {
        each.name: () if each.multiple else each.get_default(ctx)
        for each in command.params
        if isinstance(each, click.Option) and each.expose_value and each.name not in ("send_stdin", "detach")
    }
    return {str(name): options.get(str(name), value) for name, value in others.items()}


def _run_here(asked: Asked) -> None:
    """Become the command, as a part of the job that this runs in."""
    try:
        os.execvp(asked.words[0], asked.words)
    except OSError as error:
        raise BadRequest(f"cannot run {asked.words[0]}: {error.strerror}", asked=" ".join(asked.words)[:200]) from error


def _script(words: tuple[str, ...]) -> tuple[Asked, str]:
    """What was asked for, and the script: a file, standard input, or the words of ``--wrap``. Raises UsageError."""
    first = read_options(words)
    if first["--wrap"] is not None:
        if first.words:
            raise click.UsageError("--wrap is the script: leave the file out")
        return first, f"#!/bin/sh\n{first['--wrap']}\n"
    try:
        script = Path(first.words[0]).read_text("utf-8") if first.words else sys.stdin.read(SCRIPT_BYTES_MAX + 1)
    except OSError as error:
        raise click.UsageError(f"cannot read {first.words[0]}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise click.UsageError(f"{first.words[0] if first.words else 'standard input'} is no text") from None
    if len(script.encode()) > SCRIPT_BYTES_MAX or "\0" in script:
        raise click.UsageError(f"a batch script is a text of at most {SCRIPT_BYTES_MAX:,} bytes")
    interpreter_of(script)
    return read_options(words, script), script


def _submit(call: CommandContext, job: Translation, script: str) -> dict[str, Any]:
    """Have the script accepted, once or as an array. The script is a variable, so that an array has it only once."""
    from actorgrid.client.graph_submit import accept
    from actorgrid.job_arrays import JobArray, array_request

    from ..work import request

    asked, options = job.asked, job.options
    interpreter = interpreter_of(script)
    arguments = asked.words[1:]
    if os.path.basename(interpreter[0]) in SHELLS:
        script = SRUN_HERE + "\n" + script.partition("\n")[2]
        named = options["name"]
        command = [*interpreter, "-c", IN_A_SHELL, named, *arguments]
        line = f'{PROLOGUE}exec "$@"\n'
    else:
        line = f"{PROLOGUE}{IN_A_FILE}"
        if len(interpreter) > 1:
            raise click.UsageError(f"#!{' '.join(interpreter)}: an interpreter with options is not taken; shells are")
        command = [*interpreter, *arguments]
    name = str(options["name"]).replace("%", "%%")
    outputs = {OUT: asked["--output"], ERR: asked["--error"]}
    options["env"] = {
        **job.variables,
        SCRIPT: script,
        PYTHON: sys.executable,
        **{key: os.path.join(options["cwd"], text.replace("%x", name)) for key, text in outputs.items() if text},
        **options["env"],
    }
    pool = options["pool"]
    wanted = request(call, ["/bin/sh", "-c", line, "sbatch", *command], None, **_without_pool(options))
    if pool is not None:
        wanted["pool"] = pool
    if asked["--array"] is None:
        accepted: dict[str, Any] = call.http.post("/api/jobs", wanted, repeat=True)
        return accepted
    array = JobArray.parse(asked["--array"])
    indexes = array.indexes
    step = indexes[1] - indexes[0] if len(indexes) > 1 else 1
    told = {"COUNT": len(indexes), "MIN": min(indexes), "MAX": max(indexes), "STEP": step}
    wanted["env"] |= {f"SLURM_ARRAY_TASK_{key}": str(value) for key, value in told.items()}
    wanted["env"]["SLURM_ARRAY_JOB_ID"] = str(wanted["task_id"])
    return {"job_id": accept(call.http, array_request(wanted, array)), "tasks": len(indexes)}


def _or_untold(job: Translation, submit: Callable[[], R]) -> R:
    """What *submit* gives; where nobody can be told as ``--mail-user`` says, the job is submitted without, and that is
    said: a script that runs under Slurm runs."""
    try:
        return submit()
    except (UnknownTarget, TargetNotAllowed) as error:
        if not job.options["notify"]:
            raise
        _tell([f"--mail-user={job.asked['--mail-user']} has no meaning here: {error.message}"])
        job.options["notify"], job.options["notify_on"] = (), []
        return submit()


def _without_pool(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "pool"}


def _tell(notes: list[str]) -> None:
    for note in notes:
        say(f"actorgrid: {note}", err=True)
