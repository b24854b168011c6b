"""The membership server over real UDP sockets: several hosts in one process, each with its own node and clock."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.consensus.ledger_check import _command
from actorgrid.actors.gateway.server.hub import view_change
from actorgrid.actors.host.children import CHILDREN, OF_A_CLUSTER, of_a_cluster
from actorgrid.actors.ledger.commands import ChangeMember, MarkUnreachable, RotateGossipKey
from actorgrid.actors.ledger.entry_codec import encode_entry
from actorgrid.actors.ledger.messages import Propose
from actorgrid.actors.membership import actor as membership_actor
from actorgrid.actors.membership.datagrams import DatagramSocket, socket_address
from actorgrid.actors.membership.instructions import SiteReached
from actorgrid.actors.membership.packets import GOSSIP, PING, Packet
from actorgrid.actors.membership.records import DEAD, MemberStatus, first_incarnation
from actorgrid.actors.membership.seal import DatagramSeal, Keyring
from actorgrid.actors.raft.messages import Entry
from actorgrid.configs.schema import Settings
from actorgrid.errors import BadRequest, LedgerRefused, PortInUse
from actorgrid.supervisors.inspection import shown_message
from tests.consensus.rig import AT
from tests.membership.hosts import QUICK, MemberHost, Town

MakeTown = Callable[..., Town]


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(membership_actor.PROFILES, "lan", QUICK)
    monkeypatch.setattr(membership_actor, "AGAIN_S", 0.05)


@pytest.fixture
def make_town(tmp_path: Path) -> Iterator[MakeTown]:
    made: list[Town] = []

    def make(count: int, **more: Any) -> Town:
        town = Town(tmp_path, **more)
        made.append(town)
        for name in "abcdefgh"[:count]:
            town.add(name)
        return town

    yield make
    for town in made:
        town.close()


def together(make_town: MakeTown, count: int, **more: Any) -> Town:
    town = make_town(count, **more)
    town.until(town.agreed, "all know each other")
    return town


def secret_of(town: Town) -> str:
    return town.ledger.gossip_key.secret.hex()


def mark(town: Town, name: str) -> Any:
    return town.ledger.hosts[name].get("unreachable")


# -- hosts that come and go


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_host_that_dies_is_marked_with_its_witnesses_and_freed_by_its_next_start(
    make_town: MakeTown, address: str
) -> None:
    town = together(make_town, 4, address=address)
    assert town.ledger.gossip_key.number == 1
    town.hosts["d"].die()
    town.until(lambda: mark(town, "d") is not None, "the ledger says so")
    assert set(mark(town, "d")["witnesses"]) <= {"a", "b", "c"} and len(mark(town, "d")["witnesses"]) >= 2
    assert town.ledger.hosts["d"]["state"] == "up", "unreachable is not lost: that is for leases"
    town.start_again("d")
    assert mark(town, "d") is None
    town.until(town.agreed, "it is back")
    assert mark(town, "d") is None


def test_a_host_that_is_reached_again_in_the_same_life_is_freed(make_town: MakeTown) -> None:
    town = together(make_town, 3)
    deaf = town.hosts["c"].server
    deaf.runtime.unwatch(deaf._socket.fileno())
    town.cut = {("a", "c"), ("b", "c")}
    town.until(lambda: mark(town, "c") is not None, "it is marked")
    deaf.runtime.watch(deaf._socket.fileno(), deaf._read)
    town.cut = set()
    town.until(lambda: mark(town, "c") is None and town.agreed(), "it is freed")
    assert town.hosts["a"].figures["membership_became_dead_total"] >= 1


def test_a_host_whose_links_still_lead_to_it_is_not_even_suspected(make_town: MakeTown) -> None:
    """Its UDP port is closed by somebody's firewall."""
    town = together(make_town, 3)
    deaf = town.hosts["c"].server
    deaf.runtime.unwatch(deaf._socket.fileno())
    asked = town.hosts["a"].figures.get("membership_reached_by_link_total", 0)
    town.until(
        lambda: town.hosts["a"].figures.get("membership_reached_by_link_total", 0) >= asked + 3, "it was asked by link"
    )
    assert "c" in town.hosts["a"].sees("alive") and mark(town, "c") is None


def test_a_relay_says_which_sites_it_does_not_reach(make_town: MakeTown, caplog: pytest.LogCaptureFixture) -> None:
    server = together(make_town, 2).hosts["a"].server
    caplog.set_level(logging.INFO)
    core = server._core
    assert core is not None
    for reached, shown in ((False, ["west"]), (True, [])):
        core._unreached = set(shown)
        core.instructions.append(SiteReached("west", reached))
        server._carry_out()
        assert server.status()["unreached_sites"] == shown
        assert server.metrics()["membership_unreached_sites"] == len(shown)
    assert [name for name in ("not reached", "reached again") if f"site west is {name}" in caplog.text] == [
        "not reached",
        "reached again",
    ]


