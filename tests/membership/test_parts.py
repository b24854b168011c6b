"""The parts by themselves: suspicion's formula, phi, news, the table."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.membership.broadcasts import BroadcastQueue
from actorgrid.actors.membership.packets import record_bytes
from actorgrid.actors.membership.phi import (
    HOST_SAMPLES_MIN,
    LINK_SAMPLES_MIN,
    LINKS_MAX,
    WINDOW,
    LinkTimes,
    PhiEstimator,
)
from actorgrid.actors.membership.profiles import PROFILES
from actorgrid.actors.membership.records import ALIVE, DEAD, SUSPECT, overrides
from actorgrid.actors.membership.suspicion import Suspicion
from actorgrid.actors.membership.table import MemberTable

from .members import word

LAN = PROFILES["lan"]


def test_the_lan_profile_is_memberlists() -> None:
    assert (LAN.probe_interval_s, LAN.probe_timeout_s, LAN.indirect_probes) == (1.0, 0.5, 3)
    assert (LAN.gossip_interval_s, LAN.gossip_members, LAN.push_pull_s, LAN.local_health_max) == (0.2, 3, 30.0, 8)
    assert LAN.suspicion_min_s(1000) == pytest.approx(12.0)
    assert LAN.suspicion_min_s(3) == 4.0
    assert [LAN.retransmit_limit(members) for members in (1, 9, 10, 99, 100, 1000)] == [4, 4, 8, 8, 12, 16]


@pytest.mark.parametrize("needed", [1, 2, 3, 5])
def test_a_suspicion_shrinks_by_the_papers_formula(needed: int) -> None:
    suspicion = Suspicion("w0", 100.0, 12.0, 72.0, needed)
    assert suspicion.deadline == 172.0
    for count in range(1, needed + 1):
        assert suspicion.confirm(f"w{count}")
        assert not suspicion.confirm(f"w{count}")
        expected = max(12.0, 72.0 - 60.0 * math.log(count + 1) / math.log(needed + 1))
        assert suspicion.deadline == pytest.approx(100.0 + expected)
    assert suspicion.deadline == pytest.approx(112.0)
    assert not suspicion.confirm("one more")
    assert len(suspicion.witnesses) == needed + 1


words = st.builds(word, st.just("x"), st.integers(0, 3), st.integers(1, 2), st.integers(0, 2), st.sampled_from("yz"))


@given(words, words)
def test_of_two_different_words_exactly_one_overrides_the_other(one: object, other: object) -> None:
    a, b = one, other
    first = overrides(a.incarnation, a.state, b)  # type: ignore[attr-defined,arg-type]
    second = overrides(b.incarnation, b.state, a)  # type: ignore[attr-defined,arg-type]
    assert not (first and second)
    same = (a.incarnation, a.state) == (b.incarnation, b.state)  # type: ignore[attr-defined]
    assert (first or second) is not same


# -- phi


def test_phi_is_that_of_a_normal_distribution() -> None:
    estimator = PhiEstimator()
    dice = random.Random(3)
    samples = [dice.gauss(0.1, 0.02) for _ in range(500)]
    for sample in samples:
        estimator.record(sample)
    normal = statistics.NormalDist(statistics.fmean(samples), statistics.pstdev(samples))
    for elapsed in (0.05, 0.1, 0.15, 0.2):
        assert estimator.phi(elapsed) == pytest.approx(-math.log10(1 - normal.cdf(elapsed)), rel=1e-3)
    assert estimator.phi(estimator.timeout_s(8.0)) == pytest.approx(8.0, rel=1e-3)
    assert estimator.phi(1e9) == math.inf


def test_only_the_last_thousand_samples_count() -> None:
    estimator = PhiEstimator()
    for _ in range(WINDOW):
        estimator.record(5.0)
    for _ in range(WINDOW):
        estimator.record(0.01)
    assert len(estimator) == WINDOW
    assert estimator.timeout_s() < 0.05


@given(st.lists(st.floats(0, 10), min_size=1, max_size=60))
def test_phi_grows_with_the_silence(samples: list[float]) -> None:
    estimator = PhiEstimator()
    for sample in samples:
        estimator.record(sample)
    values = [estimator.phi(elapsed) for elapsed in (0.0, 0.5, 1.0, 5.0, 20.0)]
    assert values == sorted(values)


def test_a_clock_that_jumps_enters_as_one_sample_at_most() -> None:
    times, jumped = LinkTimes(), LinkTimes()
    for number in range(200):
        times.record("b", 0.010 + 0.001 * (number % 5))
        jumped.record("b", -3600.0 if number == 100 else 0.010 + 0.001 * (number % 5))
    usual, after = times.timeout_s("b"), jumped.timeout_s("b")
    assert usual is not None and after is not None
    assert after == pytest.approx(usual, rel=0.1)


def test_a_link_speaks_for_itself_once_it_has_samples_and_all_links_before() -> None:
    times = LinkTimes()
    assert times.timeout_s("b") is None
    for number in range(HOST_SAMPLES_MIN):
        times.record(f"h{number}", 0.01)
    assert times.timeout_s("b") == pytest.approx(0.01, abs=0.05)
    for _ in range(LINK_SAMPLES_MIN):
        times.record("b", 0.3)
    assert times.timeout_s("b") > 0.3  # type: ignore[operator]
    times.forget("b")
    assert times.timeout_s("b") < 1.0  # type: ignore[operator]
    for number in range(LINKS_MAX + 10):
        times.record(f"n{number}", 0.01)
    assert len(times._links) == LINKS_MAX


# -- news


def test_each_word_is_sent_as_often_as_the_limit_says() -> None:
    queue = BroadcastQueue()
    queue.put(word("b", SUSPECT))
    assert [len(queue.take(1_000, 4)) for _ in range(6)] == [1, 1, 1, 1, 0, 0]
    assert not queue


def test_a_later_word_about_a_member_takes_the_place_of_the_earlier() -> None:
    queue = BroadcastQueue()
    queue.put(word("b", SUSPECT))
    queue.take(1_000, 4)
    queue.put(word("b", refuted=1))
    assert queue.take(1_000, 4) == [word("b", refuted=1)]
    queue.drop("b")
    assert queue.take(1_000, 4) == []


def test_accusations_and_refutations_go_before_joins_and_the_fresh_before_the_often_sent() -> None:
    queue = BroadcastQueue()
    size = record_bytes(word("b"))
    queue.put(word("b"))
    queue.put(word("c", DEAD))
    queue.put(word("d", refuted=1))
    assert queue.take(2 * size, 4) == [word("d", refuted=1), word("c", DEAD)]
    assert queue.take(size, 4) == [word("b")]
    queue.put(word("e", SUSPECT))
    assert queue.take(size, 4) == [word("e", SUSPECT)]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(0, 30), st.integers(0, 3)),
            st.tuples(st.just("take"), st.integers(0, 1_300), st.integers(1, 5)),
            st.tuples(st.just("drop"), st.integers(0, 30), st.just(0)),
        ),
        max_size=60,
    )
)
def test_packets_are_never_overfull_and_nothing_is_lost_or_sent_too_often(steps: list[tuple[str, int, int]]) -> None:
    queue = BroadcastQueue()
    waiting: dict[str, int] = {}
    for verb, number, more in steps:
        if verb == "put":
            queue.put(word(f"m{number}", more))
            waiting[f"m{number}"] = 0
        elif verb == "drop":
            queue.drop(f"m{number}")
            waiting.pop(f"m{number}", None)
        else:
            taken = queue.take(number, more)
            assert sum(map(record_bytes, taken)) <= number
            assert len({record.name for record in taken}) == len(taken)
            for record in taken:
                waiting[record.name] += 1
                if waiting[record.name] >= more:
                    del waiting[record.name]
        assert len(queue) == len(waiting)
    assert {record.name for record in queue.take(10**6, 10**6)} == set(waiting)


# -- the table


def test_who_is_new_is_asked_within_the_round_and_who_is_gone_no_more() -> None:
    table = MemberTable("a", random.Random(1), [word(f"m{number}") for number in range(50)])
    for _ in range(10):
        table.turn()
    table.set(word("new"))
    table.remove("m7")
    table.set(word("m8", DEAD))
    rounds = {record.name for record in (table.turn() for _ in range(100)) if record is not None}
    assert "new" in rounds and "m7" not in rounds and "m8" not in rounds
    assert table.reachable == 49


@pytest.mark.parametrize("members", [3, 40])
def test_some_gives_different_members_that_fit(members: int) -> None:
    table = MemberTable("a", random.Random(1), [word(f"m{number}", number % 2 * DEAD) for number in range(members)])
    for _ in range(50):
        found = table.some(3, lambda record: record.state == ALIVE)
        assert len({record.name for record in found}) == len(found) <= 3
        assert all(record.state == ALIVE for record in found)
    assert MemberTable("a", random.Random(1)).some(3, lambda record: True) == []
    assert MemberTable("a", random.Random(1)).turn() is None
