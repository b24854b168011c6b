"""``token``: what lets further hosts into the cluster."""

from __future__ import annotations

from typing import Any

import click

from .call import CommandContext, host_command
from .printing import say
from .show import table
from .state import StateCommands
from .times import left, seconds, validity


@click.group(cls=StateCommands)
def command() -> None:
    """Make, list and revoke join tokens.

    A token lets a new host in: actorgrid up --join HOST --token TOKEN.
    """


@command.command("create")
@click.option("--ttl", "ttl_s", default="1h", show_default=True, callback=seconds, help="How long: 30m, 1h, 7d.")
@click.option("--uses", type=click.IntRange(1, 1000), default=1, show_default=True, help="For how many hosts.")
@host_command
def create(call: CommandContext, ttl_s: float, uses: int) -> None:
    """Make one; it is shown once."""
    made = call.http.post("/api/tokens", {"ttl_s": ttl_s, "uses": uses})
    if call.json:
        call.document(made)
        return
    say(made["token"])
    hosts = "one host" if uses == 1 else f"{uses} hosts"
    say(
        f"\nfor {hosts}, within {left(ttl_s)}. On the new host:\n  actorgrid up --join {made['join']} --token TOKEN",
        err=True,
    )


@command.command("list")
@host_command
def list_(call: CommandContext) -> None:
    """List them; secrets are not kept anywhere."""
    tokens = call.http.get("/api/tokens")["tokens"]
    if call.json:
        call.document({"tokens": tokens})
        return
    rows = [
        [token["id"], _state(token), f"{len(token['used_by'])}/{token['uses_max']}", _hosts(token)] for token in tokens
    ]
    table(["TOKEN", "STATE", "USED>", "BY"], rows, "no join tokens: actorgrid token create")


@command.command("revoke")
@click.argument("token_id", metavar="ID")
@host_command
def revoke(call: CommandContext, token_id: str) -> None:
    """Take the token ID back: it lets nobody in any more. Hosts that came by it stay."""
    from actorgrid.client.http import segment

    answer = call.http.delete(f"/api/tokens/{segment(token_id)}")
    call.answer(answer, f"{answer['id']} is revoked")


def _state(token: dict[str, Any]) -> str:
    return validity(token, used_up=len(token["used_by"]) >= token["uses_max"])


def _hosts(token: dict[str, Any]) -> str:
    return " ".join(use["host_id"][:8] for use in token["used_by"]) or "-"
