"""``leave``: a host leaves the cluster."""

from __future__ import annotations

import time
from typing import Any

import click

from actorgrid.errors import HostUnreachable

from . import candidates
from .call import CommandContext, host_command
from .printing import say
from .show import progress

WAIT_S, REQUEST_S = 5.0, 60.0
DONE = ("left", "stays")


@click.command()
@click.option(
    "--host",
    "host",
    default="this",
    metavar="HOST",
    shell_complete=candidates.hosts,
    help="Another host: its number, name or id.",
)
@click.option("--now", is_flag=True, help="End its work first; jobs start again elsewhere.")
@click.option("--force", is_flag=True, help="With --host: remove one whose machine is off for good, with its work.")
@click.option("--cancel", is_flag=True, help="It stays after all.")
@host_command
def command(call: CommandContext, host: str, now: bool, force: bool, cancel: bool) -> None:
    """Take this host out of the cluster, or another (--host).

    It gets nothing new, its work comes to its end, it hands over its vote, and is no member any more; its agent stops.
    Interrupted, it goes on where it was when asked again; --cancel takes it back.
    """
    if force and host == "this":
        raise click.UsageError("--force is for a host that is gone: name it with --host")
    if sum((now, force, cancel)) > 1:
        raise click.UsageError("--now, --force and --cancel do not go together")
    from actorgrid.client.http import segment

    body = {"now": now, "force": force, "cancel": cancel, "wait_s": WAIT_S}
    answer: dict[str, Any] = {"state": ""}
    with progress(call.json, steps=True) as report:
        while answer["state"] not in DONE:
            began = time.monotonic()
            try:
                answer = call.http.post(f"/api/hosts/{segment(host)}/leave", body, timeout_s=REQUEST_S)
            except HostUnreachable:
                if host != "this" or answer["state"] != "handing_over":
                    raise
                answer = {**answer, "state": "left", "waits_for": []}  # it stopped before it could say so
            report(_words(answer), 0.0 if answer["state"] == "draining" else 1.0, 2.0)
            if answer["state"] not in DONE and time.monotonic() - began < WAIT_S / 2:
                time.sleep(WAIT_S / 10)
    if call.json:
        call.document(answer)
        return
    say(_words(answer))
    if answer.get("lost"):
        say(f"lost with it, and tried again elsewhere: {', '.join(answer['lost'][:10])}")


def _words(answer: dict[str, Any]) -> str:
    waits = answer.get("waits_for", [])
    more = ", ..." if len(waits) > 3 else ""
    return {
        "draining": f"waiting for its work to end: {', '.join(waits[:3])}{more}",
        "handing_over": "handing over its vote",
        "left": f"host {answer.get('host_id', '')} has left the cluster",
        "stays": f"host {answer.get('host_id', '')} stays",
    }[answer["state"]]
