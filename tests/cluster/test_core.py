"""Why a job is where it is, and how healthy a host is."""

from typing import Any

import pytest

from actorgrid.actors.cluster.core import SILENT_BEATS, Vitals, choose_pool, duration, explain_job, missing


def job(**changes: Any) -> dict[str, Any]:
    record: dict[str, Any] = {
        "job_id": "j1",
        "state": "queued",
        "submitted_at": 100.0,
        "not_before": 0.0,
        "cancel_requested": False,
        "depends_on": [],
        "attempts": [],
        "error": None,
    }
    return {**record, **changes}


def attempt(**changes: Any) -> dict[str, Any]:
    return {"number": 1, "started_at": 110.0, "placed_at": 109.0, "gpu_uuids": [], "error": None, **changes}


def test_work_on_a_gpu_runs_in_the_gpu_pool_whatever_was_asked() -> None:
    assert choose_pool({"gpu_count": 1}, "io_bound") == "gpu_compute"
    assert choose_pool({"gpu_count": 0}, "io_bound") == "io_bound"
    assert choose_pool({"gpu_count": 0}, None) == "general"


@pytest.mark.parametrize(("seconds", "text"), [(0.44, "0.4 s"), (59, "59 s"), (185, "3 min 5 s"), (7440, "2 h 4 min")])
def test_durations_read_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_job_that_does_not_fit_is_told_what_is_missing_and_who_is_ahead() -> None:
    fit = {"fits": False, "failed": {"gpu_milli": 1, "cpu_milli": 0}, "nearest": "h1 lacks 250 milli", "position": 3}
    answer = explain_job(job(), 112.0, {}, fit, [])
    assert "it has been waiting for 12 s" in answer["reasons"]
    assert "2 jobs are ahead of it" in answer["reasons"]
    assert "gpu_milli: not enough on 1 host" in answer["reasons"]
    assert not any("cpu_milli" in reason for reason in answer["reasons"])
    assert "nearest: h1 lacks 250 milli" in answer["reasons"]
    assert "ask for less" in answer["next_step"]


def test_a_job_that_waits_for_others_names_them() -> None:
    answer = explain_job(job(depends_on=["a", "b"]), 101.0, {"a": "succeeded", "b": "running"}, None, [])
    assert "it depends on b (running)" in answer["reasons"]
    assert answer["next_step"] == "actorgrid why b"


def test_a_job_between_attempts_says_when_the_next_starts() -> None:
    failed = attempt(error={"message": "exit status 3"})
    answer = explain_job(job(not_before=130.0, attempts=[failed]), 120.0, {}, None, [])
    assert "attempt 1 ended (exit status 3)" in answer["reasons"]
    assert "the next attempt starts in 10 s" in answer["reasons"]


def test_a_running_job_names_its_gpus() -> None:
    running = job(state="running", attempts=[attempt(gpu_uuids=["GPU-1"], gpu_indexes=[3])], cancel_requested=True)
    answer = explain_job(running, 120.0, {}, None, [])
    assert answer["reasons"][0] == "attempt 1 has been running for 10 s on GPU 3"
    assert "asked to stop" in answer["reasons"][1]


def test_a_failed_job_gives_the_errors_own_hint() -> None:
    error = {"message": "no such program: trian", "found": "", "hint": "check the spelling"}
    answer = explain_job(job(state="failed", error=error, attempts=[attempt()]), 120.0, {}, None, [])
    assert answer["reasons"][0] == "no such program: trian"
    assert answer["next_step"] == "check the spelling"


def test_without_an_answer_of_the_scheduler_that_is_said() -> None:
    answer = explain_job(job(), 101.0, {}, None, ["the disk is full"])
    assert "host: the disk is full" in answer["reasons"]
    assert "the scheduler did not answer just now" in answer["reasons"]


def vitals() -> Vitals:
    return Vitals(["a", "b"], beat_interval_s=1.0, now_s=0.0)


def test_a_host_is_ready_until_a_server_has_been_silent_too_long() -> None:
    health = vitals()
    health.beat("a", 1, 10, 1.0)
    report = health.report(1.5)
    assert (report["ready"], report["health"], report["problems"]) == (True, "healthy", [])
    health.beat("a", 1, 11, 1.0 + SILENT_BEATS)
    report = health.report(1.0 + SILENT_BEATS)
    assert (report["ready"], report["problems"]) == (False, ["b is silent"])


def test_a_silent_server_degrades_the_host_and_is_named() -> None:
    health = vitals()
    health.beat("a", 1, 10, 1.0)
    health.beat("b", 2, 10, 1.0)
    health.beat("a", 1, 11, 2.0 + SILENT_BEATS)
    report = health.report(2.0 + SILENT_BEATS)
    assert (report["ready"], report["health"], report["problems"]) == (False, "degraded", ["b is silent"])


def test_nobody_is_judged_for_a_pause_of_the_whole_host() -> None:
    health = vitals()
    health.beat("a", 1, 10, 1.0)
    health.beat("b", 2, 10, 1.0)
    assert health.silent(1000.0) == ["a", "b"]
    health.resume(1000.0)
    assert health.silent(1001.0) == []


def test_a_new_pid_counts_as_a_restart() -> None:
    health = vitals()
    health.beat("a", 1, 10, 1.0)
    health.beat("a", 7, 1, 2.0)
    assert health.report(2.0)["servers"]["a"]["restarts"] == 1


def test_the_nearest_miss_is_said_in_words() -> None:
    nearest = {"node": "h1", "missing": {"gpus": 1, "gpu_milli": 500, "memory_mib": 64}}
    assert missing(nearest) == ("the host that comes closest lacks 1 GPU, 0.5 of a GPU on each, 64 MiB of memory")
