"""Consensus on an inline node, with real files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from actorgrid.actors.ledger import client
from actorgrid.actors.ledger.commands import (
    AcquireLock,
    CancelJob,
    EndAttempt,
    FailJob,
    GrantAttempt,
    GrantLease,
    RegisterHost,
    ReleaseLease,
    SetSetting,
    StartAttempt,
    SubmitJobs,
)
from actorgrid.actors.ledger.messages import LedgerSnapshot, Propose, Query, Subscribe
from actorgrid.actors.ledger.outcome import Outcome
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.ledger.tables import jobs
from actorgrid.errors import (
    ActorGridError,
    BadRequest,
    BodyTooLarge,
    CallTimeout,
    LedgerDiverged,
    Overcommit,
    UnknownJob,
    WrongState,
)
from actorgrid.supervisors.envelope import CALL, Envelope, GetMetrics, GetStatus
from tests.consensus.rig import AT, Follower, Host, host_record, job_record

MakeHost = Callable[..., Host]


def run_job(host: Host, job_id: str, outcome: str = "succeeded", **more: Any) -> None:
    host.propose(SubmitJobs([job_record(job_id, **more)], at=AT))
    term = host.live.status()["term"]
    # Tuples are as good as lists: the log knows only lists.
    token = tuple(host.propose(GrantAttempt(job_id, 1, "h1", 1, (0,), term, at=AT)).result["token"])  # type: ignore[arg-type]
    host.propose(StartAttempt(f"{job_id}.1", token, at=AT))
    host.propose(EndAttempt(f"{job_id}.1", token, outcome, at=AT))


def test_a_job_goes_from_queued_to_succeeded(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    host.propose(RegisterHost(host_record(), at=AT))
    run_job(host, "a")
    job = host.query("job", job_id="a")
    assert job["state"] == "succeeded"
    assert job["attempts"][0]["state"] == "succeeded"
    assert host.query("allocations") == {"allocations": []}
    assert host.query("counts")["jobs"]["succeeded"] == 1


def test_state_survives_stop_and_kill(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    host.propose(RegisterHost(host_record(), at=AT))
    run_job(host, "a")
    before = host.live._replica.ledger.index
    host.stop()
    host.start()
    assert host.query("job", job_id="a")["state"] == "succeeded"
    assert host.live.status()["term"] == 2
    host.propose(SubmitJobs([job_record("b")], at=AT))
    host.kill()
    host.start()
    assert host.live.status()["term"] == 3
    assert host.query("job", job_id="b")["state"] == "queued"
    assert host.live._replica.ledger.index == before + 3


def test_a_follower_has_the_effect_when_its_proposal_is_answered(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    follower = host.node.add(Follower, host.context)
    assert isinstance(follower, Follower)
    seen: list[Any] = []

    async def work() -> None:
        seen.append(await follower.ledger.propose(SubmitJobs(jobs=[job_record("a")])))
        seen.append(follower.ledger.jobs["a"]["state"])

    follower.spawn(work())
    host.node.run_until(lambda: len(seen) == 2)
    assert seen == [{"jobs": [{"job_id": "a", "duplicate": False}]}, "queued"]


def test_mirror_follows_through_a_restart_of_consensus(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    follower = host.node.add(Follower, host.context)
    assert isinstance(follower, Follower)
    host.propose(SubmitJobs([job_record("a")], at=AT))
    host.node.settle()
    host.kill()
    done: list[Any] = []

    async def work() -> None:
        done.append(await follower.ledger.propose(CancelJob(job_id="a", by="me")))

    follower.spawn(work())
    host.node.advance(1.0)
    assert not done
    host.start()
    follower.peer_restarted("consensus")
    host.node.run_until(lambda: bool(done))
    host.node.settle()
    assert done == [{"state": "cancelled", "cancel_requested": False}]
    assert follower.ledger.jobs == {}
    assert follower.ledger.term == 2
    assert follower.ledger.index == host.live._replica.ledger.index
    assert follower.snapshots == 2


def test_what_waits_in_the_mailbox_is_committed_by_one_fsync(make_host: MakeHost) -> None:
    host = make_host(ledger_batch_max=50)
    host.start()
    before = host.live.metrics()
    for number in range(120):
        body = Propose(SubmitJobs([job_record(f"j{number}")], at=AT), f"s{number}", 1)
        host.node.send("consensus", Envelope(CALL, "test", (9, number), body))
    host.node.settle()
    after = host.live.metrics()
    assert after["ledger_commits_total"] - before["ledger_commits_total"] == 120
    assert after["ledger_batches_total"] - before["ledger_batches_total"] == 3
    assert len(host.node._replies) == 120


def test_a_repeated_proposal_is_committed_once(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    command = SubmitJobs([job_record("a")], at=AT)
    first = host.propose(command, "s", 1)
    assert host.propose(command, "s", 1) == first
    # Twice in one batch: both wait before either is applied.
    body = Propose(SetSetting("k", 1, "me", at=AT), "s", 2)
    for number in (1, 2):
        host.node.send("consensus", Envelope(CALL, "test", (9, number), body))
    host.node.settle()
    answers = {host.node._replies[9, number].body.index for number in (1, 2)}
    assert len(answers) == 1
    assert [event["type"] for event in host.query("events")["events"]] == ["submit_jobs", "set_setting"]
    with pytest.raises(WrongState):
        host.propose(command, "s", 1)
    host.kill()
    host.start()
    assert host.propose(SetSetting("k", 1, "me", at=AT), "s", 2).index in answers


def test_a_linearizable_read_sees_what_was_committed_before_it_was_asked(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    host.propose(SubmitJobs([job_record("a")], at=AT))
    replies = [(9, number) for number in range(100)]
    for reply in replies:
        query = Query("job", {"job_id": "a"}, linearizable=True)
        host.node.send("consensus", Envelope(CALL, "test", reply, query))
    host.node.settle()
    assert all(host.node._replies[reply].body["job_id"] == "a" for reply in replies)
    assert host.live._reads.waiting == 0


def test_a_lock_that_nobody_renews_is_given_to_who_waits(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    first = host.propose(AcquireLock("deploy", "a", 2.0, at=AT)).result
    waits = host.propose(AcquireLock("deploy", "b", 60.0, at=AT, wait=True)).result
    assert (first["held"], waits["held"]) == (True, False)
    host.node.advance(2.0)
    assert host.live._replica.ledger.locks["deploy"]["holders"][0]["owner"] == "a"
    host.node.advance(1.0)
    holder = host.live._replica.ledger.locks["deploy"]["holders"][0]
    assert holder["owner"] == "b"
    assert holder["token"] > first["token"]
    host.kill()
    host.start()  # whoever leads next starts the lease anew
    host.node.advance(61.0)
    assert host.live._replica.ledger.locks["deploy"]["holders"][0]["owner"] == "b"
    host.node.advance(6.0)
    assert host.live._replica.ledger.locks == {}


def test_a_replay_that_comes_out_differently_keeps_the_ledger_down(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host()
    host.start()
    for number in range(300):
        host.propose(SetSetting("k", number, "me", at=AT))
    host.node.settle()
    host.kill()
    host.start()
    assert 256 in host.live._replica.ledger.digest_marks.marks
    host.kill()
    begins = Ledger.pass_over

    def another(ledger: Ledger, index: int, term: int) -> Outcome:  # as a version with a bug would
        ledger.settings["forgotten"] = 1
        ledger._digest.changed("setting", "forgotten")
        return begins(ledger, index, term)

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "pass_over", another)
        with pytest.raises(LedgerDiverged) as refused:
            host.start()
    assert refused.value.found == "another in: setting"
    host.node.remove("consensus")
    host.start()
    assert host.live.status()["role"] == "leader"


def test_refusals_reach_the_proposer_and_are_counted(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    host.propose(RegisterHost(host_record(), at=AT))
    host.propose(SubmitJobs([job_record("a", resources={"cpu_milli": 99_000})], at=AT))
    with pytest.raises(Overcommit) as caught:
        host.propose(GrantAttempt("a", 1, "h1", 1, [0], 1, at=AT))
    assert caught.value.found
    with pytest.raises(BadRequest):
        host.propose({"type": "no_such"})
    with pytest.raises(BadRequest):
        host.propose(SetSetting("k", float("inf"), "me", at=AT))
    with pytest.raises(BadRequest):
        host.propose(SetSetting("k", b"bytes", "me", at=AT))
    with pytest.raises(BodyTooLarge):
        host.propose(SetSetting("k", "x" * (17 << 20), "me", at=AT))
    metrics = host.node.request("consensus", GetMetrics())
    assert metrics["ledger_refused_total"] == 5
    assert metrics["ledger_refused_Overcommit_total"] == 1


def test_leases_go_through_to_the_mirror_and_back(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    follower = host.node.add(Follower, host.context)
    assert isinstance(follower, Follower)
    host.propose(RegisterHost(host_record(), at=AT))
    resources = {"gpu_count": 1, "gpu_milli": 250}
    host.propose(GrantLease("L1", "S", "h1", 1, [1], resources, pool="gpu_compute", env={}, term=1, at=AT))
    host.node.settle()
    assert follower.ledger.allocations["L1"]["gpu_uuids"] == ["GPU-h1-1"]
    assert follower.ledger.hosts["h1"]["incarnation"] == 1
    host.propose(ReleaseLease("L1", at=AT))
    host.propose(SetSetting("work.kill_grace_s", 2, "me", at=AT))
    host.node.settle()
    assert follower.ledger.allocations == {}
    assert follower.ledger.settings == {"work.kill_grace_s": 2}
    chain = [(message.previous, message.index) for message in follower.heard]
    assert [previous for previous, _ in chain[1:]] == [index for _, index in chain[:-1]]
    assert follower.snapshots == 1


def test_a_subscriber_that_missed_a_cast_subscribes_again(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    follower = host.node.add(Follower, host.context)
    assert isinstance(follower, Follower)
    del host.node.servers["follower"]
    host.propose(SubmitJobs([job_record("a")], at=AT))
    host.propose(SubmitJobs([job_record("b")], at=AT))
    host.node.servers["follower"] = follower
    assert follower.ledger.jobs == {}
    host.node.advance(2.0)
    assert sorted(follower.ledger.jobs) == ["a", "b"]
    assert follower.snapshots == 2
    host.propose(CancelJob("a", "me", at=AT))
    host.node.settle()
    assert sorted(follower.ledger.jobs) == ["b"]


def test_who_subscribes_after_an_entry_that_changed_nothing_is_no_further_than_the_others(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    early = host.node.request("consensus", Subscribe()).index
    assert host.propose({"type": "release_lease", "v": 1, "at": AT, "lease_id": "none"}).result == {"released": False}
    assert host.live.status()["index"] == early + 1
    # Or a reader that asks the early one for what it saw at the late one would wait for a cast that never comes.
    assert host.node.request("consensus", Subscribe()).index == early
    follower = host.node.add(Follower, host.context)
    host.propose(SetSetting("k", 1, "me", at=AT))
    host.node.settle()
    assert isinstance(follower, Follower) and follower.ledger.settings == {"k": 1} and follower.snapshots == 1


def test_many_proposals_of_one_server_are_under_way_at_once(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    follower = host.node.add(Follower, host.context)
    assert isinstance(follower, Follower)
    done: list[Any] = []

    async def work(number: int) -> None:
        done.append(await follower.ledger.propose(SubmitJobs(jobs=[job_record(f"j{number}")])))

    for number in range(200):
        follower.spawn(work(number))
    host.kill()
    host.start()
    follower.peer_restarted("consensus")
    host.node.run_until(lambda: len(done) == 200)
    assert not any(answer["jobs"][0]["duplicate"] for answer in done)
    host.node.settle()
    assert len(follower.ledger.jobs) == 200
    assert host.query("jobs", limit=1)["total"] == 200


def test_what_is_committed_together_is_told_together_before_it_is_answered(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    follower = host.node.add(Follower, host.context)
    assert isinstance(follower, Follower)
    seen: list[int] = []

    async def work(number: int) -> None:
        await follower.ledger.propose(SubmitJobs([job_record(f"j{number}")], at=AT))
        seen.append(len(follower.ledger.jobs))

    handled = follower.handled
    for number in range(50):
        follower.spawn(work(number))
    host.node.run_until(lambda: len(seen) == 50)
    assert seen == [50] * 50
    assert follower.handled - handled == 50 + 1  # an answer to each, and one message for all that changed
    assert [message.index - message.previous for message in follower.heard[-49:]] == [1] * 49


def test_mirror_gives_the_ledgers_refusal_to_its_caller(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    follower = host.node.add(Follower, host.context)
    assert isinstance(follower, Follower)
    caught: list[ActorGridError] = []

    async def work() -> None:
        try:
            await follower.ledger.propose(FailJob(job_id="nobody", error={}))
        except UnknownJob as error:
            caught.append(error)
        host.kill()
        try:
            await follower.ledger.propose(ReleaseLease(lease_id="L"), timeout_s=3.0)
        except CallTimeout as error:
            caught.append(error)

    follower.spawn(work())
    host.node.run_until(lambda: len(caught) == 2)


def test_ended_jobs_beyond_memory_are_read_from_the_store(make_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "ENDED_MAX", 3)
    host = make_host()
    host.start()
    host.propose(RegisterHost(host_record(), at=AT))
    host.propose(SubmitJobs([job_record("waits", submitted_at=AT - 1)], at=AT))
    for number in range(10):
        run_job(host, f"j{number}", "failed" if number % 2 else "succeeded", submitted_at=AT + number)
    for step in ("unwritten", "written", "killed", "stopped"):
        if step == "written":
            host.node.advance(3.0)
        elif step == "killed":
            host.kill()
            host.start()
        elif step == "stopped":
            host.stop()
            host.start()
        assert host.query("job", job_id="j0")["state"] == "succeeded", step
        assert host.query("job", job_id="nobody") is None
        assert host.query("counts")["jobs"]["failed"] == 5
        everything = host.query("jobs", limit=100)
        assert everything["total"] == 11
        assert [job["job_id"] for job in everything["jobs"]] == [*(f"j{n}" for n in range(9, -1, -1)), "waits"]
        page = host.query("jobs", limit=4, states=["failed"])
        assert [job["job_id"] for job in page["jobs"]] == ["j9", "j7", "j5", "j3"]
        assert page["total"] == 5
        rest = host.query("jobs", limit=4, states=["failed"], before="j3")
        assert [job["job_id"] for job in rest["jobs"]] == ["j1"]
        early = host.query("jobs", before=AT + 2)
        assert [job["job_id"] for job in early["jobs"]] == ["j1", "j0", "waits"]
        assert [job["job_id"] for job in host.query("jobs", states=["queued"])["jobs"]] == ["waits"]
    answer = host.propose(SubmitJobs([job_record("j0")], at=AT))
    assert answer.result["jobs"] == [{"job_id": "j0", "duplicate": True}]


def test_events_come_in_order_and_whole_entries(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    host.propose(SubmitJobs([job_record(f"a{n}") for n in range(5)], at=AT))
    second = host.propose(SubmitJobs([job_record(f"b{n}") for n in range(5)], at=AT)).index
    assert len(host.query("events")["events"]) == 10
    assert [event["id"] for event in host.query("events", limit=2)["events"]] == [f"a{n}" for n in range(5)]
    page = host.query("events", **{"from": second})["events"]
    assert [event["id"] for event in page] == [f"b{n}" for n in range(5)]
    assert page[0] == {
        "number": 6,
        "index": second,
        "at": AT,
        "type": "submit_jobs",
        "kind": "job",
        "id": "b0",
        "state": "queued",
    }


def test_queries_answer_plainly_and_refuse_what_they_do_not_know(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    host.propose(RegisterHost(host_record(), at=AT))
    host.propose(SetSetting("k", 1, "me", at=AT))
    assert host.query("hosts")["hosts"][0]["host_id"] == "h1"
    assert host.query("settings") == {"settings": {"k": 1}}
    status = host.query("status")
    assert status.keys() == host.node.request("consensus", GetStatus()).keys()
    assert status["role"] == "leader"
    snapshot = host.node.request("consensus", Subscribe())
    assert isinstance(snapshot, LedgerSnapshot)
    assert snapshot.settings == {"k": 1}
    for query in (Query("no_such"), Query("job"), Query("jobs", {"limit": "many"})):
        with pytest.raises(BadRequest):
            host.node.request("consensus", query)


def test_more_proposals_than_lanes_wait_their_turn(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    follower = host.node.add(Follower, host.context)
    assert isinstance(follower, Follower)
    done: list[Any] = []

    async def work(number: int) -> None:
        done.append(await follower.ledger.propose(SubmitJobs(jobs=[job_record(f"j{number}")])))

    for number in range(client.LANES_MAX + 300):
        follower.spawn(work(number))
    host.node.run_until(lambda: len(done) == client.LANES_MAX + 300)
    assert len(host.live._replica.ledger.jobs) == client.LANES_MAX + 300


def test_what_a_dead_consensus_had_in_hand_is_proposed_again_at_once(make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    follower = host.node.add(Follower, host.context)
    assert isinstance(follower, Follower)
    done: list[float] = []

    async def work() -> None:
        await follower.ledger.propose(SubmitJobs(jobs=[job_record("a")]))
        done.append(host.node.now_s)

    follower.spawn(work())
    host.node.run_until(lambda: len(host.live._waiting) == 1)
    host.kill()
    host.start()
    started = host.node.now_s
    follower.peer_restarted("consensus")
    host.node.run_until(lambda: bool(done))
    assert done[0] - started < 1.0
    host.node.settle()
    assert list(follower.ledger.jobs) == ["a"]
