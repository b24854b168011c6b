"""A host of the cluster that turns against it: what the leader takes of its proposals, by links that are real ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.consensus.admission import BY_LEADER, FROM_DOORS, FROM_VOTERS, OF_ITS_WORK, OF_ITSELF, refusal
from actorgrid.actors.ledger import commands
from actorgrid.actors.ledger.command_checks import _FIELDS
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


def bring(town: Town, host_id: str, command: dict[str, Any], session: str = "") -> None:
    send(town, host_id, json.dumps([session, 1, command]).encode())


def test_every_command_has_one_rule_of_who_may_bring_it() -> None:
    groups: list[Any] = [OF_ITSELF.keys(), OF_ITS_WORK, FROM_DOORS, FROM_VOTERS, BY_LEADER]
    assert sorted(kind for group in groups for kind in group) == sorted(_FIELDS)


def test_of_the_commands_of_a_learner_those_are_taken_that_are_its_to_bring() -> None:
    ledger = furnished()
    found = {(command["type"], refusal(command, "h2/x", "h2", False, ledger) is None) for command in examples(ledger)}
    taken = {kind for kind, good in found if good}
    # Of itself, h2 reports its trust here and ends its member of the gang; the other examples are h1's.
    assert taken == {*FROM_DOORS, "report_trust", "end_attempt"}
    assert refusal(commands.register_host(host_record("h2"), AT), "h2/x", "h2", False, ledger) is None
    assert refusal(commands.release_lock("deploy", "o1", AT), "h1/x", "h2", False, ledger) is not None


@pytest.mark.parametrize(
    "command",
    [
        commands.create_api_key(KEY, AT),
        commands.remove_member("b", "me", AT, force=True),
        commands.add_member("z", RAFT, "f9", AT),
        commands.change_member("d", AT, votes=True, fingerprint="ff"),
        commands.change_member("a", AT, addresses={}),
        commands.compare_digest(256, {"root": "00"}, 6, AT),
        commands.new_term(2**50, AT),
        commands.register_host(host_record("a", incarnation=99), AT),
        {"type": "register_host", "v": 1, "at": AT, "host": {"host_id": "d", "devices": [[]]}},
        {"type": "set_setting", "v": 2, "at": AT, "key": "k", "value": 1},
        {"type": "fly", "v": 1, "at": AT},
    ],
    ids=lambda command: command["type"],
)
def test_what_a_learner_may_not_bring_never_comes_into_the_log(four: Town, command: dict[str, Any]) -> None:
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
        four.propose(commands.register_host(host_record(host_id), AT), host_id)
    four.propose(commands.submit_jobs([job_record("j")], AT), "d")
    term = leads(four)._replica.ledger.term
    token = four.propose(commands.grant_attempt("j", 1, "c", 1, [0], term, AT), four.leader or "")["token"]
    four.propose(
        commands.grant_lease("l1", "s", "c", 1, [1], {"gpu_count": 1, "gpu_milli": 1}, "", {}, term, AT),
        four.leader or "",
    )
    for command in (
        commands.end_attempt("j.1", token, "failed", AT),
        commands.start_attempt("j.1", token, AT),
        commands.end_attempt("j.2", token, "failed", AT),
        commands.release_lease("l1", AT),
    ):
        bring(four, "d", command)
    assert leads(four)._admission.refused == {"about another host's work": 4}
    assert set(leads(four)._replica.ledger.allocations) == {"j.1", "l1"}
    bring(four, "c", commands.end_attempt("j.1", token, "failed", AT))
    bring(four, "c", commands.release_lease("l1", AT))
    assert not leads(four)._replica.ledger.allocations
    bring(four, "c", commands.end_attempt("j.1", token, "failed", AT))  # again: its answer was lost
    assert leads(four)._admission.refused.total() == 4


def test_nobody_answers_in_the_session_of_another_host(four: Town) -> None:
    bring(four, "d", commands.set_setting("k", 1, "me", AT), session="a/gateway-00-1")
    assert leads(four)._admission.refused == {"under another host's session": 1}
    bring(four, "d", commands.set_setting("k", 1, "me", AT), session="d/gateway-00-1")
    assert leads(four)._replica.ledger.settings == {"k": 1}


def test_a_learners_own_servers_are_told_where_rights_are_given(four: Town) -> None:
    with pytest.raises(NotAVoter, match="those that vote: a, b, c"):
        four.propose(commands.create_api_key(KEY, AT), "d")
    four.propose(commands.create_api_key(KEY, AT), "b")
    four.propose(commands.revoke_api_key("k1", "me", AT), "d")


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
    four.propose(commands.set_setting("k", 1, "me", AT), "b")


def test_proposals_come_through_a_change_of_the_leader(four: Town) -> None:
    """They wait for the state that they are judged by, and none of them is lost by that."""
    before = four.leader
    assert before is not None
    four.kill(before)
    four.until(lambda: four.leader not in (None, before), "another leader")
    for number in range(20):
        host_id = next(id for id in "dcba" if id in four.live)
        four.propose(commands.set_setting("k", number, "me", AT), host_id)
    assert not leads(four)._admission.refused
