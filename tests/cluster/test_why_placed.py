"""What ``why`` says of a job that has a place, and of one that succeeded on a host which was away."""

from __future__ import annotations

from tests.cluster.test_why import NOW, attempt, job, why


def test_a_placed_job_says_where() -> None:
    answer = why(job(state="placed", attempts=[attempt(gpu_indexes=[0, 1], placed_at=NOW - 2)]))
    assert answer["headline"] == "its place is committed (GPU 0, 1 of alpha); its worker is being started"
    slow = why(job(state="placed", attempts=[attempt(placed_at=NOW - 90)]))
    assert slow["next_step"].startswith("wait: it starts, or is placed again by itself")


def test_a_placed_job_says_what_its_host_waits_for_and_for_how_long() -> None:
    placed = job(state="placed", attempts=[attempt(placed_at=NOW - 2)])
    slow = why(placed, start_delay={"waits_for": "the leader to confirm this host's lease", "left_s": 12.0})
    assert "its host waits for the leader to confirm this host's lease" in slow["notes"]
    assert any("if it has not started in 12 s, its host gives it back" in note for note in slow["notes"])
    assert why(placed, start_delay={"waits_for": "", "left_s": None})["notes"] == ["placed 2.0 s ago"]


def test_a_job_whose_lost_attempt_had_succeeded_says_which_was_taken() -> None:
    first = attempt(state="succeeded", late_success_at=NOW, ended_at=NOW - 9)
    second = attempt(number=2, state="cancelled", ended_at=NOW)
    taken = why(job(state="succeeded", attempts=[first, second], taken=1, ended_at=NOW))
    assert any("attempt 1 had succeeded on a host that was away" in note for note in taken["notes"])
    late = [{**first, "state": "lost"}, {**second, "state": "succeeded"}]
    other = why(job(state="succeeded", attempts=late, ended_at=NOW))
    assert any("attempt 2 was taken, as it was heard of first" in note for note in other["notes"])
