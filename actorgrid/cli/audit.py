"""``audit``: who asked what of a host, proven; exports are verified without the cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from actorgrid.errors import AuditBroken, BadRequest

from .call import CommandContext, host_command
from .printing import say
from .show import ago, table
from .state import StateCommands

LISTED_MAX = 1000


@click.group(cls=StateCommands)
def command() -> None:
    """Show, export, prove and verify who asked what of a host.

    Each host has a log of its own, of what came to its doors: --url says which.
    """


@command.command("list")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, LISTED_MAX), help="How many.")
@host_command
def list_(call: CommandContext, limit: int) -> None:
    """List the latest records in reach, newest first."""
    answer = call.http.get("/api/audit", limit=limit)
    if call.json:
        call.document(answer)
        return
    rows = [
        [
            str(each["seq"]),
            ago(each["at"]),
            each["user"] or "-",
            each["key"] or "-",
            each["role"] or "-",
            each["address"] or "here",
            f"{each['verb']} {each['object']}",
            each["outcome"],
        ]
        for each in answer["records"]
    ]
    table(["RECORD", "WHEN", "USER", "KEY", "ROLE", "FROM", "WHAT", "OUTCOME"], rows, "nothing is in the log yet")


@command.command("export")
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--ocsf", is_flag=True, help="As events of OCSF 1.3, one JSON line each, in place of the log's lines.")
@host_command
def export(call: CommandContext, path: Path, ocsf: bool) -> None:
    """Write all records that are kept to FILE, which must not be there."""
    from actorgrid.actors.security.audit_export import export_header
    from actorgrid.actors.security.audit_records import to_ocsf

    head = call.http.get("/api/audit/head")
    origin = head["key"].partition("+")[0]
    at = head["first"]
    with _new(path) as file:
        if not ocsf:
            roots = [bytes.fromhex(root) for root in head["roots"]]
            file.write(export_header(origin, head["key"], at, roots).encode() + b"\n")
        while at < head["size"]:
            lines = call.http.get("/api/audit/export", first=at).splitlines()[: head["size"] - at]
            if not lines:
                break
            for line in lines:
                file.write((json.dumps(to_ocsf(line)).encode() if ocsf else line) + b"\n")
            at += len(lines)
    call.answer(
        {"file": str(path), "first": head["first"], "records": at - head["first"]}, f"{at - head['first']} records"
    )


@command.command("heads")
@click.argument("path", metavar="[FILE]", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--all", "of_all", is_flag=True, help="Those of all hosts that the cluster holds, and of their logs of before."
)
@host_command
def heads(call: CommandContext, path: Path | None, of_all: bool) -> None:
    """Append a signed head of the log to FILE: keep it where the host's root cannot change it.

    Without FILE: list what the cluster holds of each host's log.
    """
    if path is None:
        _list_heads(call, call.http.get("/api/audit/heads"))
        return
    if of_all:
        held = call.http.get("/api/audit/heads")["heads"]
        notes = [head["note"] for each in held for head in (*each["ended"], each)]
        document, text = {"file": str(path), "heads": len(notes)}, f"{len(notes)} heads of {len(held)} hosts"
    else:
        head = call.http.get("/api/audit/head")
        notes = [head["note"]]
        document, text = {"file": str(path), "size": head["size"]}, f"a head of {head['size']} records"
    with path.open("ab") as file:
        file.write(b"".join(note.encode() + b"\n" for note in notes))
    call.answer(document, text)


def _list_heads(call: CommandContext, held: dict[str, Any]) -> None:
    if call.json:
        call.document(held)
        return
    rows = [
        [
            each["hostname"],
            str(head["log"]),
            str(head["size"]),
            ago(head["at"]),
            "" if head is each else "ended",
            head["key"],
        ]
        for each in held["heads"]
        for head in (*each["ended"], each)
    ]
    table(
        ["HOST", "LOG", "RECORDS", "TOLD", "STATE", "KEY"], rows, "the cluster holds no heads; a host alone holds none"
    )


@command.command("send")
@click.argument("target", metavar="URL")
@click.option("--cursor", type=click.Path(dir_okay=False, path_type=Path), help="Keeps where to go on the next time.")
@click.option("--from", "first", metavar="RECORD", type=click.IntRange(0), help="Begin there; else at the cursor.")
@click.option("--follow", is_flag=True, help="Go on with what comes.")
@click.option(
    "--ca", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Certificates that are believed."
)
@host_command
def send(
    call: CommandContext, target: str, cursor: Path | None, first: int | None, follow: bool, ca: Path | None
) -> None:
    """Send records to URL: syslog+tls://HOST[:6514] (RFC 5424), or https://HOST/PATH (CloudEvents).

    A record may come twice, none is left out: what was sent is written to the cursor afterwards.
    """
    from .audit_send import read_cursor, send_all, sender_of

    sender = sender_of(target, ca)
    sent, at = send_all(call, sender, read_cursor(cursor, first), cursor, follow)
    call.answer({"sent": sent, "next": at}, f"{sent} records sent; the next is {at}")


@command.command("key")
@host_command
def key(call: CommandContext) -> None:
    """Print the key by which heads of this host's log are checked: NAME+ID+KEY."""
    head = call.http.get("/api/audit/head")
    call.answer({"key": head["key"]}, head["key"])


