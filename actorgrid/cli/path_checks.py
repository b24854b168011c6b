"""What ``doctor`` says of the paths by which large things come from other hosts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from actorgrid.errors import ActorGridError

from .call import CommandContext
from .checks import Finding
from .host_names import title

SHOWN = 16


def check_paths(call: CommandContext) -> Iterator[Finding]:
    """Check which path large things come over, from each host, and why not over a faster one."""
    try:
        peers = call.http.get("/api/paths")["peers"]
        names = {host["node_id"]: title(host) for host in call.http.get("/api/hosts")["hosts"]} if peers else {}
    except ActorGridError as error:
        yield Finding("paths", "note", f"the agent does not tell them: {error.message}")
        return
    for peer in peers[:SHOWN]:
        yield _of_peer(peer, names.get(peer["host"], peer["host"]))
    if len(peers) > SHOWN:
        yield Finding("paths", "ok", f"of {len(peers) - SHOWN} more hosts: actorgrid hosts --json")


def _of_peer(peer: dict[str, Any], name: str) -> Finding:
    if not peer["used"]:
        return Finding("paths", "note", f"from host {name}: there is no link now")
    rates = [f"{each['path']} {each['mb_per_s']:g} MB/s" for each in peer["paths"] if each["mb_per_s"] is not None]
    not_there = [f"{each['path']}: {each['reason']}" for each in peer["paths"] if not each["available"]]
    told = [f"large values of host {name} come over {peer['used']}", *rates, *not_there]
    # One connection where several are had by every host of this version: something is in the way.
    broken = any(each["path"] == "tls_streams" and not each["available"] for each in peer["paths"])
    return Finding("paths", "note" if broken else "ok", "; ".join(told))
