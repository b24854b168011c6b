"""What work used, by a real ledger and a real WorkerManager: told with each attempt's end, kept over restarts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.ledger.commands import EndAttempt
from actorgrid.actors.work.messages import DevicesSampled, DeviceUse, ReadWorkUsage
from tests.work.rig import Rig, gated, open_gate

MakeRig = Callable[..., Rig]
HALF = {"gpu_count": 1, "gpu_milli": 500, "gpus": 0.5}
WHOLE = {"gpu_count": 1, "gpu_milli": 1000, "gpus": 1.0}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One for all that do not restart it: each test has a job of its own name."""
    made = Rig(tmp_path_factory.mktemp("shared"))
    made.start_manager()
    yield made
    made.close()


def sample(rig: Rig, index: int = 0, mib: int = 500, watts: float = 100.0) -> None:
    device = DeviceUse(f"GPU-sim-{index}", mib, None, watts, lists_processes=False)
    rig.node.request("worker_manager", DevicesSampled((device,), {}))


def rows(rig: Rig, by: str = "job", since: float = 0.0) -> dict[str, dict[str, Any]]:
    answer = rig.node.request("worker_manager", ReadWorkUsage(by, since), timeout_s=60)
    return {row["key"]: row for row in answer["rows"]}


def write(rig: Rig) -> None:
    """Have it written down, as it is every few seconds."""
    assert rig.manager is not None
    done: list[bool] = []

    async def wait() -> None:
        await rig.manager._usage.write()  # type: ignore[union-attr]
        done.append(True)

    rig.manager.spawn(wait())
    rig.node.run_until(lambda: done, 60.0, what="usage written")


def closed(rig: Rig) -> None:
    assert rig.manager is not None
    rig.node.run_until(lambda: not rig.manager._usage._meter.open, 60.0, what="nothing held")  # type: ignore[union-attr]


def test_every_attempt_tells_the_ledger_what_it_used_retries_too(rig: Rig, tmp_path: Path) -> None:
    rig.submit("tries", command=["false"], retries_left=1, resources=HALF, labels={"team": "x"})
    rig.run("tries", [0])
    job = rig.run("tries", [0])
    assert [attempt["state"] for attempt in job["attempts"]] == ["failed", "failed"]
    for attempt in job["attempts"]:
        usage = attempt["usage"]
        assert 0 < usage["gpu_s"] == pytest.approx(usage["held_s"] / 2, abs=2e-3)
        assert usage["models"].keys() == {"H100"} and usage["simulated"] is True
        assert usage["energy_j"] is None and set(usage["unsupported"]) == {"memory", "energy"}
    closed(rig)
    row = rows(rig, "label:team")["x"]
    assert (row["key"], row["works"], row["running"], row["incomplete"]) == ("x", 2, 0, 0)
    assert row["cpu_s"] > 0 and row["max_rss_bytes"] > 0 and row["simulated_gpu_s"] == row["gpu_s"] > 0


def test_work_without_a_device_tells_the_ledger_nothing_and_counts_its_cpu(rig: Rig) -> None:
    job = rig.run("cpu", command=["true"], labels={"kind": "cpu"})
    assert "usage" not in job["attempts"][0]
    closed(rig)
    assert rows(rig)["cpu"]["core_s"] > 0 and rows(rig)["cpu"]["gpu_s"] == 0.0 and rows(rig)["cpu"]["models"] == {}


def test_hosts_that_do_not_know_the_field_are_not_told_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorgrid.actors.work.usage_keeper.USAGE_SINCE", 2**60)
    assert "usage" not in rig.run("older", [0], command=["true"], resources=WHOLE)["attempts"][0]
    closed(rig)
    assert rows(rig)["older"]["gpu_s"] > 0


