"""Whole clusters on virtual time: nothing is violated, a seed is a run, and its line replays it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from actorgrid.chaos.mutants import catalogue
from actorgrid.chaos.simulator import scenario
from actorgrid.chaos.simulator.run import RunResult, play
from actorgrid.chaos.simulator.shrink import shrink
from actorgrid.errors import BadRequest

ROOT = Path(__file__).resolve().parents[2]
FIRST_SEEDS = 1
SEEDS_IN_ALL = 200
SOAK_SEEDS_IN_ALL = 10_000
SCENARIOS = scenario.names()


def explain(result: RunResult) -> str:
    return f"{result.checker}: {result.what}\nreplay: {result.replay}"


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_cluster_survives_the_scenario(name: str) -> None:
    for seed in range(1, 1 + FIRST_SEEDS):
        result = play(name, seed)
        assert result.held, explain(result)


@pytest.mark.system
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_cluster_survives_more_seeds_of_the_scenario(name: str) -> None:
    for seed in range(1 + FIRST_SEEDS, 1 + -(-SEEDS_IN_ALL // len(SCENARIOS))):
        result = play(name, seed)
        assert result.held, explain(result)


@pytest.mark.soak
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_cluster_survives_thousands_of_seeds_of_the_scenario(name: str) -> None:
    for seed in range(1_000, 1_000 + -(-SOAK_SEEDS_IN_ALL // len(SCENARIOS))):
        result = play(name, seed)
        assert result.held, explain(result)


ALWAYS = ("everything", "services_by_demand")
"""The two in which most goes on."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.system) for name in SCENARIOS]
)
def test_a_seed_is_one_run_whether_it_is_traced_or_not(name: str) -> None:
    first, second = play(name, 7), play(name, 7, keep_trace=True)
    assert first.fingerprint == second.fingerprint
    assert first.figures == second.figures
    assert not first.trace
    assert second.trace


def test_two_seeds_are_two_runs() -> None:
    assert play("calm", 1).fingerprint != play("calm", 2).fingerprint


def test_a_run_does_not_depend_on_the_process_it_runs_in() -> None:
    program = (
        "from actorgrid.chaos.simulator.run import play; print(*[play('everything', s).fingerprint for s in (3, 4)])"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hashing},
        ).stdout
        for hashing in ("1", "2")
    ]
    assert told[0] == told[1]
    assert told[0].split() == [play("everything", seed).fingerprint for seed in (3, 4)]


def test_faults_strike_and_clients_are_answered() -> None:
    """A simulator in which nothing happens finds nothing, either."""
    figures = [play("everything", seed) for seed in range(1, 9)]
    assert sum(result.strikes for result in figures) > 40
    for figure, least in (("boots", 40), ("applied", 400), ("jobs", 20), ("lost", 20)):
        assert sum(result.figures[figure] for result in figures) > least, figure


def test_a_strike_left_out_is_left_out_and_the_others_stay() -> None:
    whole = play("power_cuts", 2, keep_trace=True)
    part = play("power_cuts", 2, keep_trace=True, without=(0,))
    assert part.strikes == whole.strikes
    assert not any("#0 " in line for line in part.trace if "fault" in line)
    assert any("#0 " in line for line in whole.trace if "fault" in line)


def caught() -> tuple[type, RunResult]:
    mutant = catalogue.find("ack_before_sync")
    for seed in range(1, 50):
        result = play(mutant.scenario, seed, mutant.node_class, keep_trace=True)
        if not result.held:
            return mutant.node_class, result
    raise AssertionError("not caught")


def test_a_failure_has_a_trace_that_ends_with_what_was_violated_and_a_line_that_replays_it() -> None:
    node_class, result = caught()
    assert "checker" in result.trace[-1]
    assert result.what in result.trace[-1]
    words = result.replay.split()
    assert words[:4] == ["actorgrid", "chaos", "run", result.scenario]
    again = play(words[3], int(words[words.index("--seed") + 1]), node_class)
    assert (again.checker, again.what, again.fingerprint) == (result.checker, result.what, result.fingerprint)


def test_a_failing_plan_shrinks_and_still_fails() -> None:
    mutant = catalogue.find("tail_lost")
    result = next(found for seed in range(1, 60) if not (found := play(mutant.scenario, seed, mutant.node_class)).held)
    smaller = shrink(result, mutant.node_class)
    assert smaller.checker == result.checker
    assert len(smaller.without) > 0
    replayed = play(result.scenario, result.seed, mutant.node_class, without=smaller.without)
    assert (replayed.checker, replayed.what) == (smaller.checker, smaller.what)


def test_every_scenario_says_in_a_sentence_what_it_does() -> None:
    for name in SCENARIOS:
        says = scenario.find(name).says
        assert says[0].isupper()
        assert says.endswith(".")


def test_an_unknown_scenario_or_mutant_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadRequest, match="everything"):
        scenario.find("nothing")
    with pytest.raises(BadRequest, match="stale_read"):
        catalogue.find("nothing")
