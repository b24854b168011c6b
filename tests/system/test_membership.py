"""Membership of five real hosts: one cut off, a broken way, lost frames, a removal.

The same on hosts of one process: tests/membership.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from actorgrid.actors.ledger.records import MAX_ISOLATION_S
from actorgrid.actors.membership.packets import GOSSIP, Packet
from actorgrid.actors.membership.records import DEAD, MemberStatus, first_incarnation
from actorgrid.actors.membership.seal import DatagramSeal, Keyring
from actorgrid.errors import ActorGridError
from tests.processes import until
from tests.system.net_hosts import SMALL, NetCluster, formed

HOSTS = 5
SECRET = re.compile(rb'"rotate_gossip_key"[^}]*"number":(\d+)[^}]*"secret":"([0-9a-f]{64})"')


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetCluster]:
    twin = "tests/membership has the same on hosts of one process"
    with formed(tmp_path_factory.mktemp("membership"), HOSTS, (*SMALL, "cluster.membership=lan_fast"), twin) as made:
        yield made


@pytest.fixture(autouse=True)
def whole(cluster: NetCluster) -> Iterator[None]:
    until(lambda: all(alive(cluster, number) == HOSTS for number in cluster.hosts), "all are alive to all", within_s=60)
    yield
    cluster.wires.heal()


def inspected(cluster: NetCluster, number: int) -> dict[str, Any]:
    found = cluster[number].ask("GET", "/api/inspect/membership")["inspect"]
    return {"state": "down"} if found is None else dict(found["status"])


def restarted(cluster: NetCluster, number: int) -> bool:
    """Whether the server answers again, and runs the core."""
    try:
        return bool(inspected(cluster, number)["state"] == "on")
    except ActorGridError:
        return False


def alive(cluster: NetCluster, number: int) -> int:
    members = inspected(cluster, number).get("members", {})
    return sum(member["state"] == "alive" for member in members.values())


def listed(cluster: NetCluster, at: int, number: int) -> dict[str, Any]:
    """Host *number* as host *at* lists it."""
    hosts = cluster[at].ask("GET", "/api/hosts")["hosts"]
    return next(host for host in hosts if host["node"] == number)


def entries(cluster: NetCluster, number: int, *verbs: str) -> list[dict[str, Any]]:
    """The commands of these verbs in that host's log, oldest first."""
    lines = cluster[number].cli("ledger", "dump", "--json", "--limit", "100000").stdout.splitlines()
    found = [json.loads(line) for line in lines]
    return [each["command"] for each in found if each.get("type") in verbs]


def other_than(cluster: NetCluster, *numbers: int) -> int:
    return next(number for number in sorted(cluster.hosts, reverse=True) if number not in numbers)


def test_a_host_that_is_cut_off_is_marked_by_witnesses_and_left_to_its_leases(cluster: NetCluster) -> None:
    leader = cluster.leader()
    victim = other_than(cluster, leader)
    host_id = listed(cluster, leader, victim)["node_id"]
    cluster.wires.part([victim])
    marked = until(lambda: listed(cluster, leader, victim)["unreachable"], "witnesses are in the ledger", within_s=30)
    assert len(marked["witnesses"]) >= 2 and host_id not in marked["witnesses"]
    assert listed(cluster, leader, victim)["health"] == "unreachable", "and not lost: that takes a lease"
    asked = cluster[other_than(cluster, leader, victim)]
    finding = until(
        lambda: [each for each in asked.ask("GET", "/api/cluster")["findings"] if each["name"] == "hosts_away"], "said"
    )
    assert "reached by nobody" in finding[0]["found"]
    until(lambda: listed(cluster, leader, victim)["health"] == "lost", "its leases are over", within_s=60)
    losses = [each for each in entries(cluster, leader, "lose_host") if each["host"] == host_id]
    marks = [each for each in entries(cluster, leader, "mark_unreachable") if each["host"] == host_id]
    assert all(loss["at"] - loss["heard_at"] > MAX_ISOLATION_S for loss in losses), "no mark makes it sooner"
    assert min(mark["at"] for mark in marks) < min(loss["at"] for loss in losses)
    cluster.wires.heal()
    until(lambda: listed(cluster, leader, victim)["unreachable"] is None, "it is reached again", within_s=60)
    until(lambda: listed(cluster, leader, victim)["health"] == "healthy", "it takes work again", within_s=60)


def test_a_way_that_is_broken_is_told_from_a_host_that_is_away(cluster: NetCluster) -> None:
    leader = cluster.leader()
    victim = other_than(cluster, leader)
    host_id = listed(cluster, leader, victim)["node_id"]
    before = len(entries(cluster, leader, "mark_unreachable"))
    cluster.wires.drop([leader], [victim])
    cluster.wires.drop([victim], [leader])

    def told() -> Any:
        found = cluster[leader].ask("GET", "/api/cluster")["findings"]
        return [each for each in found if each["name"] == "hosts_away" and "reach" in each["found"]]

    (finding,) = until(told, "others reach it, and the leader says so", within_s=30)
    assert finding["hosts"] == [host_id] and f"do reach {host_id}" in finding["found"], finding
    assert len(until(lambda: listed(cluster, leader, victim)["reached_by"], "by whom")) >= 2
    assert len(entries(cluster, leader, "mark_unreachable")) == before, "nobody is marked that others reach"
    cluster.wires.heal()
    until(lambda: listed(cluster, leader, victim)["health"] == "healthy", "all is well", within_s=60)


