"""Hosts of several versions in one cluster: nobody proposes what one of them does not know."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.ledger import command_checks
from actorgrid.actors.ledger.command_checks import check, refuse_if_too_new, version_of
from actorgrid.actors.ledger.commands import change_member, found_cluster, set_quota
from actorgrid.errors import BadRequest, HostsTooOld
from tests.consensus.rig import AT
from tests.consensus.test_actor import MakeHost
from tests.ledger.test_state import Book


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_checks, "VERSION", 2)
    monkeypatch.setitem(command_checks.SINCE, "set_quota", 2)


def test_a_command_carries_the_version_that_it_came_with(newer: None) -> None:
    assert (version_of("set_quota"), version_of("set_setting")) == (2, 1)
    command = set_quota("ann", None, "me", AT)
    assert command["v"] == 2 and check(command) is command
    with pytest.raises(BadRequest, match="upgrade this host"):
        check({**command, "v": 3})


def test_it_is_not_proposed_before_all_members_know_it(newer: None) -> None:
    command = set_quota("ann", None, "me", AT)
    members: dict[str, Any] = {"a": {"ledger_version": 2}, "b": {"ledger_version": 1}, "c": {}}
    with pytest.raises(HostsTooOld, match="2 of 3 hosts are older: b, c"):
        refuse_if_too_new(command, members)
    refuse_if_too_new(command, {"a": {"ledger_version": 2}})
    refuse_if_too_new(command, {})
    refuse_if_too_new({**command, "v": 1}, members)


def test_a_member_says_which_version_it_knows() -> None:
    book = Book()
    book.do(found_cluster("c1", "a", {"raft": "10.0.0.1:7402"}, "aa", AT))
    assert book.ledger.members["a"]["ledger_version"] == 1
    book.do(change_member("a", AT, version="0.2", ledger_version=2))
    assert (book.ledger.members["a"]["ledger_version"], book.ledger.members["a"]["version"]) == (2, "0.2")


def test_consensus_refuses_it_until_the_last_host_is_upgraded(newer: None, make_host: MakeHost) -> None:
    host = make_host()
    host.start()
    host.propose(found_cluster("c1", "a", {"raft": "10.0.0.1:7402"}, "aa", AT))
    index = host.live.status()["index"]
    command = set_quota("ann", {"gpu_milli": 1000}, "me", AT)
    with pytest.raises(HostsTooOld, match="actorgrid upgrade --rolling"):
        host.propose(command)
    assert host.live.status()["index"] == index, "nothing of it is in the log"
    host.propose(change_member("a", AT, ledger_version=2))
    assert host.propose(command).result["limits"]["gpu_milli"] == 1000
