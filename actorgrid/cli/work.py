"""The options that say what work needs, for ``run`` and ``submit``."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from actorgrid.amounts import unclear_memory
from actorgrid.container_words import RUNTIMES
from actorgrid.device_words import GPU_TOPOLOGIES
from actorgrid.output_paths import inside

from . import candidates
from .label_option import labels_option
from .printing import say
from .times import deadline_of, seconds, seconds_above_zero

if TYPE_CHECKING:
    from actorgrid.client.environment import Environment

    from .call import CommandContext

F = TypeVar("F", bound=Callable[..., Any])

_SIZE = re.compile(r"^\d+(\.\d+)?\s*[kmgtp]?i?b?$", re.IGNORECASE)


def size_text(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """An amount of memory with its unit, as text: the host converts it."""
    if value is not None and not _SIZE.match(value.strip()):
        raise click.BadParameter(f"{value!r} is not a size; write for example 512MiB, 2GiB or 80GB")
    unclear = unclear_memory(value)
    if unclear:
        raise click.BadParameter(unclear)
    return value.strip() if value else None


def _grace(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    """A length of time of at most an hour; 0 is one too."""
    grace_s = seconds(_ctx, _parameter, value)
    if grace_s is not None and grace_s > 3600:
        raise click.BadParameter(f"{value!r} is more than an hour")
    return grace_s


def min_isolation(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """The least isolation that is asked for, checked; in the one spelling."""
    from actorgrid.isolation_words import checked_min_isolation

    try:
        return value and checked_min_isolation(value)
    except ValueError as error:
        raise click.BadParameter(str(error).removeprefix("min_isolation: ")) from error


def _isolation(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    """A length of time of three seconds to a day."""
    isolation_s = seconds_above_zero(_ctx, _parameter, value)
    if isolation_s is not None and not 3 <= isolation_s <= 86_400:
        raise click.BadParameter(
            f"{value!r} is not between 3 seconds and one day; less gains nothing, as the cluster waits 3 s at least"
        )
    return isolation_s


def variables(_ctx: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """``NAME=VALUE``, or ``NAME`` alone for its value here; the last of equal names counts."""
    found = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not name:
            raise click.BadParameter(f"{value!r} is not of the form NAME=VALUE")
        if not equals and name not in os.environ:
            raise click.BadParameter(f"{name} is not set here; write {name}=VALUE")
        found[name] = text if equals else os.environ[name]
    return found


def _annotations(_ctx: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str] | None:
    """``KEY=VALUE``; the last of equal keys counts."""
    for value in values:
        if not value.partition("=")[0] or "=" not in value:
            raise click.BadParameter(f"{value!r} is not of the form KEY=VALUE")
    found = {key: text for key, _, text in (value.partition("=") for value in values)}
    return found or None


def gpu_count(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    """A share of one GPU or a whole number; a model's name and docker's ``all`` get what is meant here."""
    if value is None:
        return None
    try:
        return float(value)
    except ValueError:
        pass
    if value == "all":
        raise click.BadParameter("'all' is no number: say how many (`actorgrid gpus` shows what there is)")
    model = value.rpartition(":")[0] or value
    if re.match(r"[A-Za-z]", model):
        raise click.BadParameter(f"{value!r} is no number; a model is asked for as in --gpus 1 --gpu-model {model}")
    raise click.BadParameter(f"{value!r} is no number; write 0.25 or 2")


def _events(_ctx: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> list[str]:
    """Events by their names, ``failed,lost`` too."""
    from actorgrid.notification_words import events_of

    try:
        return events_of(values)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


_OPTIONS = [
    click.option(
        "--gpus", callback=gpu_count, default="0", metavar="N", help="GPUs: a share of one (0.25) or a whole number."
    ),
    click.option("--gpu-memory", callback=size_text, metavar="SIZE", help="Device memory on each GPU, as in 10GiB."),
    click.option(
        "--gpu-model",
        "gpu_models",
        multiple=True,
        metavar="MODEL",
        help="Accept this model, vendor or architecture (hopper, cc8.0+); may be repeated.",
    ),
    click.option(
        "--gpu-profile", default="", metavar="PROFILE", help="In place of --gpus: one MIG instance, as 3g.40gb."
    ),
    click.option(
        "--gpu-topology",
        type=click.Choice(GPU_TOPOLOGIES, case_sensitive=False),
        help="Its GPUs no farther apart than this, every two of them, in nvidia-smi's words.",
    ),
    click.option("--cpus", type=click.FloatRange(min=0), default=1.0, show_default=True, metavar="N", help="CPUs."),
    click.option("--memory", callback=size_text, metavar="SIZE", help="Host memory; not limited unless given."),
    click.option(
        "--gang",
        type=click.IntRange(1, 256),
        default=1,
        metavar="N",
        help="Members that start together or not at all, each with these resources, its rank in RANK.",
    ),
    click.option("--spread", is_flag=True, help="Of a gang: each member on a host of its own."),
    click.option(
        "--min-isolation",
        callback=min_isolation,
        metavar="WORD",
        help="Only where no less is enforced: kernel, or by aspect: files=kernel,memory=kernel.",
    ),
    click.option("--priority", type=click.IntRange(0, 100), default=50, show_default=True, help="Higher goes first."),
    click.option(
        "--timeout", callback=seconds_above_zero, metavar="TIME", help="Stop each attempt after this: 30, 10m, 2h."
    ),
    click.option(
        "--retries", type=click.IntRange(0, 100), default=0, show_default=True, help="Attempts after a failure."
    ),
    click.option(
        "--deadline",
        callback=deadline_of,
        metavar="TIME",
        help="To be done by then: 30m, 2h, or 2030-01-31T18:00. Counts under scheduling.queue=edf.",
    ),
    click.option("--no-preempt", is_flag=True, help="Never stop it so that another can start."),
    click.option(
        "--grace", "grace_s", callback=_grace, metavar="TIME", help="When it is preempted: from SIGTERM to SIGKILL."
    ),
    click.option(
        "--max-isolation",
        "max_isolation_s",
        callback=_isolation,
        metavar="TIME",
        help="It goes on so long on a host that is cut off, and starts elsewhere only then.",
    ),
    click.option(
        "--env", "env", callback=variables, multiple=True, metavar="K=V", help="A variable; K alone: as it is here."
    ),
    click.option(
        "--env-from-me/--no-env-from-me",
        "env_from_me",
        default=None,
        help="Send the environment of here: PATH, VIRTUAL_ENV, ... but no secrets. Default: on a host that is alone.",
    ),
    click.option(
        "--stop-when-idle",
        "stop_when_idle_s",
        callback=seconds_above_zero,
        metavar="TIME",
        help="End it once all its GPUs have been idle for so long: 30m.",
    ),
    click.option("--cwd", type=click.Path(), metavar="DIR", help="Run there; else in the current directory."),
    click.option(
        "--working-dir",
        type=click.Path(exists=True, file_okay=False),
        metavar="DIR",
        help="Send this directory along, and run in it on whatever host: --working-dir .",
    ),
    click.option(
        "--exclude", multiple=True, metavar="PATTERN", help="Of the working directory: leave this out; may be repeated."
    ),
    click.option(
        "--out",
        "outputs",
        multiple=True,
        metavar="PATH",
        help="Keep this file or folder of the job's directory when it ends, and have it here; may be repeated.",
    ),
    click.option(
        "--checkpoint",
        metavar="DIR",
        help="This directory follows the job: its next attempt, on whatever host, finds what the last one saved there.",
    ),
    click.option(
        "--checkpoint-every",
        "checkpoint_every_s",
        callback=seconds_above_zero,
        metavar="TIME",
        help="Of that directory: take it so often (60s), not only when .checkpoint-ready is written into it.",
    ),
    click.option("--container", metavar="IMAGE", help="Run it in a container: Apptainer, Podman or Docker."),
    click.option(
        "--mount", "mounts", multiple=True, metavar="PATH[:IN][:ro]", help="Of the container: a path of the host."
    ),
    click.option(
        "--container-runtime", type=click.Choice(RUNTIMES), help="Of the container: with this; else the first there is."
    ),
    click.option(
        "-r",
        "--requirements",
        type=click.Path(exists=True),
        metavar="FILE",
        help="Run in a Python environment of this requirements.txt or uv.lock, built once a host.",
    ),
    click.option(
        "--with", "packages", multiple=True, metavar="PACKAGE", help="Of that environment: this too; may be repeated."
    ),
    click.option("--python", metavar="PYTHON", help="Of that environment: a version (3.12), or a path on the hosts."),
    click.option(
        "--annotation",
        "annotations",
        callback=_annotations,
        multiple=True,
        metavar="K=V",
        help="Note this about the job; may be repeated.",
    ),
    click.option(
        "--label",
        "labels",
        callback=labels_option,
        multiple=True,
        metavar="K=V",
        help="A word to find it by (ps --label); may be repeated.",
    ),
    click.option(
        "--notify",
        multiple=True,
        metavar="TARGET",
        help="Tell webhook:URL, mail:ADDRESS, a target's name or, of what is waited for, desktop; may be repeated.",
    ),
    click.option(
        "--notify-on",
        callback=_events,
        multiple=True,
        metavar="EVENT",
        help="Of what: started, requeued, succeeded, failed, cancelled, lost; ended is the last four, and the default.",
    ),
    click.option(
        "--secret",
        "secrets",
        multiple=True,
        metavar="NAME[:ENV]",
        help="Give it this secret: a file NAME in the folder $ACTORGRID_SECRETS; in the variable ENV, too. Repeatable.",
    ),
    click.option("--name", default="", metavar="NAME", help="A name to show."),
    click.option(
        "--after",
        "after",
        multiple=True,
        metavar="JOB",
        shell_complete=candidates.jobs,
        help="Start when this job has succeeded; repeat.",
    ),
]


def work_options(function: F) -> F:
    """What ``run`` and ``submit`` take alike; hand the values to :func:`request`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def request(call: CommandContext, command: list[str], stdin: bytes | None = None, **options: Any) -> dict[str, Any]:
    """The job to submit, as the HTTP API takes it. Raises UnknownJob for an ``--after`` nobody knows, BodyTooLarge
    for an environment that is too large to travel.

    Its id is made here, so that sending it twice makes one job.
    """
    from actorgrid.client.options import options_of

    from .lookup import find_job

    if options["gpus"] == 0 and not options["gpu_profile"]:
        wishes = {"--gpu-model": "gpu_models", "--gpu-memory": "gpu_memory", "--stop-when-idle": "stop_when_idle_s"}
        for name, given in ((name, options[word]) for name, word in wishes.items()):
            if given:
                raise click.UsageError(f"{name} without --gpus: say how much of a GPU, as in --gpus 0.25 or --gpus 1")
        if options["gpu_topology"]:
            raise click.UsageError("--gpu-topology without --gpus: say how many, as in --gpus 2")
    if options["spread"] and options["gang"] == 1:
        raise click.UsageError("--spread is about the members of a gang: say how many with --gang N")
    from actorgrid.notification_words import DESKTOP

    if DESKTOP in options.get("notify", ()):
        raise click.UsageError(
            "a desktop is told by the command that waits: run --notify desktop (not --detach), or wait --notify-desktop"
        )
    env_from_me = options.pop("env_from_me")
    if options["container"] is not None and env_from_me is None:
        env_from_me = False  # its image has a PATH and a Python of its own
    options["env"] = variables_sent(call, options["env"], env_from_me)
    options["depends_on"] = [find_job(call.http, text)["job_id"] for text in options.pop("after")]
    options["preemptible"] = not options.pop("no_preempt")
    environment = python_environment(options)
    checkpoint = _checkpoint(options)
    work: dict[str, Any] = {"command": command, **_place(call, options)}
    if environment is not None:
        work["environment"] = environment.send_to_door(call.http, for_functions=False)
    if stdin is not None:
        work["stdin"] = stdin
    if checkpoint is not None:
        work["checkpoint"] = checkpoint
    asked = {name: value for name, value in options.items() if value is not None}
    return options_of({**asked, "durable": True}).job_request(kind="command", **work)


