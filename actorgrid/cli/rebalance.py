"""``rebalance``: have sessions' workers leave hosts that have too much to do."""

from __future__ import annotations

import click

from . import candidates
from .call import CommandContext, host_command
from .host_names import find_host
from .printing import say
from .show import table


@click.command()
@click.option(
    "--off",
    "hosts",
    metavar="HOST",
    multiple=True,
    shell_complete=candidates.hosts,
    help="Also off this host, however loaded. Repeatable.",
)
@click.option("--yes", is_flag=True, help="Do it; without, only say what would move.")
@host_command
def command(call: CommandContext, hosts: tuple[str, ...], yes: bool) -> None:
    """Have sessions' workers leave hosts with too much to do.

    A worker that is to leave ends what it has; its client gives it back and asks for another, which is placed on a less
    loaded host if that has room. Jobs stay where they are.
    """
    there = call.http.get("/api/hosts")["hosts"]
    names = {host["node_id"]: str(host["hostname"]) for host in there}
    exclude = [find_host(there, host)["node_id"] for host in hosts]
    plan = call.http.post("/api/rebalance", {"exclude": exclude, "dry_run": not yes}, repeat=True)
    if call.json:
        call.document(plan)
        return
    rows = [
        [
            move["lease_id"],
            names.get(move["host"], move["host"]),
            names.get(move["to"], move["to"]),
            "told" if move["done"] else "planned" if plan["dry_run"] else "not told",
            move["why"],
        ]
        for move in plan["moves"]
    ]
    table(["LEASE", "OFF", "TO", "STATE", "WHY"], rows, "nothing is to move", ["WHY", "TO"])
    if plan["stays"]:
        say(f"{plan['stays']} allocation(s) stay: jobs, work with GPUs, and what no other host has room for")
    if plan["dry_run"] and rows:
        say("do it: actorgrid rebalance --yes")
