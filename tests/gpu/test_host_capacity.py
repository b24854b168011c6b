from __future__ import annotations

import os
from pathlib import Path

import psutil

from actorgrid.actors.gpu.host_capacity import host_cpu_milli, host_memory_mib

CPUS = 1000 * len(os.sched_getaffinity(0))
MEMORY = psutil.virtual_memory().total // 2**20


def test_without_a_control_group_all_we_may_run_on_counts(tmp_path: Path) -> None:
    assert host_cpu_milli(str(tmp_path)) == CPUS
    assert host_memory_mib(str(tmp_path)) == MEMORY


def test_a_control_group_of_version_2_limits_both(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text("50000 100000\n")
    (group / "memory.max").write_text(f"{64 * 2**20}\n")
    assert (host_cpu_milli(str(tmp_path)), host_memory_mib(str(tmp_path))) == (500, 64)
    (group / "cpu.max").write_text("max 100000\n")
    (group / "memory.max").write_text("max\n")
    assert (host_cpu_milli(str(tmp_path)), host_memory_mib(str(tmp_path))) == (CPUS, MEMORY)


def test_a_control_group_of_version_1_limits_both(tmp_path: Path) -> None:
    for name, text in {
        "cpu/cpu.cfs_quota_us": "25000",
        "cpu/cpu.cfs_period_us": "100000",
        "memory/memory.limit_in_bytes": str(32 * 2**20),
    }.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert (host_cpu_milli(str(tmp_path)), host_memory_mib(str(tmp_path))) == (250, 32)
