"""Single steps of a graph, cancelled and begun again, as indexes of an array are."""

from __future__ import annotations

import pytest

from actorgrid.actors.ledger import commands
from actorgrid.actors.ledger.state import Ledger
from actorgrid.errors import UnknownJob, WrongState
from tests.ledger.test_graphs import Rig, release


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.submit(steps=4)
    rig.advance(releases=[release((0, 1)), release((1, 1))])
    return rig


def states(rig: Rig) -> list[str]:
    return [rig.step(number)["state"] for number in range(4)]


def cancel(rig: Rig, *steps: int) -> object:
    return rig.do(commands.CancelSteps("g", list(steps), "ann"))


def retry(rig: Rig, *steps: int) -> object:
    return rig.do(commands.RetrySteps("g", list(steps), "ann"))


def test_what_waits_ends_at_once_and_nothing_else_is_touched(rig: Rig) -> None:
    assert cancel(rig, 1, 3) == {"cancelled": 2, "stopping": 0, "over": 0}
    assert states(rig) == ["released", "failed", "waiting", "failed"]
    assert rig.step(1)["error"]["code"] == rig.step(3)["error"]["code"] == "TaskCancelled"
    assert rig.ledger.jobs["g.1-1"]["state"] == "cancelled" and rig.ledger.jobs["g.0-1"]["state"] == "queued"
    assert [kind for kind, _, _ in rig.told].count("steps") >= 1
    assert cancel(rig, 1, 3) == {"cancelled": 0, "stopping": 0, "over": 2}


def test_what_runs_ends_when_its_processes_are_gone(rig: Rig) -> None:
    token = rig.do(commands.GrantAttempt("g.0-1", 1, "h1", 1, [], 1))["token"]
    rig.do(commands.StartAttempt("g.0-1.1", token))
    assert cancel(rig, 0) == {"cancelled": 0, "stopping": 1, "over": 0}
    assert states(rig)[0] == "released" and rig.ledger.jobs["g.0-1"]["cancel_requested"]
    rig.ledger = Ledger.restore(rig.ledger.snapshot())
    rig.do(commands.EndAttempt("g.0-1.1", token, "cancelled"))
    assert states(rig)[0] == "failed" and rig.step(0)["error"]["code"] == "TaskCancelled"


def test_one_that_succeeded_before_it_could_be_stopped_has_succeeded(rig: Rig) -> None:
    token = rig.do(commands.GrantAttempt("g.0-1", 1, "h1", 1, [], 1))["token"]
    rig.do(commands.StartAttempt("g.0-1.1", token))
    cancel(rig, 0)
    rig.do(commands.EndAttempt("g.0-1.1", token, "succeeded"))
    assert states(rig)[0] == "succeeded"


def test_what_failed_begins_again_while_others_run_and_later_runs_count(rig: Rig) -> None:
    cancel(rig, 1)
    assert retry(rig, 1) == {"state": "running", "again": 1}
    assert states(rig)[1] == "waiting" and rig.step(1)["run"] == 1
    rig.advance(releases=[release((1, 2))])
    assert states(rig)[1] == "released"
    with pytest.raises(WrongState, match="nothing of that has failed"):
        retry(rig, 0)


def test_a_graph_that_has_ended_goes_on_with_what_is_begun_again(rig: Rig) -> None:
    cancel(rig, 0, 1, 2, 3)
    rig.do(commands.EndGraph("g", 1, "failed", {"code": "StepFailed", "message": "x"}))
    assert cancel(rig, 0) == {"cancelled": 0, "stopping": 0, "over": 1}
    assert retry(rig, 2) == {"state": "running", "again": 1}
    assert rig.ledger.jobs["g"]["state"] == "running" and states(rig) == ["failed", "failed", "waiting", "failed"]
    assert Ledger.restore(rig.ledger.snapshot()).digest() == rig.ledger.digest()


def test_of_what_ended_before_all_of_it_was_over_only_the_whole_is_begun_again(rig: Rig) -> None:
    rig.do(commands.CancelJob("g", "ann"))
    rig.do(commands.EndGraph("g", 1, "cancelled", None))
    rig.do(commands.RetryGraph("g", "ann"))
    cancel(rig, 0)
    rig.do(commands.CancelJob("g", "ann"))
    rig.do(commands.EndGraph("g", 1, "cancelled", None))
    with pytest.raises(WrongState, match="before all of it had ended"):
        retry(rig, 0)


def test_steps_and_graphs_that_are_not_there_and_steps_that_run_together_are_refused(rig: Rig) -> None:
    with pytest.raises(WrongState, match="no step 4"):
        cancel(rig, 0, 4)
    with pytest.raises(UnknownJob):
        rig.do(commands.CancelSteps("other", [0]))
    rig.advance(releases=[release((2, 1), (3, 1))])
    with pytest.raises(WrongState, match="run with others"):
        cancel(rig, 0, 2)
    assert states(rig) == ["released"] * 4, "and nothing was changed"
