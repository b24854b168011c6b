"""The parts without a whole host around them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.gpu.enforcement import enforced_by, enforced_of_job, limits_of, weakest_of
from actorgrid.actors.work.attempt_dir import AttemptDir
from actorgrid.actors.work.environment import device_variables, passed_on, work_environment
from actorgrid.actors.work.groups import KillGroup
from actorgrid.actors.work.housekeeping import RoundRobin, old_attempts, old_blobs, remove_attempts, remove_blobs
from actorgrid.actors.work.limits import writable_cgroup
from actorgrid.actors.work.oom_kills import OomKillsSince, oom_kills
from actorgrid.actors.work.outcomes import outcome_of, retry_delay_s
from actorgrid.actors.work.output import OutputStream
from actorgrid.errors import BadRequest, TaskFailed
from actorgrid.transports.task_frames import JobResult
from tests.work.rig import DEVICES


def test_an_id_that_is_no_file_name_is_refused(tmp_path: Path) -> None:
    for bad in ("../x", "", ".hidden", "a/b", "a\0b", "x" * 101):
        with pytest.raises(BadRequest):
            AttemptDir(tmp_path, bad)


def test_a_folder_that_is_not_there_reads_as_empty(tmp_path: Path) -> None:
    directory = AttemptDir(tmp_path, "a.1")
    assert directory.read_output("stdout") == b""
    assert directory.output_size("stderr") == 0
    assert directory.read_status() is None
    assert directory.shim_pid() is None
    assert directory.ended()
    with pytest.raises(BadRequest):
        directory.read_output("../spec")


def test_output_is_read_in_pieces(tmp_path: Path) -> None:
    directory = AttemptDir(tmp_path, "a.1")
    directory.create({})
    directory.stdout.write_bytes(b"0123456789")
    assert directory.read_output("stdout", 4, 3) == b"456"
    assert directory.read_output("stdout", 10) == b""
    assert not directory.ended()


def test_the_status_is_written_into_reserved_room(tmp_path: Path) -> None:
    directory = AttemptDir(tmp_path, "a.1")
    directory.create({})
    assert (directory.path / "status.tmp").stat().st_blocks > 0
    directory.write_status({"reason": "exited"})
    assert directory.read_status() == {"reason": "exited"}
    assert directory.ended()


def test_an_attempt_is_taken_once(tmp_path: Path) -> None:
    directory = AttemptDir(tmp_path, "a.1")
    directory.create({})
    lock = directory.take()
    assert lock is not None
    os.close(lock)
    assert directory.take() is None


def test_a_full_disk_holds_the_writer_back_and_counts_what_is_lost() -> None:
    reader, writer = os.pipe()
    stream = OutputStream(reader, os.open("/dev/full", os.O_WRONLY), 1000)
    os.write(writer, b"hello")
    assert not stream.drain(0.0)
    assert stream.blocked_until > 0
    os.write(writer, b"more")
    assert not stream.drain(1.0)
    stream.close()
    os.close(writer)
    assert stream.dropped == 5  # "more" was never read: it was still the writer's


def test_users_values_win_over_the_agents_and_ours_over_both() -> None:
    devices = device_variables(DEVICES, ["GPU-sim-0"])
    env = work_environment(
        {"PATH": "/agent", "ACTORGRID_TOKEN": "x", "LC_ALL": "C"},
        {"PATH": "/user", "CUDA_VISIBLE_DEVICES": "7", "OMP_NUM_THREADS": "9"},
        devices,
        host_tag="tag",
        work_id="a.1",
        job_id="a",
        cpu_milli=2500,
    )
    assert (env["PATH"], env["LC_ALL"], env["CUDA_VISIBLE_DEVICES"]) == ("/user", "C", "GPU-sim-0")
    assert (env["OMP_NUM_THREADS"], env["ACTORGRID_JOB_ID"]) == ("9", "a")
    assert "ACTORGRID_TOKEN" not in env
    assert passed_on({"SSH_AUTH_SOCK": "x"}) == {}


def of_vendor(vendor: str, *devices: tuple[str, str]) -> list[dict[str, object]]:
    return [
        {"uuid": uuid, "index": place, "vendor": vendor, "pcie_bus_id": bus}
        for place, (uuid, bus) in enumerate(devices)
    ]


def test_amd_devices_go_by_their_own_name_or_by_their_place_on_the_bus() -> None:
    named = of_vendor("amd", ("GPU-9a6c0de000000001", "0000:0c:00.0"), ("GPU-9a6c0de000000002", "0000:14:00.0"))
    assert device_variables(named, ["GPU-9a6c0de000000002"])["ROCR_VISIBLE_DEVICES"] == "GPU-9a6c0de000000002"
    nameless = of_vendor("amd", ("AMD-b", "0000:14:00.0"), ("AMD-a", "0000:0c:00.0"))
    assert device_variables(nameless, ["AMD-b"])["ROCR_VISIBLE_DEVICES"] == "1"


def test_intel_devices_are_counted_in_the_order_of_the_bus() -> None:
    devices = of_vendor("intel", ("GPU-b", "0000:9a:00.0"), ("GPU-a", "0000:3a:00.0"))
    variables = device_variables(devices, ["GPU-b"])
    assert (variables["ZE_AFFINITY_MASK"], variables["ZE_ENABLE_PCI_ID_DEVICE_ORDER"]) == ("1", "1")


@pytest.mark.parametrize(
    ("device", "milli", "memory", "compute", "memory_by"),
    [
        ({"watched": True}, 1000, 0, "cooperative", "cooperative"),
        ({"watched": True}, 500, 0, "none", "none"),
        ({"watched": True}, 500, 1, "none", "cooperative"),
        ({}, 1000, 1, "cooperative", "none"),
        ({"parent": "W", "share_milli": 428}, 428, 0, "hardware", "hardware"),
        ({"parent": "W", "share_milli": 428}, 428, 1, "hardware", "hardware"),
        ({"parent": "W", "share_milli": 428, "watched": True}, 400, 1, "none", "cooperative"),
        ({"source": "simulated", "watched": True}, 1000, 0, "none", "none"),
        ({"source": "declared", "watched": True}, 1000, 1, "none", "none"),
    ],
)
def test_a_grant_says_who_enforces_what(
    device: dict[str, object], milli: int, memory: int, compute: str, memory_by: str
) -> None:
    devices: list[Any] = [{"uuid": "G", "index": 0, "vendor": "nvidia", "source": "probed", **device}]
    found = enforced_by(devices, ["G"], milli, memory)
    assert found == {"gpu_compute": compute, "gpu_memory": memory_by}
    assert enforced_by(devices, [], milli, memory) == {}
    assert weakest_of({}) == "none"


def test_who_enforces_it_is_the_word_of_the_host_that_has_the_devices() -> None:
    device: dict[str, Any] = {"uuid": "G", "index": 0, "vendor": "nvidia", "source": "probed", "watched": True}
    other = {**device, "uuid": "H", "watched": False}
    hosts: Any = {"one": {"host_id": "one", "devices": [device]}, "other": {"host_id": "other", "devices": [other]}}
    attempt = {"host": "one", "gpu_uuids": ["G"]}
    job: Any = {"state": "running", "attempts": [attempt], "resources": {"gpu_milli": 500, "gpu_memory_mib": 8}}
    assert enforced_of_job(job, hosts) == {"gpu_compute": "none", "gpu_memory": "cooperative"}
    job["attempts"] = [{**attempt, "members": [attempt, {"host": "other", "gpu_uuids": ["H"]}]}]
    assert enforced_of_job(job, hosts) == {"gpu_compute": "none", "gpu_memory": "none"}
    assert limits_of(hosts.values()) == {
        "gpu_compute": {"none": 2},
        "gpu_memory": {"cooperative": 1, "none": 1},
    }


FAILED = JobResult(False, None, TaskFailed("x"), None)
SPEC = {"id": "a.1", "job_id": "a", "kind": "function", "timeout_s": 3.0, "memory_bytes": 5, "isolation_s": 10.0}


@pytest.mark.parametrize(
    ("status", "result", "outcome", "charge", "code"),
    [
        ({"reason": "exited", "exit_code": 0}, JobResult(True, b"", None, None), "succeeded", True, None),
        ({"reason": "exited", "exit_code": 0}, None, "failed", True, "TaskFailed"),
        (
            {"reason": "exited", "exit_code": 1},
            FAILED,
            "failed",
            True,
            "TaskFailed",
        ),
        ({"reason": "exited", "exit_code": None, "signal": 9}, None, "failed", True, "TaskFailed"),
        ({"reason": "timed_out", "signal": 15}, None, "timed_out", True, "TaskTimedOut"),
        ({"reason": "cancelled", "signal": 15}, None, "cancelled", False, "TaskCancelled"),
        ({"reason": "memory", "signal": 9}, None, "failed", True, "MemoryLimitExceeded"),
        ({"reason": "isolated", "signal": 9}, None, "lost", False, "WorkerLost"),
        ({"reason": "stopped", "signal": 15}, None, "lost", False, "WorkerLost"),
        ({"reason": "refused", "exit_code": 127, "error": "cannot run x: no"}, None, "failed", True, "TaskFailed"),
    ],
)
def test_every_ending_has_its_outcome(
    status: dict[str, Any], result: JobResult | None, outcome: str, charge: bool, code: str | None
) -> None:
    facts = outcome_of(SPEC, status, b"", result)
    assert (facts["outcome"], facts["charge"]) == (outcome, charge)
    assert (facts["error"] or {}).get("code") == code


def test_the_wait_before_a_retry_doubles_up_to_a_minute() -> None:
    assert [retry_delay_s(0.5, number) for number in (1, 2, 3, 20, 10_000)] == [0.5, 1.0, 2.0, 60.0, 60.0]
    # Of many that failed together each waits for a time of its own, the same whoever counts it.
    apart = [retry_delay_s(10.0, 1, f"job{number}.1") for number in range(200)]
    assert apart == [retry_delay_s(10.0, 1, f"job{number}.1") for number in range(200)]
    assert 7.5 <= min(apart) < 7.7 and 9.8 < max(apart) <= 10.0 and len(set(apart)) == 200


def test_only_the_newest_reported_attempts_are_kept_and_inputs_of_waiting_jobs(tmp_path: Path) -> None:
    for number in range(5):
        directory = AttemptDir(tmp_path, f"job{number}.1")
        directory.create({})
        if number != 4:
            directory.mark_reported()
            os.utime(directory.path / "reported", (number, number))
    assert remove_attempts(old_attempts(tmp_path, 1), {"job0"}) == 2
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["job0.1", "job3.1", "job4.1"]


def test_blobs_nobody_names_go_once_they_are_old(tmp_path: Path) -> None:
    for name in ("named", "old", "young"):
        (tmp_path / name).write_bytes(b"")
    os.utime(tmp_path / "old", (0, 0))
    os.utime(tmp_path / "named", (0, 0))
    assert old_blobs(tmp_path, time.time()) == ["named", "old"]
    assert remove_blobs(tmp_path, ["old", "young", "gone"], time.time()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["named", "young"]


def test_files_are_looked_at_in_turn_however_many_there_are() -> None:
    turn, names = RoundRobin(3), [f"f{number}" for number in range(7)]
    seen = [turn.next(names) for _ in range(3)]
    assert seen == [["f0", "f1", "f2"], ["f3", "f4", "f5"], ["f6", "f0", "f1"]]
    assert turn.next(["f0", "f1"]) == ["f0", "f1"] and turn.next([]) == []


def cgroup_root(tmp_path: Path, controllers: str) -> tuple[Path, Path]:
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    (root / "user" / "me").mkdir(parents=True)
    proc.mkdir()
    (proc / "mounts").write_text(f"proc /proc proc rw 0 0\ncgroup2 {root} cgroup2 rw 0 0\n")
    (proc / "cgroup").write_text("0::/user/me\n")
    (root / "user" / "cgroup.subtree_control").write_text(controllers)
    return proc, root / "user"


def test_a_memory_group_is_made_where_the_kernel_hands_the_controller_down(tmp_path: Path) -> None:
    proc, parent = cgroup_root(tmp_path, "cpu memory\n")
    assert writable_cgroup(proc) == parent
    group = KillGroup(parent / "a.1")
    group.path.mkdir()
    (group.path / "memory.max").write_text("max")
    assert group.make(1 << 20)
    assert (group.path / "memory.max").read_text() == str(1 << 20)
    assert not group.was_exceeded()
    (group.path / "memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    assert group.was_exceeded()


def test_no_memory_group_without_the_controller(tmp_path: Path) -> None:
    assert writable_cgroup(cgroup_root(tmp_path, "cpu\n")[0]) is None
    assert writable_cgroup(tmp_path / "nothing") is None


def test_an_end_by_sigkill_tells_of_the_kernels_kills_for_want_of_memory() -> None:
    told = outcome_of(SPEC, {"reason": "exited", "exit_code": None, "signal": 9, "oom_kills": 2}, b"", None)
    assert "SIGKILL (signal 9), most likely for want of memory" in told["error"]["message"]
    alone = outcome_of(SPEC, {"reason": "exited", "exit_code": None, "signal": 9, "oom_kills": 0}, b"", None)
    assert "memory" not in alone["error"]["message"]


def test_the_kernels_count_of_such_kills_is_read_where_it_is(tmp_path: Path) -> None:
    vmstat = tmp_path / "vmstat"
    assert oom_kills(vmstat) is None
    vmstat.write_text("pgfault 12\noom_kill 7\ndrop_pagecache 0\n")
    assert oom_kills(vmstat) == 7
    since = OomKillsSince(vmstat)
    vmstat.write_text("pgfault 12\noom_kill 9\n")
    assert since.count == 2
    since.begin()
    assert since.count == 0
    vmstat.write_text("pgfault 12\noom_kill many\n")
    assert oom_kills(vmstat) is None and since.count == 0
