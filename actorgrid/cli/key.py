"""``key``: what opens the doors of all hosts of a cluster, for whom and how far."""

from __future__ import annotations

from typing import Any

import click

from actorgrid.access import ROLES

from .call import CommandContext, host_command
from .printing import say
from .show import table
from .state import StateCommands
from .times import left, seconds, validity

ROLE_NAMES = tuple(role.value for role in ROLES)


@click.group(cls=StateCommands)
def command() -> None:
    """Make, list, rotate and revoke API keys, for clients on other machines.

    A key is a token that every host of the cluster takes: ACTORGRID_TOKEN, or connect(url, token=...).
    """


@command.command("create")
@click.option("--user", metavar="NAME", help="Whose it is; else yours.")
@click.option("--role", type=click.Choice(ROLE_NAMES), help="What it may; else all: an administrator of all tenants.")
@click.option("--tenant", metavar="NAME", help="Where; '*' is everywhere. Else: default, or that of your own key.")
@click.option("--name", default="", metavar="NAME", help="What it is called, to rotate it by.")
@click.option(
    "--ttl", "--expires", "ttl_s", default="30d", show_default=True, callback=seconds, help="How long: 8h, 30d."
)
@click.option("--for-models", is_flag=True, help="It opens the model gateways and no other door.")
@click.option("--model", "models", multiple=True, metavar="NAME", help="A model that it may ask; else all. Repeatable.")
@click.option("--requests-per-minute", type=click.IntRange(1), metavar="N", help="At all gateways together.")
@click.option("--tokens-per-minute", type=click.IntRange(1), metavar="N", help="Of prompts and answers.")
@click.option("--tokens-per-month", type=click.IntRange(1), metavar="N", help="A budget: what is over it is refused.")
@click.option("--requests-per-month", type=click.IntRange(1), metavar="N", help="A budget, as that of tokens.")
@host_command
def create(
    call: CommandContext,
    user: str | None,
    role: str | None,
    tenant: str | None,
    name: str,
    ttl_s: float,
    for_models: bool,
    models: tuple[str, ...],
    requests_per_minute: int | None,
    tokens_per_minute: int | None,
    tokens_per_month: int | None,
    requests_per_month: int | None,
) -> None:
    """Make one; it is shown once.

    With an option about models or their limits it is a key for models alone, as with --for-models.
    """
    from actorgrid.client.user import user_name

    asked: dict[str, Any] = {"user_id": user or user_name(), "ttl_s": ttl_s}
    # What is not said is not sent: hosts of before know nothing of roles.
    asked |= {key: value for key, value in (("role", role), ("tenant", tenant), ("name", name)) if value}
    limits = {
        "requests_per_minute": requests_per_minute or 0,
        "tokens_per_minute": tokens_per_minute or 0,
        "tokens_per_month": tokens_per_month or 0,
        "requests_per_month": requests_per_month or 0,
    }
    if for_models or models or any(limits.values()):
        asked["serving"] = {"models": list(models), **limits}
    _show(call, call.http.post("/api/keys", asked), ttl_s)


@command.command("rotate")
@click.argument("name", metavar="NAME")
@click.option(
    "--ttl",
    "--expires",
    "ttl_s",
    default="30d",
    show_default=True,
    callback=seconds,
    help="How long it lives.",
)
@click.option(
    "--overlap", "overlap_s", default="1d", show_default=True, callback=seconds, help="How long the old one goes on."
)
@click.option("--tenant", metavar="NAME", help="Of which tenant, where several have a key of that name.")
@host_command
def rotate(call: CommandContext, name: str, ttl_s: float, overlap_s: float, tenant: str | None) -> None:
    """Make another key like NAME; the old one is good for a while beside it.

    Two are good at a time: where there are two already, the older one is to be revoked first.
    """
    from actorgrid.client.http import segment

    asked = {"ttl_s": ttl_s, "overlap_s": overlap_s, "tenant": tenant}
    _show(call, call.http.post(f"/api/keys/{segment(name)}/rotate", asked), ttl_s)


