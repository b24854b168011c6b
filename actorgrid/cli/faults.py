"""``faults``: what happened to hosts, and was done about them."""

from __future__ import annotations

import time
from typing import Any

import click

from . import candidates
from .call import CommandContext, host_command
from .host_names import find_host
from .show import span, table


@click.command()
@click.argument("host", metavar="[HOST]", required=False, shell_complete=candidates.hosts)
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="How many, newest first.")
@click.option("--actions", is_flag=True, help="Only what was done, not what was found.")
@host_command
def command(call: CommandContext, host: str | None, limit: int, actions: bool) -> None:
    """List what failed on hosts, and what was done about it.

    And what is predicted to fail, and what was well again.

    actorgrid why host HOST has the whole of one host.
    """
    meant = "" if host is None else str(find_host(call.http.get("/api/hosts")["hosts"], host)["node_id"])
    asked = 1000 if actions else limit
    rows: list[dict[str, Any]] = call.http.get("/api/faults", limit=asked, host_id=meant)["faults"]
    if actions:
        rows = [row for row in rows if row["kind"] == "action"][:limit]
    if call.json:
        call.document({"faults": rows})
        return
    shown = [
        [span(time.time() - row["at"]), row["hostname"], row["what"], row["outcome"], row["reason"]] for row in rows
    ]
    table(["AGO>", "HOST", "WHAT", "HOW", "WHY"], shown, "nothing failed, and nothing was done", ["HOW", "AGO"])
