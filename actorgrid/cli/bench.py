"""``bench``: what this machine, and the paths between hosts, do, measured now."""

from __future__ import annotations

from typing import Any

import click

from actorgrid.errors import ActorGridError, BadRequest

from . import candidates
from .call import CommandContext, host_command
from .host_names import find_host, title
from .printing import say
from .show import progress

PATHS = ("tls", "tls_streams", "rdma")
BENCH_S = 60.0
"""For one path: the door has it done in 40 s."""
MIB = 2**20


@click.group()
def command() -> None:
    """Measure what the paths of bytes do here."""


@command.command()
@click.argument("hosts", metavar="[HOST HOST]", nargs=-1, shell_complete=candidates.hosts)
@click.option("--trips", type=click.IntRange(10, 1_000_000), help="Round trips.  [default: 2000; between hosts 200]")
@click.option("--large", type=click.IntRange(1, 100_000), help="MiB to send.  [default: 512; between hosts 64]")
@click.option("--path", "only", type=click.Choice(PATHS), help="Between hosts: this path alone.")
@host_command
def net(call: CommandContext, hosts: tuple[str, ...], trips: int | None, large: int | None, only: str | None) -> None:
    """Measure the paths between two hosts, or two processes of this machine.

    Two HOSTs: by each path between them the round trip of 64 bytes (median, 99th percentile), and how fast the first
    reads from the second. For operators; it fills the network for some seconds a path.

    No HOST: the paths between this process and a child of it, with messages of 1 MiB. No agent is needed.
    """
    if not hosts:
        if only is not None:
            raise click.UsageError("--path is for two hosts")
        _local(call, trips or 2000, large or 512)
        return
    if len(hosts) != 2:
        raise click.UsageError("two hosts, or none for the paths of this machine")
    _between(call, hosts, (trips or 200, large or 64), PATHS if only is None else (only,))


def _local(call: CommandContext, trips: int, large: int) -> None:
    from actorgrid.transports.path_figures import measure_local_paths

    found: list[dict[str, Any]] = [each._asdict() for each in measure_local_paths(trips, large)]
    if call.json:
        call.document({"paths": found})
    else:
        _show(found)


def _between(call: CommandContext, names: tuple[str, ...], amounts: tuple[int, int], kinds: tuple[str, ...]) -> None:
    from actorgrid.client.http import segment

    trips, large = amounts
    if large > 256 or trips > 10_000:
        raise click.UsageError("between hosts: --large 256 and --trips 10000 at most")
    listed = call.http.get("/api/hosts")["hosts"]
    here, there = (find_host(listed, name) for name in names)
    if here["node_id"] == there["node_id"]:
        raise BadRequest(
            "a host has no path to itself", asked=" ".join(names), hint="the paths of one machine: actorgrid bench net"
        )
    found: list[dict[str, Any]] = []
    with progress(call.json, steps=True) as report:
        for done, kind in enumerate(kinds):
            report(f"{kind}: host {title(here)} reads from host {title(there)}", float(done), float(len(kinds)))
            wanted = {"to": there["node_id"], "path": kind, "bytes": large * MIB, "trips": trips}
            try:
                path = f"/api/hosts/{segment(here['node_id'])}/bench"
                found.append(call.http.post(path, wanted, timeout_s=BENCH_S))
            except ActorGridError as error:
                if len(kinds) == 1 or not found:
                    raise  # it says what is wrong with all of them
                found.append({"path": kind, "unavailable": error.message})
    several = _several_of_one({each["path"]: each for each in found})
    if call.json:
        call.document({"from": there["node_id"], "to": here["node_id"], "paths": found, "several_of_one": several})
        return
    say(f"host {title(here)} reads from host {title(there)}:")
    _show(found)
    if several is not None:
        say(
            f"several connections: {several['ratio']:.1f} times one stream; "
            f"the processors of both ends allow {several['ratio_possible']:.1f} times"
        )


def _several_of_one(found: dict[str, dict[str, Any]]) -> dict[str, float] | None:
    """How much faster several connections were than one stream, and could be on these processors."""
    one, several = found.get("tls", {}), found.get("tls_streams", {})
    cost = several.get("cost")
    if not one.get("mb_per_s") or not several.get("mb_per_s") or not cost or not cost["cpu_bound_mb_per_s"]:
        return None
    return {
        "ratio": round(several["mb_per_s"] / one["mb_per_s"], 2),
        "ratio_possible": round(cost["cpu_bound_mb_per_s"] / one["mb_per_s"], 2),
    }


def _show(found: list[dict[str, Any]]) -> None:
    costs = "CPU of both, at most" if any(each.get("cost") for each in found) else ""
    say(f"{'path':<14} {'p50':>12} {'p99':>12} {'bandwidth':>11} {costs:>27}".rstrip())
    for each in found:
        if each["unavailable"]:
            say(f"{each['path']:<14} {each['unavailable']}")
            continue
        times = f"{each['round_trip_us']:>9.1f} us {each['round_trip_p99_us']:>9.1f} us"
        say(f"{each['path']:<14} {times} {each['mb_per_s']:>6.0f} MB/s {_cost(each.get('cost')):>27}".rstrip())


def _cost(cost: dict[str, Any] | None) -> str:
    if not cost:
        return ""
    both_s = cost["cpu_s_per_gb_here"] + cost["cpu_s_per_gb_there"]
    return f"{both_s:.2f} s/GB, {cost['cpu_bound_mb_per_s']:.0f} MB/s"