def _show(call: CommandContext, made: dict[str, Any], ttl_s: float) -> None:
    if call.json:
        call.document(made)
        return
    say(made["key"])
    lines = [f"export ACTORGRID_URL={made['url']}", "export ACTORGRID_TOKEN=KEY"]
    if made["ca_fingerprint"]:
        lines.append(f"export ACTORGRID_CA_FINGERPRINT={made['ca_fingerprint']}")
    else:
        lines[0] += "  # this host is alone: only clients on this machine reach it"
    role, tenant = made.get("role", "admin"), made.get("tenant", "*")
    where = "all tenants: it may do everything" if (role, tenant) == ("admin", "*") else f"tenant {tenant}"
    say(f"\nfor {made['user_id']}, {role} of {where}; good for {left(ttl_s)}. Where it is used:", err=True)
    for line in lines:
        say(f"  {line}", err=True)
    if made.get("retires"):
        say(f"\nuntil then good beside it: {', '.join(made['retires'])}, {validity_of(made)}", err=True)


def validity_of(made: dict[str, Any]) -> str:
    """Until when the key goes on whose place another takes."""
    import time

    return f"for {left(max(0.0, made['retire_at'] - time.time()))}"


@command.command("list")
@host_command
def list_(call: CommandContext) -> None:
    """List them; secrets are not kept anywhere."""
    keys = call.http.get("/api/keys")["keys"]
    if call.json:
        call.document({"keys": keys})
        return
    rows = [
        [
            key["id"],
            key.get("name") or "-",
            key["user_id"],
            key.get("role", "admin"),
            key.get("tenant", "*"),
            validity(key),
            f"...{key['last']}" if key.get("last") else "-",
            _purpose(key.get("serving")),
            key["made_by"],
        ]
        for key in keys
    ]
    heads = ["KEY", "NAME", "USER", "ROLE", "TENANT", "STATE", "LAST", "OPENS", "MADE BY"]
    table(heads, rows, "no API keys: actorgrid key create")


def _purpose(serving: dict[str, Any] | None) -> str:
    """What a key opens, and within which limits."""
    if serving is None:
        return "doors"
    told = [", ".join(serving["models"]) or "models"]
    told += [f"{most:,} {of.replace('_per_', '/')}" for of, most in serving.items() if of != "models" and most]
    return "; ".join(told)


@command.command("revoke")
@click.argument("key_id", metavar="ID")
@host_command
def revoke(call: CommandContext, key_id: str) -> None:
    """Take the key ID back: it opens nothing any more."""
    from actorgrid.client.http import segment

    answer = call.http.delete(f"/api/keys/{segment(key_id)}")
    call.answer(answer, f"{answer['id']} is revoked")


@command.command("roles")
@host_command
def roles(call: CommandContext) -> None:
    """Show what each role may: nothing (-), what is its own, all of its tenant, yes, or only with all tenants."""
    from actorgrid.access import ROLES, TABLE

    if call.json:
        rights = {
            right.name.lower(): {role.value: reach.value for role, reach in zip(ROLES, row, strict=True)}
            for right, row in TABLE.items()
        }
        call.document({"rights": rights})
        return
    rows = [[f"{right.value[0]}: {right.value[1]}", *(reach.value for reach in row)] for right, row in TABLE.items()]
    table(["", *(role.value.upper() for role in ROLES)], rows, "")


@command.command("whoami")
@host_command
def whoami(call: CommandContext) -> None:
    """Say who one is to the cluster: user, role and tenant of the token that is used."""
    me = call.http.get("/api/me")
    text = f"{me['name']}: {me['role']} of {'all tenants' if me['tenant'] == '*' else 'tenant ' + me['tenant']}"
    call.answer(me, text)
