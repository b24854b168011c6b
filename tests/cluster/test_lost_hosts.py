"""What ``why`` says of a job whose host is away or was lost."""

from __future__ import annotations

from typing import Any

from actorgrid.actors.cluster.explain.why import JobContext, explain_job
from tests.cluster.test_why import NOW, attempt, host, job


def lost_with_its_host(number: int) -> dict[str, Any]:
    error = {"code": "HostLost", "message": "host alpha was lost", "found": "h1 was last heard of at noon"}
    return attempt(number=number, state="lost", ended_at=NOW - 5, error=error)


def test_a_job_whose_host_was_lost_says_so_while_it_waits_and_when_it_runs_again() -> None:
    waiting = explain_job(job(attempts=[lost_with_its_host(1)]), JobContext(NOW, fit={"fits": True}))
    said = "attempt 1 went with its host (h1 was last heard of at noon); that costs no retry"
    assert said in waiting["reasons"]
    again = job(state="running", attempts=[lost_with_its_host(1), attempt(number=2)])
    assert said in explain_job(again, JobContext(NOW, hosts={"h1": host()}))["reasons"]
    later = [lost_with_its_host(1), attempt(number=2, state="failed", ended_at=NOW), attempt(number=3)]
    assert said not in explain_job(job(state="running", attempts=later), JobContext(NOW))["reasons"]


def test_a_job_on_a_host_that_is_away_says_when_it_is_started_elsewhere() -> None:
    running = job(state="running", attempts=[attempt()], max_isolation_s=60.0)
    (note,) = explain_job(running, JobContext(NOW, hosts={"h1": host()}, away={"h1": 21.1}))["notes"]
    assert note.startswith("alpha has not been heard of for 21 s; unless it is back, in 40 s the attempt is over and")
