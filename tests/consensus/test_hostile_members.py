"""A host of the cluster that turns against it: what the leader takes of its proposals, by links that are real ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.consensus.admission import refusal
from actorgrid.actors.ledger import commands
from actorgrid.actors.ledger.command import VERBS, Command, Proposer, read_command
from actorgrid.actors.raft.codec import encode_conf_change
from actorgrid.actors.raft.messages import ConfChange, Entry, Message
from actorgrid.errors import NotAVoter
from tests.consensus.rig import AT, host_record, job_record
from tests.consensus.test_cluster import Town
from tests.hostile.examples import KEY, RAFT, examples, furnished


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Town]:
    """Three voters and d, which learns."""
    town = Town(tmp_path)
    town.found("a")
    for host_id in "bcd":
        town.join(host_id)
    town.until(lambda: town.voters() == {1, 2, 3} and town.settled(), "three voters and a learner")
    yield town
    town.close()


def leads(town: Town) -> Any:
    assert town.leader is not None
    return town.live[town.leader]


def send(town: Town, host_id: str, *payloads: bytes, kind: Any = "command") -> None:
    """Proposals of *host_id*, as its Raft would send them, whatever is in them."""
    liar, leader = town.live[host_id], leads(town)
    entries = tuple(Entry(0, 0, kind, payload) for payload in payloads)
    liar._links.send(
        (Message("propose", leader._replica.node, liar._replica.node, leader._replica.term, entries=entries),)
    )
    town.node.advance(1.0)


def bring(town: Town, host_id: str, command: Command | dict[str, Any], session: str = "") -> None:
    command = command.to_plain() if isinstance(command, Command) else command
    send(town, host_id, json.dumps([session, 1, command]).encode())


def test_what_gives_rights_or_only_a_leadership_decides_is_not_for_every_host() -> None:
    by = {proposer: {verb for verb, its in VERBS.items() if its.proposer is proposer} for proposer in Proposer}
    assert by[Proposer.VOTER] == {
        "reseal_secret",
        "create_api_key",
        "create_join_token",
        "redeem_join_token",
        "publish_bundle",
        "issue_certificate",
        "seal_authority",
    }
    assert {"grant_attempt", "grant_lease", "lose_host", "expire_lock", "add_member"} <= by[Proposer.LEADER]
    assert {verb for verb, its in VERBS.items() if its.of_term} < by[Proposer.LEADER]


def test_of_the_commands_of_a_learner_those_are_taken_that_are_its_to_bring() -> None:
    ledger = furnished()
    made = [read_command(plain) for plain in examples(ledger)]
    found = {(command.verb, refusal(command, "h2/x", "h2", False, ledger) is None) for command in made}
    taken = {kind for kind, good in found if good}
    doors = {verb for verb, its in VERBS.items() if its.proposer is Proposer.DOOR}
    # Of itself, h2 reports its trust here and ends its member of the gang; the other examples are h1's.
    assert taken == {*doors, "report_trust", "end_attempt"}
    assert refusal(commands.RegisterHost(host_record("h2"), at=AT), "h2/x", "h2", False, ledger) is None
    assert refusal(commands.ReleaseLock("deploy", "o1", at=AT), "h1/x", "h2", False, ledger) is not None


@pytest.mark.parametrize(
    "command",
    [
        commands.CreateApiKey(KEY, at=AT),
        commands.RemoveMember("b", "me", at=AT, force=True),
        commands.AddMember("z", RAFT, "f9", at=AT),
        commands.ChangeMember("d", at=AT, votes=True, fingerprint="ff"),
        commands.ChangeMember("a", at=AT, addresses={}),
        commands.CompareDigest(256, {"root": "00"}, 6, at=AT),
        commands.NewTerm(2**50, at=AT),
        commands.RegisterHost(host_record("a", incarnation=99), at=AT),
        {"type": "register_host", "v": 1, "at": AT, "host": {"host_id": "d", "devices": [[]]}},
        {"type": "set_setting", "v": 2, "at": AT, "key": "k", "value": 1},
        {"type": "fly", "v": 1, "at": AT},
    ],
    ids=lambda command: command.verb if isinstance(command, Command) else command["type"],
)
def test_what_a_learner_may_not_bring_never_comes_into_the_log(four: Town, command: Command | dict[str, Any]) -> None:
    index = leads(four)._replica.status().last_index
    bring(four, "d", command)
    assert leads(four)._replica.status().last_index == index
    assert leads(four)._admission.refused.total() == 1


def test_nor_do_bytes_that_are_no_command_or_other_voters(four: Town) -> None:
    index = leads(four)._replica.status().last_index
    send(four, "d", b"x", b"[]", b"[" * 5_000)
    send(four, "b", b"x")
    send(four, "d", encode_conf_change((ConfChange("add_voter", 4),), "auto"), kind="conf_change")
    assert leads(four)._replica.status().last_index == index
    assert leads(four)._admission.refused == {"BadRequest": 4, "changes the voters": 1}


def test_a_member_ends_and_releases_its_own_work_only(four: Town) -> None:
    for host_id in "cd":
        four.propose(commands.RegisterHost(host_record(host_id), at=AT), host_id)
    four.propose(commands.SubmitJobs([job_record("j")], at=AT), "d")
    term = leads(four)._replica.ledger.term
    token = four.propose(commands.GrantAttempt("j", 1, "c", 1, [0], term, at=AT), four.leader or "")["token"]
    four.propose(
        commands.GrantLease(
            "l1", "s", "c", 1, [1], {"gpu_count": 1, "gpu_milli": 1}, pool="", env={}, term=term, at=AT
        ),
        four.leader or "",
    )
    for command in (
        commands.EndAttempt("j.1", token, "failed", at=AT),
        commands.StartAttempt("j.1", token, at=AT),
        commands.EndAttempt("j.2", token, "failed", at=AT),
        commands.ReleaseLease("l1", at=AT),
    ):
        bring(four, "d", command)
    assert leads(four)._admission.refused == {"about another host's work": 4}
    assert set(leads(four)._replica.ledger.allocations) == {"j.1", "l1"}
    bring(four, "c", commands.EndAttempt("j.1", token, "failed", at=AT))
    bring(four, "c", commands.ReleaseLease("l1", at=AT))
    assert not leads(four)._replica.ledger.allocations
    bring(four, "c", commands.EndAttempt("j.1", token, "failed", at=AT))  # again: its answer was lost
    assert leads(four)._admission.refused.total() == 4


def test_nobody_answers_in_the_session_of_another_host(four: Town) -> None:
    bring(four, "d", commands.SetSetting("k", 1, "me", at=AT), session="a/gateway-00-1")
    assert leads(four)._admission.refused == {"under another host's session": 1}
    bring(four, "d", commands.SetSetting("k", 1, "me", at=AT), session="d/gateway-00-1")
    assert leads(four)._replica.ledger.settings == {"k": 1}


def test_a_learners_own_servers_are_told_where_rights_are_given(four: Town) -> None:
    with pytest.raises(NotAVoter, match="those that vote: a, b, c"):
        four.propose(commands.CreateApiKey(KEY, at=AT), "d")
    four.propose(commands.CreateApiKey(KEY, at=AT), "b")
    four.propose(commands.RevokeApiKey("k1", "me", at=AT), "d")


def test_a_learner_that_says_it_leads_is_obeyed_by_nobody(four: Town) -> None:
    liar, index = four.live["d"], leads(four)._replica.status().last_index
    entries = (Entry(index + 1, 50, "command", b"x"),)
    for node in (1, 2, 3):
        liar._links.send(
            (
                Message("append", node, 4, 50, index, leads(four)._replica.term, index + 1, entries, sequence=1),
                Message("heartbeat", node, 4, 50, commit=index + 1, sequence=2),
                Message("vote", node, 4, 51, 99, 50, force=True),
                Message("timeout_now", node, 4, 52),
            )
        )
    four.node.advance(1.0)
    assert {four.live[id]._replica.term for id in "abc"} == {leads(four)._replica.term} and leads(
        four
    )._replica.term < 50
    assert {id: four.live[id].metrics()["ledger_messages_not_counted_total"] for id in "abc"} == dict.fromkeys("abc", 4)
    four.propose(commands.SetSetting("k", 1, "me", at=AT), "b")


def test_proposals_come_through_a_change_of_the_leader(four: Town) -> None:
    """They wait for the state that they are judged by, and none of them is lost by that."""
    before = four.leader
    assert before is not None
    four.kill(before)
    four.until(lambda: four.leader not in (None, before), "another leader")
    for number in range(20):
        host_id = next(id for id in "dcba" if id in four.live)
        four.propose(commands.SetSetting("k", number, "me", at=AT), host_id)
    assert not leads(four)._admission.refused