def test_a_host_that_hears_and_is_not_heard_is_marked(cluster: NetCluster) -> None:
    leader = cluster.leader()
    victim = other_than(cluster, leader)
    cluster.wires.drop([victim], [number for number in cluster.hosts if number != victim])
    marked = until(lambda: listed(cluster, leader, victim)["unreachable"], "it is marked", within_s=30)
    assert len(marked["witnesses"]) >= 2
    cluster.wires.heal()
    until(lambda: listed(cluster, leader, victim)["unreachable"] is None, "it is reached again", within_s=60)
    until(lambda: listed(cluster, leader, victim)["health"] == "healthy", "it takes work again", within_s=60)


def test_killed_servers_and_a_host_that_stood_still_come_back(cluster: NetCluster) -> None:
    leader = cluster.leader()
    victim = other_than(cluster, leader)
    before = len(entries(cluster, leader, "mark_unreachable"))
    for number in (leader, victim):
        pid = cluster[number].pid_of("membership")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(lambda number=number: restarted(cluster, number) and alive(cluster, number) == HOSTS, "it is back")
    assert all(inspected(cluster, number)["refused"].get("replayed", 0) == 0 for number in cluster.hosts)
    assert len(entries(cluster, leader, "mark_unreachable")) == before, "nobody was marked meanwhile"
    cluster[victim].pause()
    until(lambda: listed(cluster, leader, victim)["unreachable"], "who stands still is marked", within_s=30)
    cluster[victim].go_on()
    until(lambda: listed(cluster, leader, victim)["unreachable"] is None, "and is reached again", within_s=60)
    others = [number for number in cluster.hosts if number != victim]
    assert not any(listed(cluster, leader, number)["unreachable"] for number in others), "it accused nobody as it woke"


def test_a_third_of_all_frames_lost_kills_nobody(cluster: NetCluster) -> None:
    leader = cluster.leader()
    before = len(entries(cluster, leader, "mark_unreachable"))
    heard = {number: inspected(cluster, number)["datagrams"]["received"] for number in cluster.hosts}
    cluster.wires.drop(cluster.hosts, cluster.hosts, percent=30)

    def talked(number: int) -> bool:
        try:
            return bool(inspected(cluster, number)["datagrams"]["received"] > heard[number] + 150)
        except ActorGridError:
            return False

    until(lambda: all(talked(number) for number in cluster.hosts), "much was said", within_s=120)
    cluster.wires.heal()
    leader = cluster.leader()
    assert len(entries(cluster, leader, "mark_unreachable")) == before


def test_a_removal_makes_a_new_secret_that_the_removed_host_never_sees(cluster: NetCluster) -> None:
    leader = cluster.leader()
    victim = other_than(cluster, leader)
    asked = other_than(cluster, leader, victim)
    host_id = listed(cluster, leader, victim)["node_id"]
    life = listed(cluster, leader, victim)["incarnation"]
    before = inspected(cluster, leader)["key"]
    cluster[asked].cli("leave", "--host", str(victim), "--force")
    staying = [number for number in cluster.hosts if number != victim]
    until(lambda: all(inspected(cluster, each)["key"] > before for each in staying), "a new secret", within_s=60)

    def secrets(number: int) -> dict[int, bytes]:
        files = (cluster[number].data_dir / "ledger" / "segments").glob("*.log")
        return {int(n): secret for each in files for n, secret in SECRET.findall(each.read_bytes())}

    known, all_of_them = secrets(victim), secrets(leader)
    assert max(known) == before and len(set(all_of_them.values())) == len(all_of_them) == max(all_of_them)
    latest = all_of_them[max(all_of_them)]
    files = [path for path in cluster[victim].data_dir.rglob("*") if path.is_file()]
    assert files and not any(latest in path.read_bytes() for path in files)
    shown = cluster[leader].cli("ledger", "dump", "--json", "--limit", "100000").stdout + cluster[leader].log()
    for path in ("/api/inspect/membership", "/api/inspect/consensus", "/api/hosts", "/api/cluster"):
        shown += json.dumps(cluster[leader].ask("GET", path))
    assert not any(secret.decode() in shown for secret in all_of_them.values())
    # What it still knows lets it in nowhere, also while members themselves take the former secret.
    accused = listed(cluster, leader, asked)["node_id"]
    lie = MemberStatus(accused, "10.99.0.9:7403", first_incarnation(life), DEAD, host_id)
    seal = DatagramSeal(host_id, life, Keyring(before, bytes.fromhex(known[before].decode())), 2**62)
    refused = sum(inspected(cluster, leader)["refused"].values())

    def speak() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
            for _ in range(10):
                datagram = seal.seal(Packet(GOSSIP, host_id, 0, "", (lie,)))
                link.sendto(datagram, (cluster.wires.address(leader), 7403))

    cluster[victim].inside(speak)
    until(lambda: sum(inspected(cluster, leader)["refused"].values()) >= refused + 10, "all of it is refused")
    assert all(alive(cluster, number) == HOSTS - 1 for number in staying)
    cluster[victim].running = False
    cluster[victim].wait_for_end()
