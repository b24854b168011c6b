"""``sinfo``: hosts, by what they are doing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from ..call import CommandContext, host_command
from .table import Column, print_rows

COLUMNS: dict[str, Column] = {
    "P": ("PARTITION", lambda _group: "actorgrid*"),
    "R": ("PARTITION", lambda _group: "actorgrid"),
    "a": ("AVAIL", lambda _group: "up"),
    "l": ("TIMELIMIT", lambda _group: "infinite"),
    "D": ("NODES", lambda group: str(len(group["hosts"]))),
    "t": ("STATE", lambda group: str(group["state"])),
    "T": ("STATE", lambda group: {"mix": "mixed", "alloc": "allocated"}.get(group["state"], str(group["state"]))),
    "N": ("NODELIST", lambda group: ",".join(sorted(host["hostname"] for host in group["hosts"]))),
    "n": ("HOSTNAMES", lambda group: ",".join(sorted(host["hostname"] for host in group["hosts"]))),
    "c": ("CPUS", lambda group: _span(host["cpu_milli"] // 1000 for host in group["hosts"])),
    "m": ("MEMORY", lambda group: _span(host["memory_mib"] for host in group["hosts"])),
    "G": ("GRES", lambda group: _gres(group["hosts"])),
}


def state_of(host: Mapping[str, Any]) -> str:
    """What a host is doing, in Slurm's words."""
    if host.get("presence") in ("lost", "away") or host.get("health") in ("lost", "unreachable", "failed"):
        return "down"
    busy = bool(host["cpu_milli_allocated"]) or any(gpu["allocated_milli"] for gpu in host["gpus"])
    if host.get("draining"):
        return "drng" if busy else "drain"
    if host["cpu_milli_allocated"] >= host["cpu_milli"]:
        return "alloc"
    return "mix" if busy else "idle"


def _span(values: Any) -> str:
    numbers = sorted(values)
    return f"{numbers[0]}" + ("+" if numbers[0] != numbers[-1] else "")


def _gres(hosts: list[dict[str, Any]]) -> str:
    counts: dict[str, int] = {}
    for gpu in max((host["gpus"] for host in hosts), key=len, default=[]):
        model = str(gpu["model"]).replace(" ", "_")
        counts[model] = counts.get(model, 0) + 1
    return ",".join(f"gpu:{model}:{count}" for model, count in counts.items()) or "(null)"


@click.command(context_settings={"help_option_names": ["--help"]})
@click.option("-N", "--Node", "each", is_flag=True, help="A line for each host.")
@click.option("-h", "--noheader", is_flag=True, help="Without the line of titles.")
@click.option("-o", "--format", "spec", metavar="FORMAT", help=f"Fields, as in '%P %D %t'; known: {' '.join(COLUMNS)}.")
@click.option("-l", "--long", "_long", is_flag=True, hidden=True)
@host_command
def sinfo(call: CommandContext, each: bool, noheader: bool, spec: str | None, _long: bool) -> None:
    """List hosts, by what they are doing."""
    hosts = call.http.get("/api/hosts")["hosts"]
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for host in hosts:
        state = state_of(host)
        key = (state, host["node_id"] if each else "")
        groups.setdefault(key, {"state": state, "hosts": []})["hosts"].append(host)
    rows = [groups[key] for key in sorted(groups)]
    if call.json:
        call.document({"nodes": [{"name": host["hostname"], "state": state_of(host)} for host in hosts]})
        return
    print_rows(COLUMNS, "NDPt" if each else "PalDtN", spec, rows, not noheader)
