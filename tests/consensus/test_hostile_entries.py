"""Entries that are no commands, committed by a leader of another mind: they cost nothing, nowhere, at no start."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest

from actorgrid.actors.consensus.apply import apply_entry
from actorgrid.actors.consensus.ledger_check import check as check_files
from actorgrid.actors.ledger import command as command_module
from actorgrid.actors.ledger.command import VERBS, Command, read_command
from actorgrid.actors.ledger.commands import ChangeMember, FoundCluster, SetQuota, SetSetting
from actorgrid.actors.ledger.entry_codec import decode_entry
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.raft.messages import Entry, HardState
from actorgrid.errors import BadRequest, LedgerTooNew, LogCorrupted
from tests.consensus.rig import AT, Host
from tests.consensus.test_actor import MakeHost
from tests.consensus.test_cluster import Town
from tests.hostile.examples import examples, furnished
from tests.hostile.mutations import ROUNDS, mutated, nested
from tests.ledger.test_state import Book

NO_COMMANDS = (
    b"x",
    b"\xff\xfe",
    b"null",
    b"[]",
    b'["s", 1]',
    b'["s", 1, []]',
    b'["s", true, {}]',
    b'["s", 1.5, {}]',
    b'[{}, 1, {"type": "set_setting"}]',
    b"[" * 100_000,
    json.dumps(["s", 1, {"type": "set_setting", "v": 1, "at": 0, "key": "k", "value": 1, "x": nested(700)}]).encode(),
    b'["s", 1, {"a": ' + b"9" * 10_000 + b"}]",
    b'["s", 1, {"a": "' + b"a" * 2**24 + b'"}]',
)


def put(host: Host, *payloads: bytes) -> None:
    """Into the log and committed, past every door."""
    for payload in payloads:
        host.live._replica.propose(payload)
    host.live._pump()
    host.node.advance(0.1)


def kinds(ledger: Ledger) -> dict[str, str]:
    """The digests of its records; the rest is the term, which a start raises."""
    return {kind: text for kind, text in ledger.digest().items() if kind not in ("rest", "root")}


def records(host: Host) -> dict[str, str]:
    return kinds(host.live._replica.ledger)


@pytest.mark.parametrize("payload", NO_COMMANDS, ids=lambda payload: repr(payload[:20]))
def test_bytes_that_are_no_command_are_refused_and_change_nothing(payload: bytes) -> None:
    with pytest.raises(BadRequest, match="no command"):
        decode_entry(payload)
    ledger = furnished()
    before = ledger.digest()
    done = apply_entry(ledger, Entry(ledger.index + 1, 1, "command", payload))
    assert done.unreadable and isinstance(done.outcome.error, BadRequest) and not done.outcome.changes
    assert ledger.digest() == before


def test_a_ledger_that_such_an_entry_has_reached_goes_on_and_starts_again(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    host.propose(SetSetting("a", 1, "me", at=AT))
    put(host, b"x", *NO_COMMANDS[:6])
    host.propose(SetSetting("b", 2, "me", at=AT))
    digest = records(host)
    assert host.live.metrics()["ledger_unreadable_entries_total"] == 7
    for _ in range(2):
        host.kill()
        host.start()
        assert records(host) == digest
        assert host.query("settings") == {"settings": {"a": 1, "b": 2}}
    host.propose(SetSetting("c", 3, "me", at=AT))


def test_verify_names_the_entries_that_are_no_commands(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    host.propose(SetSetting("a", 1, "me", at=AT))
    put(host, b"x")
    host.propose(SetSetting("b", 2, "me", at=AT))
    host.kill()
    found = check_files(host.context.paths.ledger_dir, lambda *_: None)
    assert [(each.index, each.term) for each in found.unreadable] == [(found.log.last_index - 1, 1)]
    assert "not JSON" in found.unreadable[0].reason
    assert found.state.settings == {"a": 1, "b": 2} and not found.problems


def test_verify_names_them_behind_what_is_known_to_be_committed_too(make_host: MakeHost, tmp_path: Path) -> None:
    """Of a voter that was killed by one: the commit index was noted before it."""
    host = make_host()
    host.start()
    host.propose(FoundCluster("c1", "h1", {"raft": "10.0.0.1:7402"}, "aa", at=AT))
    put(host, b"x")
    host.kill()
    folder = tmp_path / "copy"
    shutil.copytree(host.context.paths.ledger_dir, folder)
    found = check_files(folder, lambda *_: None)
    assert [each.index for each in found.unreadable] == [found.log.last_index]


def test_verify_finds_a_log_that_ends_before_what_it_says_is_committed(make_host: MakeHost) -> None:
    """Also when the mark of how far it was durable is gone with the end."""
    host = make_host()
    host.start()
    host.propose(SetSetting("a", 1, "me", at=AT))
    log = host.live._replica.log
    log.write([HardState(1, 1, log.last_index + 5)])
    host.kill()
    (host.context.paths.ledger_dir / "segments" / "acknowledged").unlink()
    with pytest.raises(LogCorrupted, match="acknowledged") as found:
        check_files(host.context.paths.ledger_dir, lambda *_: None)
    assert found.value.hint


def test_an_unknown_command_is_refused_in_the_same_words_by_every_later_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command: dict[str, Any] = {"type": "fly", "v": 1, "at": AT}
    with pytest.raises(BadRequest) as before:
        read_command(command, {})
    monkeypatch.setattr(command_module, "VERSION", 2)
    monkeypatch.setitem(VERBS, "swim", type("Swim", (Command,), {"verb": "swim", "since": 2}))
    with pytest.raises(BadRequest) as after:
        read_command(command, {})
    assert before.value.to_dict() == after.value.to_dict()
    # Nor does a kind of version 2 become known because an entry says that it is of version 1.
    with pytest.raises(BadRequest, match="no command 'swim'"):
        read_command({"type": "swim", "v": 1, "at": AT}, {})


def test_hosts_of_both_versions_refuse_what_not_all_members_know_and_apply_what_all_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    book = Book()
    book.do(FoundCluster("c1", "a", {"raft": "10.0.0.1:7402"}, "aa", at=AT))
    command = {**SetQuota("ann", {"gpu_milli": 1}, "me", at=AT).to_plain(), "v": 2}
    said = []
    for version in (1, 2):
        monkeypatch.setattr(command_module, "VERSION", version)
        outcome = Ledger.restore(book.ledger.snapshot()).apply(book.ledger.index + 1, command, "s", 1)
        assert outcome.error is not None
        said.append(outcome.error.to_dict())
    assert said[0] == said[1]
    monkeypatch.setattr(command_module, "VERSION", 2)
    book.do(ChangeMember("a", at=AT, ledger_version=2))
    assert Ledger.restore(book.ledger.snapshot()).apply(book.ledger.index + 1, command).error is None
    # A program that was put back below what this host has told: it stops, where refusing would make it another ledger.
    monkeypatch.setattr(command_module, "VERSION", 1)
    for ledger in (book.ledger, Ledger()):  # the same without a cluster, where nobody else could have proposed it
        with pytest.raises(LedgerTooNew, match="does not know"):
            ledger.apply(ledger.index + 1, command)


@pytest.mark.parametrize("seed", range(2 * ROUNDS))
def test_no_command_whatever_is_in_it_stops_the_ledger(seed: int, tmp_path: Path) -> None:
    """With its history, its subscribers, its snapshots; and what it leaves behind starts again and is the same."""
    dice = Random(seed)
    town = Town(tmp_path, ledger_snapshot_every=100)
    try:
        town.found("a")
        for number, command in enumerate(_story(), 1):
            put_in(town, command, f"s{number}")
        for number in range(300):
            consensus = town.live["a"]
            command = dice.choice(examples(consensus._replica.ledger))
            if command["type"] in ("remove_member", "lose_host") and dice.random() < 0.8:
                continue
            put_in(town, mutated(command, dice) if dice.random() < 0.9 else command, f"f{number}")
            assert consensus._failed is None, command
        digest = kinds(town.live["a"]._replica.ledger)
        town.kill("a")
        town.start("a")
        assert kinds(town.live["a"]._replica.ledger) == digest
    finally:
        town.close()


def put_in(town: Town, command: Any, session: str) -> None:
    plain = command.to_plain() if isinstance(command, Command) else command
    town.live["a"]._replica.propose(json.dumps([session, 1, plain]).encode())
    town.live["a"]._pump()
    town.node.settle()


def _story() -> list[Any]:
    """The commands that furnish a ledger."""
    told: list[Any] = []

    class Listening(Ledger):
        def apply(self, index: int, command: Any, session: str = "", seq: int = 0) -> Any:
            told.append(command)
            return super().apply(index, command, session, seq)

    furnished(Listening())
    return told


def test_a_name_that_is_no_utf_8_stops_no_voter(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    host.propose(SetSetting("\ud800", 1, at=AT))
    names = [event["id"] for event in host.query("events")["events"]]  # asked for, they are written before
    assert "\\ud800" in names
