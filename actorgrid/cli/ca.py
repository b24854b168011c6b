"""``ca``: the authority that issues the hosts' certificates."""

from __future__ import annotations

import time
from typing import Any

import click

from actorgrid.errors import WrongState

from .call import CommandContext, host_command
from .host_names import hostnames
from .printing import say
from .show import progress, span, table
from .state import StateCommands

LOOK_S = 0.5


@click.group(cls=StateCommands)
def command() -> None:
    """Show the cluster's authority, rotate it; renew certificates.

    Hosts renew their certificates by themselves; every voter has the authority's key.
    """


@command.command("show")
@host_command
def show(call: CommandContext) -> None:
    """Show the authority, who has its key, and every host's certificate."""
    found = call.http.get("/api/ca")
    if call.json:
        call.document(found)
        return
    names = hostnames(call)
    say(f"cluster      {found['cluster_id']}")
    for each in found["authorities"]:
        say(f"authority    generation {each['generation']}, {each['state']}, ends {_left(each['valid_until'])}")
        say(f"fingerprint  {each['fingerprint']}")
        say(f"key          {', '.join(names.get(id, id) for id in each['holders']) or 'nobody has told yet'}")
    if found["rotation"]["next"]:
        say(f"rotation     {_waits(found['rotation'], names)}")
    elif found["rotation_due"]:
        say("next         actorgrid ca rotate: the authority has less than a year left")
    rows = [
        [
            names.get(host["node_id"], host["node_id"]),
            str(host["node"]),
            "-" if host["generation"] is None else str(host["generation"]),
            "-" if host["valid_until"] is None else _left(host["valid_until"]),
            "yes" if host["keys"] else "no",
        ]
        for host in found["hosts"]
    ]
    say()
    table(["HOST", "NODE>", "AUTHORITY>", "CERTIFICATE ENDS", "HAS KEY"], rows, "no members")


@command.command("certificate")
@host_command
def certificate(call: CommandContext) -> None:
    """Print the authority's certificate (PEM), for programs that check TLS by a file.

    curl has --cacert for it; OpenAI's Python client and others take SSL_CERT_FILE, node takes NODE_EXTRA_CA_CERTS.
    While one authority takes over from another there are two.
    """
    from actorgrid.client.pinned import authority_pem

    members = call.http.get("/api/members")
    if not members.get("ca_fingerprint"):
        raise WrongState(
            "this host is alone, so it has no authority",
            asked="the authority's certificate",
            found="no cluster",
            hint="begin one: start it with actorgrid up --listen ADDRESS",
        )
    urls = [str(member["url"]) for member in members["members"] if member.get("url")]
    text = authority_pem(str(members["ca_fingerprint"]), urls)
    call.answer({"pem": text}, text.rstrip())


@command.command("rotate")
@click.option("--cancel", is_flag=True, help="Call a rotation off that has not come to its switch.")
@click.option("--detach", is_flag=True, help="Begin it and return; it goes on by itself.")
@host_command
def rotate(call: CommandContext, cancel: bool, detach: bool) -> None:
    """Replace the authority by its next generation; waits until every host has a certificate of it.

    Every host accepts both meanwhile. A host that is away holds it up: ca show names it. Not for a key that others may
    know: docs/trust.md says what to do then.
    """
    begun = call.http.post("/api/ca/rotate", {"call_off": cancel})
    if not cancel and not detach:
        _follow(call)
    if call.json:
        call.document(begun)
    elif cancel:
        say(f"generation {begun['generation']} is called off")
    elif detach:
        say(f"generation {begun['generation']} is introduced; actorgrid ca show says how far it is")
    else:
        say(f"generation {begun['generation']} signs: {begun['fingerprint']}")


@command.command("renew")
@click.option("--new-key", is_flag=True, help="With a new key; links believe the old one until the new one is in use.")
@host_command
def renew(call: CommandContext, new_key: bool) -> None:
    """Have the host ask for a new certificate now, before it is due."""
    asked = call.http.post("/api/ca/renew", {"new_key": new_key})
    call.answer(asked, "asked for; actorgrid ca show says when the new one ends")


def _follow(call: CommandContext) -> None:
    with progress(call.json) as report:
        while (rotation := call.http.get("/api/ca")["rotation"])["next"]:
            report(_waits(rotation, {}), 1.0 if rotation["next"] == "switch" else 2.0, 3.0)
            time.sleep(LOOK_S)


def _waits(rotation: dict[str, Any], names: dict[str, str]) -> str:
    hosts = [names.get(id, id) for id in rotation["waits_for"]]
    words = {"switch": "every host has to know the next one", "retire": "every host has to renew its certificate"}
    return f"{words[rotation['next']]}; waits for {', '.join(hosts[:3]) or 'the next look'}"


def _left(at: float) -> str:
    left_s = at - time.time()
    return f"in {span(left_s)}" if left_s > 0 else f"{span(-left_s)} ago"
