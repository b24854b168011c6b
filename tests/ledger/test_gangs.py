"""Gangs in the ledger: all members or none, one end for all, and nobody charged for another's loss."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.ledger.attempt_ids import attempt_id, attempt_of, job_of, member_id, number_of, rank_of
from actorgrid.actors.ledger.commands import (
    AddMember,
    CancelJob,
    EndAttempt,
    GrantAttempt,
    GrantGang,
    LoseHost,
    NewTerm,
    PreemptAttempt,
    RegisterHost,
    SetQuota,
    StartAttempt,
    SubmitJobs,
)
from actorgrid.actors.ledger.state import Ledger
from actorgrid.errors import BadRequest, Overcommit, QuotaExceeded, StaleIncarnation, StaleToken, WorkerLost, WrongState
from tests.consensus.rig import AT, host_record, job_record

WHOLE = {"gpus": 1.0, "gpu_count": 1, "gpu_milli": 1000, "gpu_memory_mib": 0, "cpu_milli": 1_000}
PORTS = (29_500, 29_501)


class Book:
    """A ledger with three hosts of two GPUs each, and gangs in it."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.do(NewTerm(1, at=AT))
        for number in (1, 2, 3):
            self.do(RegisterHost(host_record(f"h{number}"), at=AT))

    def do(self, command: dict[str, Any]) -> dict[str, Any]:
        outcome = self.ledger.apply(self.ledger.index + 1, command)
        if outcome.error is not None:
            raise outcome.error
        assert outcome.result is not None
        return outcome.result

    def submit(self, job_id: str, size: int = 3, spread: bool = False, **more: Any) -> None:
        resources = {**WHOLE, "gang": size, **({"spread": True} if spread else {})}
        self.do(SubmitJobs([job_record(job_id, resources=resources, **more)], at=AT))

    def grant(self, job_id: str, *places: tuple[str, int], number: int = 1) -> list[int]:
        members = [{"host": host, "incarnation": 1, "gpu_indexes": [gpu]} for host, gpu in places]
        token: list[int] = self.do(GrantGang(job_id, number, members, PORTS, 1, at=AT))["token"]
        return token

    def granted(self, job_id: str, **more: Any) -> list[int]:
        self.submit(job_id, **more)
        return self.grant(job_id, ("h1", 0), ("h2", 0), ("h3", 0))

    def end(self, id: str, token: list[int], outcome: str, **more: Any) -> str:
        state: str = self.do(EndAttempt(id, token, outcome, at=AT + 5, **more))["job_state"]
        return state

    def job(self, job_id: str) -> dict[str, Any]:
        return self.ledger.jobs[job_id]

    def last(self, job_id: str) -> dict[str, Any]:
        attempt: dict[str, Any] = self.job(job_id)["attempts"][-1]
        return attempt


def test_one_grant_gives_every_member_its_own_place_and_one_token() -> None:
    book = Book()
    token = book.granted("a")
    assert token == [1, book.ledger.index]
    members = book.last("a")["members"]
    assert [(each["rank"], each["host"], each["allocation_id"]) for each in members] == [
        (0, "h1", "a.1-0"),
        (1, "h2", "a.1-1"),
        (2, "h3", "a.1-2"),
    ]
    assert {each["token"][1] for each in book.ledger.allocations.values()} == {token[1]}
    assert (book.last("a")["attempt_id"], book.last("a")["host"]) == ("a.1", "h1")
    assert book.last("a")["gpu_uuids"] == ["GPU-h1-0"]
    assert book.job("a")["state"] == "placed"


def test_a_gang_whose_last_member_does_not_fit_gets_nothing() -> None:
    book = Book()
    book.granted("a")
    book.submit("b")
    before = book.ledger.snapshot()
    with pytest.raises(Overcommit):
        book.grant("b", ("h1", 1), ("h2", 1), ("h3", 0))
    book.ledger.index -= 1
    assert book.ledger.snapshot() == before
    book.grant("b", ("h1", 1), ("h2", 1), ("h3", 1))


def test_members_on_one_device_are_counted_beside_each_other() -> None:
    book = Book()
    book.submit("a", size=2)
    with pytest.raises(Overcommit):
        book.grant("a", ("h1", 0), ("h1", 0))
    book.grant("a", ("h1", 0), ("h1", 1))


def test_a_grant_names_as_many_members_as_the_job_has_and_keeps_apart_what_spreads() -> None:
    book = Book()
    book.submit("a", size=3)
    with pytest.raises(WrongState, match="another number"):
        book.grant("a", ("h1", 0), ("h2", 0))
    with pytest.raises(WrongState, match="is a gang"):
        book.do(GrantAttempt("a", 1, "h1", 1, [0], 1, at=AT))
    book.submit("b", size=2, spread=True)
    with pytest.raises(WrongState, match="hosts of their own"):
        book.grant("b", ("h1", 0), ("h1", 1))
    book.do(SubmitJobs([job_record("alone")], at=AT))
    with pytest.raises(WrongState, match="another number"):
        book.grant("alone", ("h1", 0), ("h2", 0))