def test_a_host_that_somebody_still_reaches_is_not_marked(make_town: MakeTown) -> None:
    town = together(make_town, 4)
    deaf = town.hosts["d"].server
    deaf.runtime.unwatch(deaf._socket.fileno())
    town.cut = {("a", "d"), ("b", "d")}
    # Whatever gossip says: c reaches it by a link, so it is a way that is broken, and not the host.
    leader = town.hosts["a"].server
    status = leader._core.table.records["d"]  # type: ignore[union-attr]
    leader._core.hear(status._replace(state=DEAD, by="b"))  # type: ignore[union-attr]
    leader._carry_out()
    town.until(lambda: "d" in leader._reached_by, "somebody said that it reaches it")
    assert mark(town, "d") is None and "c" in leader._reached_by["d"]


def test_who_reaches_a_host_that_the_leader_misses_is_known(make_town: MakeTown) -> None:
    town = together(make_town, 4)
    town.cut = {("a", "d")}
    town.lose_contact("d")
    leader = town.hosts["a"]
    ask = membership_actor.ReachedBy()
    town.until(lambda: len(leader.node.request("membership", ask).get("d", [])) == 2, "b and c reach it")
    assert sorted(leader.node.request("membership", ask)["d"]) == ["b", "c"]
    town.lose_contact()
    town.cut = set()
    town.until(lambda: not leader.node.request("membership", ask), "nothing is asked any more")


def test_a_new_leader_goes_on_with_what_is_marked(make_town: MakeTown) -> None:
    town = together(make_town, 4)
    town.hosts["d"].die()
    town.until(lambda: mark(town, "d") is not None, "it is marked")
    town.leader = "b"
    for name in "abc":
        town.hosts[name].restart_server()
    town.start_again("d")
    town.until(lambda: town.agreed() and mark(town, "d") is None, "all is well")


def test_an_orderly_stop_is_no_accusation(make_town: MakeTown) -> None:
    town = together(make_town, 3)
    host = town.hosts["c"]
    host.server.spawn(host.server.stop("test"))  # type: ignore[arg-type]
    others = [town.hosts[name] for name in "ab"]
    town.until(lambda: all(other.sees("left") == {"c"} for other in others), "its farewell is heard")
    town.until(lambda: host.server._core is None, "it is closed")
    assert mark(town, "c") is None


# -- the server itself


def test_a_server_that_is_started_again_in_one_life_repeats_no_nonce(make_town: MakeTown) -> None:
    town = together(make_town, 3)
    before = {name: town.hosts[name].server._seal.refused.get("replayed", 0) for name in "ab"}
    for _ in range(3):
        town.hosts["c"].restart_server()
        heard = town.hosts["a"].figures["membership_datagrams_received_total"]
        town.until(town.agreed, "it is a member again")
        town.until(
            lambda heard=heard: town.hosts["a"].figures["membership_datagrams_received_total"] > heard + 5, "talk"
        )
    assert {name: town.hosts[name].server._seal.refused.get("replayed", 0) for name in "ab"} == before
    assert mark(town, "c") is None


def test_without_its_port_membership_is_off_and_the_host_lives(make_town: MakeTown) -> None:
    town = make_town(1)
    port = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        real = membership_actor.DatagramSocket
        town.add("b").die()
        port = town.hosts["b"].base_port + 3
        taken.bind(("127.0.0.1", port))
        with pytest.raises(PortInUse):
            real("127.0.0.1", port)
        host = town.start_again("b")
        town.until(lambda: "cannot listen" in host.server.status()["reason"], "it says why")
    town.until(lambda: host.server.status()["state"] == "on", "it listens")
    assert host.figures["membership_on"] == 1.0


def test_hosts_of_an_earlier_version_keep_it_off_until_they_are_upgraded(make_town: MakeTown) -> None:
    town = make_town(2, ledger_version=3)
    town.do(ChangeMember("a", at=AT, ledger_version=4))
    host = town.hosts["a"]
    town.until(lambda: "earlier version: b" in host.server.status()["reason"], "it says why")
    assert town.ledger.gossip_key.number == 0 and host.figures["membership_on"] == 0.0
    town.do(ChangeMember("b", at=AT, ledger_version=4))
    town.until(town.agreed, "all know each other")


def test_a_host_alone_in_its_cluster_has_no_secret(make_town: MakeTown) -> None:
    town = make_town(1)
    host = town.hosts["a"]
    town.until(lambda: "only member" in host.server.status()["reason"], "it says why")
    assert town.ledger.gossip_key.number == 0


