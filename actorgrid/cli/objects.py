"""``objects``: what lies in the object stores, whose it is, and which values are the largest."""

from __future__ import annotations

from typing import Any

import click

from .call import CommandContext, host_command
from .printing import say
from .show import size, table


@click.command()
@click.option("--each", is_flag=True, help="List values one by one, the largest first.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, help="Values of each host at most (100).")
@host_command
def command(call: CommandContext, /, each: bool, limit: int) -> None:
    """List what sessions keep in the object stores.

    Values over 1 MiB stay there, with what client.put keeps, until nobody refers to them or their session ends.
    """
    found = call.http.get("/api/objects", limit=limit)["hosts"]
    if call.json:
        call.document({"hosts": found})
        return
    if each:
        _values(found)
    else:
        _sessions(found)
    for host in found:
        figures = host["figures"]
        memory = f"{size(figures['objects_memory_bytes'])} of {size(host['memory_bytes_max'])} in memory"
        disk = f"{size(figures['objects_disk_bytes'])} of {size(host['disk_bytes_max'])} on the disk"
        say(f"{host['hostname']}: {memory}, {disk}")


def _sessions(hosts: list[dict[str, Any]]) -> None:
    rows = [
        [
            host["hostname"],
            session["user"] or "?",
            str(session["pid"] or ""),
            str(session["count"]),
            size(session["bytes"]),
            size(session["memory_bytes"]),
            size(session["disk_bytes"]),
            str(session["processes"]),
            session["session"],
        ]
        for host in hosts
        for session in sorted(host["sessions"], key=lambda session: -session["bytes"])
    ]
    header = ["HOST", "USER", "PID>", "OBJECTS>", "SIZE>", "MEMORY>", "DISK>", "PROCESSES>", "SESSION"]
    table(header, rows, "no session has a place in an object store")


def _values(hosts: list[dict[str, Any]]) -> None:
    rows = [
        [
            each["id"],
            host["hostname"],
            size(each["bytes"]),
            each["where"],
            each["state"],
            str(each["references"]),
            str(each["readers"]),
            session["user"] or "?",
            str(session["pid"] or ""),
        ]
        for host in hosts
        for session in host["sessions"]
        for each in session["objects"]
    ]
    header = ["OBJECT", "HOST", "SIZE>", "WHERE", "STATE", "REFERENCES>", "READERS>", "USER", "PID>"]
    table(header, rows, "nothing lies in an object store")
