"""``up``: this machine's agent."""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.core import ParameterSource

from actorgrid.errors import ActorGridError, InvalidSetting, MalformedConfig, StartFailed

from .call import CommandContext, config_option, data_dir_option, json_option, pass_call
from .printing import say

if TYPE_CHECKING:
    from actorgrid.configs.schema import Settings
    from actorgrid.configs.start_options import SettingAtStart, StartOptions


@click.command()
@data_dir_option
@config_option
@click.option("--port", metavar="N", help="HTTP port; 0: any free one (cluster.base_port).")
@click.option(
    "--listen", metavar="ADDRESS", help="Where other hosts reach this one; begins a cluster (cluster.listen)."
)
@click.option("--join", "member", metavar="HOST[:PORT]", help="Join the cluster of this member, with --token.")
@click.option(
    "--token",
    envvar="ACTORGRID_JOIN_TOKEN",
    metavar="TOKEN",
    help="What actorgrid token create printed there [$ACTORGRID_JOIN_TOKEN].",
)
@click.option("--site", metavar="NAME", help="The site, or data centre, this host is in (cluster.site).")
@click.option(
    "--gpus",
    metavar="SPEC",
    help="auto, nvidia, amd, intel, none, or simulated ones: 8 or 4xA100-40GB (gpus.source).",
)
@click.option("--grpc", metavar="ADDRESS:PORT", help="Serve gRPC there, too (grpc.listen).")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Any setting; may be repeated.")
@click.option("--forget", is_flag=True, help="Do not take over the flags of earlier starts on this directory.")
@json_option
@pass_call
def command(
    call: CommandContext,
    config_dir: Path | None,
    port: str | None,
    listen: str | None,
    member: str | None,
    token: str | None,
    site: str | None,
    gpus: str | None,
    grpc: str | None,
    assignments: tuple[str, ...],
    forget: bool,
) -> None:
    """Run this machine's agent, in the foreground.

    Ctrl-C or SIGTERM stops it in order. With --json one line {"event": "ready", "url": …, "pid": …, "notes": […]} is
    printed when it takes work. A host is alone unless it begins a cluster (--listen) or joins one (--join, once; later
    starts are without it). --port, --site, --gpus, --grpc and --set are kept with the data directory, and hold at
    later starts where nothing else is said.
    """
    from actorgrid.configs.load_in_child import settings_read_apart
    from actorgrid.configs.start_options import Flag

    given = click.get_current_context().get_parameter_source("token") is ParameterSource.COMMANDLINE
    if (member is not None and token is None) or (member is None and given):
        raise click.UsageError("--join and --token go together")
    overrides, flag_names = flags(port, gpus, assignments, listen, site, grpc)
    data_dir = call.resolved_data_dir
    before = _last_start(data_dir, forget)
    settings = settings_read_apart(config_dir, data_dir, overrides, flag_names=flag_names, forget=forget)
    held = _held(settings)
    told = {key: Flag(text, _written(flag_names[key], text, gpus)) for key, text in overrides.items()}
    taken_over = before.taken_over(set(told), held)
    different = before.differences(set(told), held)

    def show(info: dict[str, Any]) -> None:
        if call.json:
            said = {"taken_over": taken_over, "different": different} if taken_over or different else {}
            call.document({"event": "ready", "data_dir": str(data_dir), **info, **said})
        else:
            say(banner({**look(info, data_dir), **info}, data_dir, call.data_dir))
        sys.stdout.flush()

    def on_ready(info: dict[str, Any]) -> None:
        try:
            show(info)
        except BrokenPipeError:  # whoever read it has gone; the agent serves all the same
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    # What is loaded now stays: collecting while it is built finds nothing, and costs a tenth of a start's CPU. The host
    # turns it on again before it forks.
    gc.disable()
    from actorgrid.actors.host.boot import run_host

    if not call.json:
        say(f"starting on {data_dir} …", err=True)
        if taken_over:
            _say(f"as at an earlier start: {' '.join(taken_over)} (--forget starts without)")
        for sentence in different:
            _say(sentence)
    order = None
    if member is not None and token is not None:
        from actorgrid.actors.host.enrolment import JoinOrder

        order = JoinOrder(member, token)
    run_host(
        settings,
        data_dir,
        on_ready,
        join=order,
        say=lambda text: None if call.json else _say(text),
        again=_start_again,
        options=before.followed_by(told, held, forget),
    )


def _last_start(data_dir: Path, forget: bool) -> StartOptions:
    from actorgrid.configs.start_options import StartOptions, last_start

    try:
        return last_start(data_dir)
    except MalformedConfig:
        if not forget:
            raise
        return StartOptions()  # it is written anew


def _held(settings: Settings) -> dict[str, SettingAtStart]:
    """The settings that are not at their defaults, as start.json keeps them."""
    from actorgrid.configs.start_options import SettingAtStart

    found = {}
    for key in settings.keys():  # noqa: SIM118 - a method of ours, not a mapping's
        if (origin := settings.origin(key)) != "default":
            plain = json.dumps(settings.get(key), default=lambda value: value.model_dump(mode="json"))
            found[key] = SettingAtStart(json.loads(plain), origin)
    return found


def _written(name: str, text: str, gpus: str | None) -> str:
    """A flag as the person wrote it: ``--gpus 4``, ``--set work.kill_grace_s=3``."""
    if name == "--gpus":
        return f"--gpus {gpus}"
    return f"{name}={text}" if name.startswith("--set ") else f"{name} {text}"


