"""``key``: what opens the doors of all hosts of a cluster to clients on other machines."""

from __future__ import annotations

import click

from .call import CommandContext, host_command
from .printing import say
from .show import table
from .state import StateCommands
from .times import left, seconds, validity


@click.group(cls=StateCommands)
def command() -> None:
    """Make, list and revoke API keys, for clients on other machines.

    A key is a token that every host of the cluster takes: ACTORGRID_TOKEN, or connect(url, token=...).
    """


@command.command("create")
@click.option("--user", metavar="NAME", help="Whose it is; else yours.")
@click.option("--ttl", "ttl_s", default="30d", show_default=True, callback=seconds, help="How long: 8h, 30d.")
@host_command
def create(call: CommandContext, user: str | None, ttl_s: float) -> None:
    """Make one; it is shown once."""
    from actorgrid.client.user import user_name

    made = call.http.post("/api/keys", {"user_id": user or user_name(), "ttl_s": ttl_s})
    if call.json:
        call.document(made)
        return
    say(made["key"])
    lines = [f"export ACTORGRID_URL={made['url']}", "export ACTORGRID_TOKEN=KEY"]
    if made["ca_fingerprint"]:
        lines.append(f"export ACTORGRID_CA_FINGERPRINT={made['ca_fingerprint']}")
    else:
        lines[0] += "  # this host is alone: only clients on this machine reach it"
    say(f"\nfor {made['user_id']}, good for {left(ttl_s)}. Where it is used:", err=True)
    for line in lines:
        say(f"  {line}", err=True)


@command.command("list")
@host_command
def list_(call: CommandContext) -> None:
    """List them; secrets are not kept anywhere."""
    keys = call.http.get("/api/keys")["keys"]
    if call.json:
        call.document({"keys": keys})
        return
    rows = [[key["id"], key["user_id"], validity(key), key["made_by"]] for key in keys]
    table(["KEY", "USER", "STATE", "MADE BY"], rows, "no API keys: actorgrid key create")


@command.command("revoke")
@click.argument("key_id", metavar="ID")
@host_command
def revoke(call: CommandContext, key_id: str) -> None:
    """Take the key ID back: it opens nothing any more."""
    from actorgrid.client.http import segment

    answer = call.http.delete(f"/api/keys/{segment(key_id)}")
    call.answer(answer, f"{answer['id']} is revoked")
