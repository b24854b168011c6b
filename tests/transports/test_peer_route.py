"""The way to one host and the listener's door, as decisions: ties, backoff, what waits, who is let in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from actorgrid.errors import HostUnreachable, MailboxFull
from actorgrid.transports.peer.acceptor import PeerAcceptor
from actorgrid.transports.peer.limits import PeerLimits, Refusal
from actorgrid.transports.peer.route import LinkRoute, Work

LIMITS = PeerLimits(backoff_first_s=0.1, backoff_max_s=1.6, handshake_s=5.0)


class Wire:
    def __init__(self) -> None:
        self.usable = True


def route(own: str = "a", other: str = "b", limits: PeerLimits = LIMITS) -> LinkRoute[Wire]:
    return LinkRoute(own, other, limits)


def work(size: int = 1, deadline_s: float = 1e9) -> Work[Wire]:
    return Work(lambda _wire: None, lambda _error: None, size, deadline_s)


@pytest.mark.parametrize("first_dialled_by_a", [True, False])
def test_of_two_links_dialled_at_once_both_sides_keep_the_one_of_the_lesser_id(first_dialled_by_a: bool) -> None:
    by_a, by_b = Wire(), Wire()
    for own, other in (("a", "b"), ("b", "a")):
        here = route(own, other)
        ordered = [(by_a, own == "a"), (by_b, own == "b")]
        for wire, dialled_by_us in ordered if first_dialled_by_a else ordered[::-1]:
            loser = here.settle(wire, dialled_by_us, 10.0)
        assert loser is by_b
        assert here.link is by_a


def test_a_second_link_long_after_the_first_is_kept_whoever_dialled_it() -> None:
    here, first, second = route(), Wire(), Wire()
    assert here.settle(first, True, 10.0) is None
    assert here.settle(second, False, 16.0) is first
    assert here.link is second


def test_a_second_link_of_the_same_dialler_is_kept() -> None:
    here, first, second = route(), Wire(), Wire()
    here.settle(first, False, 10.0)
    assert here.settle(second, False, 10.1) is first
    assert here.link is second


def test_a_link_that_is_retired_or_lost_is_not_used() -> None:
    here, first = route(), Wire()
    here.settle(first, True, 10.0)
    first.usable = False
    assert here.link is None
    assert here.lost(first, "gone", 11.0, 0.0)
    assert not here.lost(first, "gone", 11.0, 0.0)


def test_delays_double_to_a_bound_and_each_is_jittered() -> None:
    for jitter, share in ((0.0, 0.5), (1.0, 1.0)):
        here = route()
        delays = []
        for _ in range(8):
            here.dial_failed("no", 100.0, jitter)
            delay_s = here.dial_in_s(100.0, wanted=True)
            assert delay_s is not None
            delays.append(delay_s)
        assert delays == pytest.approx([share * each for each in (0.1, 0.2, 0.4, 0.8, 1.6, 1.6, 1.6, 1.6)])


def test_a_link_that_lasted_starts_the_delays_anew_and_one_that_did_not_counts_as_a_failure() -> None:
    here = route()
    for _ in range(6):
        here.dial_failed("no", 0.0, 1.0)
    short = Wire()
    here.settle(short, True, 10.0)
    here.lost(short, "gone", 10.1, 1.0)
    assert here.dial_in_s(10.1, wanted=True) == pytest.approx(1.6)
    long = Wire()
    here.settle(long, True, 20.0)
    here.lost(long, "gone", 30.0, 1.0)
    assert here.dial_in_s(30.0, wanted=True) == pytest.approx(0.1)


def test_it_dials_only_for_something() -> None:
    here = route()
    assert here.dial_in_s(0.0, wanted=False) is None
    here.wait(work(), 0.0)
    assert here.dial_in_s(0.0, wanted=False) == 0.0
    here.dialling = True
    assert here.dial_in_s(0.0, wanted=True) is None


def test_what_waits_is_bounded_in_number_and_bytes_and_can_be_taken_back() -> None:
    here = route(limits=replace(LIMITS, waiting_max=2, waiting_bytes_max=100))
    first = work(90)
    here.wait(first, 0.0)
    with pytest.raises(MailboxFull):
        here.wait(work(11), 0.0)
    assert here.forget(first)
    assert not here.forget(first)
    here.wait(work(), 0.0)
    here.wait(work(), 0.0)
    with pytest.raises(MailboxFull):
        here.wait(work(), 0.0)
    assert len(here.take_waiting()) == 2
    assert here.waiting == 0


def test_what_cannot_wait_for_the_next_dial_is_refused() -> None:
    here = route()
    here.dial_failed("connection refused", 0.0, 1.0)
    with pytest.raises(HostUnreachable, match="connection refused"):
        here.wait(work(deadline_s=0.05), 0.0)
    here.wait(work(deadline_s=0.2), 0.0)


def test_a_route_is_idle_when_nothing_would_be_lost_with_it() -> None:
    here = route()
    assert here.idle(0.0)
    here.dial_failed("no", 0.0, 1.0)
    assert not here.idle(0.05)
    assert here.idle(0.1)
    here.wait(work(), 0.2)
    assert not here.idle(0.2)


# -- the door


def test_knocks_come_back_with_time_and_with_proof() -> None:
    door = PeerAcceptor(PeerLimits(connects_per_s=2.0, connects_burst=3, half_open_per_address_max=100))
    assert [door.admit("x", 0.0) for _ in range(4)] == [None, None, None, Refusal.TOO_FAST]
    assert door.admit("y", 0.0) is None
    assert [door.admit("x", 1.0) for _ in range(3)] == [None, None, Refusal.TOO_FAST]
    door.proven("x")
    assert door.admit("x", 1.0) is None
    for _ in range(10):
        door.proven("x")
    assert [door.admit("x", 1.0) for _ in range(4)] == [None, None, None, Refusal.TOO_FAST]


def test_half_open_ones_count_until_they_are_proven_or_gone() -> None:
    door = PeerAcceptor(PeerLimits(half_open_per_address_max=2))
    assert [door.admit("x", 0.0) for _ in range(3)] == [None, None, Refusal.TOO_MANY_HALF_OPEN]
    door.gone("x")
    assert [door.admit("x", 0.0) for _ in range(2)] == [None, Refusal.TOO_MANY_HALF_OPEN]
    door.proven("x")
    assert door.admit("x", 0.0) is None


def test_a_clock_that_is_read_late_takes_nothing_away() -> None:
    door = PeerAcceptor(PeerLimits(connects_per_s=1.0, connects_burst=1))
    assert door.admit("x", 10.0) is None
    assert door.admit("x", 5.0) is Refusal.TOO_FAST


def test_addresses_are_forgotten_oldest_first() -> None:
    door = PeerAcceptor(PeerLimits(addresses_max=3, connects_burst=1))
    for number in range(10):
        door.admit(f"x{number}", 0.0)
        door.admit("steady", 0.0)
    assert len(door) == 3
    assert door.admit("steady", 0.0) is Refusal.TOO_FAST
    door.gone("x0")
    door.proven("x1")