def _start_again() -> NoReturn:
    """Become the program that this command runs now, which may be a newer one; same arguments, same process."""
    arguments = [sys.executable, *sys.orig_argv[1:]]
    try:
        os.execv(arguments[0], arguments)  # nosec B606 - the command that we were started with
    except OSError as error:
        raise StartFailed(
            f"the command cannot be run any more: {error.strerror}",
            asked=" ".join(arguments)[:300],
            hint="install actorgrid again, then actorgrid up; work that runs is adopted within its lease",
        ) from error


def _say(text: str) -> None:
    say(f"  {text}", err=True)


def flags(
    port: str | None,
    gpus: str | None,
    assignments: tuple[str, ...],
    listen: str | None = None,
    site: str | None = None,
    grpc: str | None = None,
) -> tuple[dict[str, str], dict[str, str]]:
    """Settings by key, and how each was written. Raises InvalidSetting for what is not ``KEY=VALUE`` or given twice."""
    overrides: dict[str, str] = {}
    names: dict[str, str] = {}
    given: list[tuple[str, str | None, str]] = [
        ("cluster.base_port", port, "--port"),
        ("cluster.listen", listen, "--listen"),
        ("cluster.site", site, "--site"),
        ("grpc.listen", grpc, "--grpc"),
        ("gpus.source", None if gpus is None else source(gpus), "--gpus"),
    ]
    for text in assignments:
        key, equals, written = text.partition("=")
        if not equals or not key.strip():
            raise InvalidSetting("--set takes KEY=VALUE", asked=text, hint="for example --set work.kill_grace_s=3")
        given.append((key.strip(), written.strip(), f"--set {key.strip()}"))
    for key, value, name in given:
        if value is None:
            continue
        if key in overrides:
            raise InvalidSetting(f"{key} is given twice", asked=f"{names[key]} and {name}", hint="remove one of them")
        overrides[key], names[key] = value, name
    return overrides, names


def source(spec: str) -> str:
    """The ``gpus.source`` that ``--gpus`` means: ``8`` and ``4xA100-40GB`` are simulated."""
    if spec == "0":
        return "none"
    if re.fullmatch(r"\d+", spec):
        return f"simulated:{spec}xH100-80GB"
    return f"simulated:{spec}" if re.match(r"\d+x", spec) else spec


TRIED_WITHIN_S = 2.0
"""How long the banner waits for who keeps work apart. Nothing else of a start does."""


def look(info: dict[str, Any], data_dir: Path) -> dict[str, Any]:
    """What the host that has just come up says of its devices and of who keeps work apart; empty when not at once."""
    from actorgrid.client.find import locate
    from actorgrid.client.http import AdminHttp

    http = None
    try:
        http = AdminHttp(*locate(data_dir, str(info["url"])), timeout_s=2.0, retry_s=0.5)
        devices = http.get("/api/gpus")["gpus"]
        until = time.monotonic() + TRIED_WITHIN_S
        while not (isolation := http.get("/api/cluster").get("isolation")) and time.monotonic() < until:
            time.sleep(0.1)  # the host tries out what it can hold, and tells the ledger
        return {"gpus": devices, "isolation": isolation}
    except ActorGridError:
        return {}  # they are only lines of the banner; status will say what is wrong
    finally:
        if http is not None:
            http.close()


def banner(info: dict[str, Any], data_dir: Path, named: Path | None) -> str:
    """The banner of a host that has just come up."""
    from actorgrid import hotpath

    from .hosts import apart_line

    option = f" --data-dir {named}" if named else ""
    apart = apart_line(info.get("isolation") or {})
    cluster = []
    if info.get("cluster_id"):
        where = f"{info['cluster_id']}, node {info['node']}"
        cluster.append(f"  cluster   {where}; actorgrid token create{option} lets another host join")
    url = click.style(str(info.get("url", "")), fg="green", bold=True)
    lines = [
        f"{click.style('actorgrid', bold=True)} is up at {url}",
        f"  gpus      {gpus_line(info.get('gpus'))}{' (of the cluster)' if cluster else ''}",
        *([f"  apart     {apart}"] if apart else []),
        *cluster,
        f"  data      {data_dir}",
        f"  hot path  {'compiled' if hotpath.COMPILED else 'plain Python (no compiled kernels: slower, same answers)'}",
        "",
        "In another terminal:",
        f"  actorgrid status{option}",
        f"  actorgrid run{option} --gpus 0.25 -- env",
        f"  actorgrid doctor{option}",
        "",
        "Ctrl-C stops it.",
    ]
    return "\n".join(lines)


def gpus_line(devices: list[dict[str, Any]] | None) -> str:
    """``8 x H100-80GB (simulated …)``; several kinds are joined."""
    if devices is None:
        return "see actorgrid gpus"
    if not devices:
        return "none"
    kinds = Counter((str(device["model"]), str(device["source"])) for device in devices)
    parts = [
        f"{count} x {model}" + ("" if source == "probed" else f" ({source})")
        for (model, source), count in kinds.items()
    ]
    only_simulated = all(source == "simulated" for _, source in kinds)
    return ", ".join(parts) + ("; placement is real, the devices are not" if only_simulated else "")
