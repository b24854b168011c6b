"""Many who submit at once: few entries, each request as a whole, and nobody pays for another's mistake."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.cluster.manager import ClusterManager
from actorgrid.actors.cluster.messages import AcceptJobs, ChangeQuota, GetJob, ListJobs
from actorgrid.actors.cluster.submissions import UNDER_WAY_MAX
from actorgrid.actors.ledger.messages import Query
from actorgrid.errors import ActorGridError, Overloaded, QueueFull
from tests.cluster.rig import Rig, job

MANY = 300


@pytest.fixture(autouse=True)
def manager(rig: Rig) -> Any:
    return rig.add(ClusterManager)


def submit_at_once(rig: Rig, manager: ClusterManager, requests: list[tuple[dict[str, Any], ...]]) -> list[Any]:
    """The answer, or the error, of each."""
    answers: dict[int, Any] = {}

    async def ask(number: int, jobs: tuple[dict[str, Any], ...]) -> None:
        try:
            answers[number] = await manager._submit(AcceptJobs(jobs))
        except ActorGridError as error:
            answers[number] = error

    for number, jobs in enumerate(requests):
        manager.spawn(ask(number, jobs))
    rig.node.run_until(lambda: len(answers) == len(requests))
    return [answers[number] for number in range(len(requests))]


def index(rig: Rig) -> int:
    return int(rig.node.request("consensus", Query("index")))


def test_those_who_come_together_share_an_entry(rig: Rig, manager: ClusterManager) -> None:
    rig.manager(AcceptJobs((job("holds", gpus=2),)))
    rig.until_state("holds", "placed")
    before = index(rig)
    answers = submit_at_once(rig, manager, [(job(f"j{n}", gpus=1),) for n in range(MANY)])
    assert answers == [[{"job_id": f"j{n}", "duplicate": False}] for n in range(MANY)]
    assert index(rig) - before <= UNDER_WAY_MAX + 2, "one entry for each would be one sync of the disks for each"
    names = [record["job_id"] for record in rig.manager(ListJobs(limit=1_000))["jobs"]]
    assert names == [*(f"j{n}" for n in reversed(range(MANY))), "holds"], "in the order in which they came"


def test_what_waits_is_not_kept_here(rig: Rig, manager: ClusterManager) -> None:
    rig.manager(AcceptJobs((job("holds", gpus=2),)))
    rig.until_state("holds", "placed")
    rig.manager(AcceptJobs(tuple(job(f"j{n}", gpus=1) for n in range(MANY))))
    assert list(manager._ledger.jobs) == ["holds"]
    assert manager.status()["jobs"] == MANY + 1 and manager.metrics()["jobs_queued"] == MANY
    assert rig.manager(GetJob("j7"))["state"] == "queued"


def test_who_is_refused_does_not_keep_out_the_others(rig: Rig, manager: ClusterManager) -> None:
    rig.manager(ChangeQuota("greedy", {"jobs_waiting": 1}, "me"))
    mine = [(job(f"g{n}", gpus=1, user_id="greedy"), job(f"h{n}", gpus=1, user_id="greedy")) for n in range(2)]
    others = [(job(f"j{n}", gpus=1),) for n in range(4)]
    answers = submit_at_once(rig, manager, [others[0], others[1], mine[0], others[2], mine[1], others[3]])
    assert [isinstance(answer, QueueFull) for answer in answers] == [False, False, True, False, True, False]
    assert {record["job_id"] for record in rig.manager(ListJobs())["jobs"]} == {"j0", "j1", "j2", "j3"}


def test_there_is_a_bound_on_those_who_wait(rig: Rig, manager: ClusterManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorgrid.actors.cluster.submissions.WAITING_MAX", 5)
    answers = submit_at_once(rig, manager, [(job(f"j{n}"),) for n in range(20)])
    assert sum(isinstance(answer, Overloaded) for answer in answers) == 20 - 5 - UNDER_WAY_MAX
