"""``drain``: give a host nothing new, and see it empty."""

from __future__ import annotations

import time
from typing import Any

import click

from actorgrid.errors import CallTimeout

from . import candidates
from .call import CommandContext, host_command
from .host_names import find_host, title
from .printing import say
from .show import progress
from .times import left, seconds

LOOK_S = 0.5


@click.command()
@click.argument("host", metavar="HOST", shell_complete=candidates.hosts)
@click.option("--move", is_flag=True, help="Have what may be preempted start again elsewhere, from its checkpoint.")
@click.option("--wait", is_flag=True, help="Wait until nothing runs there.")
@click.option("--timeout", "within_s", default="1d", show_default=True, callback=seconds, help="With --wait: how long.")
@click.option("--undo", is_flag=True, help="Let it take work again.")
@host_command
def command(call: CommandContext, host: str, move: bool, wait: bool, within_s: float, undo: bool) -> None:
    """Give a host nothing new, so that it can be serviced.

    What runs there goes on; sessions keep the workers they have. It stays so over restarts, until --undo. HOST is a
    number, name or address of actorgrid hosts. With --move, jobs and detached actors that may be preempted end there
    and start again elsewhere, from the checkpoint that they take last.
    """
    from actorgrid.client.http import segment

    if undo and (wait or move):
        raise click.UsageError(f"--undo and --{'wait' if wait else 'move'} do not go together")
    meant = find_host(call.http.get("/api/hosts")["hosts"], host)
    path = f"/api/hosts/{segment(meant['node_id'])}/drain"
    answer = call.http.post(path, {"draining": not undo, **({"move": True} if move else {})}, repeat=True)
    held = [] if undo else _held(call, meant["node_id"])
    if wait:
        _wait(call, meant, len(held), within_s)
        held = []
    if call.json:
        call.document({**answer, "running": len(held)})
    elif undo:
        say(f"host {title(meant)} takes work again")
    elif wait:
        say(f"host {title(meant)} is empty, and gets nothing new until: actorgrid drain {host} --undo")
    else:
        runs = f"{len(held)} allocation(s) go on there" if held else "nothing runs there"
        moves = f"; {answer['moved']} of them start again elsewhere" if move else ""
        say(f"host {title(meant)} gets nothing new; {runs}{moves}")


def _held(call: CommandContext, host_id: str) -> list[dict[str, Any]]:
    return [each for each in call.http.get("/api/allocations")["allocations"] if each["host"] == host_id]


def _wait(call: CommandContext, host: dict[str, Any], before: int, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    with progress(call.json, steps=True) as report:
        while held := _held(call, host["node_id"]):
            before = max(before, len(held))
            report(f"{len(held)} left on host {title(host)}", float(before - len(held)), float(before))
            if time.monotonic() > deadline:
                whose = sorted({str(each["owner"].get("job_id") or "a session") for each in held})
                raise CallTimeout(
                    f"work still runs on host {title(host)}",
                    asked=f"that it ends within {left(within_s)}",
                    found=", ".join(whose[:5]),
                    hint="wait longer, or cancel it: actorgrid cancel JOB. The host gets nothing new meanwhile",
                )
            time.sleep(LOOK_S)