def test_the_server_is_one_of_a_clusters_hosts_unless_it_is_switched_off() -> None:
    settings = Settings()
    assert "membership" in {spec.id for spec in of_a_cluster(settings)}
    assert "membership" not in {spec.id for spec in CHILDREN}, "a host that is alone has nobody to ask"
    settings.cluster.membership = "off"
    assert {spec.id for spec in OF_A_CLUSTER} - {spec.id for spec in of_a_cluster(settings)} == {"membership"}


def test_a_socket_counts_what_it_cannot_send_and_lives() -> None:
    link = DatagramSocket("127.0.0.1", 0)
    try:
        link.send("no-address", b"x")
        link.send("host.example:7403", b"x")  # a name would be looked up
        link.send("[2001:db8::1]:7403", b"x")  # of the other family
        link.send("127.0.0.1:9", b"x" * 70_000)
        link.send("127.0.0.1:1", b"x")  # nobody is there: the answer is an ICMP error
        link.send(link.address, b"x")
        assert [each for each, _ in link.read()] == [b"x"]
        assert link.failed["address"] == 2 and link.failed["emsgsize"] == 1 and sum(link.failed.values()) == 4
        for _ in range(100):
            link.send(link.address, b"y")
        assert (len(link.read()), len(link.read()), len(link.read())) == (64, 36, 0)
    finally:
        link.close()
    assert socket_address("[::1]:7403") == ("::1", 7403) and socket_address("1.2.3.4:70000") is None


# -- hostile datagrams


