"""``inspect --processes``: the busiest light processes of a set, over all hosts: what observer and etop show."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from .call import CommandContext
from .printing import say

if TYPE_CHECKING:
    from actorgrid.client.light_shards import LightShards
    from actorgrid.supervisors.process.inspecting import SortKey

INTERVAL_S = 1.0
COUNT = 20
COLUMNS = ("PID", "SHARD>", "KIND", "NAMES", "STATUS", "MAILBOX>", "REDUCTIONS>", "MEMORY>")


def show_processes(call: CommandContext, group: str, by: SortKey, watch: bool) -> None:
    """Print the busiest processes of a set; with *watch*, again each second."""
    from actorgrid.client.client import connect

    with closing(connect(call.url, data_dir=call.data_dir, ca_fingerprint=call.ca_fingerprint)) as client:
        shards = client.shards(group)
        while True:
            _show(call, shards, by, watch)
            if not watch:
                return
            time.sleep(INTERVAL_S)


def _show(call: CommandContext, shards: LightShards, by: SortKey, again: bool) -> None:
    from actorgrid.supervisors.process.shard_links import slot_of

    from .show import on_terminal, table

    layout, found = shards.layout(), shards.top(by, COUNT)
    if call.json:
        processes: list[dict[str, Any]] = [
            {**asdict(info), "pid": str(info.pid), "parent": str(info.parent) if info.parent else None}
            for info in found
        ]
        call.document({"group": shards.group, "by": by, "shards": layout, "processes": processes})
        return
    if again and on_terminal():
        click.clear()
    for shard in layout:
        linked = ", ".join(map(str, shard["linked"])) or "none"
        say(
            f"shard {shard['slot']} on {shard['host_id']}: {shard['figures']['processes']:g} processes,"
            f" {shard['names']} names, linked: {linked}"
        )
    missing = sorted(set(range(shards.count)) - {shard["slot"] for shard in layout})
    if missing:
        say(f"no answer of shard {', '.join(map(str, missing))}: being begun again, or not reached")
    rows = [
        [
            f"{info.pid.id}.{info.pid.generation}",
            str(slot_of(info.pid)),
            info.kind,
            ", ".join(info.names) or "-",
            info.status,
            str(info.mailbox),
            str(info.reductions),
            str(info.memory_bytes),
        ]
        for info in found
    ]
    table(COLUMNS, rows, "no processes")
