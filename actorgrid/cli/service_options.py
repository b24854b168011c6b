"""The options that say how a service is asked and how many replicas it has, for ``serve`` and ``rollout``."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from actorgrid.service_presets import PRESETS

from .times import seconds_above_zero

F = TypeVar("F", bound=Callable[..., Any])

SERVING = ("protocol", "preset", "model", "ready_path", "ready_body", "live_path", "start_timeout_s")
SCALE = ("concurrency", "idle_s", "drain_s", "strategy")
ROUTE_NAMES = ("prefix_cost", "prefix_hash", "round_robin", "weighted_round_robin", "least_loaded", "affinity_aware")
ROUTING = ("route", "affinity_header", "adapters", "fallbacks")
NOT_OF_SERVICES = {
    "--retries": "retries",
    "--timeout": "timeout",
    "--deadline": "deadline",
    "--after": "after",
    "--stop-when-idle": "stop_when_idle_s",
}
KEPT_FIELDS: dict[str, tuple[str, ...]] = {
    "resources": (
        "gpus",
        "gpu_memory",
        "gpu_models",
        "gpu_profile",
        "gpu_topology",
        "cpus",
        "memory",
        "gang",
        "spread",
        "min_isolation",
    ),
    "env": ("env", "env_from_me"),
    "cwd": ("cwd", "working_dir"),
    "payload_digest": ("working_dir", "exclude"),
    "secrets": ("secrets",),
    "environment": ("requirements", "packages", "python"),
    "container": ("container", "mounts", "container_runtime"),
    "priority": ("priority",),
    "preemptible": ("no_preempt",),
    "grace_s": ("grace_s",),
    "max_isolation_s": ("max_isolation_s",),
    "labels": ("labels",),
    "annotations": ("annotations",),
    "outputs": ("outputs",),
    "checkpoint": ("checkpoint", "checkpoint_every_s"),
    "notify": ("notify",),
    "notify_on": ("notify_on",),
}
"""The fields of a job's record, and the options that say what they are: where none was given, it stays as it was."""


