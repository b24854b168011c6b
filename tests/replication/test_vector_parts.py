"""Vectors told in part: what is found is right, whatever differs, and asking for it ends."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.actors.replication import vector_parts
from actorgrid.actors.replication.exchange import Send
from actorgrid.actors.replication.packets import VectorPart, VectorTold, decode_message, encode
from actorgrid.actors.replication.vector_parts import RECENT_MAX, VectorParts
from actorgrid.actors.replication.version_vector import Vector, differing
from tests.replication.gossip_rounds import NOW_US, LightHost

origins = st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 3))
vectors = st.dictionaries(origins, st.integers(1, 5), max_size=12)


@settings(max_examples=200, deadline=None)
@given(vectors, vectors, st.lists(origins, max_size=6))
def test_a_part_is_the_vector_or_is_not_enough(mine: Vector, theirs: Vector, told: list[Any]) -> None:
    part = VectorParts(theirs).tell(told, 1, 0, ask=True)
    found = VectorParts(mine).whole(part)
    if set(differing(mine, theirs)) <= set(told) and theirs.keys() <= mine.keys():
        assert found == theirs
    else:
        assert found in (None, theirs)


def test_what_changes_is_told_first_and_the_sum_goes_on_from_there() -> None:
    vector: Vector = {("a", number): 1 for number in range(1, 40)}
    parts, dice = VectorParts(vector), random.Random(1)
    other = VectorParts(dict(vector))
    for number in range(300):
        changed = {("a", dice.randrange(1, 60)): number + 2}
        parts.changes(changed)
        vector.update(changed)
        assert next(iter(changed)) == parts.recent(1)[0]
        assert parts.tell((), 1, 0, ask=True).rest == VectorParts(dict(vector)).tell((), 1, 0, ask=True).rest
    part = parts.tell(parts.recent(RECENT_MAX), 1, 0, ask=True)
    assert other.whole(part) is None, "some of them it has never heard of"
    del vector[("a", 5)]
    parts.forget()
    assert ("a", 5) not in parts.recent(RECENT_MAX)
    assert parts.tell((), 1, 0, ask=True).rest == VectorParts(dict(vector)).tell((), 1, 0, ask=True).rest


def test_two_origins_with_one_short_id_are_told_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_parts, "short_id", lambda origin: b"same__")
    vector: Vector = {("a", 1): 3, ("b", 1): 4}
    part = VectorParts(vector).tell([("a", 1)], 1, 0, ask=True)
    assert VectorParts({**vector, ("a", 1): 2}).whole(part) is None


def pair(seed: int) -> tuple[dict[str, LightHost], dict[str, LightHost], random.Random]:
    """Two hosts, a third that wrote to both, and what all three hold."""
    dice = random.Random(seed)
    names = ["a", "b", "c", "d"]
    hosts = {name: LightHost(name, names, seed * 10 + number) for number, name in enumerate(names)}
    return {name: hosts[name] for name in "ab"}, hosts, dice


def talk(hosts: dict[str, LightHost], sends: list[tuple[str, Send]]) -> list[tuple[str, Any]]:
    """Deliver until nobody says anything more; all messages, in order."""
    found: list[tuple[str, Any]] = []
    while sends:
        source, send = sends.pop(0)
        if send.peer not in hosts:
            continue
        found.append((source, decode_message(send.packet)))
        host = hosts[send.peer]
        answers = host.do(host.gossip.receive(source, send.packet, NOW_US)) + host.do(host.gossip.committed())
        sends += [(send.peer, answer) for answer in answers]
        assert len(found) < 60, "they talk on and on"
    return found


@pytest.mark.parametrize("seed", range(30))
def test_whatever_two_hosts_lack_of_each_other_a_digest_brings_and_talking_ends(seed: int) -> None:
    two, hosts, dice = pair(seed)
    for turn in range(6):
        for _ in range(dice.randrange(8)):
            writer = hosts[dice.choice("abcd")]
            writer.increment(dice.choice("xyz"))
            writer.do(writer.gossip.committed())
            if writer.name not in two:  # it tells one of the two, both, or none
                offers = writer.do(writer.gossip.offer_to_all(writer.gossip.me, writer.gossip.vector[writer.gossip.me]))
                talk({**two, writer.name: writer}, [(writer.name, send) for send in offers if dice.random() < 0.5])
        first = two[dice.choice("ab")]
        first.gossip.counts["rounds"] += 5
        for peer in (peer for host in two.values() for peer in host.gossip.peers.values()):
            peer.in_flight = {}
        talk(two, [(first.name, send) for send in first.do(first.gossip.round()) if send.peer in two])
        if turn:  # the first time vectors are told whole, and who answers may have nothing to say yet
            talk(two, [(first.name, send) for send in first.do(first.gossip.ask(_other(first.name)))])
        told = two["a"].gossip.vector, two["b"].gossip.vector
        assert told[0] == told[1] or turn == 0


def _other(name: str) -> str:
    return "b" if name == "a" else "a"


def test_once_both_are_known_to_read_parts_no_vector_is_told_whole() -> None:
    two, hosts, _ = pair(1)
    for name in "ab":
        hosts[name].increment("x")
        hosts[name].do(hosts[name].gossip.committed())
    talk(two, [("a", send) for send in hosts["a"].do(hosts["a"].gossip.ask("b"))])
    assert two["a"].gossip.vector == two["b"].gossip.vector
    hosts["a"].increment("x")
    hosts["a"].do(hosts["a"].gossip.committed())
    said = talk(two, [("b", send) for send in hosts["b"].do(hosts["b"].gossip.ask("a"))])
    assert any(isinstance(message, VectorPart) for _, message in said)
    assert not any(isinstance(message, VectorTold) for _, message in said)
    assert two["a"].gossip.vector == two["b"].gossip.vector


def test_a_host_of_the_version_before_is_told_whole_vectors() -> None:
    two, hosts, _ = pair(2)
    for name in "ab":
        hosts[name].increment("x")
        hosts[name].do(hosts[name].gossip.committed())
    old = VectorTold({("c", 1): 1, **two["b"].gossip.vector}, 1, ask=True)  # it has something that a lacks
    answers = two["a"].do(two["a"].gossip.receive("b", encode(old), NOW_US))
    assert next(type(decode_message(send.packet)) for send in answers if send.peer == "b") is VectorTold
    asked = two["a"].do(two["a"].gossip.ask("b"))
    assert isinstance(decode_message(asked[0].packet), VectorTold)
