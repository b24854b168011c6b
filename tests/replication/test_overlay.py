"""A few neighbours of each of many hosts: trees that reach everybody once, rings that hold together."""

from __future__ import annotations

import random

import pytest

from actorgrid.actors.replication.exchange import Send
from actorgrid.actors.replication.overlay import Overlay
from actorgrid.actors.replication.packets import Kind, is_of_kind
from actorgrid.actors.replication.push_pace import BURST, PUSHES_A_SECOND, PushPace
from tests.replication.gossip_rounds import NOW_US, LightHost

RINGS, TREES, FAN_OUT = 4, 2, 6


def overlays(count: int) -> dict[str, Overlay]:
    names = [f"host-{number}" for number in range(count)]
    return {name: Overlay("test", name, names, RINGS, TREES, FAN_OUT) for name in names}


def reached(first: str, edges: dict[str, list[str]]) -> set[str]:
    found, todo = {first}, [first]
    while todo:
        for name in edges.get(todo.pop(), []):
            if name not in found:
                found.add(name)
                todo.append(name)
    return found


@pytest.mark.parametrize("count", [2, 3, 8, 50, 300])
def test_each_tree_reaches_everybody_over_one_edge_less_than_there_are_hosts(count: int) -> None:
    made = overlays(count)
    for tree in range(TREES):
        edges = {name: overlay.around(tree, (), ()) for name, overlay in made.items()}
        assert all(name in edges[other] for name, others in edges.items() for other in others), "both know of each edge"
        assert sum(map(len, edges.values())) == 2 * (count - 1)
        assert reached("host-0", edges) == set(made)


def test_neighbours_are_few_and_are_each_others() -> None:
    made = overlays(300)
    for name, overlay in made.items():
        assert name not in overlay.neighbours
        assert 2 <= len(overlay.neighbours) <= TREES * (FAN_OUT + 1) + 2 * RINGS
        assert all(name in made[other].neighbours for other in overlay.neighbours)


def test_who_has_much_to_pass_on_in_one_tree_is_mostly_a_leaf_of_the_other() -> None:
    made = overlays(1_000)
    inner = [{name for name, overlay in made.items() if len(overlay.around(tree, (), ())) > 1} for tree in range(TREES)]
    assert all(len(each) == 167 for each in inner)
    assert len(inner[0] & inner[1]) < 60
    written = [made["host-0"].tree_of(name) for name in made]
    assert 350 < sum(written) < 650, "and about half of all is written over each"


def test_neighbours_hold_together_without_a_third_of_the_hosts() -> None:
    made = overlays(300)
    gone = set(random.Random(1).sample(sorted(made), 100))
    edges = {
        name: [other for other in overlay.neighbours if other not in gone]
        for name, overlay in made.items()
        if name not in gone
    }
    assert reached(min(edges), edges) == set(edges)


@pytest.mark.parametrize("doubtful", [False, True])
def test_in_the_place_of_who_is_gone_its_neighbours_are_each_others(doubtful: bool) -> None:
    made = overlays(200)
    for tree in range(TREES):
        inner = [name for name, overlay in made.items() if len(overlay.around(tree, (), ())) > 1]
        gone = set(random.Random(tree).sample(inner, 6))
        asked = ((), gone) if doubtful else (gone, ())
        edges = {name: overlay.around(tree, *asked) for name, overlay in made.items() if name not in gone}
        heard = [other for others in edges.values() for other in others]
        assert any(other in gone for other in heard) is doubtful, "who is only in doubt is told as well"
        assert reached(min(edges), edges) - gone == set(edges)


def test_with_very_many_gone_no_more_than_so_many_are_looked_through() -> None:
    made = overlays(1_000)
    name = max(made, key=lambda each: len(made[each].around(0, (), ())))
    gone = {other for other in made if other != name}
    assert made[name].around(0, gone, ()) == []
    assert len(made[name].around(0, (), gone)) < 64 * (FAN_OUT + 1)


def pushed(hosts: dict[str, LightHost], sends: list[tuple[str, Send]]) -> list[bytes]:
    """Deliver, and pass on what is new, until nothing is under way; all packets."""
    found: list[bytes] = []
    while sends:
        source, send = sends.pop(0)
        found.append(send.packet)
        host = hosts[send.peer]
        answers = host.do(host.gossip.receive(source, send.packet, NOW_US)) + host.do(host.gossip.committed())
        sends += [(send.peer, answer) for answer in answers + host.do(host.gossip.push())]
    return found


def test_in_a_large_cluster_a_write_comes_to_each_host_once_and_is_acknowledged_once() -> None:
    names = [f"host-{number}" for number in range(60)]
    hosts = {name: LightHost(name, names, number) for number, name in enumerate(names)}
    for turn, name in enumerate(["host-0", "host-7", "host-0", "host-31"]):
        writer = hosts[name]
        writer.increment("hits")
        writer.do(writer.gossip.committed())
        found = pushed(hosts, [(name, send) for send in writer.do(writer.gossip.push())])
        assert sum(is_of_kind(packet, Kind.DELTAS) for packet in found) == len(names) - 1, turn
        assert sum(is_of_kind(packet, Kind.ACK) for packet in found) == len(names) - 1
        assert len(found) == 2 * (len(names) - 1)
        assert {host.states["hits"].value for host in hosts.values()} == {turn + 1}


def test_pushes_go_at_once_until_they_are_many_and_then_at_their_pace() -> None:
    pace, now_s = PushPace(), 1_000.0
    assert [pace.wait_s(now_s) for _ in range(BURST)] == [0.0] * BURST
    assert 0.0 < pace.wait_s(now_s) <= 1.0 / PUSHES_A_SECOND
    went = 0
    for step in range(1, 2_001):  # someone who tries each millisecond for two seconds
        went += pace.wait_s(now_s + step / 1_000) == 0.0
    assert 2 * PUSHES_A_SECOND - 1 <= went <= 2 * PUSHES_A_SECOND + 1
    assert [pace.wait_s(now_s + 60.0) for _ in range(BURST)] == [0.0] * BURST
