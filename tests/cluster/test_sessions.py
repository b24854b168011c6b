"""LoadBalancer on a real ledger and a real scheduler: limits, terms and what becomes of leases."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.cluster.load_balancer import LoadBalancer, python_version
from actorgrid.actors.cluster.messages import AcquireWorker, CloseSession, OpenSession, RenewSession, ReturnWorker
from actorgrid.errors import Overloaded, PythonMismatch, TooManyGpus, TooManySessions, UnknownSession
from tests.cluster.rig import Rig, Workers, resources


@pytest.fixture(autouse=True)
def balancer(rig: Rig) -> Any:
    return rig.add(LoadBalancer)


def opened(rig: Rig) -> str:
    return str(rig.balancer(OpenSession("me", python_version()))["session_id"])


def lease(rig: Rig, session_id: str, gpus: float = 0.5, wait_s: float = 1.0) -> str:
    return str(rig.balancer(AcquireWorker(session_id, resources(gpus), wait_s=wait_s))["lease_id"])


def test_a_lease_is_an_allocation_until_it_is_returned(rig: Rig) -> None:
    session_id = opened(rig)
    lease_id = lease(rig, session_id)
    assert rig.allocations() == {lease_id}
    rig.balancer(ReturnWorker(session_id, "another"))
    rig.balancer(ReturnWorker(session_id, lease_id))
    rig.balancer(ReturnWorker(session_id, lease_id))
    rig.node.advance(1.0)
    assert rig.allocations() == set()


def test_sessions_have_a_maximum_and_a_closed_one_makes_room(rig: Rig) -> None:
    rig.settings.sessions.max_sessions = 2
    first, _ = opened(rig), opened(rig)
    with pytest.raises(TooManySessions):
        opened(rig)
    rig.balancer(CloseSession(first))
    rig.balancer(CloseSession(first))
    assert opened(rig)


def test_leases_of_a_session_have_a_maximum(rig: Rig) -> None:
    rig.settings.sessions.max_leases_per_session = 1
    session_id = opened(rig)
    lease(rig, session_id)
    with pytest.raises(TooManySessions):
        lease(rig, session_id)
    assert lease(rig, opened(rig))


def test_a_session_that_is_not_renewed_frees_its_leases(rig: Rig, balancer: LoadBalancer) -> None:
    silent, lively = opened(rig), opened(rig)
    lease(rig, silent)
    kept = lease(rig, lively)
    term_s = rig.settings.sessions.expire_s
    for _ in range(4):
        rig.node.advance(term_s / 2)
        rig.balancer(RenewSession(lively))
    assert rig.allocations() == {kept}
    assert balancer.metrics()["sessions_expired_total"] == 1
    with pytest.raises(UnknownSession):
        rig.balancer(RenewSession(silent))
    with pytest.raises(UnknownSession):
        lease(rig, silent)


def test_a_closed_session_frees_all_of_its_leases(rig: Rig) -> None:
    session_id = opened(rig)
    held = {lease(rig, session_id), lease(rig, session_id, gpus=1)}
    assert rig.allocations() == held
    rig.balancer(CloseSession(session_id))
    rig.node.advance(1.0)
    assert rig.allocations() == set()


def test_a_restart_finds_the_leases_and_gives_their_sessions_a_full_term(rig: Rig) -> None:
    session_id = opened(rig)
    lease_id = lease(rig, session_id)
    rig.node.remove("load_balancer")
    again = rig.add(LoadBalancer)
    assert again.status()["sessions"][session_id]["leases"] == [lease_id]
    rig.balancer(RenewSession(session_id))
    rig.node.advance(2 * rig.settings.sessions.expire_s)
    assert rig.allocations() == set()


def test_a_client_of_another_python_is_told_so(rig: Rig) -> None:
    with pytest.raises(PythonMismatch) as refused:
        rig.balancer(OpenSession("me", "2.7"))
    assert "2.7" in str(refused.value)


def test_a_lease_that_finds_no_room_is_refused_and_holds_nothing(rig: Rig) -> None:
    session_id = opened(rig)
    held = {lease(rig, session_id, gpus=1), lease(rig, session_id, gpus=1)}
    with pytest.raises(Overloaded):
        lease(rig, session_id, gpus=1, wait_s=0.5)
    with pytest.raises(TooManyGpus):
        lease(rig, session_id, gpus=3)
    rig.node.advance(2.0)
    assert rig.allocations() == held


def test_a_lease_granted_after_its_session_closed_is_given_back(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    session_id = opened(rig)
    workers = rig.node.servers["worker_manager"]
    assert isinstance(workers, Workers)
    attached = workers.attached
    ask = AcquireWorker(session_id, resources(0.5))
    closing = CloseSession(session_id)

    class ClosesMeanwhile(list[str]):
        def append(self, lease_id: str) -> None:
            attached.append(lease_id)
            rig.node.servers["load_balancer"]._close(closing)  # type: ignore[attr-defined]

    monkeypatch.setattr(workers, "attached", ClosesMeanwhile())
    with pytest.raises(UnknownSession):
        rig.balancer(ask)
    rig.node.advance(2.0)
    assert attached and rig.allocations() == set()


def test_a_ledger_that_restarts_is_followed_again(rig: Rig, balancer: LoadBalancer) -> None:
    session_id = opened(rig)
    balancer.peer_restarted("consensus")
    rig.node.settle()
    held = {lease(rig, session_id)}
    assert rig.allocations() == held
    assert balancer.metrics()["session_leases"] == 1
