"""``events``: the ledger's entries as they are applied."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from actorgrid.errors import HostError

from .call import CommandContext, host_command


@click.command()
@click.option("--from", "start", type=click.IntRange(min=0), help="Begin at this ledger index; else from now on.")
@host_command
def command(call: CommandContext, start: int | None) -> None:
    """Print what happens, as it happens.

    Goes on until interrupted. With --json each line is a document of its own.
    """
    with call.http.event_stream("/api/events", **{"from": start}) as events:
        for event in events:
            data = json.loads(event.data)
            if event.event == "end":
                raise HostError("the host ended the stream", found=data.get("reason", ""), hint=data.get("hint", ""))
            call.answer(data, line(data))


def line(event: dict[str, Any]) -> str:
    """One entry of the ledger in one line."""
    changes = " ".join(f"{change['kind']} {change['id']} {change['state']}" for change in event.get("changes", []))
    clock = time.strftime("%H:%M:%S", time.localtime(event.get("at", 0)))
    return f"{clock} {event.get('index', 0):>8} {event.get('type', ''):<14} {changes}".rstrip()
