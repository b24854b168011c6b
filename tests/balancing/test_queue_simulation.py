"""What the policies are worth beside chance, in simulated time; the figures: python -m tests.bench --only balancing."""

from __future__ import annotations

from dataclasses import replace

from actorgrid.configs.balancing_policy import BalancingPolicy
from tests.balancing.queue_simulation import EVEN, HEAVY, KEYS, RANDOM, SKEWED, STALE, Town, simulate

REQUESTS = 8000


def p99_s(town: Town, policy: str) -> float:
    return simulate(replace(town, requests=REQUESTS), policy, seed=7).p99_s


def test_the_least_loaded_beats_chance_with_loads_that_are_heard_of_late() -> None:
    assert p99_s(EVEN, BalancingPolicy.LEAST_LOADED) < 0.8 * p99_s(EVEN, RANDOM)


def test_loads_ten_seconds_old_do_not_herd() -> None:
    """Taken at their face value they do: everybody goes to whoever was idle then, and waits longer than by chance."""
    assert p99_s(STALE, BalancingPolicy.LEAST_LOADED) < p99_s(STALE, RANDOM)


def test_weights_save_unequal_hosts() -> None:
    chance = p99_s(SKEWED, RANDOM)
    assert p99_s(SKEWED, BalancingPolicy.WEIGHTED_ROUND_ROBIN) < 0.3 * chance
    assert p99_s(SKEWED, BalancingPolicy.LEAST_LOADED) < p99_s(SKEWED, BalancingPolicy.WEIGHTED_ROUND_ROBIN)


def test_load_saves_requests_behind_large_ones() -> None:
    assert p99_s(HEAVY, BalancingPolicy.LEAST_LOADED) < 0.6 * p99_s(HEAVY, BalancingPolicy.ROUND_ROBIN)


def test_keys_that_stick_cost_less_than_chance() -> None:
    assert p99_s(KEYS, BalancingPolicy.AFFINITY_AWARE) < p99_s(KEYS, RANDOM)
