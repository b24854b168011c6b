"""Which pool a request goes to, and how healthy a host is."""

from actorgrid.actors.cluster.core import SILENT_BEATS, Vitals, choose_pool


def test_work_on_a_gpu_runs_in_the_gpu_pool_whatever_was_asked() -> None:
    assert choose_pool({"gpu_count": 1}, "io_bound") == "gpu_compute"
    assert choose_pool({"gpu_count": 0}, "io_bound") == "io_bound"
    assert choose_pool({"gpu_count": 0}, None) == "general"


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
