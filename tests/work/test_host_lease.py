"""A host starts nothing without its lease, stops what runs at the end of its patience, and comes back empty."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from actorgrid.actors.ledger.commands import LoseHost
from actorgrid.actors.work import leases
from actorgrid.actors.work.attempt_dir import AttemptDir
from actorgrid.actors.work.containment import Containment
from actorgrid.actors.work.host_lease import HostLease
from actorgrid.actors.work.linux import boot_seconds
from actorgrid.actors.work.shim_start import run_shim
from actorgrid.actors.work.work_records import lost_spec
from actorgrid.errors import HostIsolated, NotLeader
from tests.work.rig import RawClient, Rig, alive, wait_for
from tests.work.test_endings import family, pids_in

# -- decisions


def test_there_is_no_lease_before_the_first_and_none_three_seconds_after_it_was_asked_for() -> None:
    lease = HostLease(3.0)
    assert not lease.valid(0.0)
    lease.renewed(asked_at=10.0, index=5, now=10.4)
    assert lease.valid(12.9)
    assert not lease.valid(13.0)
    assert lease.deadline(10.0) == 20.0


def test_no_host_may_go_on_for_longer_than_its_leader_believes() -> None:
    assert HostLease(60.0).lease_s == 3.0


def test_a_lease_that_ran_out_needs_the_host_to_say_that_it_is_there() -> None:
    lease = HostLease(3.0)
    lease.renewed(10.0, 5, 10.1)
    assert not lease.confirmed(5)
    assert lease.confirmed(6)
    lease.renewed(11.0, 8, 12.9)
    assert lease.confirmed(6)  # one after the other: it was never without
    lease.renewed(14.0, 9, 14.1)
    assert not lease.confirmed(9)
    assert lease.confirmed(10)
    assert lease.lapses == 1


def test_an_answer_that_comes_when_the_lease_has_run_out_begins_a_new_one_however_early_it_was_asked() -> None:
    lease = HostLease(3.0)
    lease.renewed(10.0, 5, 10.1)
    lease.renewed(11.0, 9, 23.0)  # it was on its way for long, and much may have been decided meanwhile
    assert not lease.valid(23.0)
    assert not lease.confirmed(9)


# -- the host


def isolate(rig: Rig) -> Callable[[], None]:
    """No leader confirms anything from here on; gives how to mend it."""
    confirmed = rig.consensus._linearizable

    async def refuse() -> None:
        raise NotLeader("nobody leads")

    rig.consensus._linearizable = refuse  # type: ignore[method-assign]

    def mend() -> None:
        rig.consensus._linearizable = confirmed  # type: ignore[method-assign]

    return mend


def may_start(rig: Rig) -> bool:
    assert rig.manager is not None
    return bool(rig.manager.status()["may_start"])


def lose(rig: Rig, *names: str) -> None:
    record = rig.host()
    held = [[name, rig.allocation(name)["token"]] for name in names]
    fields = {name: record[name] for name in ("incarnation", "seen_index")}
    rig.propose(LoseHost(host="h1", heard_at=time.time(), allocations=held, term=rig.term, **fields))


def test_what_is_granted_to_a_host_without_lease_starts_when_it_is_back(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(work__lease_s=0.5)
    rig.start_manager()
    rig.node.run_until(lambda: may_start(rig), what="a lease")
    mend = isolate(rig)
    rig.node.run_until(lambda: not may_start(rig), what="the end of the lease")
    seen = rig.host()["seen_index"]
    rig.submit("a", command=["true"])
    attempt_id = rig.grant("a")
    rig.node.run_until(lambda: attempt_id in rig.manager._attempts.live, what="the order")  # type: ignore[union-attr]
    rig.node.settle()
    assert rig.dir(attempt_id).read_started() is None
    mend()
    assert rig.ended(attempt_id)["state"] == "succeeded"
    assert rig.host()["seen_index"] > seen


def test_work_on_a_host_without_lease_ends_with_its_patience_though_the_agent_lives(rig: Rig, tmp_path: Path) -> None:
    rig.submit("a", command=family(tmp_path / "pids"), max_isolation_s=3.0)
    rig.submit("b", command=["sleep", "4"], max_isolation_s=60.0)
    short, long = rig.grant("a"), rig.grant("b")
    rig.running(short)
    rig.running(long)
    pids = pids_in(tmp_path / "pids")
    isolate(rig)
    job = rig.ended(short)
    assert job["attempts"][0]["error"]["code"] == "WorkerLost"
    assert not any(map(alive, pids))
    assert rig.ended(long)["state"] == "succeeded"


def test_a_session_gets_no_worker_on_a_host_without_lease(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "ATTACH_WAIT_S", 0.2)
    rig = make_rig(work__lease_s=0.5)
    rig.start_manager()
    rig.node.run_until(lambda: may_start(rig), what="a lease")
    mend = isolate(rig)
    rig.node.run_until(lambda: not may_start(rig), what="the end of the lease")
    with pytest.raises(HostIsolated, match="starts nothing new"):
        rig.lease("L1")
    mend()
    rig.node.run_until(lambda: may_start(rig), what="a lease again")
    monkeypatch.setattr(leases, "ATTACH_WAIT_S", 15.0)
    with RawClient(rig.attach("L1")) as client:
        assert client.welcome().pid


def test_a_lost_host_ends_what_it_had_and_is_up_again_when_nothing_of_it_lives(rig: Rig, tmp_path: Path) -> None:
    rig.submit("a", command=family(tmp_path / "pids"), max_isolation_s=60.0)
    attempt_id = rig.grant("a")
    rig.running(attempt_id)
    with RawClient(rig.lease("L1", [0])) as client:
        worker = client.welcome().pid
        pids = pids_in(tmp_path / "pids")
        lose(rig, attempt_id, "L1")
        assert rig.host()["state"] == "lost"
        rig.node.run_until(lambda: rig.host()["state"] == "up", what="the host is back")
        assert not any(map(alive, [*pids, worker]))
    assert rig.job("a")["state"] == "queued"
    assert rig.run("b", command=["true"])["state"] == "succeeded"


def test_a_shim_starts_nothing_after_its_deadline_and_leaves_the_attempt_to_be_started(rig: Rig) -> None:
    rig.submit("a", command=["true"])
    directory = AttemptDir(rig.paths.attempts_dir, "x.1")
    directory.create(
        {**lost_spec("a.1"), "ledger_token": [0, 1], "control_path": str(rig.paths.work_sockets_dir / "x")}
    )
    run_shim(str(directory.path), -1, boot_seconds(), Containment("none"))
    assert directory.read_started() is None


def test_an_agent_that_comes_back_to_an_isolated_host_prolongs_nothing(rig: Rig, tmp_path: Path) -> None:
    rig.submit("a", command=family(tmp_path / "pids"), max_isolation_s=3.0)
    attempt_id = rig.grant("a")
    rig.running(attempt_id)
    pids = pids_in(tmp_path / "pids")
    rig.kill_manager()
    isolate(rig)
    manager = rig.start_manager()
    rig.node.run_until(lambda: manager._attempts.live[attempt_id].link is not None, what="the shim answers")
    wait_for(lambda: rig.dir(attempt_id).read_status(), what="the end of its patience")
    assert not any(map(alive, pids))
    rig.ended(attempt_id)
