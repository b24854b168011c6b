"""A cluster goes on from one survivor: what it has counts, the others are members no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.consensus.ledger_check import check
from actorgrid.actors.consensus.recovery import recover
from actorgrid.actors.ledger.commands import GrantAttempt, RegisterHost, SetSetting, SubmitJobs
from actorgrid.errors import HostRemoved, WrongState
from tests.consensus.rig import AT, host_record, job_record
from tests.consensus.test_cluster import Town, three, town

__all__ = ["three", "town"]


def say_nothing(_what: str, _done: int, _total: int) -> None:
    return


def ledger_of(town: Town, host_id: str) -> Path:
    return town.contexts[host_id].paths.ledger_dir


def recovered(town: Town, host_id: str, node: int) -> dict[str, Any]:
    return recover(ledger_of(town, host_id), host_id, node, AT, say_nothing)


def test_the_survivor_goes_on_with_what_it_has_in_a_new_epoch(three: Town) -> None:
    for host_id in "bc":
        three.propose(RegisterHost(host_record(host_id), at=AT), "a")
    three.propose(SubmitJobs([job_record("here"), job_record("there")], at=AT), "a")
    term = three.live["a"]._replica.ledger.term
    three.propose(GrantAttempt("here", 1, "c", 1, [0], term, at=AT), "a")
    three.propose(GrantAttempt("there", 1, "b", 1, [0], term, at=AT), "a")
    three.until(three.settled, "everybody up to date")
    for host_id in "abc":
        three.kill(host_id)
    done = recovered(three, "c", 3)
    assert done["removed"] == {"a": 1, "b": 2}
    assert Path(done["kept"]).name == "ledger.before-recovery-1" and Path(done["kept"]).is_dir()
    three.start("c")
    three.until(lambda: three.leader == "c", "it leads by itself")
    ledger = three.live["c"]._replica.ledger
    assert list(ledger.members) == ["c"] and ledger.epoch > 1
    # Work on the survivor goes on; what ran elsewhere is lost there, and waits to start again.
    assert list(ledger.allocations) == ["here.1"]
    assert ledger.jobs["there"]["state"] == "queued"
    assert three.propose(SetSetting("k", 1, "me", at=AT), "c")["key"] == "k"
    # A host that was a member before is refused, and one that joins anew is the next node.
    with pytest.raises(HostRemoved, match="no member"):
        three.start("a")
    three.join("d", "c")
    three.until(lambda: "d" in three.live and three.settled(), "a new host")
    assert three.live["c"]._replica.ledger.members["d"]["node"] == 4


def test_what_was_not_known_to_be_committed_is_kept(three: Town) -> None:
    three.until(three.settled, "everybody up to date")
    three.propose(SetSetting("k", "acknowledged", "me", at=AT), "a")
    for host_id in "abc":
        three.kill(host_id)
    before = check(ledger_of(three, "b"), say_nothing)
    done = recovered(three, "b", 2)
    assert done["unsure"] == before.log.last_index - before.committed_index
    three.start("b")
    three.until(lambda: three.leader == "b", "it leads by itself")
    assert three.live["b"]._replica.ledger.settings == {"k": "acknowledged"}


def test_a_host_that_is_no_member_has_nothing_to_recover(three: Town) -> None:
    for host_id in "abc":
        three.kill(host_id)
    with pytest.raises(WrongState, match="does not have it for a member"):
        recover(ledger_of(three, "a"), "stranger", 9, AT, say_nothing)
