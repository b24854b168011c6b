"""Hosts of several versions in one cluster: nobody proposes what one of them does not know."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.ledger import command
from actorgrid.actors.ledger.command import read_command, refuse_if_too_new, version_of
from actorgrid.actors.ledger.commands import ChangeMember, FoundCluster, SetQuota, SetSetting, SubmitJobs
from actorgrid.errors import BadRequest, HostsTooOld
from actorgrid.models import TaskRequest
from tests.consensus.rig import AT, job_record
from tests.consensus.test_actor import MakeHost
from tests.ledger.test_state import Book


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "VERSION", 2)
    monkeypatch.setattr(SetQuota, "since", 2)


def test_a_command_carries_the_version_that_it_came_with(newer: None) -> None:
    assert (version_of(SetQuota), version_of(SetSetting)) == (2, 1)
    quota = SetQuota("ann", None, "me", at=AT)
    assert quota.to_plain()["v"] == 2 and read_command(quota.to_plain()) == quota
    with pytest.raises(BadRequest, match="upgrade this host"):
        read_command({**quota.to_plain(), "v": 3})


def test_it_is_not_proposed_before_all_members_know_it(newer: None) -> None:
    quota = SetQuota("ann", None, "me", at=AT)
    members: dict[str, Any] = {"a": {"ledger_version": 2}, "b": {"ledger_version": 1}, "c": {}}
    with pytest.raises(HostsTooOld, match="2 of 3 hosts are older: b, c"):
        refuse_if_too_new(quota, members)
    refuse_if_too_new(quota, {"a": {"ledger_version": 2}})
    refuse_if_too_new(quota, {})


def test_a_member_says_which_version_it_knows() -> None:
    book = Book()
    book.do(FoundCluster("c1", "a", {"raft": "10.0.0.1:7402"}, "aa", at=AT))
    assert book.ledger.members["a"]["ledger_version"] == 1
    book.do(ChangeMember("a", at=AT, version="0.2", ledger_version=2))
    assert (book.ledger.members["a"]["ledger_version"], book.ledger.members["a"]["version"]) == (2, "0.2")


def test_consensus_refuses_it_until_the_last_host_is_upgraded(newer: None, make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    host.propose(FoundCluster("c1", "a", {"raft": "10.0.0.1:7402"}, "aa", at=AT))
    index = host.live.status()["index"]
    quota = SetQuota("ann", {"gpu_milli": 1000}, "me", at=AT)
    with pytest.raises(HostsTooOld, match="actorgrid upgrade --rolling"):
        host.propose(quota)
    assert host.live.status()["index"] == index, "nothing of it is in the log"
    host.propose(ChangeMember("a", at=AT, ledger_version=2))
    assert host.propose(quota).result["limits"]["gpu_milli"] == 1000


# -- fields of jobs


def test_a_job_with_annotations_is_not_proposed_before_all_members_know_them() -> None:
    plain_jobs = SubmitJobs([job_record("a")], at=AT)
    noted = SubmitJobs([job_record("a"), job_record("b", annotations={"sweep": "3"})], at=AT)
    assert (plain_jobs.format_version, noted.format_version, noted.to_plain()["v"]) == (1, 3, 3)
    members = {"a": {"ledger_version": 3}, "b": {"ledger_version": 2}}
    refuse_if_too_new(plain_jobs, members)
    with pytest.raises(HostsTooOld, match="1 of 2 hosts are older: b"):
        refuse_if_too_new(noted, members)


@pytest.mark.parametrize(
    "wrong", ["text", {"a": 1}, {"": "x"}, {"a": "x" * 4096}, {str(number): "" for number in range(65)}, None]
)
def test_wrong_annotations_are_refused_and_in_older_entries_kept_as_older_hosts_did(wrong: Any) -> None:
    entry = SubmitJobs([job_record("a", annotations=wrong)], at=AT).to_plain()
    with pytest.raises(BadRequest, match="annotations"):
        read_command(entry)
    book = Book()
    assert book.ledger.apply(book.ledger.index + 1, {**entry, "v": 2}).error is None
    assert book.ledger.jobs["a"]["annotations"] == wrong


def test_the_door_lets_through_what_the_ledger_takes_and_no_more() -> None:
    most = {"k" * 32 + f"{number:02}": "é" * 15 for number in range(64)}
    request = TaskRequest(command=["x"], annotations=most)
    record = job_record("a", annotations=request.annotations)
    assert read_command(SubmitJobs([record], at=AT).to_plain())
    for wrong in ({"a": "x" * 4096}, {**most, "one": ""}, {"": "x"}):
        with pytest.raises(ValueError, match="annotation"):
            TaskRequest(command=["x"], annotations=wrong)
