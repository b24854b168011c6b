"""Leases whose worker, shim or manager is gone: nobody else gets their devices while something is left of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from actorgrid.actors.consensus.actor import Consensus
from actorgrid.actors.work.messages import DetachLease
from actorgrid.errors import WorkerLost
from tests.work.rig import RawClient, Rig, alive


def leave_a_child(path: str) -> int:
    """A task that starts a process of another session, which ignores SIGTERM."""
    import os
    import signal
    import subprocess

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "300"], start_new_session=True)
    with open(path, "w") as file:
        file.write(str(child.pid))
    return os.getpid()


leave_a_child.__module__ = "__main__"


def worker_and_child(rig: Rig, folder: Path) -> tuple[int, int]:
    with RawClient(rig.lease("L1", [0])) as client:
        client.welcome()
        worker = client.call(leave_a_child, str(folder / "child"))
    return worker, int((folder / "child").read_text())


def shim_of(worker: int) -> int:
    parent = psutil.Process(worker).parent()
    assert parent is not None
    return parent.pid


def allocated(rig: Rig) -> bool:
    assert rig.manager is not None
    return "L1" in rig.manager._ledger.allocations


def test_a_lease_returned_to_a_manager_that_just_started_is_released(rig: Rig) -> None:
    rig.lease("L1", [0])
    rig.kill_manager()
    rig.consensus.stop("away")
    rig.node.remove("consensus")
    manager = rig.start_manager()
    manager.spawn(manager._leases.detach("L1"))  # what the handler of DetachLease awaits
    rig.node.settle()
    rig.consensus = rig.node.add(Consensus, rig.context)
    rig.node.run_until(lambda: manager._follows and not allocated(rig), what="the lease is released")


def test_what_a_killed_shim_leaves_of_a_returned_lease_is_gone_before_the_devices_are_free(
    rig: Rig, tmp_path: Path
) -> None:
    worker, child = worker_and_child(rig, tmp_path)
    shim = shim_of(worker)
    os.kill(shim, signal.SIGSTOP)  # so that the order to retire does not reach it
    manager = rig.manager
    assert manager is not None
    manager.runtime.after(0.05, lambda: os.kill(shim, signal.SIGKILL))
    rig.node.request("worker_manager", DetachLease("L1"), timeout_s=20)
    assert not allocated(rig)
    assert not alive(child)
    assert not alive(worker)


def test_what_a_killed_shim_left_while_no_manager_was_there_is_gone_before_the_devices_are_free(
    rig: Rig, tmp_path: Path
) -> None:
    worker, child = worker_and_child(rig, tmp_path)
    rig.kill_manager()
    os.kill(shim_of(worker), signal.SIGKILL)
    manager = rig.start_manager()
    rig.node.run_until(lambda: manager._follows and not allocated(rig), what="the lease is released")
    assert not alive(child)
    assert manager._leases.known() == []


def test_a_worker_whose_lease_cannot_be_remembered_serves_nobody(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(work__pools__general__warm=1)
    manager = rig.start_manager()
    rig.node.run_until(lambda: manager.metrics().get("workers_general_idle") == 1, what="a warm worker")
    (worker,) = manager._leases.workers()
    (rig.paths.workers_dir / worker.worker_id / "lease.tmp").mkdir()  # as a full disk would, the write fails
    with pytest.raises(WorkerLost):
        rig.lease("L1")


def test_a_worker_that_reads_no_orders_does_not_keep_its_shim_from_the_lease(rig: Rig) -> None:
    grant = rig.lease("L1", [0], env={"LARGE": "x" * 100_000})
    manager = rig.manager
    assert manager is not None
    with RawClient(grant) as client:
        pid = client.welcome().pid
        client.send(time.sleep, 1000)
        for _ in range(10):
            if grant["worker_id"] in manager._leases._pools.workers:  # it may have been ended for it by now
                manager._leases._open(grant["worker_id"], "L1")
            rig.node.settle()
        rig.release("L1")
        rig.node.run_until(lambda: not alive(pid), what="the worker's end")
