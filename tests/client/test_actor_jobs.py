"""What the job of a detached actor says of the actor."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any

import pytest

from actorgrid.client.actor_jobs import ActorJobs, where_is
from actorgrid.errors import ActorDied, NotSupported, TaskFailed
from actorgrid.objects import here
from actorgrid.user_actor_context import ActorReference

REFERENCE = ActorReference("0" * 16, "/ua-0/0", "s", "Keeper", frozenset(), 10, "job:j1")


def job(state: str, *attempts: dict[str, Any], error: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"state": state, "attempts": list(attempts), "error": error}


def test_the_job_is_named_by_the_reference_of_a_detached_actor_alone() -> None:
    assert REFERENCE.job_id == "j1"
    assert REFERENCE._replace(host_id="host").job_id == ""


@pytest.mark.parametrize("state", ["placed", "running"])
def test_it_is_where_the_last_attempt_is(state: str) -> None:
    first, second = ({"host": host, "error": None} for host in ("one", "two"))
    assert where_is(REFERENCE, job(state, first, second)) == ("two", None)


def test_one_that_waits_is_nowhere() -> None:
    assert where_is(REFERENCE, job("queued")) == ("", None)
    assert where_is(REFERENCE, job("queued", {"host": "one", "error": None})) == ("", None)


@pytest.mark.parametrize(("state", "said"), [("succeeded", "stopped"), ("cancelled", "cancelled"), ("lost", "lost")])
def test_its_end_is_that_of_the_job(state: str, said: str) -> None:
    at, death = where_is(REFERENCE, job(state, {"host": "one", "error": None}))
    assert not at and death is not None and said in death.message and "j1" in death.hint


def test_what_it_died_of_is_the_cause() -> None:
    failed = TaskFailed("KeyError: 1", exit_code=7).to_dict()
    for found in (job("failed", error=dict(failed)), job("failed", {"host": "one", "error": dict(failed)})):
        death = where_is(REFERENCE, found)[1]
        assert death is not None and "KeyError: 1" in death.message and death.details["exit_code"] == 7
        assert isinstance(death.__cause__, TaskFailed)


def test_from_a_machine_that_is_no_host_it_is_said_that_it_cannot_be_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "whereabouts", lambda: ("", ""))
    session = SimpleNamespace(objects=lambda: None)
    answer = job("running", {"host": "one", "error": None})
    client: Any = SimpleNamespace(
        _closed=False, _open_session=lambda: session, http=SimpleNamespace(get=lambda path, **_: answer)
    )
    jobs = ActorJobs()
    monkeypatch.setattr(jobs, "_client", lambda reference: client)
    told: queue.SimpleQueue[ActorDied | None] = queue.SimpleQueue()
    jobs.ask(REFERENCE, lambda at, death: told.put(death))
    death = told.get(timeout=30)
    assert isinstance(death, ActorDied) and isinstance(death.__cause__, NotSupported)