def bytes_to(host: MemberHost, *datagrams: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for datagram in datagrams:
            stranger.sendto(datagram, ("127.0.0.1", host.base_port + 3))


def lie(about: str, by: str) -> MemberStatus:
    return MemberStatus(about, "127.0.0.1:9", first_incarnation(1), DEAD, by)


def test_hostile_datagrams_are_counted_and_change_nothing(make_town: MakeTown) -> None:
    town = together(make_town, 3)
    host = town.hosts["a"]
    core, keys = host.server._core, host.server._keys
    assert core is not None
    ping = Packet(GOSSIP, "b", 0, "", (lie("c", "b"),))
    sealed = town.hosts["b"].server._seal
    good, whole = sealed.seal(ping._replace(records=())), sealed.seal(ping)
    flipped = bytes([*whole[:-1], whole[-1] ^ 1])
    strange = DatagramSeal("b", 1, Keyring(1, os.urandom(32)), sealed._counter + 1).seal(ping)
    another_key = DatagramSeal("b", 1, Keyring(9, keys.secret)).seal(ping)
    far_life = DatagramSeal("b", 2**31, keys).seal(ping)
    stranger = DatagramSeal("stranger", 1, keys).seal(ping._replace(sender="stranger"))
    own = DatagramSeal("a", 1, keys).seal(ping._replace(sender="a"))
    before = dict(host.server.status()["refused"])
    kinds = {
        "forged": (flipped, strange),
        "replayed": (good,),
        "oversize": (b"x" * 1_401, b"x" * 9_000),
        "truncated": (b"", good[:17], good[:24]),
        "version": (b"\x07" + good[1:],),
        "key_unknown": (another_key,),
        "future": (far_life,),
        "no_member": (stranger,),
        "own_name": (own,),
    }
    bytes_to(host, good, *(datagram for datagrams in kinds.values() for datagram in datagrams))
    expected = {kind: before.get(kind, 0) + len(datagrams) for kind, datagrams in kinds.items()}

    def counted() -> bool:
        return all(host.server.status()["refused"].get(kind, 0) >= count for kind, count in expected.items())

    town.until(counted, "counted")
    assert {kind: host.server.status()["refused"][kind] for kind in kinds} == expected
    assert host.figures["membership_refused_forged_total"] == expected["forged"]
    assert host.sees("alive") == {"a", "b", "c"}, "nothing of it was believed"
    assert set(host.server._seal._windows) <= {b"b", b"c"}, "and nothing is kept of strangers"


def test_words_about_hosts_that_are_no_members_are_dropped(make_town: MakeTown) -> None:
    town = together(make_town, 2)
    host = town.hosts["a"]
    words = tuple(MemberStatus(f"ghost-{number}", "127.0.0.1:9", 1, number % 4, "b") for number in range(8))
    packet = Packet(PING, "b", 7, "a", words)
    bytes_to(host, town.hosts["b"].server._seal.seal(packet))
    town.until(lambda: host.server.status()["refused"].get("words_of_no_member", 0) == 8, "counted")
    assert len(host.server.status()["members"]) == 2


# -- the secret


def test_a_removal_makes_a_new_secret_and_the_removed_hosts_datagrams_are_refused(make_town: MakeTown) -> None:
    town = together(make_town, 4)
    first, removed = secret_of(town), town.hosts["d"]
    town.remove("d")
    living = [town.hosts[name] for name in "abc"]
    town.until(lambda: all(host.server.status()["key"] == 2 for host in living), "all have the next")
    assert secret_of(town) != first and removed.server.status()["key"] == 1, "who is removed hears of nothing"
    refused = {host.name: host.server.status()["refused"].get("no_member", 0) for host in living}
    # In the minute in which the former secret is still good for members.
    seal = removed.server._seal
    for host in living:
        bytes_to(host, seal.seal(Packet(GOSSIP, "d", 0, "", (lie("b", "d"),))))
    town.until(
        lambda: all(host.server.status()["refused"].get("no_member", 0) > refused[host.name] for host in living),
        "refused",
    )
    assert all(host.sees("alive") == {"a", "b", "c"} for host in living)
    town.until(lambda: all("d" not in host.server.status()["members"] for host in living), "it is forgotten")


def test_no_new_secret_is_made_while_the_removed_host_is_still_sent_the_log(make_town: MakeTown) -> None:
    town = together(make_town, 3)
    node = town.ledger.members["c"]["node"]
    town.remove("c")
    town.nodes_sent_to.add(node)
    heard = town.hosts["a"].figures["membership_datagrams_received_total"]
    town.until(lambda: town.hosts["a"].figures["membership_datagrams_received_total"] > heard + 5, "time goes on")
    assert town.ledger.gossip_key.number == 1 and town.ledger.gossip_key.due
    town.nodes_sent_to.discard(node)
    town.until(lambda: town.ledger.gossip_key.number == 2, "now")
    assert not town.ledger.gossip_key.due


def test_the_secret_is_shown_to_nobody(make_town: MakeTown, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    town = together(make_town, 2)
    server, secret = town.hosts["a"].server, secret_of(town)
    command = RotateGossipKey(2, 1, secret, at=AT)
    dumped = _command(Entry(1, 1, "command", encode_entry(command, "s", 1)))
    assert dumped["command"] == {**command.to_plain(), "secret": "(hidden)"}, "ledger dump"
    outcome = town.ledger.apply(town.ledger.index + 1, command)
    shown = [
        json.dumps(dumped),
        shown_message(Propose(command, "s", 1)),
        shown_message(town.ledger.gossip_key),
        repr(town.ledger.gossip_key),
        json.dumps(server.status()),
        json.dumps(server.metrics()),
        str(server.format_state()),
        json.dumps([view_change(*change) for change in outcome.changes]),
        repr(outcome),
        repr(town.ledger.live()),
        *(record.getMessage() for record in caplog.records),
    ]
    raw = repr(bytes.fromhex(secret))[2:-1]
    assert [text for text in shown if secret in text or raw in text] == []
    assert town.ledger.snapshot().count(secret.encode()) == 1, "it is where it has to be"
    with pytest.raises(BadRequest) as refused:
        town.do(RotateGossipKey(3, 1, secret + "x", at=AT))
    assert secret not in str(refused.value.to_dict())


def test_the_ledger_takes_secrets_in_their_order_and_keeps_them_over_a_snapshot(make_town: MakeTown) -> None:
    town = make_town(2)
    town.until(lambda: town.ledger.gossip_key.number == 1, "the first is made")
    with pytest.raises(LedgerRefused):
        town.do(RotateGossipKey(1, 1, "00" * 32, at=AT))
    again = type(town.ledger).restore(town.ledger.snapshot())
    assert again.gossip_key == town.ledger.gossip_key and again.digest() == town.ledger.digest()


def test_a_mark_says_who_and_since_when_and_refuses_grants(make_town: MakeTown) -> None:
    town = make_town(2)
    town.do(MarkUnreachable("b", 1, AT, ["a"], 1, at=AT))
    town.do(MarkUnreachable("b", 1, AT + 9, ["a", "c"], 1, at=AT))
    assert mark(town, "b") == {"since": AT, "witnesses": ["a", "c"]}
    for wrong in (["a", "a"], [f"w{number}" for number in range(17)]):
        with pytest.raises(BadRequest):
            town.do(MarkUnreachable("b", 1, AT, wrong, 1, at=AT))
    with pytest.raises(LedgerRefused):
        town.do(MarkUnreachable("b", 2, AT, ["a"], 1, at=AT))
    town.do(MarkUnreachable("b", 1, AT, [], 1, at=AT))
    assert mark(town, "b") is None
