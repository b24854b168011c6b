"""All scenarios with one more learner, whose key is in the wrong hands: nothing is granted twice, and no host fails."""

from __future__ import annotations

import os

import pytest

from actorgrid.actors.consensus.admission import Admission
from actorgrid.actors.raft.electorate import Electorate
from actorgrid.chaos.simulator import scenario
from actorgrid.chaos.simulator.node import SimulatedHost
from actorgrid.chaos.simulator.run import RunResult, play
from actorgrid.chaos.simulator.shrink import shrink

SCENARIOS = scenario.names()
ALWAYS = ("everything", "members_come_and_go")
"""The two in which it has most to do."""
SEEDS_MAX = 20


def explain(result: RunResult) -> str:
    return f"{result.checker}: {result.what}\nreplay: {result.replay}"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.system) for name in SCENARIOS]
)
def test_a_cluster_survives_the_scenario_with_a_hostile_learner(name: str) -> None:
    result = play(name, 1, hostile=True)
    assert result.held, explain(result)
    assert result.figures["refused"] > 10


@pytest.mark.system
@pytest.mark.parametrize("name", SCENARIOS)
def test_it_survives_more_seeds(name: str) -> None:
    for seed in range(2, 8 * int(os.environ.get("FUZZ_ROUNDS", "1"))):
        result = play(name, seed, hostile=True)
        assert result.held, explain(result)


def first_failure(name: str) -> RunResult:
    for seed in range(1, SEEDS_MAX):
        result = play(name, seed, hostile=True)
        if not result.held:
            return result
    raise AssertionError(f"not caught in {SEEDS_MAX} seeds")


def test_a_leader_that_takes_every_proposal_is_found_and_the_line_replays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Admission, "_admits", lambda *_: True)
    failed = first_failure("everything")
    assert "--hostile-learner" in failed.replay
    smaller = shrink(failed)
    assert smaller.checker == failed.checker and smaller.hostile
    assert play(failed.scenario, failed.seed).held, "without the learner nothing is amiss"


@pytest.mark.system
def test_newcomers_that_nobody_told_who_votes_are_led_astray_and_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedHost, "tell", lambda *_: None)
    failed = first_failure("members_come_and_go")
    assert failed.checker
    assert play(failed.scenario, failed.seed).held, "without the learner nothing is amiss"


def test_hosts_that_obey_whoever_says_that_it_leads_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Electorate, "counts", lambda *_: True)
    assert first_failure("everything").checker
