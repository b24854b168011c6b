"""``secret``: what work is to know and nobody is to read: passwords, tokens of other services."""

from __future__ import annotations

import base64
import sys
from datetime import datetime
from typing import BinaryIO

import click

from actorgrid.errors import BadRequest
from actorgrid.secret_words import SECRET_BYTES_MAX

from .call import CommandContext, host_command
from .show import table
from .state import StateCommands


@click.group(cls=StateCommands)
def command() -> None:
    """Set, list and remove secrets.

    \b
        actorgrid secret set hf-token            # asks for it, without showing it
        actorgrid run --secret hf-token:HF_TOKEN -- python train.py

    A value goes in and is never shown again: the cluster keeps it sealed, and opens it for work that names it.
    """


@command.command("set")
@click.argument("name", metavar="NAME")
@click.option("--file", type=click.File("rb"), metavar="FILE", help="The value is all that is in it; - is stdin.")
@click.option("--shared", is_flag=True, help="All users of the tenant may give it to their work; else you alone.")
@click.option("--user", metavar="NAME", help="Whose it is (an administrator of all tenants says so); else yours.")
@host_command
def set_(call: CommandContext, name: str, file: BinaryIO | None, shared: bool, user: str | None) -> None:
    """Set a secret; without --file it is read from stdin, or asked for on a terminal.

    Of what is typed or comes by stdin one newline at the end is no part of it.
    """
    from actorgrid.client.http import segment
    from actorgrid.client.user import user_name

    if file is not None and file.name != "<stdin>":
        value = file.read(SECRET_BYTES_MAX + 1)
    elif sys.stdin.isatty():
        value = click.prompt(f"the value of {name}", hide_input=True, err=True).encode()
    else:
        value = sys.stdin.buffer.read(SECRET_BYTES_MAX + 2).removesuffix(b"\n")
    if not 0 < len(value) <= SECRET_BYTES_MAX:
        raise BadRequest(
            "a secret has a value, and not too long a one",
            found=f"{len(value)} bytes" if len(value) <= SECRET_BYTES_MAX else f"more than {SECRET_BYTES_MAX} bytes",
            hint="give it by --file, or pipe it in",
        )
    body = {"value": base64.b64encode(value).decode(), "shared": shared, "user_id": user or user_name()}
    made = call.http.put(f"/api/secrets/{segment(name)}", body)
    call.answer(made, f"{made['name']} of tenant {made['tenant']} is set")


@command.command("list")
@host_command
def list_(call: CommandContext) -> None:
    """List secrets by name: whose they are, and when they were set."""
    answer = call.http.get("/api/secrets")
    if call.json:
        call.document(answer)
        return
    rows = [
        [
            each["name"],
            each["tenant"],
            each["user_id"],
            "tenant" if each["shared"] else "owner",
            datetime.fromtimestamp(each["set_at"]).strftime("%Y-%m-%d %H:%M"),
        ]
        for each in answer["secrets"]
    ]
    table(["NAME", "TENANT", "OWNER", "FOR", "SET AT"], rows, "no secrets: actorgrid secret set NAME")


@command.command("rm")
@click.argument("name", metavar="NAME")
@click.option("--tenant", metavar="NAME", help="Of which tenant, for administrators of all.")
@host_command
def remove(call: CommandContext, name: str, tenant: str | None) -> None:
    """Remove a secret. What has been given it already keeps what it read."""
    from actorgrid.client.http import segment

    path = f"/api/secrets/{segment(name)}"
    gone = call.http.request("DELETE", path, query={"tenant": tenant} if tenant else None)
    call.answer(gone, f"{gone['name']} of tenant {gone['tenant']} is removed")
