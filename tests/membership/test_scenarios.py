"""What befalls small clusters on virtual time, from seeds; and each planted bug is caught by it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from actorgrid.actors.membership.profiles import PROFILES
from actorgrid.chaos.gossip.measures import comparisons, deaths, joins, traffic
from actorgrid.chaos.gossip.mutants import MUTANTS, hunt
from actorgrid.chaos.gossip.scenarios import SCENARIOS, play
from actorgrid.chaos.gossip.simulation import GossipSimulation
from actorgrid.errors import BadRequest

LAN, FAST = PROFILES["lan"], PROFILES["lan_fast"]


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_holds_for_some_seeds(name: str) -> None:
    assert [(seed, what) for seed in range(1, 4) if (what := play(name, seed))] == []


@pytest.mark.system
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_holds_for_many_seeds(name: str) -> None:
    assert [(seed, what) for seed in range(100, 300) if (what := play(name, seed))] == []


LONG_HUNTS = {"judges_after_sleep"}
"""Planted bugs that show in few seeds: hunted in the second tier."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.system] * (name in LONG_HUNTS)) for name in MUTANTS]
)
def test_each_planted_bug_is_caught(name: str) -> None:
    seed, what = hunt(name, 60)
    assert what, f"not in {seed} seeds"


def test_a_scenario_that_there_is_not_is_refused() -> None:
    with pytest.raises(BadRequest, match="no scenario"):
        play("nowhere", 1)


def test_the_same_seed_is_the_same_run() -> None:
    def run() -> list[tuple[str, int, int]]:
        simulation = GossipSimulation(30, LAN, 7, loss=0.05)
        simulation.run_until(20)
        simulation.kill("host-0003")
        simulation.run_until(40)
        return [(host.name, host.datagrams, host.datagram_bytes) for host in simulation.hosts.values()]

    assert run() == run()


def test_sealed_datagrams_and_objects_are_the_same_run() -> None:
    def run(wire: bool) -> list[tuple[str, int]]:
        simulation = GossipSimulation(12, LAN, 3, loss=0.05, wire=wire)
        simulation.run_until(30)
        simulation.kill("host-0003")
        simulation.run_until(60)
        assert not any(host.seal.refused for host in simulation.hosts.values() if host.seal)
        return [(host.name, host.datagrams) for host in simulation.hosts.values()]

    assert run(wire=True) == run(wire=False)


def test_a_death_and_a_join_are_known_to_all_within_the_targets() -> None:
    died = deaths(60, LAN, 0.0, 1, 6)
    assert died.missing == 0 and len(died.declared) == 6
    assert max(died.first_suspicion) < 6
    assert max(died.declared) < 25
    assert max(died.known_to_all) < 3
    joined = joins(60, LAN, 0.0, 1, 6)
    assert joined.missing == 0 and max(joined.known_to_all) < 3


def test_a_host_at_rest_sends_a_ping_and_an_answer_an_interval() -> None:
    rest = traffic(60, LAN, 0.0, 1, 30)
    assert rest.datagrams_per_s == pytest.approx(2.0, abs=0.1)
    assert rest.false_suspicions == rest.false_deaths == 0


def test_links_answer_where_datagrams_are_lost() -> None:
    without = traffic(60, LAN, 0.2, 1, 30)
    with_links = traffic(60, replace(LAN, ask_by_link=True), 0.2, 1, 30)
    assert without.false_suspicions > 10
    assert with_links.false_suspicions == 0


@pytest.mark.system
def test_slow_hosts_declare_healthy_ones_dead_unless_they_know_that_they_stood_still() -> None:
    found = {name: traffic(60, each, 0.0, 2, 120, slow_share=0.1) for name, each in comparisons(FAST)}
    assert found["SWIM"].false_deaths > 0
    assert found["Lifeguard, stalls forgiven"].false_deaths == 0


@pytest.mark.system
@pytest.mark.timeout(900)  # half a minute of one core, on machines that are busy
def test_a_thousand_hosts_lose_nobody_who_lives() -> None:
    assert traffic(1_000, LAN, 0.05, 1, 60).false_deaths == 0
    died = deaths(1_000, LAN, 0.05, 1, 10)
    assert died.missing == 0
    assert max(died.known_to_all) < 3
