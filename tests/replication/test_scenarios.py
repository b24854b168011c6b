"""What befalls hosts that share state, on virtual time and from seeds; and each planted bug is caught by it."""

from __future__ import annotations

import pytest

from actorgrid.chaos.gossip.state_measures import burst_s, healed_s, site_sizes, spread, state_traffic
from actorgrid.chaos.gossip.state_mutants import STATE_MUTANTS, hunt_state
from actorgrid.chaos.gossip.state_scenarios import STATE_SCENARIOS
from actorgrid.chaos.gossip.state_simulation import StateNetwork, StateParts, StateSimulation


@pytest.mark.parametrize("name", STATE_SCENARIOS)
def test_a_scenario_holds_for_some_seeds(name: str) -> None:
    found = [(seed, what) for seed in range(1, 3) if (what := STATE_SCENARIOS[name](seed, StateParts()))]
    assert found == []


@pytest.mark.system
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", STATE_SCENARIOS)
def test_a_scenario_holds_for_many_seeds(name: str) -> None:
    found = [(seed, what) for seed in range(100, 200) if (what := STATE_SCENARIOS[name](seed, StateParts()))]
    assert found == []


LONG_HUNTS = {"takes_vectors_as_walks_begin"}
"""Planted bugs that show in few seeds: hunted in the second tier."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.system] * (name in LONG_HUNTS)) for name in STATE_MUTANTS]
)
def test_each_planted_bug_is_caught(name: str) -> None:
    seed, what = hunt_state(name, 20)
    assert what, f"not in {seed} seeds"


def test_the_same_seed_is_the_same_run() -> None:
    def run() -> list[tuple[str, int, int]]:
        simulation = StateSimulation(site_sizes(12, 3), 7, StateNetwork(loss=0.1))
        simulation.run_until(2)
        simulation.write("site0-0001", "hits", "g_counter", "increment")
        simulation.run_until(6)
        return [(host.name, host.sent_packets, host.sent_bytes) for host in simulation.hosts.values()]

    assert run() == run()


def test_a_write_is_everywhere_after_a_round_or_two_at_one_site_and_at_three() -> None:
    for sites in (1, 3):
        found = spread(site_sizes(45, sites), StateNetwork(loss=0.05, far_round_trip_s=0.2), 1, 5)
        assert found.missing == 0
        assert max(found.everywhere) < 10.0, "rounds of a second"


def test_lines_between_sites_carry_the_same_however_many_hosts_are_behind_them() -> None:
    few, many = (state_traffic(site_sizes(hosts, 3), StateNetwork(), 1, 10, 1.0) for hosts in (12, 96))
    assert many.line_bytes_per_s < 1.2 * few.line_bytes_per_s < 2_500
    flat = state_traffic({"": 96}, StateNetwork(), 1, 10, 1.0)
    # Without sites two of three packets would cross. (57 times as much while each write went to each host three times:
    # the lines carry what they did, but hosts of one site send a third of it.)
    assert many.line_bytes_per_s * 15 < flat.host_bytes_per_s * 96 * 2 / 3


def test_sites_that_were_apart_hold_the_same_soon_after_and_over_a_narrow_line_too() -> None:
    assert healed_s(site_sizes(12, 3), StateNetwork(far_round_trip_s=0.2), 1, 20.0, 5.0) < 5.0
    assert burst_s(site_sizes(9, 3), StateNetwork(far_bytes_per_s=125_000), 1, 300) < 20.0
