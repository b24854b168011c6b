"""``environments``: the Python environments that a host has built for work, and those that it is building."""

from __future__ import annotations

from typing import Any

import click

from .call import CommandContext, host_command, host_options
from .printing import say
from .show import ago, size, table
from .state import StateCommands

SHOWN = 12


class EnvironmentCommands(StateCommands):
    """Alone, it lists."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does: no arguments are not the wish for help here."""
        return click.Group.parse_args(self, ctx, args)


@click.group(cls=EnvironmentCommands, invoke_without_command=True)
@host_options
@click.pass_context
def command(ctx: click.Context) -> None:
    """List the Python environments that a host has built.

    Work asks for them with --requirements, --with and --python, in Python with env= and python=. Those that are being
    built are shown with the last that the build said.
    """
    if ctx.invoked_subcommand is not None:
        return
    call = ctx.ensure_object(CommandContext)
    found = call.http.get("/api/environments")["environments"]
    if call.json:
        call.document({"environments": found})
        return
    rows = [
        [
            each["digest"][:SHOWN],
            each["state"],
            each["python"],
            str(len(each["packages"])) if each["state"] == "ready" else "",
            size(each["size_bytes"]) if each["state"] == "ready" else "",
            ago(each["used_at"]) if each["used_at"] else "",
            each["last_line"],
        ]
        for each in found
    ]
    header = ["ENVIRONMENT", "STATE", "PYTHON", "PACKAGES>", "SIZE>", "USED", "SAYS"]
    table(header, rows, "no Python environments on this host")


@command.command("show")
@click.argument("environment")
@host_command
def show(call: CommandContext, /, environment: str) -> None:
    """List the packages of ENVIRONMENT, of which the first characters do."""
    found = _found(call, environment)
    if call.json:
        call.document(found)
        return
    for package in found["packages"]:
        say(package)


@command.command("remove")
@click.argument("environment")
@host_command
def remove(call: CommandContext, /, environment: str) -> None:
    """Remove ENVIRONMENT from the host, unless work uses it. Who asks for it again has it built again."""
    digest = _found(call, environment)["digest"]
    call.answer(call.http.delete(f"/api/environments/{digest}"), f"removed {digest[:SHOWN]}")


def _found(call: CommandContext, environment: str) -> dict[str, Any]:
    from actorgrid.errors import BadRequest, NotFound

    found = [
        each for each in call.http.get("/api/environments")["environments"] if each["digest"].startswith(environment)
    ]
    if not found:
        raise NotFound("there is no such environment on this host", asked=environment, hint="actorgrid environments")
    if len(found) > 1:
        raise BadRequest(
            "that begins several environments",
            asked=environment,
            found=", ".join(each["digest"][:16] for each in found),
        )
    chosen: dict[str, Any] = found[0]
    return chosen
