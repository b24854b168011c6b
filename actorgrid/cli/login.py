"""``login`` and ``logout``: an API key by signing in at the cluster's identity provider, and giving it back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .call import CommandContext, host_command
from .key import ROLE_NAMES
from .printing import say
from .times import left, seconds


@click.command("login")
@click.option("--tenant", metavar="NAME", help="Of several in which your groups have a role, this one.")
@click.option("--role", type=click.Choice(ROLE_NAMES[:4]), help="Of several roles, this one.")
@click.option("--ttl", "ttl_s", callback=seconds, help="A shorter life of the key than the cluster gives: 1h.")
@click.option(
    "--ca",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Certificates that the identity provider is believed by; else the system's.",
)
@click.option("--print-key", is_flag=True, help="Print the key, and keep it nowhere.")
@host_command
def login(
    call: CommandContext,
    tenant: str | None,
    role: str | None,
    ttl_s: float | None,
    ca: Path | None,
    print_key: bool,
) -> None:
    """Sign in at the cluster's identity provider; commands with the same --url find the key.

    It shows an address and a code for a browser on any machine, and waits. The key is short-lived; its role and tenant
    are those that administrators give to your groups (oidc.groups).
    """
    from actorgrid.client.device_flow import DevicePrompt, device_token
    from actorgrid.client.logins import Login, keep_login
    from actorgrid.identity_provider import discover

    http = call.http
    offer = http.get("/login/oidc")
    ca_file = "" if ca is None else str(ca)

    def show(prompt: DevicePrompt) -> None:
        if call.json:
            call.document(
                {"event": "sign_in", "url": prompt.url, "code": prompt.code, "complete": prompt.url_with_code}
            )
            return
        say(f"sign in at  {prompt.url}", err=True)
        say(f"code        {prompt.code}", err=True)
        if prompt.url_with_code:
            say(f"or at once  {prompt.url_with_code}", err=True)
        say(f"waiting, at most {left(prompt.expires_s)} ...", err=True)

    provider = discover(str(offer["issuer"]), ca_file)
    token, nonce = device_token(
        provider, str(offer["client_id"]), str(offer["scopes"]), str(offer["token"]), show, ca_file=ca_file
    )
    asked = {"token": token, "nonce": nonce, "tenant": tenant, "role": role, "ttl_s": ttl_s}
    made: dict[str, Any] = http.post("/login/oidc", {name: value for name, value in asked.items() if value is not None})
    if not print_key:
        kept = Login(key=made["key"], key_id=made["id"], user_id=made["user_id"], expires_at=made["expires_at"])
        keep_login(http.url, kept)
    if call.json:
        call.document(made if print_key else {**made, "key": None})
        return
    if print_key:
        say(made["key"])
    where = "all tenants" if made["tenant"] == "*" else f"tenant {made['tenant']}"
    say(f"{made['user_id']}: {made['role']} of {where}, for {left(made['expires_at'] - made['made_at'])}", err=True)
    say(f"  export ACTORGRID_URL={http.url}", err=True)
    if made["ca_fingerprint"]:
        say(f"  export ACTORGRID_CA_FINGERPRINT={made['ca_fingerprint']}", err=True)


@click.command("logout")
@host_command
def logout(call: CommandContext) -> None:
    """Take back the key that login was given: it opens nothing any more."""
    from actorgrid.client.http import segment
    from actorgrid.client.logins import find_login, forget_login
    from actorgrid.errors import NotFound, WrongToken

    url = call.http.url
    found = find_login(url)
    if found is None:
        raise NotFound("nobody is signed in there", asked=url, hint="actorgrid login")
    try:
        call.http.delete(f"/api/keys/{segment(found['key_id'])}")
    except WrongToken:
        pass  # revoked already, or expired
    finally:
        forget_login(found["key_id"])
    call.answer({"id": found["key_id"], "user_id": found["user_id"]}, f"{found['user_id']}: signed out")
