"""Hosts of several versions in one cluster: nobody proposes what one of them does not know."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.ledger import command
from actorgrid.actors.ledger.command import read_command, refuse_if_too_new, version_of
from actorgrid.actors.ledger.commands import ChangeMember, FoundCluster, SetQuota, SetSetting
from actorgrid.errors import BadRequest, HostsTooOld
from tests.consensus.rig import AT
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
