"""What is slow, and which setting to change: each rule speaks by its figures, and is silent just below them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from actorgrid.actors.alerts.figures import AlertFigures, Thresholds
from actorgrid.actors.alerts.tuning_rules import TUNING_RULES, TuningFinding, TuningView, findings
from actorgrid.configs.schema import Settings

STEP_S = 60.0


def found(
    values: Mapping[str, float], counts: Mapping[str, float] | None = None, settings: Settings | None = None
) -> dict[str, TuningFinding]:
    """What all rules say of *values* now, where *counts* have grown by so much in the last ten minutes."""
    settings = settings or Settings()
    figures = AlertFigures(Thresholds(0.05, 86_400.0, 1.0, 1_800.0))
    for step in range(11):
        grown = {name: 100.0 + by * step / 10 for name, by in (counts or {}).items()}
        figures.take(1_000.0 + step * STEP_S, {**values, **grown})
    told = findings("h1", TuningView(figures, settings.get), settings.is_live)
    return {each.name: each for each in told}


GPUS = {"gpu_capacity_milli": 8_000.0, "gpu_allocated_milli": 6_000.0}
# rule, figures that it speaks by, counts, the value it gives, what keeps it silent
CASES: list[tuple[str, dict[str, float], dict[str, float], object, dict[str, float]]] = [
    ("queue-full", {"queue_length": 80_000}, {}, 200_000, {"queue_length": 79_999}),
    ("sessions-full", {"sessions": 160}, {}, 400, {"sessions": 159}),
    ("attempts-full", {"attempts_running": 480, "queue_length": 1}, {}, 1024, {"queue_length": 0}),
    ("attempts-full", {"attempts_running": 480, "queue_length": 1}, {}, 1024, {"host_load_cpu_ratio": 0.9}),
    ("memory-short", {"attempts_running": 8, "check.memory.full_percent": 5}, {}, 6, {"check.memory.full_percent": 4}),
    ("memory-short", {"attempts_running": 8, "host_load_memory_ratio": 0.95}, {}, 6, {"host_load_memory_ratio": 0.9}),
    (
        "processes-short-lived",
        {},
        {"function_workers_started_total": 20, "functions_served_total": 4_000},
        1_000,
        {"functions_served_total": 1_000},
    ),
    (
        "workers-idle-out",
        {},
        {"workers_started_total": 30, "workers_idle_ended_total": 20},
        600.0,
        {"workers_idle_ended_total": 10},
    ),
    (
        "commits-slow",
        {"ledger_commit_seconds_p99": 0.2, "check.disk.fdatasync_ms": 30},
        {},
        None,
        {"ledger_commit_seconds_p99": 0.09},
    ),
    ("network-loses", {"check.network.lossy": 1, "check.network.peers": 3}, {}, None, {"check.network.lossy": 0}),
    ("cpu-late", {"check_lateness": 1.8}, {}, 10.0, {"check_lateness": 1.4}),
    (
        "placement-slow",
        {"placement_latency_p99_us": 9_000},
        {"grants_total": 50},
        "best_fit",
        {"placement_latency_p99_us": 900},
    ),
    ("gpus-idle", {**GPUS, "gpus_utilization_percent": 3.0}, {}, None, {"gpus_utilization_percent": 60.0}),
    (
        "queue-stands",
        {"queue_length": 3, "gpu_capacity_milli": 8_000, "gpu_allocated_milli": 1_000},
        {"grants_total": 0},
        None,
        {"gpu_allocated_milli": 7_000},
    ),
    ("leases-lapse", {}, {"lease_lapses_total": 2}, 30.0, {"lease_lapses_total": 0}),
    ("sessions-lapse", {}, {"sessions_expired_total": 6}, 30.0, {"sessions_expired_total": 4}),
]


@pytest.mark.parametrize(("name", "values", "counts", "to", "silent"), CASES, ids=[case[0] for case in CASES])
def test_a_rule_speaks_by_its_figures_and_is_silent_below_them(
    name: str, values: dict[str, float], counts: dict[str, float], to: object, silent: dict[str, float]
) -> None:
    told = found(values, counts)[name]
    assert told.to == to and told.host == "h1" and told.what and told.evidence and told.effect
    below = {each: value for each, value in silent.items() if each not in counts}
    assert name not in found(
        {**values, **below}, {**counts, **{each: silent[each] for each in counts if each in silent}}
    )


def test_every_rule_has_a_case_and_a_setting_that_takes_what_it_says() -> None:
    assert {case[0] for case in CASES} == {rule.name for rule in TUNING_RULES}
    settings = Settings()
    for name, values, counts, _to, _silent in CASES:
        finding = found(values, counts)[name]
        assert bool(finding.setting) == (finding.to is not None)
        if finding.live:
            assert settings.check_live(finding.setting, finding.to) == finding.to
        elif finding.setting:
            changed: Any = Settings()
            *path, last = finding.setting.split(".")
            for part in path:
                changed = getattr(changed, part)
            setattr(changed, last, finding.to)  # refused if it is out of bounds
        assert finding.live == (bool(finding.setting) and settings.is_live(finding.setting))


def test_a_host_where_all_is_well_or_nothing_is_known_has_no_findings() -> None:
    assert found({}) == {}
    assert (
        found({"queue_length": 3, "sessions": 2, "attempts_running": 4, "ledger_commit_seconds_p99": 0.01, **GPUS})
        == {}
    )


def test_what_is_at_its_bound_already_is_not_said_again() -> None:
    settings = Settings()
    settings.scheduling.queue_max = 10_000_000
    assert "queue-full" not in found({"queue_length": 9_999_999}, settings=settings)


def test_commits_that_a_quick_disk_makes_durable_are_not_blamed_on_it() -> None:
    told = found({"ledger_commit_seconds_p99": 0.2, "check.disk.fdatasync_ms": 1.0, "check.network.rtt_ms": 80.0})
    assert "the disk is not why" in told["commits-slow"].what and "80.0 ms" in told["commits-slow"].evidence