def test_a_member_on_a_host_that_has_started_again_or_of_an_old_term_stops_the_whole_grant() -> None:
    book = Book()
    book.submit("a")
    members = [{"host": f"h{number}", "incarnation": 1, "gpu_indexes": [0]} for number in (1, 2, 3)]
    with pytest.raises(StaleToken):
        book.do(GrantGang("a", 1, members, PORTS, 7, at=AT))
    book.do(RegisterHost(host_record("h3", 2), at=AT))
    with pytest.raises(StaleIncarnation):
        book.do(GrantGang("a", 1, members, PORTS, 1, at=AT))
    assert not book.ledger.allocations


def test_a_quota_counts_all_members() -> None:
    book = Book()
    limits = {"gpu_milli": 2_000}
    book.do(SetQuota("local", limits, "me", at=AT))
    with pytest.raises(QuotaExceeded, match="asks for more"):
        book.submit("never", size=3)
    book.submit("a", size=2)
    book.grant("a", ("h1", 0), ("h2", 0))
    assert book.ledger.quotas.used("local")["gpu_milli"] == 2_000
    book.submit("b", size=2)
    with pytest.raises(QuotaExceeded):
        book.grant("b", ("h1", 1), ("h2", 1))


def test_a_gang_succeeds_when_its_last_member_has() -> None:
    book = Book()
    token = book.granted("a")
    for rank in range(3):
        book.do(StartAttempt(f"a.1-{rank}", token, at=AT))
    assert book.job("a")["state"] == "running"
    assert book.end("a.1-2", token, "succeeded", cpu_s=1.0, max_rss_bytes=10) == "running"
    assert book.end("a.1-0", token, "succeeded", cpu_s=2.0, max_rss_bytes=30, result_bytes=7) == "running"
    assert len(book.ledger.allocations) == 3, "the room is given back at once, at the end"
    assert book.end("a.1-1", token, "succeeded", cpu_s=4.0, max_rss_bytes=20, result_bytes=9) == "succeeded"
    assert not book.ledger.allocations
    last = book.last("a")
    assert (last["cpu_s"], last["max_rss_bytes"], last["result_bytes"], last["exit_code"]) == (7.0, 30, 7, 0)


def test_the_first_member_that_fails_ends_the_attempt_and_all_are_tried_again() -> None:
    book = Book()
    token = book.granted("a", retries_left=1)
    for rank in range(3):
        book.do(StartAttempt(f"a.1-{rank}", token, at=AT))
    assert book.end("a.1-1", token, "failed", exit_code=3, error={"code": "TaskFailed", "message": "left with 3"}) == (
        "running"
    )
    assert book.last("a")["ending"] == {"rank": 1, "at": AT + 5}
    told = book.do(StartAttempt("a.1-0", token, at=AT))
    assert told["ending"]["rank"] == 1
    book.end("a.1-0", token, "cancelled", charge=False)
    assert book.end("a.1-2", token, "failed", exit_code=1) == "queued"
    first = book.last("a")
    assert (first["state"], first["exit_code"], first["error"]["message"]) == ("failed", 3, "rank 1: left with 3")
    assert book.job("a")["retries_left"] == 0
    assert not book.ledger.allocations
    token = book.grant("a", ("h1", 0), ("h1", 1), ("h2", 0), number=2)
    for rank in range(3):
        book.end(f"a.2-{rank}", token, "succeeded")
    assert book.job("a")["state"] == "succeeded"


def test_a_member_lost_with_its_host_is_to_blame_although_others_failed_before() -> None:
    book = Book()
    token = book.granted("a")
    book.end("a.1-0", token, "failed", exit_code=1)
    book.end("a.1-1", token, "cancelled", charge=False)
    error = WorkerLost("host h3 is gone").to_dict()
    assert book.end("a.1-2", token, "lost", charge=False, error=error) == "queued"
    assert (book.last("a")["state"], book.last("a")["error"]["message"]) == ("lost", "rank 2: host h3 is gone")
    assert book.job("a")["retries_left"] == 0, "it was charged nothing"


def test_what_a_lost_member_held_is_given_back_at_once() -> None:
    book = Book()
    token = book.granted("a")
    book.end("a.1-2", token, "lost", charge=False)
    assert sorted(book.ledger.allocations) == ["a.1-0", "a.1-1"]
    assert book.last("a")["ending"]["rank"] == 2
    assert book.job("a")["state"] == "placed"


def test_what_a_member_held_that_ended_before_its_host_was_lost_is_given_back_as_well() -> None:
    book = Book()
    token = book.granted("a")
    book.end("a.1-2", token, "succeeded")
    assert "a.1-2" in book.ledger.allocations
    lost = LoseHost("h3", 1, book.ledger.hosts["h3"]["seen_index"], AT, [("a.1-2", token)], 1, at=AT + 60)
    book.do(lost)
    assert sorted(book.ledger.allocations) == ["a.1-0", "a.1-1"]
    assert book.last("a")["ending"] is None, "it had succeeded"
    book.end("a.1-0", token, "succeeded")
    assert book.end("a.1-1", token, "succeeded") == "succeeded"


