"""The rules of SWIM and Lifeguard, one by one, against a core alone."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import permutations

import pytest

from actorgrid.actors.membership.core import RELAYS_MAX, REMOVED_MAX
from actorgrid.actors.membership.instructions import AskByLink, FarewellSaid, MemberChanged, SendPacket, SendState
from actorgrid.actors.membership.packets import ACK, GOSSIP, MEMBERS_MAX, NACK, PING, PING_REQ, FullState, Packet
from actorgrid.actors.membership.records import (
    ALIVE,
    DEAD,
    INCARNATION_MAX,
    LEAP_MAX,
    LEFT,
    SUSPECT,
    first_incarnation,
)

from .members import LAN, Alone, changes, plain, verdicts, word

NAMES = tuple("bcdef")


def test_each_member_is_probed_once_a_round_in_an_order_of_its_own() -> None:
    host = Alone()
    rounds = []
    for _ in range(6):
        targets = []
        for _ in NAMES:
            ping = host.probes()
            host.answers(ping)
            targets.append(ping.packet.target)
        rounds.append(tuple(targets))
    assert all(sorted(each) == list(NAMES) for each in rounds)
    assert len(set(rounds)) > 1


def test_at_rest_a_host_is_woken_for_its_probes_alone() -> None:
    host = Alone()
    ping = host.probes()
    host.answers(ping)
    assert host.core.deadline == pytest.approx(ping_time(host) + LAN.probe_interval_s)


def ping_time(host: Alone) -> float:
    return host.now


def test_a_member_that_does_not_answer_is_asked_through_others_and_then_suspected() -> None:
    host = Alone()
    ping = host.probes()
    target = ping.packet.target
    told = host.runs(LAN.probe_timeout_s)
    helpers = [each for each in told if isinstance(each, SendPacket) and each.packet.kind == PING_REQ]
    assert len(helpers) == LAN.indirect_probes
    assert {each.packet.target for each in helpers} == {target}
    assert f"{target}:7403" not in {each.to for each in helpers}
    assert host.state(target) == ALIVE
    assert (target, SUSPECT) in changes(host.runs(LAN.probe_interval_s))


def test_an_answer_that_a_helper_brings_counts() -> None:
    host = Alone()
    ping = host.probes()
    told = host.runs(LAN.probe_timeout_s)
    helper = next(each for each in told if isinstance(each, SendPacket) and each.packet.kind == PING_REQ)
    name = helper.to.partition(":")[0]
    host.core.receive(Packet(ACK, name, helper.packet.sequence, "", ()), helper.to, host.now)
    host.runs(0.6)
    assert host.state(ping.packet.target) == ALIVE


def test_an_answer_of_somebody_who_was_not_asked_counts_for_nothing() -> None:
    host = Alone()
    ping = host.probes()
    stranger = next(name for name in NAMES if name != ping.packet.target)
    host.core.receive(Packet(ACK, stranger, ping.packet.sequence, "", ()), f"{stranger}:7403", host.now)
    host.runs(1.1)
    assert host.core.ignored == {"unasked": 1}
    assert host.state(ping.packet.target) == SUSPECT


def test_a_member_that_answers_over_a_link_is_not_suspected() -> None:
    host = Alone(profile=replace(LAN, ask_by_link=True))
    target = host.probes().packet.target
    (asked,) = [each for each in host.runs(LAN.probe_timeout_s) if isinstance(each, AskByLink)]
    assert (asked.to, asked.member) == (f"{target}:7403", target)
    host.core.answered_by_link(asked.sequence, host.now)
    assert changes(host.runs(0.4)) == []
    assert host.core.health.score == 0
    host.runs(0.2)
    host.core.answered_by_link(asked.sequence, host.now)  # late
    assert host.core.ignored == {"unasked": 1}


def test_a_helper_passes_the_answer_on_and_says_when_there_is_none() -> None:
    host = Alone()
    host.core.receive(Packet(PING_REQ, "b", 77, "c", ()), "b:7403", 0.0)
    host.core.receive(Packet(PING_REQ, "b", 78, "d", ()), "b:7403", 0.0)
    first, second = host.sent(PING)
    assert (first.to, second.to) == ("c:7403", "d:7403")
    host.core.receive(Packet(ACK, "c", first.packet.sequence, "", ()), "c:7403", 0.1)
    (answer,) = host.sent(ACK)
    assert (answer.to, answer.packet.sequence) == ("b:7403", 77)
    told = host.runs(0.8 * LAN.probe_timeout_s)
    (nack,) = [each for each in told if isinstance(each, SendPacket) and each.packet.kind == NACK]
    assert (nack.to, nack.packet.sequence) == ("b:7403", 78)


def test_a_helper_sends_nothing_to_whom_it_does_not_know_and_helps_a_bounded_number() -> None:
    host = Alone()
    host.core.receive(Packet(PING_REQ, "b", 1, "victim", ()), "b:7403", 0.0)
    assert host.told() == []
    for number in range(RELAYS_MAX + 3):
        host.core.receive(Packet(PING_REQ, "b", number, "c", ()), "b:7403", 0.0)
    assert len(host.sent(PING)) == RELAYS_MAX
    assert host.core.ignored == {"unknown_target": 1, "relays_full": 3}


def test_a_ping_for_another_host_of_this_address_is_not_answered() -> None:
    host = Alone()
    host.core.receive(Packet(PING, "b", 1, "former", ()), "b:7403", 0.0)
    host.core.receive(Packet(PING, "b", 2, "a", ()), "b:7403", 0.0)
    assert [each.packet.sequence for each in host.sent(ACK)] == [2]
    assert host.core.ignored == {"misdirected": 1}


# -- suspicion


def test_a_lone_accuser_waits_long_and_each_independent_one_shortens_it() -> None:
    shortest = LAN.suspicion_min_s(6)
    lone, one, two = Alone(), Alone(), Alone()
    for host, accusers in ((lone, "b"), (one, "bc"), (two, "bcd")):
        for by in accusers:
            host.hears(word("f", SUSPECT, by=by), sender=by)
        host.hears(word("f", SUSPECT, by="b"))  # the same again confirms nothing
    assert not verdicts(two.runs(shortest - 0.1, answers=True))
    (verdict,) = verdicts(two.runs(0.2, answers=True))
    assert verdict.record.name == "f"
    assert verdict.witnesses[:3] == ("b", "c", "d")
    assert not verdicts(one.runs(shortest + 1, answers=True))
    assert verdicts(one.runs(2 * shortest, answers=True))
    assert not verdicts(lone.runs(6 * shortest - 1, answers=True))
    assert verdicts(lone.runs(2, answers=True))


def test_confirmations_are_passed_on_and_those_beyond_the_needed_are_not() -> None:
    host = Alone()
    passed = []
    for by in "bcde":
        host.hears(word("f", SUSPECT, by=by), sender=by)
        told = host.runs(0.2, answers=True)
        passed += [
            record.by
            for each in told
            if isinstance(each, SendPacket)
            for record in each.packet.records
            if record.name == "f" and record.by == by
        ]
    assert {*passed} == {"b", "c", "d"}


def test_without_lifeguard_a_suspicion_lasts_the_same_whoever_says_so() -> None:
    host = Alone(profile=plain())
    host.hears(word("f", SUSPECT, by="b"))
    assert verdicts(host.runs(LAN.suspicion_min_s(6) + 0.1, answers=True))


def test_a_higher_incarnation_ends_a_suspicion_and_the_same_one_does_not() -> None:
    host = Alone()
    host.hears(word("f", SUSPECT, by="b"))
    host.hears(word("f"))
    assert host.state("f") == SUSPECT
    host.hears(word("f", refuted=1))
    assert host.state("f") == ALIVE
    assert not verdicts(host.runs(100, answers=True))


def test_before_a_suspect_is_declared_dead_it_is_told_once_more_twice() -> None:
    host = Alone()
    for by in "bcd":
        host.hears(word("f", SUSPECT, by=by), sender=by)
    host.runs(1.9, answers=True)
    told = host.runs(1.9, answers=True)
    last = [
        each for each in told if isinstance(each, SendPacket) and each.to == "f:7403" and each.packet.kind == GOSSIP
    ]
    assert [each.packet.records[0] for each in last] == [word("f", SUSPECT, by="b")] * 2
    assert not verdicts(told)
    assert verdicts(host.runs(0.5, answers=True))


@pytest.mark.parametrize("kind", [PING, GOSSIP])
def test_who_accuses_by_what_was_refuted_long_ago_is_told_so(kind: int) -> None:
    host = Alone()
    host.hears(word("a", SUSPECT, by="b"))
    host.runs(10, answers=True)
    host.core.receive(
        Packet(kind, "c", 3, "a" if kind == PING else "", (word("a", SUSPECT, by="b"),)), "c:7403", host.now
    )
    (answer,) = [each for each in host.told() if isinstance(each, SendPacket)]
    assert (answer.to, answer.packet.records[0]) == ("c:7403", word("a", refuted=1))


def test_the_suspected_hears_of_it_first_in_the_ping() -> None:
    host = Alone()
    host.hears(word("f", SUSPECT, by="b"))
    host.runs(12, answers=True)  # the news itself has gone out as often as news do
    while (ping := host.probes()).packet.target != "f":
        host.answers(ping)
    assert ping.packet.records[0] == word("f", SUSPECT, by="b")


def test_who_is_suspected_refutes_in_the_answer_to_that_ping() -> None:
    host = Alone()
    host.core.receive(Packet(PING, "b", 5, "a", (word("a", SUSPECT, by="b"),)), "b:7403", 0.0)
    (answer,) = host.sent(ACK)
    (refutation,) = [record for record in answer.packet.records if record.name == "a"]
    assert (refutation.state, refutation.incarnation) == (ALIVE, first_incarnation(1) + 1)
    assert host.core.health.score == 1


@pytest.mark.parametrize("state", [SUSPECT, DEAD, LEFT])
def test_every_accusation_is_refuted_above_it_and_old_ones_are_not_worth_a_word(state: int) -> None:
    host = Alone()
    host.hears(word("a", state, refuted=4, by="b"))
    assert host.core.record.incarnation == first_incarnation(1) + 5
    host.hears(word("a", state, refuted=4, by="b"))
    assert host.core.record.incarnation == first_incarnation(1) + 5


def test_a_host_that_starts_again_is_above_all_of_its_former_life() -> None:
    host = Alone()
    host.hears(word("f", DEAD, refuted=9, by="b"))
    host.hears(word("f", life=2))
    assert host.state("f") == ALIVE


def test_a_host_whose_start_was_forgotten_goes_above_what_others_know() -> None:
    host = Alone(life=1)
    host.hears(word("a", life=7, refuted=3))
    assert host.core.record.incarnation == first_incarnation(7) + 4
    assert host.core.record.state == ALIVE


def test_two_hosts_of_one_name_do_not_outbid_each_other_as_fast_as_packets_go() -> None:
    host = Alone()
    before = host.core.record.incarnation
    for number in range(50):
        host.hears(word("a", refuted=2 * number + 1)._replace(address="elsewhere:7403"))
    assert host.core.record.incarnation == before + 2
    assert host.core.ignored == {"name_taken": 49}


@pytest.mark.parametrize("name", ["a", "f"])
def test_an_incarnation_too_far_ahead_is_a_forgery(name: str) -> None:
    host = Alone()
    for ahead in (INCARNATION_MAX, first_incarnation(1) + LEAP_MAX + 1):
        host.hears(word(name, SUSPECT, by="b")._replace(incarnation=ahead))
    assert host.core.ignored == {"future": 2}
    assert host.core.record.incarnation == first_incarnation(1)
    assert host.state("f") == ALIVE


def test_whatever_order_words_come_in_all_come_to_the_same_state() -> None:
    words = [
        word("f", SUSPECT, by="b"),
        word("f", DEAD, by="c"),
        word("f", refuted=1),
        word("f", SUSPECT, refuted=1, by="d"),
        word("f", DEAD, by="b"),
    ]
    for order in permutations(words):
        host = Alone()
        host.hears(*order)
        assert (host.state("f"), host.core.table.records["f"].incarnation) == (SUSPECT, first_incarnation(1) + 1)


# -- local health


def test_probes_that_fail_without_a_word_of_the_helpers_make_a_host_slower_to_judge() -> None:
    host = Alone()
    host.probes()
    host.runs(1.0)
    assert host.core.health.score == LAN.indirect_probes
    assert host.core.deadline - host.now == pytest.approx(LAN.probe_timeout_s * 4)  # of the probe that began now
    host.runs(200)
    assert host.core.health.score == LAN.local_health_max


def test_helpers_that_say_that_they_have_no_answer_are_a_sign_of_our_own_health() -> None:
    host = Alone()
    host.probes()
    for each in host.runs(LAN.probe_timeout_s):
        if isinstance(each, SendPacket) and each.packet.kind == PING_REQ:
            name = each.to.partition(":")[0]
            host.core.receive(Packet(NACK, name, each.packet.sequence, "", ()), each.to, host.now)
    host.runs(0.6)
    assert host.core.health.score == 0


def test_answers_make_a_host_well_again() -> None:
    host = Alone()
    host.core.health.worse(3)
    host.runs(30, answers=True)
    assert host.core.health.score == 0


# -- time


def test_a_host_that_stood_still_gives_the_others_that_time() -> None:
    host = Alone()
    for by in "bcd":
        host.hears(word("f", SUSPECT, by=by), sender=by)
    host.probes()
    host.now += 3600.0
    host.core.wake(host.now)
    assert changes(host.told()) == []
    host.hears(word("f", refuted=1))  # what had waited in the socket
    assert not verdicts(host.runs(100, answers=True))
    assert host.core.ignored["stood_still"] == 1


def test_a_clock_that_goes_back_moves_nothing() -> None:
    host = Alone()
    for by in "bcd":
        host.hears(word("f", SUSPECT, by=by), sender=by)
    host.runs(3, answers=True)
    deadline = host.core.deadline
    host.core.wake(-3600.0)
    assert host.core.deadline == deadline
    assert verdicts(host.runs(LAN.suspicion_min_s(6) - 2.9, answers=True))


# -- joining, leaving, full states


def test_a_host_that_joins_learns_all_and_tells_only_of_itself() -> None:
    host = Alone(others=())
    host.core.join(["b:7403"], 0.0)
    (sent,) = [each for each in host.told() if isinstance(each, SendState)]
    assert (sent.to, sent.state.wants_reply) == ("b:7403", True)
    host.core.receive_state(FullState("b", False, tuple(word(name) for name in NAMES)), "b:7403", 0.1)
    assert set(host.core.table.records) == set(NAMES)
    told = host.runs(5, answers=True)
    assert {record.name for each in told if isinstance(each, SendPacket) for record in each.packet.records} == {"a"}


def test_dead_in_a_full_state_is_only_an_accusation_of_whom_we_hold_for_alive() -> None:
    host = Alone()
    host.core.receive_state(FullState("b", True, (word("f", DEAD, by="b"), word("z", DEAD, by="b"))), "b:7403", 0.0)
    assert host.state("f") == SUSPECT
    assert host.state("z") == DEAD
    told = host.told()
    assert not verdicts(told)
    (reply,) = [each for each in told if isinstance(each, SendState)]
    assert (reply.to, reply.state.wants_reply) == ("b:7403", False)


def test_full_states_are_exchanged_more_rarely_in_a_large_cluster() -> None:
    assert LAN.push_pull_interval_s(32) == 30.0
    assert LAN.push_pull_interval_s(33) == 60.0
    assert LAN.push_pull_interval_s(1000) == 180.0
    host = Alone()
    told = host.runs(301, answers=True)
    assert sum(isinstance(each, SendState) for each in told) in (10, 11)


def test_a_host_tries_to_reach_the_dead() -> None:
    host = Alone()
    host.hears(word("f", DEAD, by="b"))
    told = host.runs(120, answers=True)
    assert len([each for each in told if isinstance(each, SendState) and each.to == "f:7403"]) >= 2


def test_the_dead_are_told_for_a_while_so_that_they_may_refute() -> None:
    host = Alone(others=("b", "e", "f"))
    host.hears(word("f", DEAD, by="b"))
    told = host.runs(3, answers=True)
    assert "f:7403" in {each.to for each in told if isinstance(each, SendPacket) and each.packet.kind == GOSSIP}
    host.runs(40, answers=True)
    host.hears(word("e", refuted=1))
    told = host.runs(3, answers=True)
    assert "f:7403" not in {each.to for each in told if isinstance(each, SendPacket)}


def test_a_host_that_leaves_says_so_and_is_then_not_asked_for() -> None:
    host = Alone()
    host.core.leave(0.0)
    told = host.runs(20)
    assert isinstance(told[-1], FarewellSaid)
    said = {record for each in told if isinstance(each, SendPacket) for record in each.packet.records}
    assert {(record.name, record.state) for record in said} == {("a", LEFT)}
    assert not [each for each in told if isinstance(each, SendPacket) and each.packet.kind == PING]
    host.hears(word("a", DEAD, by="b"))
    assert host.core.record.state == LEFT


def test_the_last_host_can_leave_too() -> None:
    host = Alone(others=())
    host.core.leave(0.0)
    assert host.runs(5) == [FarewellSaid()]


def test_who_was_removed_is_forgotten_and_refused_until_it_is_admitted_again() -> None:
    host = Alone()
    host.hears(word("f", SUSPECT, by="b"))
    host.core.remove("f")
    host.hears(word("f", refuted=3))
    assert "f" not in host.core.table.records
    assert host.core.ignored == {"removed": 1}
    assert not verdicts(host.runs(100, answers=True))
    host.core.admit("f")
    host.hears(word("f", life=2))
    assert host.state("f") == ALIVE
    for number in range(REMOVED_MAX + 10):
        host.core.remove(f"x{number}")
    host.hears(word("x0"), word("x100"))
    assert ("x0" in host.core.table.records, "x100" in host.core.table.records) == (True, False)


def test_a_full_table_takes_nobody_else() -> None:
    host = Alone(others=[f"h{number}" for number in range(MEMBERS_MAX - 1)])
    host.hears(word("one-too-many"))
    assert host.core.ignored == {"table_full": 1}
    assert len(host.core.members()) == MEMBERS_MAX


# -- whatever comes


def test_no_packet_makes_the_core_raise_or_its_books_grow_without_bound() -> None:
    dice = random.Random(7)
    host = Alone(profile=replace(LAN, stall_s=1e9))
    names = ["a", *NAMES, "x", "y"]
    for _ in range(4_000):
        records = tuple(
            word(dice.choice(names), dice.randrange(4), dice.randrange(4), dice.randrange(3), dice.choice(names))
            for _ in range(dice.randrange(4))
        )
        sender, kind = dice.choice(names[1:]), dice.randrange(5)
        sequence = dice.choice([0, 1, host.core._sequence, host.core._probe_sequence])
        packet = Packet(kind, sender, max(0, sequence), dice.choice(names) if kind in (PING, PING_REQ) else "", records)
        host.core.receive(packet, f"{sender}:7403", host.now)
        if dice.random() < 0.05:
            host.core.receive_state(FullState(sender, dice.random() < 0.5, records), f"{sender}:7403", host.now)
        if dice.random() < 0.02:
            host.core.remove(dice.choice(["x", "y"]))
        if dice.random() < 0.3:
            host.runs(dice.random())
        host.told()
        core = host.core
        assert len(core._expiries) <= 4 * len(core._suspicions) + 70
        assert set(core._relays) <= {sequence for _, sequence in core._relay_ends}
        assert len(core._relay_ends) <= RELAYS_MAX
        assert set(core._suspicions) == {name for name, record in core.table.records.items() if record.state == SUSPECT}
        assert set(core._dead_since) == {name for name, record in core.table.records.items() if record.state == DEAD}
        assert core.size == 1 + sum(record.state <= SUSPECT for record in core.table.records.values())
        assert core.record.state == ALIVE


def test_changes_are_told_once() -> None:
    host = Alone()
    host.hears(word("f", SUSPECT, by="b"), word("f", SUSPECT, by="c"), word("z"))
    found = [each for each in host.told() if isinstance(each, MemberChanged)]
    assert [(each.record.name, each.record.state, each.before and each.before.state) for each in found] == [
        ("f", SUSPECT, ALIVE),
        ("z", ALIVE, None),
    ]
