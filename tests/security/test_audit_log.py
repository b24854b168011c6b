"""The audit log of a host: what is kept, over restarts and past its bound, and what is found out of a changed log."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from actorgrid.actors.ledger.merkle_proofs import is_consistent, is_included, leaf_hash
from actorgrid.actors.security import audit_export, audit_log, audit_tree
from actorgrid.actors.security.audit_checkpoint import Checkpoint, notes_in, read_note, sign, verifier_key
from actorgrid.actors.security.audit_export import export_header, verify_export
from actorgrid.actors.security.audit_log import AuditLog
from actorgrid.actors.security.audit_records import AuditFacts, to_ocsf
from actorgrid.errors import AuditBroken, AuditGone

MakeLog = Callable[..., AuditLog]


@pytest.fixture
def make_log(tmp_path: Path) -> Iterator[MakeLog]:
    made: list[AuditLog] = []

    def make(bytes_max: int = 2**30) -> AuditLog:
        made.append(AuditLog(tmp_path / "audit", "h1", lambda: bytes_max))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (audit_tree, audit_log, audit_export):
        for name, value in (("CHUNK_BITS", 3), ("CHUNK", 8)):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)


def facts(number: int, user: str = "ann@lab", status: int = 200) -> AuditFacts:
    return AuditFacts(user, "k1", "user", "lab", "10.0.0.7", "POST", "/api/jobs", f"/api/jobs/{number}", status, "done")


def fill(log: AuditLog, count: int) -> None:
    """Add so many records, and wait until they are on the disk."""
    kept = threading.Event()
    for number in range(count):
        log.add(facts(number), kept.set if number == count - 1 else None)
    assert kept.wait(30)


def exported(log: AuditLog) -> list[bytes]:
    roots = log.roots[: log.first_kept // audit_tree.CHUNK]
    lines = [export_header(log.origin, log.verifier, log.first_kept, roots).encode()]
    while len(lines) - 1 + log.first_kept < log.size:
        lines += log.lines(log.first_kept + len(lines) - 1, audit_tree.CHUNK)
    return lines


@pytest.mark.usefixtures("small_chunks")
def test_records_are_kept_in_order_and_proven_over_restarts(make_log: MakeLog) -> None:
    log, heads = make_log(), []
    for _ in range(5):
        fill(log, 7)
        heads.append(read_note(log.note(), log.verifier))
        log.close()
        log = make_log()
    assert log.size == 35 and [head.size for head in heads] == [7, 14, 21, 28, 35]
    last = heads[-1]
    for seq in range(35):
        (line,) = log.lines(seq, 1)
        assert json.loads(line)["seq"] == seq
        assert is_included(leaf_hash(line), seq, 35, log.inclusion(seq, 35), last.root)
    for head in heads:
        assert is_consistent(head.size, 35, head.root, last.root, log.consistency(head.size, 35))
    assert verify_export(iter(exported(log)), [log.note()], None).signed == 35


@pytest.mark.usefixtures("small_chunks")
def test_past_the_bound_the_oldest_go_and_what_is_left_is_still_proven(make_log: MakeLog) -> None:
    log = make_log(bytes_max=4000)
    fill(log, 8)
    early = read_note(log.note(), log.verifier)
    fill(log, 60)
    assert 0 < log.first_kept < log.size == 68
    with pytest.raises(AuditGone):
        log.lines(0, 1)
    with pytest.raises(AuditGone):
        log.inclusion(0, 68)
    head = read_note(log.note(), log.verifier)
    assert is_consistent(8, 68, early.root, head.root, log.consistency(8, 68))
    found = verify_export(iter(exported(log)), [log.note()], log.verifier)
    assert (found.first, found.records, found.signed) == (log.first_kept, 68 - log.first_kept, 68)
    log.close()
    assert make_log().size == 68


CHANGES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "changed": lambda lines: [*lines[:4], lines[4].replace(b"ann@lab", b"bob@lab"), *lines[5:]],
    "cut out": lambda lines: [*lines[:4], *lines[5:]],
    "moved": lambda lines: [*lines[:4], lines[5], lines[4], *lines[6:]],
    "put in": lambda lines: [*lines[:5], lines[4], *lines[5:]],
    "end cut off": lambda lines: lines[:-3],
    "replaced by another log": lambda lines: [
        *(line.replace(b"ann@lab", b"eve@biz") for line in lines),
    ],
    "renumbered": lambda lines: [*lines[:4], *(line.replace(b'"seq":', b'"seq":0', 1) for line in lines[4:])],
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_export_that_was_changed_is_found_out(make_log: MakeLog, change: str) -> None:
    log = make_log()
    fill(log, 20)
    lines, note = exported(log), log.note()
    assert verify_export(iter(lines), [note], log.verifier).records == 20
    with pytest.raises(AuditBroken):
        verify_export(iter([lines[0], *CHANGES[change](lines[1:])]), [note], log.verifier)


@pytest.mark.parametrize("change", CHANGES)
def test_a_log_that_was_changed_on_the_disk_is_put_aside_and_the_next_one_says_so(
    make_log: MakeLog, tmp_path: Path, change: str
) -> None:
    log = make_log()
    fill(log, 20)
    log.close()
    path = tmp_path / "audit" / "000000.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in CHANGES[change](path.read_bytes().splitlines())))
    again = make_log()
    again.close()
    (record,), _ = again.newest(99, 9, lambda _: True)
    assert (record["what"], record["outcome"]) == ("a new log", "AuditBroken")
    assert (tmp_path / record["object"] / "000000.jsonl").exists() and again.verifier == log.verifier


def test_a_log_without_its_heads_is_put_aside(make_log: MakeLog, tmp_path: Path) -> None:
    log = make_log()
    fill(log, 3)
    log.close()
    (tmp_path / "audit" / "checkpoints").unlink()
    again = make_log()
    again.close()
    assert again.lines(0, 9)[0].find(b"AuditBroken") > 0 and again.size == 1


def test_a_line_that_was_being_written_is_no_record(make_log: MakeLog, tmp_path: Path) -> None:
    log = make_log()
    fill(log, 3)
    log.close()
    path = tmp_path / "audit" / "000000.jsonl"
    path.write_bytes(path.read_bytes() + b'{"seq":3,"at"')
    log = make_log()
    fill(log, 1)
    assert [json.loads(line)["seq"] for line in log.lines(0, 9)] == [0, 1, 2, 3]


def test_heads_of_others_and_forged_ones_are_refused(make_log: MakeLog) -> None:
    log = make_log()
    fill(log, 3)
    note, other = log.note(), Ed25519PrivateKey.generate()
    assert notes_in(note + "\n" + note) == [note, note]
    head = read_note(note, log.verifier)
    forged = sign(Checkpoint(head.origin, head.size, bytes(32)), other)
    for text, key in (
        (forged, log.verifier),
        (note, verifier_key(log.origin, other.public_key())),
        (note.replace("\n3\n", "\n4\n"), log.verifier),
        (note.replace("h1", "h2"), log.verifier),
        ("", log.verifier),
        (note, "nothing"),
    ):
        with pytest.raises(AuditBroken):
            read_note(text, key)
    lines = exported(log)
    with pytest.raises(AuditBroken, match="signed"):
        verify_export(iter(lines), [sign(Checkpoint(head.origin, 3, bytes(32)), log._key)], None)
    with pytest.raises(AuditBroken, match="export"):
        verify_export(iter([b"{}", *lines[1:]]), [note], None)


def test_pages_go_back_through_what_passes(make_log: MakeLog) -> None:
    log = make_log()
    fill(log, 30)
    page, before = log.newest(2**53, 10, lambda record: record["seq"] % 2 == 0)
    assert [record["seq"] for record in page] == list(range(28, 8, -2)) and before == 10
    page, before = log.newest(before, 10, lambda record: record["seq"] % 2 == 0)
    assert [record["seq"] for record in page] == [8, 6, 4, 2, 0] and before == 0


def test_an_event_of_ocsf_has_the_record_in_it(make_log: MakeLog) -> None:
    log = make_log()
    log.add(facts(0, status=403))
    fill(log, 1)
    event: dict[str, Any] = to_ocsf(log.lines(0, 1)[0])
    assert (event["class_uid"], event["type_uid"], event["status_id"]) == (6003, 600301, 2)
    assert json.loads(event["raw_data"])["user"] == event["actor"]["user"]["name"] == "ann@lab"
    assert event["src_endpoint"]["ip"] == "10.0.0.7"
