"""``actorgrid chaos``: what it prints, and how it leaves."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from actorgrid.chaos.simulator import scenario
from actorgrid.cli.main import cli

Say = Callable[..., tuple[int, str]]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Run the command line; its exit code and what it printed on stdout."""

    def call(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as left:
            cli.main(list(words))
        return int(left.value.code or 0), capsys.readouterr().out

    return call


def test_list_names_every_scenario_with_its_sentence(say: Say) -> None:
    code, out = say("chaos", "list")
    assert code == 0
    for name in scenario.names():
        assert name in out
        assert scenario.find(name).says in out


def test_a_run_that_holds_leaves_with_zero_and_counts(say: Say) -> None:
    code, out = say("chaos", "run", "calm", "partitions", "--seeds", "2", "--json")
    told = json.loads(out)
    assert (code, told["runs"], told["violations"], told["failures"]) == (0, 4, 0, [])
    assert [each["scenario"] for each in told["scenarios"]] == ["calm", "partitions"]
    assert told["scenarios"][0]["applied"] > 50


def test_a_violation_leaves_with_one_and_a_line_that_replays_it(say: Say) -> None:
    code, out = say("chaos", "run", "everything", "--seeds", "3", "--mutant", "ack_before_sync")
    assert code == 1
    line = next(line for line in out.splitlines() if line.startswith("replay: "))
    words = line.removeprefix("replay: actorgrid ").split()
    again, trace = say(*words)
    assert again == 1
    assert "a majority has not synced" in trace
    assert line in trace


def test_json_of_a_violation_has_the_line_and_the_end_of_the_trace(say: Say) -> None:
    code, out = say("chaos", "run", "everything", "--seed", "1", "--mutant", "ack_before_sync", "--json")
    (failure,) = json.loads(out)["failures"]
    assert code == 1
    assert failure["checker"] == "Durability"
    assert failure["replay"].startswith("actorgrid chaos run everything --seed 1")
    assert failure["what"] in failure["trace"][-1]


def test_a_trace_is_lines_of_time_who_and_what(say: Say) -> None:
    code, out = say("chaos", "run", "power_cuts", "--seed", "3", "--trace")
    assert code == 0
    lines = [line.split() for line in out.splitlines() if line[:10].strip().replace(".", "").isdigit()]
    assert len(lines) > 50
    times = [float(line[0]) for line in lines]
    assert times == sorted(times)
    assert {"n1", "fault", "operator"} <= {line[1] for line in lines}


def test_mutants_are_hunted_and_one_that_gets_away_is_a_failure(say: Say) -> None:
    code, out = say("chaos", "mutants", "stale_read", "applied_twice", "--json")
    hunts = json.loads(out)
    assert code == 0
    assert [hunt["name"] for hunt in hunts] == ["stale_read", "applied_twice"]
    assert all(hunt["checker"] and hunt["seeds"] < 20 for hunt in hunts)
    code, out = say("chaos", "mutants", "vote_forgotten", "--seeds", "1", "--seed", "2", "--markdown")
    assert code in (0, 1)
    assert "| `vote_forgotten` |" in out


@pytest.mark.parametrize("words", [("run", "nothing"), ("mutants", "nothing"), ("run", "calm", "--mutant", "nothing")])
def test_an_unknown_name_is_wrong_use(say: Say, words: tuple[str, ...]) -> None:
    assert say("chaos", *words)[0] == 2
