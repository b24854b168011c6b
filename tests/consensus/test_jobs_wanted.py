"""Servers that follow the ledger are told of the jobs that they have to know, and ask for what else they want."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from actorgrid.actors.consensus.queries import NAMES_MAX
from actorgrid.actors.consensus.subscribers import TOLD_OF_WAITING
from actorgrid.actors.ledger.commands import (
    CancelJob,
    EndAttempt,
    GrantAttempt,
    PutSchedule,
    RegisterHost,
    RemoveSchedule,
    StartAttempt,
    SubmitJobs,
)
from actorgrid.actors.ledger.messages import JobsWanted, Query
from actorgrid.errors import BadRequest
from tests.consensus.rig import AT, Follower, Host, host_record, job_record
from tests.ledger.test_schedules import schedule

MakeHost = Callable[[], Host]
COUNT = 2_500


class NoJobs(Follower):
    name = "no_jobs"
    jobs: ClassVar[JobsWanted] = "none"


class Begun(Follower):
    name = "begun"
    jobs: ClassVar[JobsWanted] = "begun"


class Told(Follower):
    name = "told"
    jobs: ClassVar[JobsWanted] = "told"


KINDS = (NoJobs, Begun, Told, Follower)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    host.start()
    host.propose(RegisterHost(host_record(), at=AT))
    return host


def added(host: Host) -> list[Follower]:
    found = [host.node.add(kind, host.context) for kind in KINDS]
    host.node.settle()
    assert all(isinstance(each, Follower) for each in found)
    return found  # type: ignore[return-value]


def kept(followers: list[Follower]) -> list[list[str]]:
    return [sorted(each.ledger.jobs) for each in followers]


def told_of_jobs(followers: list[Follower]) -> list[list[str]]:
    return [
        [f"{id} {record['state']}" for message in each.heard for kind, id, record in message.changes if kind == "job"]
        for each in followers
    ]


def grant(host: Host, job_id: str) -> list[int]:
    term = host.live._replica.ledger.term
    token: list[int] = host.propose(GrantAttempt(job_id, 1, "h1", 1, [0], term, at=AT)).result["token"]
    return token


def test_each_keeps_and_hears_what_it_asked_for_and_misses_nothing(host: Host) -> None:
    followers = added(host)
    host.propose(SubmitJobs([job_record("a", retries_left=1), job_record("b")], at=AT))
    token = grant(host, "a")
    host.propose(StartAttempt("a.1", token, at=AT))
    host.node.settle()
    assert kept(followers) == [[], ["a"], ["a"], ["a", "b"]]
    assert [dict(each.ledger.job_counts)["queued"] for each in followers[2:]] == [1, 1]
    host.propose(EndAttempt("a.1", token, "failed", at=AT))
    host.propose(CancelJob("b", "me", at=AT))
    host.node.settle()
    assert kept(followers) == [[], [], [], ["a"]]
    everything = ["a queued", "b queued", "a placed", "a running", "a queued", "b cancelled"]
    assert told_of_jobs(followers) == [[], everything[2:], everything, everything]
    assert all("a.1" not in each.ledger.allocations for each in followers)
    queued = [job for each in followers[2:] for _, id, job in each.heard[0].changes if id == "b"]
    assert [sorted(job) == sorted(TOLD_OF_WAITING) for job in queued] == [True, False], "in short, and whole"
    assert [each.snapshots for each in followers] == [1] * len(followers), "what is left out is no gap"


def test_who_comes_later_or_again_starts_from_the_same(host: Host) -> None:
    host.propose(SubmitJobs([job_record("a"), job_record("b")], at=AT))
    grant(host, "a")
    followers = added(host)
    assert kept(followers) == [[], ["a"], ["a"], ["a", "b"]]
    assert dict(followers[1].ledger.job_counts)["queued"] == 1
    host.kill()
    host.start()
    for each in followers:
        each.peer_restarted("consensus")
    host.node.settle()
    host.propose(SubmitJobs([job_record("c")], at=AT))
    host.node.settle()
    assert kept(followers) == [[], ["a"], ["a"], ["a", "b", "c"]]


def test_a_queue_costs_those_who_need_not_know_it_nothing(host: Host) -> None:
    followers = added(host)
    for first in range(0, COUNT, 500):
        host.propose(SubmitJobs([job_record(f"j{first + number}") for number in range(500)], at=AT))
    host.node.settle()
    assert [len(each.ledger.jobs) for each in followers] == [0, 0, 0, COUNT]
    assert [len(messages) for messages in told_of_jobs(followers)] == [0, 0, COUNT, COUNT]


def test_which_files_are_still_wanted(host: Host) -> None:
    host.propose(SubmitJobs([job_record("first"), job_record("over", payload_digest="f0")], at=AT))
    more = [job_record(f"j{number}", payload_digest=f"d{number}") for number in range(COUNT)]
    more[1] |= {"stdin_digest": "in", "depends_on": ["first"]}
    host.propose(SubmitJobs(more, at=AT))
    host.propose(CancelJob("over", "me", at=AT))
    asked = {"digests": ["d0", f"d{COUNT - 1}", "in", "f0", "else"], "job_ids": ["first", "over"]}
    found = host.node.request("consensus", Query("files_in_use", asked))
    wanted = {"digests": sorted(["d0", f"d{COUNT - 1}", "in"]), "job_ids": ["first"]}
    assert found == {**wanted, "cached_job_ids": []}
    with pytest.raises(BadRequest):
        names = [str(number) for number in range(NAMES_MAX + 1)]
        host.node.request("consensus", Query("files_in_use", {"digests": names}))


def test_which_files_a_tenants_own_jobs_name(host: Host) -> None:
    host.propose(SubmitJobs([job_record("a", payload_digest="d", user_id="ann@lab")], at=AT))
    host.propose(SubmitJobs([job_record("b", payload_digest="d", user_id="bob"), job_record("c")], at=AT))
    nightly = schedule()
    nightly["user_id"] = "eve@biz"
    nightly["job"] |= {"payload_digest": "ab" * 32}
    host.propose(PutSchedule(nightly, at=AT))

    def named(tenant: str) -> list[str]:
        asked = {"digests": ["d", "ab" * 32, "else"], "tenant": tenant}
        found: list[str] = host.node.request("consensus", Query("files_in_use", asked))["digests"]
        return found

    assert named("lab") == named("default") == ["d"] and named("biz") == ["ab" * 32] and named("else") == []


def test_the_files_of_a_schedule_are_wanted_while_it_is_there(host: Host) -> None:
    nightly = schedule()
    nightly["job"] |= {"payload_digest": "ab" * 32, "stdin_digest": "cd" * 32}
    files = sorted(["ab" * 32, "cd" * 32])
    host.propose(PutSchedule(nightly, at=AT))
    asked = Query("files_in_use", {"digests": [*files, "else"]})
    assert host.node.request("consensus", asked)["digests"] == files
    assert set(files) <= set(host.node.request("consensus", Query("payloads", {}))["digests"])
    host.propose(RemoveSchedule("nightly", at=AT))
    assert host.node.request("consensus", asked)["digests"] == []


def test_payloads_are_told_page_by_page(host: Host) -> None:
    host.propose(SubmitJobs([job_record(f"j{number}", payload_digest=f"d{number}") for number in range(25)], at=AT))
    host.propose(CancelJob("j20", "me", at=AT))
    found: list[str] = []
    behind, pages = None, 0
    while pages == 0 or behind is not None:
        page = host.query("payloads", behind=behind, limit=10)
        found, behind, pages = found + page["digests"], page["next"], pages + 1
    assert found == [f"d{number}" for number in reversed(range(25)) if number != 20] and pages == 3


def test_states_of_many_are_asked_at_once(host: Host) -> None:
    host.propose(SubmitJobs([job_record("a"), job_record("b")], at=AT))
    grant(host, "b")
    assert host.query("job_states", job_ids=["a", "b", "nobody"]) == {"states": {"a": "queued", "b": "placed"}}