@command.command("prove")
@click.argument("seq", metavar="RECORD", type=click.IntRange(0))
@host_command
def prove(call: CommandContext, seq: int) -> None:
    """Show record RECORD with the proof that it is in the log, after checking it."""
    from actorgrid.actors.ledger.merkle_proofs import is_included, leaf_hash
    from actorgrid.actors.security.audit_checkpoint import read_note

    found = call.http.get("/api/audit/proof", seq=seq)
    head = read_note(found["note"], found["key"])
    if head.size != found["size"]:
        found = call.http.get("/api/audit/proof", seq=seq, size=head.size)
    proof = [bytes.fromhex(part) for part in found["proof"]]
    if not is_included(leaf_hash(found["record"].encode()), seq, head.size, proof, head.root):
        raise AuditBroken("the host does not prove that the record is in its log", asked=str(seq))
    if call.json:
        call.document(found)
        return
    say(found["record"])
    say(f"record {seq} is one of the {head.size} of {head.origin}: {len(proof)} hashes prove it", err=True)


@command.command("grew")
@click.argument("heads_path", metavar="HEADS", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--key", "verifier", metavar="NAME+ID+KEY", help="The log's key; else that which the host tells.")
@host_command
def grew(call: CommandContext, heads_path: Path, verifier: str | None) -> None:
    """Have the host prove that its log only grew since the heads in HEADS: nothing of before was changed."""
    from actorgrid.actors.ledger.merkle_proofs import is_consistent
    from actorgrid.actors.security.audit_checkpoint import notes_in, notes_of, read_note

    known = verifier or str(call.http.get("/api/audit/head")["key"])
    origin = known.partition("+")[0]
    heads = [read_note(note, known) for note in notes_of(notes_in(heads_path.read_text(encoding="utf-8")), origin)]
    heads = [head for head in heads if head.size]
    if not heads:
        raise BadRequest(
            "there are no heads of that log in the file", asked=str(heads_path), hint="actorgrid audit heads FILE"
        )
    for head in heads:
        found = call.http.get("/api/audit/growth", first=head.size)
        last = read_note(found["note"], known)
        if last.size != found["second"]:
            found = call.http.get("/api/audit/growth", first=head.size, second=last.size)
        proof = [bytes.fromhex(part) for part in found["proof"]]
        if not is_consistent(head.size, last.size, head.root, last.root, proof):
            raise AuditBroken("the log is not the one that was signed", asked=f"{head.size} records", found=known[:80])
    call.answer({"heads": len(heads), "size": last.size}, f"{last.size} records; it only grew since {len(heads)} heads")


@command.command("verify")
@click.argument("path", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--heads", "heads_path", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Heads from elsewhere."
)
@click.option("--key", "verifier", metavar="NAME+ID+KEY", help="The log's key; else that which the file names.")
@host_command
def verify(call: CommandContext, path: Path, heads_path: Path | None, verifier: str | None) -> None:
    """Check an exported log against signed heads. No cluster is asked."""
    from actorgrid.actors.security.audit_checkpoint import notes_in
    from actorgrid.actors.security.audit_export import verify_export

    notes = notes_in(heads_path.read_text(encoding="utf-8")) if heads_path is not None else []
    if heads_path is not None and not notes:
        raise BadRequest("there are no heads in the file", asked=str(heads_path), hint="actorgrid audit heads FILE")
    with path.open("rb") as file:
        found = verify_export(iter(file), notes, verifier)
    answer: dict[str, Any] = {
        "first": found.first,
        "records": found.records,
        "heads": found.heads,
        "signed": found.signed,
    }
    text = f"{found.records} records from {found.first} on, in order; {found.heads} heads fit"
    if not found.heads:
        text += ": whether a record was changed, nobody can tell without --heads"
    elif found.signed < found.first + found.records:
        text += f"; those behind record {found.signed - 1} have no head yet"
    if found.heads and verifier is None:
        text += "; by the key that the file itself names: --key says whose it is to be"
    call.answer(answer, text)


def _new(path: Path) -> Any:
    try:
        return path.open("xb")
    except FileExistsError:
        raise BadRequest("the file is there already", asked=str(path), hint="name another") from None
    except OSError as error:
        raise BadRequest(f"cannot write {path}: {error.strerror}", asked=str(path)) from error
