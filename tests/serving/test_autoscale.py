"""How many replicas there are to be, by what is asked."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from actorgrid.actors.ledger.service_records import ServiceScaleRecord
from actorgrid.actors.serving.autoscale import DOWN_EVERY_S, PANIC_S, WINDOW_S, Autoscaler
from actorgrid.actors.serving.gateway_reports import DemandNews, DemandNow, GatewayReports
from actorgrid.actors.serving.table import ReplicaReport, RevisionReport, ServiceDemand


class Scaled:
    """A service whose replicas are ready as soon as they are wanted, second by second."""

    def __init__(self, target: int = 1, **scale: object) -> None:
        self.scale: ServiceScaleRecord = {  # type: ignore[typeddict-item]
            "min": 0,
            "max": 10,
            "concurrency": 10,
            "idle_s": 900.0,
            "drain_s": 120.0,
            "strategy": "auto",
            **scale,
        }
        self.target, self.now, self.asked_at = target, 0.0, 0.0
        self.scaler = Autoscaler(0.0)

    def go(self, seconds: int, in_flight: int = 0, held: int = 0) -> int:
        for _ in range(seconds):
            self.now += 1
            if in_flight or held:
                self.asked_at = self.now
            self.scaler.observe(self.now, DemandNow(in_flight, held, 0.0), self.now - self.asked_at)
            self.target = self.scaler.decide(self.now, self.scale, self.target, self.target, in_flight)
        return self.target


def test_as_many_as_requests_need_at_seven_tenths() -> None:
    service = Scaled()
    assert service.go(120, in_flight=35) == 5
    assert service.go(120, in_flight=36) == 6


def test_one_request_from_zero_is_enough_and_comes_at_once() -> None:
    service = Scaled(target=0)
    assert service.go(200) == 0
    assert service.go(1, held=1) == 1


def test_it_goes_to_zero_a_while_after_the_last_request_and_not_before() -> None:
    service = Scaled(idle_s=900.0)
    service.go(100, in_flight=3)
    assert service.go(898) == 1
    assert service.go(3) == 0


def test_it_never_goes_to_zero_below_the_minimum_or_under_a_request() -> None:
    assert Scaled(min=1).go(2_000) == 1
    assert Scaled(idle_s=10.0).go(2_000, in_flight=1) == 1


def test_a_burst_is_a_panic_in_which_nothing_is_taken_away() -> None:
    service = Scaled()
    service.go(100, in_flight=5)
    at_most = service.go(20, in_flight=80)
    assert at_most == 10
    # The panic lasts for a minute after the short window last saw twice of what was there.
    assert service.go(int(PANIC_S) - 10) == at_most
    service.go(120)
    assert service.target == at_most - 1
    assert service.go(int(DOWN_EVERY_S) - 62) >= at_most - 2


def test_it_comes_down_by_one_in_a_while_and_up_by_doubling() -> None:
    service = Scaled(target=8)
    service.go(WINDOW_S)
    steps = []
    for _ in range(900):
        before = service.target
        if service.go(1, in_flight=1) != before:
            steps.append(service.now)
    assert service.target <= 6 and all(later - first >= DOWN_EVERY_S for first, later in pairwise(steps))
    quick = Scaled(target=1)
    assert [quick.go(1, in_flight=1_000), quick.go(6, in_flight=1_000), quick.go(6, in_flight=1_000)] == [2, 4, 8]


def test_whoever_begins_to_lead_takes_nothing_away_before_a_window_was_seen() -> None:
    service = Scaled(target=5)
    assert service.go(WINDOW_S - 1) == 5
    assert service.go(5) == 4


def test_a_maximum_that_a_person_lowered_holds_at_once() -> None:
    service = Scaled(target=6)
    service.scale["max"] = 2
    assert service.go(1, in_flight=50) == 2


@pytest.mark.parametrize("seed", range(20))
def test_it_stays_within_its_bounds_and_above_what_is_under_way(seed: int) -> None:
    dice = random.Random(seed)
    service = Scaled(min=dice.randint(0, 2), max=dice.randint(3, 12), concurrency=dice.randint(1, 20))
    service.target = max(1, service.scale["min"])
    for _ in range(60):
        in_flight = dice.choice([0, 0, 1, 5, 40, 300])
        before = service.target
        service.go(dice.randint(1, 200), in_flight=in_flight, held=dice.choice([0, 0, 3]))
        assert service.scale["min"] <= service.target <= service.scale["max"]
        needed = min(service.scale["max"], -(-in_flight // service.scale["concurrency"]))
        assert service.target >= min(needed, before)


# -- what hosts tell


def told(in_flight: int, held: int = 0, requests: int = 0, failures: int = 0, late_s: float = 0.1) -> ServiceDemand:
    replica = ReplicaReport("chat-1", "chat-1.1", in_flight, requests, failures, False)
    revision = RevisionReport("new", requests, failures, late_s / 2, late_s)
    return ServiceDemand("chat", in_flight, held, 0.0, requests, failures, 5.0, (replica,), (revision,))


def test_reports_of_all_hosts_count_until_they_tell_another_or_are_gone() -> None:
    reports = GatewayReports()
    reports.took("a", [told(3, 1)], 0.0)
    reports.took("b", [told(2)], 0.0)
    assert reports.of_service("chat") == DemandNow(5, 1, 5.0) and reports.busy("chat") == {"chat-1": 5}
    reports.took("a", [told(0)], 0.0)
    assert reports.of_service("chat") == DemandNow(2, 0, 5.0)
    reports.keep_only(["a"])
    assert reports.of_service("chat") == DemandNow(0, 0, 5.0)
    reports.took("a", [], 0.0)
    assert reports.of_service("chat") == DemandNow(0, 0, 0.0)


def test_figures_count_from_where_a_comparison_begins_and_over_a_gateway_that_begins_anew() -> None:
    reports = GatewayReports()
    reports.took("a", [told(0, requests=100, failures=50)], 0.0)
    reports.begin_comparing("chat")
    assert reports.figures("chat", "new") == (0, 0, 0.0)
    reports.took("a", [told(0, requests=110, failures=51)], 0.0)
    reports.took("b", [told(0, requests=7, failures=0, late_s=2.0)], 0.0)
    assert reports.figures("chat", "new") == (17, 1, 2.0)
    reports.took("a", [told(0, requests=4, failures=1)], 0.0)
    assert reports.figures("chat", "new") == (11, 1, 2.0)


def test_a_word_of_every_host_is_asked_for_and_of_those_that_told_nothing() -> None:
    reports = GatewayReports()
    reports.took("a", [told(0)], 5.0)
    reports.took("b", [told(0)], 7.0)
    assert reports.oldest_word_at(["a", "b"], 0.0) == 5.0
    assert reports.oldest_word_at(["b", "c"], -1.0) == -1.0 and reports.oldest_word_at([], 0.0) == math.inf
    reports.keep_only(["b"])
    assert reports.oldest_word_at(["a"], -1.0) == -1.0


def test_demand_is_news_when_it_changed_or_is_some_and_while_a_replica_leaves() -> None:
    news, leaving = DemandNews(), [{"replicas": [{"state": "draining"}]}]
    assert news.is_due(0.0, (told(0),)) and not news.is_due(1.0, (told(0),))
    assert news.is_due(2.0, (told(0),), leaving), "whoever leads waits for each word"  # type: ignore[arg-type]
    assert not news.is_due(6.9, (told(0),)) and news.is_due(7.0, (told(0),))
    assert news.is_due(8.0, (told(1),)) and news.is_due(9.0, (told(1),))
