"""Results lost with their hosts: what a graph gave is there when it has succeeded, whoever heard of the loss when."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actorgrid.actors.jobs.decisions import Advance, ClusterCapacity
from actorgrid.dag.model import StepKind

from .play import CRASH, Play, function, graph

FAULTS = ("host", "back", "leader", "drop")


def kept_step(dice: random.Random, id: str, inputs: list[str]) -> dict[str, Any]:
    more: dict[str, Any] = {"function": dice.choice("fgh"), "retries": dice.choice([0, 1, 3])}
    if dice.random() < 0.5:
        more["cache"] = {"call": id.encode().hex().rjust(64, "0"), "takes": inputs}
    return function(id, inputs, **more)


def any_steps(dice: random.Random, count: int) -> list[dict[str, Any]]:
    """Steps of all kinds: calls, commands with files and without, merges, branches, steps that may be taken over."""
    steps: list[dict[str, Any]] = []
    for number in range(count):
        near = steps[max(0, number - 8) :]
        inputs = [each["id"] for each in dice.sample(near, min(len(near), dice.choice([0, 1, 1, 2, 3])))]
        id, kind = f"s{number}", dice.random()
        values = [each for each in inputs if steps[int(each[1:])]["kind"] != "command"]
        if kind < 0.15 and values:
            steps.append({"id": id, "kind": "merge", "inputs": values, "last": dice.random() < 0.5})
            continue
        if kind < 0.25:
            outputs = [id] if dice.random() < 0.5 else []
            steps.append({"id": id, "kind": "command", "command": id, "outputs": outputs, "after": inputs})
            continue
        step = kept_step(dice, id, values)
        if inputs and dice.random() < 0.15 and steps[int(inputs[0][1:])]["kind"] == "function":
            step["when"] = [{"step": inputs[0], "word": True, "negated": dice.random() < 0.5}]
        steps.append(step)
    return steps


class Faults:
    """Hosts and leaders that are lost, hosts that come back, results that are dropped: at any time, at most so many."""

    def __init__(self, dice: random.Random, kinds: tuple[str, ...], most: int) -> None:
        self.dice = dice
        self.kinds = kinds
        self.left = most
        self.dropped: set[tuple[str, str]] = set()

    def __call__(self, play: Play) -> None:
        if not self.left or self.dice.random() >= 0.05:
            return
        self.left -= 1
        kind = self.dice.choice(self.kinds)
        away = [host for host, alive in play.alive.items() if not alive]
        if kind == "host" and len(away) + 1 < len(play.alive):
            host = self.dice.choice([host for host, alive in play.alive.items() if alive])
            play.lose_host(host)
        elif kind == "back" and away:
            play.host_is_back(self.dice.choice(away))
        elif kind == "leader":
            play.lead()
        elif kind == "drop" and play.results_at:
            place = self.dice.choice(list(play.results_at))
            self.dropped.add(place)
            del play.results_at[place]


def play_all_kinds(seed: int, most: int) -> None:
    dice = random.Random(seed)
    steps = any_steps(dice, dice.choice([5, 20, most]))
    crashes = dice.random() < 0.3

    def gives(play: Play, step: int, _run: int) -> Any:
        if crashes and dice.random() < 0.05:
            return CRASH if dice.random() < 0.5 else ValueError()
        return random.Random(f"{seed} {play.spec.step(step).id}").random() < 0.6

    kinds = tuple(dice.sample(FAULTS, dice.choice([1, 2, 4])))
    faults = Faults(dice, kinds, dice.choice([1, 3, 10]))
    takes_s = dice.choice([0.005, 1.0])
    more = {"on_failure": dice.choice(["fail_fast", "continue"]), "strategy": "least_fragmentation"}
    play = Play(
        graph(*steps, graph_id="one", **more),
        hosts=3,
        slots=dice.choice([1, 2, 4]),
        gives=gives,
        takes=lambda _step: takes_s,
        meanwhile=faults,
    )
    for graph_id in ("one", "two"):
        if graph_id == "two":
            play.submit(graph(*steps, graph_id="two", **more))
        state = play.run(until=lambda: faults(play) is not None)
        if not crashes:
            assert state == "succeeded", play.job["error"]
        if state == "succeeded":
            assert set(play.states.values()) <= {"succeeded", "skipped"}
            for number in play.spec.graph.running:
                record = play.ledger.steps.get(graph_id, number)
                wanted = not [n for n in play.spec.graph.consumers[number] if number in play.spec.graph.taken[n]]
                if record["state"] != "succeeded" or not wanted or not has_value(play, record.get("same_as", number)):
                    continue
                # That something was dropped shows when somebody takes it: then what took it over is made again, too.
                source = play.ledger.steps.get(graph_id, record.get("same_as", number))
                unseen = place_of(record) in faults.dropped and place_of(source) == place_of(record)
                assert play.is_kept(number) or unseen, (number, record)


def place_of(record: Any) -> tuple[str, str]:
    return record["host"], record["attempt_id"]


def has_value(play: Play, number: int) -> bool:
    step = play.spec.step(number)
    return step.kind is StepKind.FUNCTION or bool(step.outputs)


@pytest.mark.parametrize("seed", range(5))
def test_what_a_graph_gave_is_there_whatever_was_lost(seed: int) -> None:
    play_all_kinds(seed, most=20)


@pytest.mark.soak
@settings(max_examples=2_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**9))
def test_what_a_graph_gave_is_there_for_long(seed: int) -> None:
    play_all_kinds(seed, most=80)


def test_a_new_leader_has_results_made_again_that_were_lost_before_it_led() -> None:
    play = Play(graph(function("gives"), function("long")), hosts=2, slots=1, takes=lambda step: 1.0 + 9.0 * step)
    play.run(until=lambda: "gives" in play.done())
    play.lose_host(play.ledger.steps.get("g", 0)["host"])
    play.lead()
    assert play.run() == "succeeded"
    assert play.done().count("gives") == 2
    assert play.is_kept(0)


def test_results_on_a_host_that_was_removed_are_lost_to_a_new_leader() -> None:
    play = Play(graph(function("gives"), function("long")), hosts=2, slots=1, takes=lambda step: 1.0 + 9.0 * step)
    play.run(until=lambda: "gives" in play.done())
    play.execution.only_there({"h0", "h1"})
    assert play.execution.decide(capacity_of(play), play.now) is None
    play.execution.only_there({"h0", "h1"} - {play.ledger.steps.get("g", 0)["host"]})
    found = play.execution.decide(capacity_of(play), play.now)
    assert isinstance(found, Advance) and found.settled == [{"step": 0, "state": "waiting"}]


def capacity_of(play: Play) -> ClusterCapacity:
    return ClusterCapacity(play.slots * len(play.alive), frozenset(play.alive))


def lose_once(step: int, graph_id: str) -> Any:
    """The host with what a step gave is lost while the first proposal after it is on its way."""

    def meanwhile(play: Play) -> None:
        record = play.ledger.steps.get(graph_id, step)
        if record["state"] == "succeeded" and all(play.alive.values()) and not play.execution._jobs:
            play.lose_host(record["host"])

    return meanwhile


def test_what_is_taken_over_from_a_host_that_is_lost_meanwhile_is_made_again() -> None:
    step = kept_step(random.Random(1), "a", []) | {"cache": {"call": "0" * 64}}
    play = Play(graph(step, graph_id="one"))
    assert play.run() == "succeeded"
    play.meanwhile = lose_once(0, "one")
    play.submit(graph(step, graph_id="two"))
    assert play.run() == "succeeded"
    assert not all(play.alive.values())
    assert play.done() == ["a", "a"]
    assert play.is_kept(0)


def test_a_merge_of_what_is_lost_meanwhile_has_a_value() -> None:
    play = Play(graph(function("a"), {"id": "m", "kind": "merge", "inputs": ["a"]}), meanwhile=lose_once(0, "g"))
    assert play.run() == "succeeded"
    assert not all(play.alive.values())
    assert play.done() == ["a", "a"]
    assert play.is_kept(1)


def test_a_merge_has_the_value_that_was_made_again() -> None:
    steps = [function("a"), {"id": "m", "kind": "merge", "inputs": ["a"]}, function("b"), function("c", ["a", "b"])]
    play = Play(graph(*steps))
    play.run(until=lambda: "a" in play.done() and play.ledger.steps.get("g", 1)["state"] == "succeeded")
    before = play.ledger.steps.get("g", 0)
    del play.results_at[before["host"], before["attempt_id"]]  # its host is there, and has it no more
    assert play.run() == "succeeded"
    assert play.done().count("a") == 2
    assert play.is_kept(1)


def test_what_a_host_has_that_is_back_is_not_made_again() -> None:
    steps = [function("a"), function("b", ["a"]), function("long"), function("c", ["a", "b", "long"])]
    play = Play(graph(*steps), hosts=2, slots=1, takes=lambda step: 10.0 if step == 2 else 1.0)
    play.run(until=lambda: "b" in play.done())
    host = play.ledger.steps.get("g", 0)["host"]
    play.lose_host(host)
    play.host_is_back(host)
    assert play.run() == "succeeded"
    assert play.done().count("a") == play.done().count("b") == 1
