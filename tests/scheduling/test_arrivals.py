"""When what arrives is news."""

from __future__ import annotations

import pytest

from actorgrid.actors.scheduling.arrivals import DEMANDS_MAX, ENOUGH, HALVED_AT, INTERVAL_S, Arrivals
from actorgrid.demand import Demand


def demand(cpu_milli: int = 1000, gpu_count: int = 1, gpu_milli: int = 500, memory_mib: int = 0) -> Demand:
    return Demand(cpu_milli, memory_mib, gpu_count, gpu_milli)


def see(arrivals: Arrivals, what: Demand, times: int) -> None:
    for _ in range(times):
        arrivals.saw(what)


def test_nothing_is_said_before_enough_has_come() -> None:
    arrivals = Arrivals()
    see(arrivals, demand(), ENOUGH - 1)
    assert arrivals.news(0.0) is None
    arrivals.saw(demand())
    assert arrivals.news(0.0) == {demand(): 1.0} == arrivals.told


def test_demands_that_differ_in_memory_only_are_one() -> None:
    arrivals = Arrivals()
    for number in range(ENOUGH):
        arrivals.saw(demand(memory_mib=number))
    assert arrivals.news(0.0) == {demand(): 1.0}


def test_only_what_is_popular_is_in_the_mix() -> None:
    arrivals = Arrivals()
    see(arrivals, demand(), 96)
    see(arrivals, demand(2000), 192)
    see(arrivals, demand(3000), 12)
    assert arrivals.news(0.0) == {demand(): pytest.approx(1 / 3), demand(2000): pytest.approx(2 / 3)}


def test_a_change_is_told_when_it_is_large_and_not_at_once() -> None:
    arrivals = Arrivals()
    see(arrivals, demand(), 500)
    arrivals.news(0.0)
    see(arrivals, demand(2000), 40)
    assert arrivals.news(INTERVAL_S) is None, "40 of 540 are no drift"
    see(arrivals, demand(2000), 400)
    assert arrivals.news(2 * INTERVAL_S - 1) is None, "too soon after the last look"
    assert arrivals.news(2 * INTERVAL_S) == {
        demand(): pytest.approx(500 / 940),
        demand(2000): pytest.approx(440 / 940),
    }


def test_old_arrivals_lose_their_weight() -> None:
    arrivals = Arrivals()
    see(arrivals, demand(), HALVED_AT)
    see(arrivals, demand(2000), 5 * HALVED_AT)
    news = arrivals.news(0.0)
    assert news is not None and news == {demand(2000): 1.0}


def test_the_count_of_demands_is_bounded_and_the_popular_stay() -> None:
    arrivals = Arrivals()
    see(arrivals, demand(), 2000)
    for number in range(2 * DEMANDS_MAX):
        arrivals.saw(demand(10_000 + number))
    news = arrivals.news(0.0)
    assert news is not None and max(news, key=lambda each: news[each]) == demand()
    assert len(news) <= DEMANDS_MAX
