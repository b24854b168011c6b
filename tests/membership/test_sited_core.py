"""Membership over sites: each judges its own hosts, and relays tell the others."""

from __future__ import annotations

import random

from actorgrid.actors.membership.core import MembershipCore
from actorgrid.actors.membership.instructions import SendPacket, SiteReached
from actorgrid.actors.membership.packets import ACK, GOSSIP, PING, Packet
from actorgrid.actors.membership.profiles import PROFILES
from actorgrid.actors.membership.records import ALIVE, DEAD, SUSPECT, MemberStatus, first_incarnation
from actorgrid.actors.membership.sited_core import SITE_PATIENCE_PROBES, SitedCore
from actorgrid.chaos.gossip.simulation import GossipSimulation

LAN, WAN = PROFILES["lan"], PROFILES["wan"]
SITES = {f"{site}{number}": site for site in ("east", "west") for number in range(4)}
KNOWN = [MemberStatus(name, f"{name}:1", first_incarnation(1), ALIVE, name) for name in SITES]


def core(name: str, sites: dict[str, str]) -> SitedCore:
    return SitedCore(name, f"{name}:1", 1, LAN, random.Random(name), 0.0, KNOWN, sites)


def a_relay() -> SitedCore:
    """Of east to west; the first of them, so that its partner is the first there."""
    return next(each for name in SITES if (each := core(name, SITES))._first(each._ours.get("west", []))[:1] == [name])


def sent(each: MembershipCore) -> list[SendPacket]:
    packets = [instruction for instruction in each.instructions if isinstance(instruction, SendPacket)]
    each.instructions.clear()
    return packets


def run(each: SitedCore, seconds: float, answer: bool = True) -> list[SendPacket]:
    """Let it live alone for so long; those of its site answer its pings, the others as *answer* says."""
    found: list[SendPacket] = []
    end = each.deadline + seconds
    while each.deadline < end:
        now = each.deadline
        each.wake(now)
        for order in sent(each):
            found.append(order)
            name = order.to.partition(":")[0]
            if order.packet.kind == PING and (answer or SITES[name] == SITES[each.name]):
                each.receive(Packet(ACK, name, order.packet.sequence, "", ()), order.to, now + 0.001)
    return found


def test_without_sites_it_does_what_the_core_does() -> None:
    plain = MembershipCore("east0", "east0:1", 1, LAN, random.Random(5), 0.0, KNOWN)
    sited = SitedCore("east0", "east0:1", 1, LAN, random.Random(5), 0.0, KNOWN, {})
    for _ in range(60):
        assert plain.deadline == sited.deadline
        for each in (plain, sited):
            each.wake(each.deadline)
        assert sent(plain) == sent(sited)


def test_hosts_of_other_sites_are_not_probed_and_relays_alone_turn_to_them() -> None:
    relays = 0
    for name in SITES:
        each = core(name, SITES)
        other = "west" if each._site == "east" else "east"
        afar = [order for order in run(each, 40.0) if other in order.to]
        relays += each.relays_to(other)
        assert bool(afar) == each.relays_to(other)
        assert len(afar) <= 40 / WAN.probe_interval_s + 1
    assert relays == 4


def test_a_suspicion_from_afar_is_nothing_and_a_death_is_believed_and_passed_on_here() -> None:
    each = core("east0", SITES)
    word = KNOWN[4]._replace(state=SUSPECT, by="west1")
    each.receive(Packet(GOSSIP, "west1", 0, "", (word,)), "west1:1", 0.1)
    assert each.table.records["west0"].state == ALIVE and each.ignored == {"suspect_afar": 1}
    each.receive(Packet(GOSSIP, "west1", 0, "", (word._replace(state=DEAD),)), "west1:1", 0.2)
    assert each.table.records["west0"].state == DEAD
    told = {order.to for order in run(each, 3.0) if order.packet.kind == GOSSIP}
    assert told and all(name.startswith("east") for name in told)


def test_a_partner_that_does_not_answer_is_passed_over_and_the_site_said_to_be_out_of_reach() -> None:
    each = a_relay()
    first = each.partner("west" if each._site == "east" else "east")
    site = SITES[first or ""]
    asked = [
        order.packet.target
        for order in run(each, (SITE_PATIENCE_PROBES + 2) * WAN.probe_interval_s, answer=False)
        if SITES.get(order.packet.target) == site
    ]
    assert asked[0] == first and len(set(asked)) >= 3
    assert each.unreached_sites == [site]
    assert all(each.table.records[name].state == ALIVE for name in SITES if SITES[name] == site)
    each.instructions.clear()
    run(each, WAN.probe_interval_s + 0.1)
    assert each.unreached_sites == []


def test_that_a_site_is_reached_again_is_told_once() -> None:
    each = a_relay()
    told: list[SiteReached] = []
    end = each.deadline + 60.0
    while each.deadline < end:
        now = each.deadline
        each.wake(now)
        pings = [one for one in each.instructions if isinstance(one, SendPacket) and one.packet.kind == PING]
        told += [one for one in each.instructions if isinstance(one, SiteReached)]
        each.instructions.clear()
        for order in pings:
            name = order.to.partition(":")[0]
            if now > 30.0 or SITES[name] == each._site:
                each.receive(Packet(ACK, name, order.packet.sequence, "", ()), order.to, now + 0.001)
    told += [one for one in each.instructions if isinstance(one, SiteReached)]
    assert [one.reached for one in told] == [False, True]


def test_a_site_of_two_hosts_is_judged_by_all_as_if_there_were_no_sites() -> None:
    small = {**SITES, "west2": "east", "west3": "east"}
    each = core("east0", small)
    probed = {order.packet.target for order in run(each, 30.0) if order.packet.kind == PING}
    assert {"west0", "west1"} <= probed
    alone = core("west0", small)
    probed = {order.packet.target for order in run(alone, 30.0) if order.packet.kind == PING}
    assert len(probed) == 7


def test_a_relay_that_dies_is_followed_by_the_next_at_once() -> None:
    each = a_relay()
    other = "west" if each._site == "east" else "east"
    order = each._ours[other]
    third = core(order[2], SITES)
    assert not third.relays_to(other)
    third.hear(third.table.records[order[0]]._replace(state=DEAD, by=order[1]))
    assert third.relays_to(other)


def test_a_death_is_known_at_all_sites_and_lines_between_carry_little() -> None:
    simulation = GossipSimulation(60, LAN, 3, loss=0.05, sites=3)
    simulation.network.far_delay_s = 0.1
    simulation.run_until(20.0)
    assert sum(host.far_datagrams for host in simulation.hosts.values()) < 20 * 8
    simulation.kill("host-0004")
    simulation.run_until(50.0)
    assert len(simulation.dead_at("host-0004")) == 59
    assert {name for host in simulation.hosts.values() for name in simulation.dead_at(host.name)} and all(
        not simulation.dead_at(name) for name in simulation.hosts if name != "host-0004"
    )
