"""``maintenance``: have nothing done about a host while somebody works on it."""

from __future__ import annotations

import time
from typing import Any

import click

from . import candidates
from .call import CommandContext, host_command, host_options
from .host_names import find_host, title
from .printing import say
from .show import span, table
from .state import StateCommands
from .times import seconds_above_zero


@click.group(cls=StateCommands)
@host_options
def command() -> None:
    """Have nothing done about a host while somebody works on it.

    While it lasts the host is not restarted, drained or released by the cluster, and what fails there does not count.
    Its work goes on; actorgrid drain HOST moves that. It ends by itself.
    """


@command.command("start")
@click.argument("host", metavar="HOST", shell_complete=candidates.hosts)
@click.option("--for", "for_s", default="1h", show_default=True, callback=seconds_above_zero, help="30m, 2h, 7d, ...")
@click.option("--reason", default="", help="What is done there, for others to read.")
@host_command
def start(call: CommandContext, host: str, for_s: float, reason: str) -> None:
    """Begin a maintenance window of HOST, or change when it ends."""
    from actorgrid.client.http import segment

    meant = find_host(call.http.get("/api/hosts")["hosts"], host)
    path = f"/api/hosts/{segment(meant['node_id'])}/maintenance"
    answer = call.http.put(path, {"for_s": for_s, "reason": reason})
    call.answer(answer, f"host {title(meant)} is under maintenance for {span(for_s)}; end: actorgrid maintenance end")


@command.command("end")
@click.argument("host", metavar="HOST", shell_complete=candidates.hosts)
@host_command
def end(call: CommandContext, host: str) -> None:
    """End the maintenance of HOST now."""
    from actorgrid.client.http import segment

    meant = find_host(call.http.get("/api/hosts")["hosts"], host)
    answer = call.http.delete(f"/api/hosts/{segment(meant['node_id'])}/maintenance", patient=False)
    was = "is over" if answer["was"] else "was not under way"
    call.answer(answer, f"maintenance of host {title(meant)} {was}")


@command.command("list")
@host_command
def list_(call: CommandContext) -> None:
    """List the hosts that are under maintenance."""
    windows: list[dict[str, Any]] = call.http.get("/api/maintenance")["maintenance"]
    if call.json:
        call.document({"maintenance": windows})
        return
    rows = [[each["hostname"], span(each["until"] - time.time()), each["by"], each["reason"]] for each in windows]
    table(["HOST", "LEFT>", "BY", "REASON"], rows, "no host is under maintenance", ["BY"])
    if not windows:
        say("begin: actorgrid maintenance start HOST --for 2h --reason TEXT")