def replicas_range(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """``N``, or ``MIN:MAX``."""
    if value is None:
        return None
    least, colon, most = str(value).partition(":")
    try:
        found = (int(least), int(most) if colon else int(least))
    except ValueError:
        raise click.BadParameter(f"{value!r} is no number of replicas; write 2, or 1:4 for between 1 and 4") from None
    if not 0 <= found[0] <= found[1] or found[1] < 1:
        raise click.BadParameter(f"{value!r}: at least 0, at most 1 or more, as in 0:4")
    return found


def _percent(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> int:
    if value is None:
        return 0
    text = str(value).removesuffix("%").strip()
    if not text.isdecimal() or not 1 <= int(text) <= 99:
        raise click.BadParameter(f"{value!r} is no percentage between 1 and 99; write 10%")
    return int(text)


_OPTIONS = [
    click.option(
        "--replicas", callback=replicas_range, metavar="N|MIN:MAX", help="So many; or by demand: 0:4 goes to none. [1]"
    ),
    click.option(
        "--preset", type=click.Choice(list(PRESETS)), help="This server of models, of --model; CMD adds arguments."
    ),
    click.option(
        "--class",
        "served_class",
        metavar="MODULE:CLASS",
        help="A Python class, served; of this folder with --working-dir. CMD adds arguments.",
    ),
    click.option("--model", metavar="NAME", help="The model's name as the server knows it; else the first it lists."),
    click.option(
        "--protocol", type=click.Choice(["openai", "http"]), help="http: any other server than OpenAI's. [openai]"
    ),
    click.option("--ready-path", metavar="PATH", help="Ready when this answers; else after a real completion."),
    click.option("--ready-body", metavar="JSON", help="Post this there."),
    click.option("--live-path", metavar="PATH", help="Asked every 5 s for as long as it serves."),
    click.option(
        "--start-timeout", "start_timeout_s", callback=seconds_above_zero, metavar="TIME", help="To be ready in. [10m]"
    ),
    click.option(
        "--concurrency", type=click.IntRange(1, 10_000), metavar="N", help="Requests a replica serves at once. [16]"
    ),
    click.option(
        "--idle", "idle_s", callback=seconds_above_zero, metavar="TIME", help="Of 0:N: none after so long. [15m]"
    ),
    click.option(
        "--drain", "drain_s", callback=seconds_above_zero, metavar="TIME", help="For the last requests of one. [2m]"
    ),
    click.option(
        "--strategy",
        type=click.Choice(["auto", "surge", "replace"]),
        help="Whether new replicas come before old ones leave. [auto: where there is room]",
    ),
    click.option("--route", type=click.Choice(ROUTE_NAMES), help="How gateways choose a replica. [prefix_cost]"),
    click.option(
        "--affinity-header", metavar="NAME", help="Its value keeps requests together; '' is none. [x-session-id]"
    ),
    click.option(
        "--adapter",
        "adapters",
        multiple=True,
        metavar="NAME[=ITS_NAME]",
        help="A LoRA adapter that replicas have loaded, as a model NAME; '' is none. Repeatable.",
    ),
    click.option(
        "--fallback",
        "fallbacks",
        multiple=True,
        metavar="MODEL",
        help="Answers where no replica of this does; '' is none. Repeatable.",
    ),
    click.option(
        "--canary", callback=_percent, metavar="PERCENT", help="Of a rollout: so many requests go to the new first."
    ),
    click.option(
        "--canary-for", "canary_s", callback=seconds_above_zero, metavar="TIME", help="Of a canary: how long. [5m]"
    ),
]


def service_options(function: F) -> F:
    """What ``serve`` and ``rollout`` take besides what work needs; hand the values to :func:`service_body`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def read_file(context: click.Context, _parameter: click.Parameter, path: str | None) -> str | None:
    """Take what a YAML file says as what the options say that are not given. Raises BadParameter."""
    if path is None:
        return None
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            told = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise click.BadParameter(f"{path} cannot be read: {error}") from None
    if not isinstance(told, dict):
        raise click.BadParameter(f"{path} holds no table of options, as in 'replicas: 1:4'")
    words = {"name": "service", "command": "words"}
    names: dict[str, str] = {}
    for parameter in context.command.params:
        if parameter.name is None or parameter.name in ("file", *words):
            continue
        for spelled in (parameter.name, *parameter.opts):
            names[spelled.lstrip("-").replace("-", "_")] = parameter.name
    names |= words
    defaults: dict[str, Any] = {}
    for key, value in told.items():
        name = names.get(str(key).replace("-", "_"))
        if name is None:
            near = difflib.get_close_matches(str(key), names, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise click.BadParameter(f"{path}: there is no option {str(key)[:60]!r}{hint}")
        defaults[name] = _spelled(str(key), value)
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


def _spelled(key: str, value: Any) -> Any:
    """A value of a file as it would stand on the command line."""
    if isinstance(value, Mapping):
        return [f"{name}={_text(each)}" for name, each in value.items()]
    if isinstance(value, list):
        return [_text(each) for each in value]
    if key == "command" and isinstance(value, str):
        import shlex

        return shlex.split(value)
    return value if isinstance(value, bool) else _text(value)


def _text(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def service_body(
    context: click.Context, words: list[str], options: dict[str, Any], there: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """The part of a request that is about the service, taken out of *options*, and the command of its replicas.

    *there*: the service, where it stays as it is but for what is said.
    """
    for flag, name in NOT_OF_SERVICES.items():
        if context.get_parameter_source(name) not in (ParameterSource.DEFAULT, None):
            raise click.UsageError(f"{flag} is about jobs that end; a replica of a service goes on")
    body = {name: options[name] for name in (*SERVING, *SCALE) if options[name] is not None}
    body |= _routing(options)
    preset, model = options["preset"], options["model"]
    if preset is not None:
        from actorgrid.service_presets import preset_command

        if not model:
            raise click.UsageError(f"--preset {preset} needs --model: its name, or its path")
        gpus, gang = _members(context, options, there)
        words = preset_command(preset, model, gpus, words, gang)
    served_class = options.pop("served_class")
    if served_class is not None:
        if preset is not None:
            raise click.UsageError("--class or --preset: a replica is one of them")
        words = _of_class(served_class, body) + words
    if options["replicas"] is not None:
        body["replicas_min"], body["replicas_max"] = options["replicas"]
    if options["canary"]:
        body |= {"canary": options["canary"], "canary_s": options["canary_s"] or 300.0}
    for name in (*SERVING, *SCALE, *ROUTING, "replicas", "canary", "canary_s"):
        options.pop(name)
    return body, words


def _members(context: click.Context, options: dict[str, Any], there: Mapping[str, Any] | None) -> tuple[float, int]:
    """The GPUs of each member, and the members, that a command of a preset is for: those that stay, where the options
    say nothing of what replicas get."""
    given = (ParameterSource.DEFAULT, None)
    kept = all(context.get_parameter_source(name) in given for name in KEPT_FIELDS["resources"])
    if there is None or not kept:
        return options["gpus"], options["gang"]
    resources = there["revisions"][-1]["job"].get("resources") or {}
    return float(resources.get("gpus") or 0), int(resources.get("gang") or 1)


def _routing(options: dict[str, Any]) -> dict[str, Any]:
    """What is said of how requests come to replicas."""
    body = {name: options[name] for name in ("route", "affinity_header") if options[name] is not None}
    if options["adapters"]:
        pairs = (each.partition("=") for each in options["adapters"] if each)
        body["adapters"] = [{"model": model, "served_as": served_as} for model, _, served_as in pairs]
    if options["fallbacks"]:
        body["fallbacks"] = [each for each in options["fallbacks"] if each]
    return body


def _of_class(target: str, body: dict[str, Any]) -> list[str]:
    """The command that serves a class, and in *body* how it is asked."""
    from actorgrid.errors import NotAService
    from actorgrid.serving.class_command import HEALTH, class_command, class_protocol
    from actorgrid.serving.endpoints import find_class

    if "protocol" not in body:
        try:
            body["protocol"] = class_protocol(find_class(target))
        except NotAService as error:
            raise click.UsageError(
                f"--class {target}: {error.message}. Where it is on the hosts alone, say --protocol openai or http"
            ) from None
    body.setdefault("live_path", HEALTH)
    if body["protocol"] == "http":
        body.setdefault("ready_path", HEALTH)
    return class_command(target)


def kept_fields(context: click.Context, has_command: bool) -> list[str]:
    """The fields of the job's record about which no option was given."""
    given = (ParameterSource.DEFAULT, None)
    kept = [
        field
        for field, names in KEPT_FIELDS.items()
        if all(context.get_parameter_source(name) in given for name in names)
    ]
    return kept if has_command else [*kept, "command", "name", "kind", "stdin_digest", "python"]
