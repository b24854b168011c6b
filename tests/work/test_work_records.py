"""The records in the folders of attempts and workers: what is no such record is none, whoever wrote it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.ledger.commands import EndAttempt
from actorgrid.actors.work.attempt_dir import AttemptDir
from actorgrid.actors.work.outcomes import outcome_of
from actorgrid.actors.work.work_records import (
    call_of,
    lease_of,
    lost_spec,
    spec_of,
    started_of,
    status_of,
)
from actorgrid.actors.work.worker_end import read_lease
from tests.work.rig import Rig, alive, gated, open_gate, wait_for

LIMITS = {"folder": "/e", "count_max": 3, "bytes_max": 100, "build_s": 60.0}
SPECS: dict[str, dict[str, Any]] = {
    "command": {
        **lost_spec("a.1"),
        "kind": "command",
        "ledger_token": [0, 7],
        "container": {
            "wish": {"image": "python:3.12", "mounts": [{"source": "/d", "target": "/d", "read_only": True}]},
            "allowed": "auto",
            "mounts": ["/"],
            "name": "n",
            "folder": "/a",
            "gpus": {"nvidia": ["GPU-1"]},
        },
    },
    "function": {
        **lost_spec("a.1"),
        "kind": "function",
        "ledger_token": [0, 7],
        "served_by": "functions-1",
        "function": {
            "payload_path": "/p",
            "digest": "d",
            "python": "3.11",
            "inputs": {"b": "/b"},
            "max_result_bytes": 100,
            "result_path": "/r",
        },
        "working_dir": {"folder": "/w", "digest": "d", "archive": "/a"},
        "environment": {**LIMITS, "digest": "d", "path": "/b"},
        "outputs": {"paths": ["out"], "bytes_max": 100, "folder": "/o", "own_cwd": "/c"},
    },
    "steps": {
        **lost_spec("a.1"),
        "kind": "function",
        "ledger_token": [0, 7],
        "function": {
            "payload_path": "/p",
            "digest": "d",
            "python": "3.11",
            "inputs": {},
            "max_result_bytes": 100,
            "result_path": "/r",
            "steps": [[0, 10, 20], [1, 30, 5]],
            "step_inputs": {"7": ["/f", 0, 9]},
        },
    },
    "objects": {
        **lost_spec("objects-1"),
        "kind": "objects",
        "objects": {"socket_path": "/s", "host_id": "h", "folder": "/f", "memory_bytes": 1, "disk_bytes": 1},
    },
    "functions": {**lost_spec("functions-1"), "kind": "functions", "attempts_dir": "/a", "calls_max": 200},
    "worker": {
        **lost_spec("w1"),
        "kind": "worker",
        "worker": {
            "worker_id": "w1",
            "pool": "general",
            "number": 1,
            "socket_path": "/s",
            "working_dirs": "/w",
            "environments": LIMITS,
            "objects": "/s",
            "host_id": "h",
        },
    },
}
STATUS: dict[str, Any] = {
    "reason": "exited",
    "exit_code": 0,
    "signal": None,
    "oom_kills": 0,
    "error": "",
    "started_at": 1.0,
    "ended_at": 2.0,
    "max_rss_bytes": 1,
    "cpu_s": 0.1,
    "dropped": {"stdout": 0, "stderr": 0},
    "result_bytes": None,
    "containment": "none",
    "outputs": {"files": 1, "bytes": 3, "missing": ["b"], "problem": ""},
    "unsynced_in": "boot",
}
LEASE: dict[str, Any] = {
    "lease_id": "L",
    "session_id": "S",
    "gpu_uuids": ["GPU-1"],
    "env": [["A", "1"]],
    "secret": "s",
    "stderr_from": 3,
    "stdout_from": 0,
}
WRONG: dict[type, list[Any]] = {
    str: [3, b"x", ["x"], None],
    int: ["3", True, 2**60, 1.5, None],
    float: ["1", True, -1.0, float("nan"), float("inf"), None],
    list: [[1.5], "x", {}, [b"x"]],
    dict: [[1], {1: "x"}, "x", {"a": 1}],
    type(None): [{}, b"x", ["x"]],
}
"""For a value of that type: what may not be in its place."""
NONE_TOO = {"timeout_s", "stdin", "environment", "exit_code", "signal", "max_rss_bytes", "cpu_s", "result_bytes"}
REASONS = ["exited", "timed_out", "preempted", "gang", "cancelled", "memory", "isolated", "stopped", "refused"]
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=8,
)


@pytest.mark.parametrize("kind", SPECS)
def test_a_spec_is_taken_with_fields_of_later_versions_and_not_without_what_it_needs(
    kind: str,
) -> None:
    spec = SPECS[kind]
    assert spec_of(spec) == spec
    assert spec_of({**spec, "of a later version": 1}) is not None
    for name in ("v", "kind", "id", "token", "env", "control_path", "isolation_s", "timeout_s", "memory_bytes"):
        assert spec_of({key: value for key, value in spec.items() if key != name}) is None, name
    for name in {"command": ["ledger_token"], "function": ["function", "job_id"], "worker": ["worker"]}.get(kind, []):
        assert spec_of({key: value for key, value in spec.items() if key != name}) is None, name
    assert spec_of({**spec, "kind": "of a later version"}) is None


@pytest.mark.parametrize(
    ("record", "read"),
    [*((spec, spec_of) for spec in SPECS.values()), (STATUS, status_of), (LEASE, lease_of)],
    ids=[*SPECS, "status", "lease"],
)
def test_each_field_is_of_its_type_or_the_record_is_none(record: dict[str, Any], read: Callable[[Any], Any]) -> None:
    assert read(record) == record
    for name, value in record.items():
        for wrong in WRONG[type(value)]:
            if wrong is not None or name not in NONE_TOO:
                assert read({**record, name: wrong}) is None, (name, wrong)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *(("steps", each) for each in ([[0, 1]], [[0, 1, "2"]], [[0, 1, -1]], [3], {}, [[0, 1, True]])),
        *(("step_inputs", each) for each in ({"7": ["/f", 0]}, {"7": [0, 0, 9]}, {7: ["/f", 0, 9]}, {"7": "/f"}, [])),
    ],
)
def test_the_steps_of_a_spec_are_of_their_types(name: str, wrong: Any) -> None:
    spec = SPECS["steps"]
    assert spec_of(spec) == spec
    assert spec_of({**spec, "function": {**spec["function"], name: wrong}}) is None


@given(anything, st.sampled_from([spec_of, status_of, started_of, lease_of]))
def test_whatever_is_there_is_read_without_an_error(found: Any, read: Callable[[Any], Any]) -> None:
    read(found)


@given(
    st.dictionaries(st.sampled_from(sorted(STATUS)), anything | st.sampled_from(REASONS)),
    st.sampled_from(sorted(SPECS)),
)
def test_whatever_status_work_forges_its_outcome_is_one_that_the_ledger_takes(found: dict[str, Any], kind: str) -> None:
    status, spec = status_of({**STATUS, **found}), spec_of(SPECS[kind])
    assert spec is not None
    if status is not None:
        told = outcome_of(spec, status, b"", None)
        EndAttempt.check(EndAttempt("a.1", [0, 7], at=1.0, **told).to_plain())


def test_who_took_the_work_is_known_whole_or_not_at_all() -> None:
    assert started_of({"pid": 3, "boot_id": "b"}) == {"pid": 3, "boot_id": "b"}
    for wrong in ({"pid": 3}, {"pid": "3", "boot_id": "b"}, [], None):
        assert started_of(wrong) == {}


def test_a_call_has_what_its_process_needs_and_not_the_token_of_its_shim() -> None:
    spec = spec_of(SPECS["function"])
    assert spec is not None and "token" not in call_of(spec)


def test_what_a_manager_writes_is_what_the_next_one_reads(rig: Rig, tmp_path: Path) -> None:
    rig.submit("a", command=gated(tmp_path / "gate", "true"))
    attempt_id = rig.grant("a")
    rig.running(attempt_id)
    spec = rig.dir(attempt_id).read_spec()
    assert spec is not None and spec["job_id"] == "a" and spec["control_path"]
    started = rig.dir(attempt_id).read_started()
    assert started and started["pid"] == rig.dir(attempt_id).shim_pid()
    open_gate(tmp_path / "gate")
    rig.ended(attempt_id)
    status = rig.dir(attempt_id).read_status()
    assert status is not None and (status["reason"], status["exit_code"]) == ("exited", 0)


FORGED = {
    "an empty map": {},
    "other types": {"v": "2", "kind": ["command"]},
    "no map": [1, 2],
    "no token": SPECS["functions"],
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_a_job_that_has_written_over_its_spec_holds_up_no_start_and_is_ended(
    rig: Rig, tmp_path: Path, forged: Any
) -> None:
    rig.submit("a", command=gated(tmp_path / "gate", "true"), max_isolation_s=3.0)
    attempt_id = rig.grant("a")
    rig.running(attempt_id)
    shim = rig.dir(attempt_id).shim_pid()
    assert shim is not None
    rig.kill_manager()
    (rig.dir(attempt_id).path / "spec.msgpack").write_bytes(msgpack.packb(forged))
    rig.start_manager()
    assert rig.run("b", command=["true"])["state"] == "succeeded"
    attempt = rig.ended(attempt_id)["attempts"][0]
    assert attempt["state"] == "lost" and attempt["error"]["code"] == "WorkerLost"
    assert not alive(shim)


def test_a_job_that_has_written_over_its_spec_and_is_gone_does_not_run_again(rig: Rig, tmp_path: Path) -> None:
    """Neither what it did nor its token may come twice: the folder says that it has begun, whatever else it says."""
    begun = tmp_path / "begun"
    rig.submit("a", command=["sh", "-c", f"echo once >> {begun}; exec sleep 600"])
    attempt_id = rig.grant("a")
    rig.running(attempt_id)
    wait_for(begun.exists, what="its first word")
    rig.kill_manager()
    directory = rig.dir(attempt_id)
    (directory.path / "spec.msgpack").write_bytes(msgpack.packb({}))
    shim = directory.shim_pid()
    assert shim is not None
    os.kill(shim, signal.SIGKILL)
    wait_for(lambda: directory.shim_pid() is None, what="its shim's end")
    rig.start_manager()
    assert rig.ended(attempt_id)["attempts"][0]["error"]["code"] == "WorkerLost"
    assert begun.read_text() == "once\n"


def test_what_is_left_of_a_forged_attempt_that_the_ledger_has_forgotten_goes(rig: Rig) -> None:
    rig.kill_manager()
    directory = rig.dir("forgotten.1")
    directory.path.mkdir()
    (directory.path / "spec.msgpack").write_bytes(msgpack.packb({}))
    (directory.path / "started").write_bytes(msgpack.packb({}))
    rig.start_manager()
    rig.node.run_until(lambda: not directory.path.exists(), what="its removal")


def test_a_job_that_has_written_over_its_status_is_lost(rig: Rig, tmp_path: Path) -> None:
    rig.submit("a", command=gated(tmp_path / "gate", "true"))
    attempt_id = rig.grant("a")
    rig.running(attempt_id)
    rig.kill_manager()
    open_gate(tmp_path / "gate")
    wait_for(rig.dir(attempt_id).ended, what="end without agent")
    rig.dir(attempt_id).status_file.write_bytes(msgpack.packb({**STATUS, "exit_code": "0"}))
    rig.start_manager()
    assert rig.ended(attempt_id)["attempts"][0]["error"]["code"] == "WorkerLost"


def test_a_worker_that_has_written_over_whom_it_served_serves_nobody_else(rig: Rig) -> None:
    grant = rig.lease("L1")
    folder = AttemptDir(rig.paths.workers_dir, grant["worker_id"])
    shim = folder.shim_pid()
    assert shim is not None
    rig.kill_manager()
    (folder.path / "lease.msgpack").write_bytes(msgpack.packb({"lease_id": "L1"}))
    assert read_lease(folder.path) is None
    rig.start_manager()
    wait_for(lambda: not alive(shim), what="its end")
    assert rig.lease("L2")["worker_id"] != grant["worker_id"]
