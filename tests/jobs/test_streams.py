"""Steps that take the items of others run beside them where there is room, and after them where there is none."""

from __future__ import annotations

import random
from typing import Any

import pytest

from actorgrid.actors.ledger import commands
from actorgrid.actors.ledger.command import read_command
from actorgrid.errors import BadRequest

from .play import CRASH, Play, function, graph


def streaming(**more: Any) -> list[dict[str, Any]]:
    return [function("gives", stream=True, **more), function("takes", ["gives"], streams=["gives"])]


def began(play: Play, step: str) -> float:
    return min(run.began for run in play.ran if run.step == step and run.ok)


def ended(play: Play, step: str) -> float:
    return max(run.ended for run in play.ran if run.step == step and run.ok)


def test_where_there_is_room_the_one_that_takes_begins_while_the_other_runs() -> None:
    play = Play(graph(*streaming(), function("last", ["takes"])), takes=lambda step: [10.0, 1.0, 1.0][step])
    play.run(until=lambda: len(play._ending) == 2)
    assert play.now == 1000.0, "nothing has ended yet"
    (job,) = (job for job in play.ledger.jobs.values() if job.get("step_of", {}).get("streams"))
    assert (job["step_of"]["streams"], job["step_of"]["inputs"], job["depends_on"]) == ([0], [0], [])
    assert play.run() == "succeeded"
    assert play.done() == ["gives", "takes", "last"], "what was taken counts when the other has succeeded"


@pytest.mark.parametrize("more", [{"in_parallel": 1}, {}])
def test_where_there_is_no_room_it_begins_when_the_other_has_ended(more: dict[str, Any]) -> None:
    play = Play(graph(*streaming(), **more), hosts=1, slots=1, takes=lambda _step: 5.0)
    assert play.run() == "succeeded"
    assert play.done() == ["gives", "takes"]
    assert began(play, "takes") >= ended(play, "gives")


def test_nobody_takes_the_place_of_one_that_is_to_give_first() -> None:
    """Released before the other has its place, it could have that, and wait for ever."""
    play = Play(graph(function("busy"), *streaming()), hosts=1, slots=1, takes=lambda _step: 5.0)
    assert play.run() == "succeeded"
    assert began(play, "takes") >= ended(play, "gives")


@pytest.mark.parametrize("failures", [1, 2])
def test_when_the_one_that_gives_runs_again_so_does_the_one_that_takes(failures: int) -> None:
    failed: list[int] = []

    def gives(_play: Play, step: int, _run: int) -> Any:
        if step == 0 and len(failed) < failures:
            failed.append(step)
            return CRASH
        return None

    play = Play(graph(*streaming(retries=failures)), gives=gives, takes=lambda step: 3.0 if step == 0 else 1.0)
    assert play.run() == "succeeded"
    assert play.done() == ["gives", "takes"], "one result each"
    assert began(play, "takes") >= max(run.ended for run in play.ran if not run.ok)


def test_when_the_one_that_gives_fails_for_good_so_does_the_graph() -> None:
    play = Play(
        graph(*streaming(), on_failure="continue"),
        gives=lambda _play, step, _run: CRASH if step == 0 else None,
        takes=lambda step: 3.0 if step == 0 else 1.0,
    )
    assert play.run() == "failed"
    assert play.done() == [] and play.states["gives"] == "failed"
    assert not [job for job in play.ledger.jobs.values() if job["state"] in ("queued", "placed", "running")][1:]


def test_a_lost_host_and_a_new_leader_leave_one_result_each() -> None:
    for seed in range(6):
        dice = random.Random(seed)
        play = Play(graph(*streaming(), function("last", ["takes"])), hosts=3, slots=2, seed=seed)
        play.takes = lambda step: [4.0, 2.0, 1.0][step]
        play.run(until=lambda play=play: len(play._ending) == 2)  # type: ignore[misc]
        if dice.random() < 0.7:
            play.lose_host(dice.choice([each[3] for each in play._ending]))
        if dice.random() < 0.7:
            play.lead()
        assert play.run() == "succeeded", seed
        assert sorted(set(play.done())) == ["gives", "last", "takes"], seed
        assert play.states == {"gives": "succeeded", "takes": "succeeded", "last": "succeeded"}


def test_hosts_of_the_version_before_are_not_asked_for_it() -> None:
    play = Play(graph(*streaming()), takes=lambda step: 10.0)
    play.run(until=lambda: len(play._ending) == 2)
    (job,) = (job for job in play.ledger.jobs.values() if job.get("step_of", {}).get("streams"))
    release = {"job_id": "g.9-1", "resources": {}, "step_of": {**job["step_of"], "steps": [[9, 1, 0, 33]]}}
    plain = commands.AdvanceGraph("g", 1, [release], [], [], [], at=1.0).to_plain()
    assert plain["v"] == 10
    with pytest.raises(BadRequest, match="streams"):
        read_command({**plain, "v": 9})
    del release["step_of"]["streams"]
    assert commands.AdvanceGraph("g", 1, [release], [], [], [], at=1.0).to_plain()["v"] == 8


@pytest.mark.parametrize(
    "wrong",
    [
        [function("a"), function("b", ["a"], streams=["a"])],
        [function("a", stream=True), function("b", streams=["a"])],
        [function("a", stream=True, gang=2)],
        [function("a", stream=True, extends=True)],
        [function("a", stream=True, cache={"call": "0" * 64})],
        [{"id": "a", "command": "x", "stream": True}],
        [function("a", stream=True), {"id": "m", "merge": ["a"]}],
    ],
)
def test_what_cannot_stream_is_refused(wrong: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match=r"items|stream"):
        graph(*wrong)
