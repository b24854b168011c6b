"""Graphs led on by the real core over the real ledger: what runs, what is passed over, and what faults leave of it."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actorgrid.actors.ledger import commands
from actorgrid.actors.ledger.state import Ledger
from actorgrid.errors import WrongState

from .play import CRASH, Play, function, graph

FAULTS = ("none", "raise", "crash", "host", "leader", "all")
SHORT_S = 0.005


def chain(count: int, **more: Any) -> list[dict[str, Any]]:
    return [function(f"s{n}", [f"s{n - 1}"] if n else [], function="f", **more) for n in range(count)]


def random_steps(dice: random.Random, count: int) -> list[dict[str, Any]]:
    steps = []
    for number in range(count):
        near = range(max(0, number - 8), number)
        inputs = dice.sample(near, min(len(near), dice.choice([0, 1, 1, 2, 3])))
        ids = [f"s{each}" for each in inputs]
        steps.append(function(f"s{number}", ids, function=dice.choice("fgh"), retries=dice.choice([0, 1, 3])))
    return steps


def test_steps_run_after_what_they_take_from() -> None:
    play = Play(graph(function("a"), function("b", ["a"]), function("c", ["a"]), function("d", ["b", "c"])))
    assert play.run() == "succeeded"
    assert sorted(play.done()) == ["a", "b", "c", "d"]
    began = {run.step: run.began for run in play.ran}
    assert began["a"] < began["b"] == began["c"] < began["d"]


def test_commands_come_after_each_other() -> None:
    play = Play(graph({"id": "a", "command": "x"}, {"id": "b", "command": "y", "after": ["a"]}))
    assert play.run() == "succeeded"
    assert play.done() == ["a", "b"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fault", FAULTS)
def test_every_step_has_one_result_whatever_fails(fault: str, seed: int) -> None:
    play_with_faults(seed, fault, short=bool(seed % 2), most=40)


@pytest.mark.parametrize(
    ("seed", "fault", "short"),
    [
        (17617823, "all", True),  # a step that went back to waiting was put twice into one job
        (337891112, "host", True),
        (248, "all", False),  # a host was lost with what nobody took any more
    ],
)
def test_graphs_that_once_failed_succeed(seed: int, fault: str, short: bool) -> None:
    play_with_faults(seed, fault, short, most=120)


@pytest.mark.soak
@settings(max_examples=2_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**9), fault=st.sampled_from(FAULTS), short=st.booleans())
def test_every_step_has_one_result_for_long(seed: int, fault: str, short: bool) -> None:
    play_with_faults(seed, fault, short, most=120)


def play_with_faults(seed: int, fault: str, short: bool, most: int) -> None:
    dice = random.Random(seed)
    steps = random_steps(dice, dice.choice([5, 30, most]))
    on_failure = dice.choice(["fail_fast", "continue"])

    def gives(_play: Play, _step: int, _run: int) -> Any:
        if fault in ("raise", "all") and dice.random() < 0.05:
            return ValueError()
        return CRASH if fault in ("crash", "all") and dice.random() < 0.03 else None

    play = Play(
        graph(*steps, on_failure=on_failure, strategy="least_fragmentation"),
        hosts=3,
        slots=dice.choice([1, 2, 4]),
        gives=gives,
        takes=lambda _step: SHORT_S if short else 1.0,
    )
    lost: list[str] = []

    def meanwhile() -> bool:
        if fault in ("host", "all") and len(lost) < 2 and dice.random() < 0.03:
            lost.append(dice.choice([host for host, alive in play.alive.items() if alive]))
            play.lose_host(lost[-1])
        if fault in ("leader", "all") and dice.random() < 0.05:
            play.lead()
        return False

    state = play.run(until=meanwhile)
    states = Counter(play.states.values())
    if fault in ("none", "leader"):
        assert state == "succeeded"
        assert sorted(play.done()) == sorted(step["id"] for step in steps)
    if state == "succeeded":
        assert set(states) == {"succeeded"}
        for number in range(len(steps)):
            record = play.ledger.steps.get("g", number)
            if not play.is_kept(number):  # lost with its host, after all that takes it had ended
                assert record["host"] in lost and play.spec.graph.consumers[number]
    # What a voter that was restored from a snapshot has is the same, to the byte.
    data = play.ledger.snapshot()
    again = Ledger.restore(data)
    assert again.snapshot() == data
    assert again.digest() == play.ledger.digest()


def test_short_steps_run_together_and_each_has_its_result() -> None:
    steps = [function(f"s{n}", function="f") for n in range(400)]
    play = Play(graph(*steps), takes=lambda _step: SHORT_S)
    assert play.run() == "succeeded"
    assert len(play.done()) == 400
    assert play.jobs_run < 40
    places = {
        (record["attempt_id"], record["offset"]) for n in range(400) for record in [play.ledger.steps.get("g", n)]
    }
    assert len(places) == 400


def test_a_chain_of_short_steps_runs_through_in_one_job() -> None:
    play = Play(graph(*chain(200, runtime_s=0.002)), takes=lambda _step: 0.002)
    assert play.run() == "succeeded"
    assert play.jobs_run <= 6


def test_steps_of_one_function_are_as_short_as_was_told_of_each() -> None:
    """As in a workflow that was traced, where one function plays them all."""
    takes_s = [1.0 + number / 10 for number in range(4)] + [0.001 + number / 10_000 for number in range(80)]
    steps = [function(f"s{number}", function="f", runtime_s=each) for number, each in enumerate(takes_s[:4])]
    after = [f"s{number}" for number in range(4)]
    steps += [
        function(f"s{number}", function="f", runtime_s=each, after=after) for number, each in enumerate(takes_s[4:], 4)
    ]
    play = Play(graph(*steps), takes=lambda step: takes_s[step])
    assert play.run() == "succeeded"
    assert play.jobs_run < 42, "half of the steps have no job of their own"


def test_what_was_told_to_be_short_and_is_not_runs_by_itself_from_then_on() -> None:
    steps = [function(f"s{number}", function="f", runtime_s=0.001) for number in range(12)]
    later = [function(f"t{number}", function="f", runtime_s=0.001, after=["s0"]) for number in range(12)]
    play = Play(graph(*steps, *later), takes=lambda _step: 1.0)
    assert play.run() == "succeeded"
    assert play.jobs_run >= 12, "those that came after the first had run"


def test_long_steps_run_by_themselves() -> None:
    play = Play(graph(*(function(f"s{n}", function="f") for n in range(12))))
    assert play.run() == "succeeded"
    assert play.jobs_run == 12


def test_what_needs_a_limit_or_a_gpu_runs_by_itself() -> None:
    own = [{"timeout": 5}, {"memory": "1GiB"}, {"gang": 2}, {"env": {"A": "1"}}]
    steps = [function(f"s{n}", function="f", runtime_s=0.001, **more) for n, more in enumerate(own)]
    play = Play(graph(*steps))
    play.advance()
    assert all(len(job["step_of"]["steps"]) == 1 for job in play.ledger.jobs.values() if "step_of" in job)


def test_a_failure_beside_others_leaves_their_results_and_is_tried_again_alone() -> None:
    tries: Counter[int] = Counter()

    def gives(_play: Play, step: int, _run: int) -> Any:
        tries[step] += 1
        return ValueError() if step == 5 and tries[step] == 1 else None

    steps = [function(f"s{n}", function="f", runtime_s=0.001, retries=1) for n in range(20)]
    play = Play(graph(*steps), hosts=1, slots=1, gives=gives, takes=lambda _step: 0.001)
    assert play.run() == "succeeded"
    assert tries[5] == 2
    assert all(count == 1 for step, count in tries.items() if step != 5)
    assert play.ledger.steps.get("g", 5)["failures"] == 1


def test_without_retries_a_failure_beside_others_is_final() -> None:
    steps = [function(f"s{n}", function="f", runtime_s=0.001) for n in range(20)]
    play = Play(
        graph(*steps, on_failure="continue"),
        hosts=1,
        slots=1,
        gives=lambda _play, step, _run: ValueError() if step == 5 else None,
        takes=lambda _step: 0.001,
    )
    assert play.run() == "failed"
    assert Counter(play.states.values()) == {"succeeded": 19, "failed": 1}


def test_a_crash_beside_others_costs_them_nothing_and_is_found_alone() -> None:
    steps = [function(f"s{n}", function="f", runtime_s=0.001) for n in range(20)]
    play = Play(
        graph(*steps, on_failure="continue"),
        hosts=1,
        slots=1,
        gives=lambda _play, step, _run: CRASH if step == 5 else None,
        takes=lambda _step: 0.001,
    )
    assert play.run() == "failed"
    assert Counter(play.states.values()) == {"succeeded": 19, "failed": 1}
    assert play.states["s5"] == "failed"


def test_fail_fast_ends_what_runs_and_names_the_step() -> None:
    steps = [function("bad"), *(function(f"s{n}") for n in range(6)), function("after", ["bad"])]
    play = Play(
        graph(*steps),
        gives=lambda _play, step, _run: ValueError() if step == 0 else None,
        takes=lambda step: 1.0 if step == 0 else 5.0,
    )
    assert play.run() == "failed"
    error = play.job["error"]
    assert error["code"] == "StepFailed"
    assert error["details"]["step"] == "bad"
    assert "TaskFailed: raised" in error["found"]
    assert play.states["after"] == "waiting"
    assert not play.ledger.allocations


def test_continue_goes_on_with_all_that_does_not_need_it() -> None:
    steps = [function("bad"), function("after", ["bad"]), *chain(5)]
    play = Play(graph(*steps, on_failure="continue"), gives=lambda _p, step, _r: ValueError() if step == 0 else None)
    assert play.run() == "failed"
    assert play.states["after"] == "waiting"
    assert all(play.states[f"s{n}"] == "succeeded" for n in range(5))


@pytest.mark.parametrize("at", range(0, 14))
def test_a_cancelled_graph_leaves_nothing(at: int) -> None:
    play = Play(graph(*chain(4), *(function(f"w{n}") for n in range(6))), takes=lambda step: 1.0 + step / 10)
    left = [at]

    def until() -> bool:
        left[0] -= 1
        return left[0] < 0

    state = play.run(until=until)
    if state == "running":
        play.do(commands.CancelJob("g"))
        state = play.run()
    assert state == ("succeeded" if "released" not in play.states.values() and len(play.done()) == 10 else "cancelled")
    assert not play.ledger.allocations
    assert all(job["state"] not in ("queued", "placed", "running") for job in play.ledger.jobs.values())


def test_a_graph_that_failed_begins_again_where_it_was() -> None:
    bad = [True]

    def gives(_play: Play, step: int, _run: int) -> Any:
        return ValueError() if step == 2 and bad[0] else None

    play = Play(graph(*chain(5)), gives=gives)
    assert play.run() == "failed"
    assert play.done() == ["s0", "s1"]
    with pytest.raises(WrongState, match="over"):
        play.do(commands.AdvanceGraph("g", play._term, [], [], [], [], stop=True))
    bad[0] = False
    play.do(commands.RetryGraph("g"))
    play.lead()
    assert play.run() == "succeeded"
    assert play.done() == ["s0", "s1", "s2", "s3", "s4"]
    with pytest.raises(WrongState, match="has succeeded"):
        play.do(commands.RetryGraph("g"))


def test_only_what_is_lost_and_still_wanted_runs_again() -> None:
    # left and right of the root, each on a host; the one that is lost had left's result, which is still wanted.
    steps = [
        function("root", node="h0"),
        function("left", ["root"], node="h1"),
        function("right", ["root"], node="h0"),
        function("slow", ["right"], node="h0"),
        function("join", ["left", "slow"], node="h2"),
    ]
    play = Play(graph(*steps), hosts=3, takes=lambda step: 10.0 if step == 3 else 1.0)
    play.run(until=lambda: "left" in play.done() and "right" in play.done())
    play.lose_host("h1")
    play.do(commands.RegisterHost({**play.ledger.hosts["h1"], "incarnation": 2, "devices": [], "state": "up"}))
    play.alive["h1"], play._busy["h1"] = True, 0
    original = play.grant

    def grant() -> None:
        original()

    play.grant = grant  # type: ignore[method-assign]
    counts = Counter(play.done())
    assert counts == {"root": 1, "left": 1, "right": 1}


def test_a_result_that_is_gone_is_made_again_with_what_it_takes() -> None:
    play = Play(graph(*chain(6)), hosts=2, slots=1)
    play.run(until=lambda: len(play.done()) == 4)
    host = play.ledger.steps.get("g", 3)["host"]
    play.lose_host(host)
    assert play.run() == "succeeded"
    ran = Counter(play.done())
    assert set(ran) == {f"s{n}" for n in range(6)}
    assert all(count <= 2 for count in ran.values())
    assert ran["s3"] == 2


def test_branches_run_one_side_and_come_together() -> None:
    steps = [
        function("x"),
        function("even", ["x"], when=[{"step": "x", "word": True}]),
        function("odd", ["x"], when=[{"step": "x", "word": False}]),
        function("odd-more", ["odd"]),
        {"id": "both", "kind": "merge", "inputs": ["even", "odd-more"]},
        function("end", ["both"]),
        function("only-after", after=["odd"]),
    ]
    play = Play(graph(*steps), gives=lambda _play, step, _run: True if step == 0 else None)
    assert play.run() == "succeeded"
    assert play.states == {
        "x": "succeeded",
        "even": "succeeded",
        "odd": "skipped",
        "odd-more": "skipped",
        "both": "succeeded",
        "end": "succeeded",
        "only-after": "succeeded",
    }
    both, even = play.ledger.steps.get("g", 4), play.ledger.steps.get("g", 1)
    assert both["same_as"] == 1
    assert (both["attempt_id"], both["offset"]) == (even["attempt_id"], even["offset"])


def test_a_word_is_compared_with_its_type() -> None:
    steps = [
        function("x"),
        function("one", when=[{"step": "x", "word": 1}]),
        function("true", when=[{"step": "x", "word": True}]),
    ]
    play = Play(graph(*steps), gives=lambda _play, step, _run: 1 if step == 0 else None)
    assert play.run() == "succeeded"
    assert (play.states["one"], play.states["true"]) == ("succeeded", "skipped")


def test_a_loop_of_rounds_ends_when_it_is_done() -> None:
    rounds = [function("r1")]
    rounds += [function(f"r{n}", [f"r{n - 1}"], when=[{"step": f"r{n - 1}", "word": False}]) for n in range(2, 8)]
    merge = {"id": "r", "kind": "merge", "last": True, "inputs": [f"r{n}" for n in range(1, 8)]}
    play = Play(graph(*rounds, merge), gives=lambda _play, step, _run: step == 3)
    assert play.run() == "succeeded"
    assert play.done() == ["r1", "r2", "r3", "r4"]
    assert play.ledger.steps.get("g", 7)["same_as"] == 3


def command(id: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "command": id, **more}


@pytest.mark.parametrize(
    ("said", "taken"),
    [("red", {"is-red", "last", "any"}), ("blue", {"other", "last", "any"}), ("", {"other", "last", "any"})],
)
def test_commands_are_chosen_by_the_last_line_of_another(said: str, taken: set[str]) -> None:
    steps = [
        command("look"),
        command("is-red", when={"step": "look", "word": "red"}),
        command("is-green", when={"step": "look", "word": "green"}),
        command("other", when=[{"step": "look", "word": word, "negated": True} for word in ("red", "green")]),
        command("last", after=["is-red", "is-green", "other"]),
        command("any", after=["is-red", "is-green", "other"], trigger="some_succeeded"),
        command("none", after=["is-green"], trigger="some_succeeded"),
        command("all", after=["is-red", "other"], trigger="all_succeeded"),
    ]
    play = Play(graph(*steps), gives=lambda _play, step, _run: said if step == 0 else "")
    assert play.run() == "succeeded"
    assert set(play.done()) == {"look", *taken}
    assert {id for id, state in play.states.items() if state == "succeeded"} == {"look", *taken}
    assert "trigger is all_succeeded" in play.ledger.steps.get("g", 7)["error"]["message"]


def test_a_step_behind_one_that_was_passed_over_is_passed_over_on_both_branches() -> None:
    steps = [
        command("a"),
        command("b", when={"step": "a", "word": "x"}),
        command("c", when={"step": "b", "word": "y"}),
        command("d", when={"step": "b", "word": "y", "negated": True}),
    ]
    play = Play(graph(*steps), gives=lambda *_: "")
    assert play.run() == "succeeded"
    assert play.done() == ["a"]


@pytest.mark.parametrize(("ready_in", "rounds"), [(1, 1), (3, 3), (9, 5)])
def test_a_command_is_repeated_until_it_says_so_or_the_rounds_are_over(ready_in: int, rounds: int) -> None:
    steps = [
        command("first"),
        command("poll", after=["first"], repeat={"until": "ready", "rounds": 5}),
        command("then", when={"step": "poll", "word": "ready"}),
    ]
    play = Play(graph(*steps), gives=lambda _play, step, _run: "ready" if step == ready_in else "no")
    assert play.run() == "succeeded"
    ended_well = [f"poll[{number}]" for number in range(1, rounds + 1)]
    assert play.done() == ["first", *ended_well, *(["then"] if ready_in <= 5 else [])]
    assert play.states["poll"] == "succeeded"
    envs = [step.env for step in play.request.steps if step.id.startswith("poll[")]
    assert envs == [{"ACTORGRID_ROUND": str(number)} for number in range(1, 6)]


def test_commands_find_what_others_leave_and_it_is_made_again_where_it_is_lost() -> None:
    steps = [command("a", outputs=["a"]), command("b"), command("c", inputs=["a", "b"]), command("d", after=["c"])]
    play = Play(graph(*steps), hosts=2, slots=1)
    play.run(until=lambda: "a" in play.done() and "b" in play.done())
    host = play.ledger.steps.get("g", 0)["host"]
    play.lose_host(host)
    assert play.run() == "succeeded"
    ran = Counter(play.done())
    assert (ran["a"], ran["b"]) == (2, 1), "of b nothing is kept, so nothing is lost"
    inputs = [job["step_of"]["inputs"] for id, job in play.ledger.jobs.items() if id.startswith("g.2-")]
    assert inputs and all(each == [0] for each in inputs)


def test_a_merge_of_nothing_is_passed_over_with_all_that_takes_it() -> None:
    steps = [
        function("x"),
        function("a", when=[{"step": "x", "word": "never"}]),
        {"id": "m", "kind": "merge", "inputs": ["a"]},
        function("b", ["m"]),
    ]
    play = Play(graph(*steps), gives=lambda *_: "always")
    assert play.run() == "succeeded"
    assert play.states == {"x": "succeeded", "a": "skipped", "m": "skipped", "b": "skipped"}
    assert "passed over" in play.ledger.steps.get("g", 3)["error"]["message"]


def test_no_more_run_at_once_than_was_said() -> None:
    steps = [function(f"s{n}") for n in range(9)]
    play = Play(graph(*steps, in_parallel=2), hosts=2, slots=4)
    assert play.run() == "succeeded"
    assert play.now - 1000 >= 5.0


def test_a_resource_of_the_graph_is_never_overdrawn() -> None:
    steps = [function(f"s{n}", needs={"licence": 2}) for n in range(6)]
    play = Play(graph(*steps, resources={"licence": 5}), hosts=2, slots=4)
    assert play.run() == "succeeded"
    runs = sorted((run.began, run.ended) for run in play.ran)
    assert all(sum(b <= at < e for b, e in runs) <= 2 for at, _ in runs)


def test_collocated_steps_run_on_one_host() -> None:
    steps = [
        function("a"),
        *(function(f"b{n}", collocated="a") for n in range(4)),
        *(function(f"c{n}") for n in range(4)),
    ]
    for strategy in ("time_optimized", "least_fragmentation"):
        play = Play(graph(*steps, strategy=strategy), hosts=3, slots=1)
        assert play.run() == "succeeded"
        assert len({run.host for run in play.ran if run.step in ("a", "b0", "b1", "b2", "b3")}) == 1


def test_a_fan_in_of_thousands_is_one_step() -> None:
    wide = [function(f"s{n}", function="f", runtime_s=0.001) for n in range(1_200)]
    end = function("end", [step["id"] for step in wide])
    play = Play(graph(*wide, end, strategy="least_fragmentation"), takes=lambda _step: 0.001)
    assert play.run() == "succeeded"
    assert play.states["end"] == "succeeded"


def test_steps_that_wait_are_released_ahead_of_their_producers() -> None:
    play = Play(graph(*chain(6)))
    play.advance()
    waiting = {job["job_id"]: job["depends_on"] for job in play.ledger.jobs.values() if "step_of" in job}
    assert waiting["g.1-1"] == ["g.0-1"]
    assert len(waiting) > 2


def test_a_new_leader_goes_on_from_the_ledger_alone() -> None:
    play = Play(graph(*chain(8), *(function(f"w{n}") for n in range(8))), hosts=2, slots=1)
    rounds = [0]

    def meanwhile() -> bool:
        rounds[0] += 1
        play.lead()
        return False

    assert play.run(until=meanwhile) == "succeeded"
    assert len(play.done()) == 16
    assert rounds[0] > 8
