"""Consensus on an inline node, with real files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actorgrid.actors.consensus.commands import (
    end_attempt,
    grant_attempt,
    register_host,
    start_attempt,
    submit_jobs,
)
from tests.consensus.rig import AT, Follower, Host, host_record, job_record

MakeHost = Callable[..., Host]


def run_job(host: Host, job_id: str, outcome: str = "succeeded", **more: Any) -> None:
    host.propose(submit_jobs([job_record(job_id, **more)], AT))
    term = host.live.status()["term"]
    token = host.propose(grant_attempt(job_id, 1, "h1", 1, [0], term, AT)).result["token"]
    host.propose(start_attempt(f"{job_id}.1", token, AT))
    host.propose(end_attempt(f"{job_id}.1", token, outcome, AT))


def test_a_job_goes_from_queued_to_succeeded(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    host.propose(register_host(host_record(), AT))
    run_job(host, "a")
    job = host.query("job", job_id="a")
    assert job["state"] == "succeeded"
    assert job["attempts"][0]["state"] == "succeeded"
    assert host.query("allocations") == {"allocations": []}
    assert host.query("counts")["jobs"]["succeeded"] == 1


def test_state_survives_stop_and_kill(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    host.propose(register_host(host_record(), AT))
    run_job(host, "a")
    before = host.live._ledger.index
    host.stop()
    host.start()
    assert host.query("job", job_id="a")["state"] == "succeeded"
    assert host.live.status()["term"] == 2
    host.propose(submit_jobs([job_record("b")], AT))
    host.kill()
    host.start()
    assert host.live.status()["term"] == 3
    assert host.query("job", job_id="b")["state"] == "queued"
    assert host.live._ledger.index == before + 3


def test_a_follower_has_the_effect_when_its_proposal_is_answered(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    follower = host.node.add(Follower, host.context)
    assert isinstance(follower, Follower)
    seen: list[Any] = []

    async def work() -> None:
        seen.append(await follower.mirror.propose({"type": "submit_jobs", "jobs": [job_record("a")]}))
        seen.append(follower.mirror.jobs["a"]["state"])

    follower.spawn(work())
    host.node.run_until(lambda: len(seen) == 2)
    assert seen == [{"jobs": [{"job_id": "a", "duplicate": False}]}, "queued"]


def test_mirror_follows_through_a_restart_of_consensus(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    follower = host.node.add(Follower, host.context)
    assert isinstance(follower, Follower)
    host.propose(submit_jobs([job_record("a")], AT))
    host.node.settle()
    host.kill()
    done: list[Any] = []

    async def work() -> None:
        done.append(await follower.mirror.propose({"type": "cancel_job", "job_id": "a", "by": "me"}))

    follower.spawn(work())
    host.node.advance(1.0)
    assert not done
    host.start()
    follower.peer_restarted("consensus")
    host.node.run_until(lambda: bool(done))
    host.node.settle()
    assert done == [{"state": "cancelled", "cancel_requested": False}]
    assert follower.mirror.jobs == {}
    assert follower.mirror.term == 2
    assert follower.mirror.index == host.live._ledger.index
    assert follower.snapshots == 2