def _checkpoint(options: dict[str, Any]) -> dict[str, Any] | None:
    """What the options ask for of checkpoints, taken out of them; ``None``: nothing."""
    path, every_s = options.pop("checkpoint"), options.pop("checkpoint_every_s")
    if path is None:
        if every_s is not None:
            raise click.UsageError("--checkpoint-every is about a directory that follows the job: say --checkpoint DIR")
        return None
    if inside(path) is None:
        raise click.UsageError(
            f"--checkpoint {path}: the directory lies in that of the job; write it relative to that: --checkpoint ckpt"
        )
    return {"path": path, **({} if every_s is None else {"every_s": every_s})}


def python_environment(options: dict[str, Any]) -> Environment | None:
    """The Python environment that the options ask for, taken out of them; ``None`` where they ask for none."""
    file, packages, python = options.pop("requirements"), options.pop("packages"), options.pop("python")
    if file is None and not packages and not python:
        return None
    from actorgrid.client.environment import Environment, requirements_text

    named = requirements_text(os.path.abspath(file)).splitlines() if file is not None else []
    return Environment([*named, *packages], python=python or "")


def _place(call: CommandContext, options: dict[str, Any]) -> dict[str, str]:
    """Where it runs: in a directory that is on its host, or in one that is sent along (it is sent here)."""
    cwd = options.pop("cwd")
    if cwd is not None and options["working_dir"] is not None:
        raise click.UsageError("--cwd and --working-dir both say where it runs: give one of them")
    sent = sent_along(call, options)
    return {"cwd": os.path.abspath(cwd or os.getcwd())} if sent is None else {"working_dir": sent}


def sent_along(call: CommandContext, options: dict[str, Any]) -> str | None:
    """The digest of the directory that the options say to send along, which is sent here; takes them out."""
    sent, exclude = options.pop("working_dir"), options.pop("exclude")
    if sent is None:
        if exclude:
            raise click.UsageError("--exclude is about a directory that is sent along: say --working-dir DIR as well")
        return None
    from actorgrid.client.working_dir import WorkingDir

    from .show import progress

    with progress(call.json) as report:
        report(f"sending {sent} along", 0.0, 0.0)
        return WorkingDir(sent, exclude).send_to_door(call.http)


def variables_sent(call: CommandContext, named: dict[str, str], wanted: bool | None) -> dict[str, str]:
    """What the job gets of ours: what was named, and the rest that travels where that is wanted."""
    if wanted is False or (wanted is None and not call.speaks_to_this_machine_alone):
        return named
    from .submitter_environment import submitter_environment

    taken = submitter_environment(os.environ, named)
    if taken.secrets and sys.stderr.isatty():
        names = ", ".join(taken.secrets)
        say(f"actorgrid: not sent, as they may be secrets: {names}; --env NAME sends one", err=True)
    return {**taken.variables, **named}
