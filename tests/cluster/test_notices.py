"""Notifications of jobs on a real ledger: sent once, noted, and sent by the server that comes after one that died."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from actorgrid.actors.cluster.manager import ClusterManager
from actorgrid.actors.cluster.messages import AcceptJobs, NoticeStates, RequestCancel, Why
from actorgrid.actors.notifications.courier import GRACE_S
from tests.cluster.rig import Rig, job
from tests.notifications.test_sending import Receiver, serving


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    with serving(server):
        yield server


def name_targets(rig: Rig, text: str) -> None:
    path = rig.host.paths.data_dir / "notifications.yaml"
    path.write_text(text)
    path.chmod(0o600)


def end_one(rig: Rig, job_id: str) -> None:
    rig.manager(AcceptJobs((job(job_id, notify=["ops"], depends_on=()),)))
    rig.manager(RequestCancel(job_id, by="test"))


def notices(rig: Rig) -> Any:
    return rig.node.servers["cluster_manager"]._ledger.notices  # type: ignore[attr-defined]


def test_what_happened_is_sent_once_and_forgotten(rig: Rig, receiver: Receiver) -> None:
    name_targets(rig, f"targets: {{ops: {{webhook: '{receiver.url}/204'}}}}")
    manager = rig.add(ClusterManager)
    rig.node.advance(GRACE_S)
    for number in range(3):
        end_one(rig, f"j{number}")
    rig.node.run_until(lambda: not notices(rig), 30.0)
    ids = [headers["webhook-id"] for _, headers, _ in receiver.heard]
    assert len(ids) == len(set(ids)) == 3
    told = json.loads(receiver.heard[0][2])
    assert told["type"] == "job.cancelled" and told["data"]["job_id"] == "j0"
    assert manager.metrics()["notices_sent_total"] == 3.0


def test_what_could_not_be_sent_is_told_and_sent_by_the_server_that_comes_after(rig: Rig, receiver: Receiver) -> None:
    rig.add(ClusterManager)
    rig.node.advance(GRACE_S)
    end_one(rig, "a")
    rig.node.settle()
    (notice_id,) = notices(rig)
    states = rig.manager(NoticeStates())
    assert states[notice_id]["tries"] == 1 and "there is no target 'ops'" in states[notice_id]["last_failure"]
    notes = rig.manager(Why("a"))["notes"]
    assert "notification of cancelled to ops: not sent yet" in notes
    rig.node.servers.pop("cluster_manager")
    rig.node.registry.bury("cluster_manager")
    name_targets(rig, f"targets: {{ops: {{webhook: '{receiver.url}/204'}}}}")
    rig.add(ClusterManager)
    assert not receiver.heard, "whoever begins to lead waits for what may be on its way"
    rig.node.advance(GRACE_S)
    rig.node.run_until(lambda: not notices(rig), 30.0)
    assert [headers["webhook-id"] for _, headers, _ in receiver.heard] == [notice_id]


def test_what_is_refused_for_good_is_kept_with_its_reason(rig: Rig, receiver: Receiver) -> None:
    name_targets(rig, f"targets: {{ops: {{webhook: '{receiver.url}/410'}}}}")
    rig.add(ClusterManager)
    rig.node.advance(GRACE_S)
    end_one(rig, "a")
    rig.node.run_until(lambda: any(each["failed_at"] for each in notices(rig).values()), 30.0)
    (kept,) = notices(rig).values()
    assert kept["tries"] == 1 and "answers 410" in kept["failure"] and len(receiver.heard) == 1
    assert any("given up after 1 tries" in note for note in rig.manager(Why("a"))["notes"])