def test_cancelling_a_gang_ends_it_cancelled_whatever_its_members_say() -> None:
    book = Book()
    token = book.granted("a", retries_left=5)
    book.do(CancelJob("a", "me", at=AT))
    book.end("a.1-0", token, "failed")
    book.end("a.1-1", token, "cancelled", charge=False)
    assert book.end("a.1-2", token, "lost", charge=False) == "cancelled"
    assert book.last("a")["state"] == "cancelled"


def test_a_gang_is_preempted_whole_and_waits_again() -> None:
    book = Book()
    token = book.granted("a")
    book.do(PreemptAttempt("a.1", token, 1.0, "b", 1, at=AT))
    book.end("a.1-0", token, "failed")
    book.end("a.1-1", token, "preempted", charge=False)
    assert book.end("a.1-2", token, "succeeded") == "queued"
    assert (book.last("a")["state"], book.job("a")["preemptions"]) == ("preempted", 1)
    with pytest.raises(WrongState, match="is over"):
        book.do(PreemptAttempt("a.1", token, 1.0, "b", 1, at=AT))


def test_an_end_that_is_told_twice_is_no_news_and_a_stale_one_is_refused() -> None:
    book = Book()
    token = book.granted("a")
    assert not book.do(EndAttempt("a.1-0", token, "succeeded", at=AT))["already"]
    assert book.do(EndAttempt("a.1-0", token, "failed", at=AT))["already"]
    assert book.last("a")["ending"] is None
    with pytest.raises(StaleToken):
        book.do(EndAttempt("a.1-1", [1, 1], "failed", at=AT))
    for wrong in ("a.1-3", "a.1-x", "a.2-0"):
        with pytest.raises(WrongState, match="there is no attempt"):
            book.do(EndAttempt(wrong, token, "failed", at=AT))
    with pytest.raises(WrongState, match="name one member"):
        book.do(EndAttempt("a.1", token, "failed", at=AT))
    with pytest.raises(WrongState, match="is over"):
        book.do(StartAttempt("a.1-0", token, at=AT))


def test_gangs_whose_first_member_is_on_one_host_never_share_a_port() -> None:
    book = Book()
    for name in ("a", "b", "c"):
        book.submit(name, size=2)
    tokens = {"a": book.grant("a", ("h1", 0), ("h2", 0)), "b": book.grant("b", ("h1", 1), ("h2", 1))}
    ports = {book.last(name)["rendezvous"]["port"] for name in tokens}
    assert ports == {29_500, 29_501}
    again = Ledger.restore(book.ledger.snapshot())
    assert again._given.ports_of("h1") == ports
    for rank in range(2):
        book.end(f"a.1-{rank}", tokens["a"], "succeeded")
    book.submit("d", size=2, spread=True)
    token = book.grant("d", ("h1", 0), ("h2", 0))
    assert token
    book.do(RegisterHost(host_record("h1", gpus=3), at=AT))
    with pytest.raises(WrongState, match="no port is free"):
        book.grant("c", ("h1", 2), ("h3", 0))


def test_members_meet_at_the_address_of_rank_0_or_on_loopback_when_they_share_a_host() -> None:
    book = Book()
    for number in (1, 2):
        addresses = {"raft": f"10.0.0.{number}:7402", "calls": f"10.0.0.{number}:7401"}
        book.do(AddMember(f"h{number}", addresses, "ab" * 32, at=AT))
    book.submit("a", size=2)
    book.grant("a", ("h2", 0), ("h1", 0))
    assert book.last("a")["rendezvous"]["address"] == "10.0.0.2"
    assert [each["address"] for each in book.last("a")["members"]] == ["10.0.0.2", "10.0.0.1"]
    book.submit("b", size=2)
    book.grant("b", ("h3", 0), ("h3", 1))
    assert book.last("b")["rendezvous"]["address"] == "127.0.0.1"


@pytest.mark.parametrize("wrong", [{"gang": 1}, {"gang": 257}, {"gang": "2"}, {"gang": 2, "spread": 1}])
def test_a_gang_of_a_size_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        Book().do(SubmitJobs([job_record("a", resources=wrong)], at=AT))


def test_ids_of_members_lead_back_to_their_attempts_whatever_the_job_is_called() -> None:
    for job_id in ("a", "a.1", "a-1", "a.1-0", "x.y"):
        assert attempt_of(member_id(job_id, 3, 12)) == attempt_id(job_id, 3)
        assert job_of(member_id(job_id, 3, 12)) == job_of(attempt_id(job_id, 3)) == job_id
        assert (number_of(member_id(job_id, 3, 12)), rank_of(member_id(job_id, 3, 12))) == (3, 12)
        assert (number_of(attempt_id(job_id, 3)), rank_of(attempt_id(job_id, 3))) == (3, None)
    assert (job_of("0123456789abcdef"), attempt_of("0123456789abcdef")) == ("0123456789abcdef", "0123456789abcdef")