def test_an_adopted_attempt_goes_on_being_counted(make_rig: MakeRig, tmp_path: Path) -> None:
    rig = make_rig()
    rig.start_manager()
    gate = tmp_path / "gate"
    rig.submit("j", command=gated(gate, "true"), resources=WHOLE)
    attempt_id = rig.grant("j", [0])
    rig.running(attempt_id)
    sample(rig)
    write(rig)
    before = rows(rig)["j"]
    assert before["running"] == 1 and before["memory_mib_s"] > 0 and before["energy_j"] > 0
    rig.kill_manager()
    rig.start_manager()
    rig.node.run_until(lambda: rows(rig).get("j", {}).get("running"), 60.0, what="taken up")
    sample(rig, mib=700)
    open_gate(gate)
    usage = rig.ended(attempt_id)["attempts"][0]["usage"]
    assert usage["gpu_s"] > before["gpu_s"] and usage["memory_mib_s"] > before["memory_mib_s"]
    assert usage["energy_j"] == pytest.approx(100 * usage["gpu_s"], rel=0.05), (
        "of all its time, not of the second agent's"
    )
    assert usage["memory_high_mib"] == 700
    closed(rig)
    assert rows(rig)["j"]["incomplete"] == 0


def test_what_ended_while_no_agent_was_here_is_closed_and_marked(make_rig: MakeRig, tmp_path: Path) -> None:
    rig = make_rig()
    rig.start_manager()
    rig.submit("j", command=gated(tmp_path / "gate", "true"), resources=WHOLE)
    attempt_id = rig.grant("j", [0])
    rig.running(attempt_id)
    write(rig)
    rig.kill_manager()
    rig.propose(EndAttempt(attempt_id, rig.job("j")["attempts"][0]["token"], "lost"))
    rig.start_manager()
    rig.node.run_until(lambda: rows(rig)["j"]["incomplete"], 60.0, what="closed")
    assert rows(rig)["j"]["gpu_s"] > 0 and rows(rig)["j"]["running"] == 0
    rig.node.run_until(lambda: not rig.marked(attempt_id), 60.0, what="its processes gone")


def test_what_a_machine_took_along_when_it_went_down_is_kept_as_far_as_it_was_written(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.start_manager()
    rig.lease("l1", [0])
    sample(rig)
    write(rig)
    path = rig.paths.usage_dir / "open.json"
    kept = json.loads(path.read_text())
    rig.release("l1")
    closed(rig)
    rig.kill_manager()
    path.write_text(json.dumps({**kept, "boot_id": "another"}))
    rig.start_manager()
    row = rows(rig, "kind")["session"]
    assert (row["works"], row["incomplete"]) == (1, 1) and row["gpu_s"] > 0 and row["energy_j"] > 0


def test_what_the_ledger_still_grants_after_the_machine_came_up_is_added_to_what_was_before(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.start_manager()
    rig.lease("l1", [0])
    write(rig)
    rig.kill_manager()
    path = rig.paths.usage_dir / "open.json"
    kept = json.loads(path.read_text())
    kept["meter"]["open"][0]["began"] -= 5_000.0
    path.write_text(json.dumps({**kept, "boot_id": "another"}))
    rig.start_manager()
    rig.release("l1")
    closed(rig)
    for _ in range(2):
        row = rows(rig, "kind")["session"]
        assert row["gpu_s"] > 5_000.0 and row["incomplete"] == 1 and row["running"] == 0
        write(rig)
    assert row["works"] == 1


def test_a_clock_that_is_set_changes_nothing(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = tmp_path / "gate"
    rig.submit("clock", command=gated(gate, "true"), resources=WHOLE)
    attempt_id = rig.grant("clock", [0])
    rig.running(attempt_id)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 86_400)
    sample(rig)
    open_gate(gate)
    usage = rig.ended(attempt_id)["attempts"][0]["usage"]
    assert 0 < usage["gpu_s"] < 3600


def test_a_history_that_is_none_is_put_aside(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.start_manager()
    (rig.paths.usage_dir / "history.db").write_bytes(b"no database at all, but longer than its header" * 50)
    rig.run("j", [0], command=["true"], resources=WHOLE)
    closed(rig)
    write(rig)
    assert rows(rig)["j"]["gpu_s"] > 0
    assert (rig.paths.usage_dir / "history.broken").exists()
