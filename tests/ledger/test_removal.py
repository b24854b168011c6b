"""The end of a membership in the ledger: what becomes of the host's work, its certificate and its vote."""

from __future__ import annotations

import pytest

from actorgrid.actors.consensus.electorate_policy import heir, next_step
from actorgrid.actors.consensus.member_links import REMOVED, refusal
from actorgrid.actors.ledger.commands import (
    AddMember,
    DrainHost,
    FoundCluster,
    GrantAttempt,
    GrantLease,
    RegisterHost,
    RemoveMember,
    SubmitJobs,
)
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.raft.messages import ConfChange, ConfState
from actorgrid.actors.raft.progress import PeerStatus
from actorgrid.errors import WrongState
from tests.consensus.rig import AT, host_record, job_record
from tests.ledger.test_state import Book

WHERE = {"raft": "10.0.0.1:7402"}


def cluster() -> Book:
    """Hosts h1 and h2; a job and a session's worker on h2."""
    book = Book()
    book.do(FoundCluster("c1", "h1", WHERE, "aa", at=AT))
    book.do(AddMember("h2", WHERE, "bb", at=AT))
    book.do(RegisterHost(host_record("h2"), at=AT))
    book.do(SubmitJobs([job_record("j1", retries_left=0)], at=AT))
    book.do(GrantAttempt("j1", 1, "h2", 1, [0], 1, at=AT))
    book.do(
        GrantLease(
            "l1", "s1", "h2", 1, [1], {"gpu_count": 1, "gpu_milli": 100}, pool="gpu_compute", env={}, term=1, at=AT
        )
    )
    return book


def test_a_host_with_work_is_removed_only_by_force_and_its_work_is_lost_then() -> None:
    book = cluster()
    with pytest.raises(WrongState, match="has work") as refused:
        book.do(RemoveMember("h2", "ann", at=AT))
    assert refused.value.found == "2: j1.1, l1"
    answer = book.do(RemoveMember("h2", "ann", at=AT, force=True))
    assert answer is not None
    assert answer["lost"] == ["j1.1", "l1"]
    ledger = book.ledger
    assert ledger.allocations == {} and "h2" not in ledger.hosts and "h2" not in ledger.members
    job = ledger.jobs["j1"]
    assert (job["state"], job["attempts"][0]["state"]) == ("queued", "lost")
    assert "removed by ann" in job["attempts"][0]["error"]["found"]
    assert Ledger.restore(ledger.snapshot()).digest() == ledger.digest()


def test_the_last_that_may_vote_stays_and_so_does_its_work() -> None:
    book = cluster()
    book.do(RemoveMember("h2", "ann", at=AT, force=True))
    with pytest.raises(WrongState, match="last that may vote"):
        book.do(RemoveMember("h1", "ann", at=AT, force=True))
    assert "h1" in book.ledger.hosts


def test_who_was_removed_is_remembered_until_it_is_let_in_again() -> None:
    book = cluster()
    book.do(RemoveMember("h2", "ann", at=AT, force=True))
    book.ledger = Ledger.restore(book.ledger.snapshot())
    gone = book.ledger.removed["h2"]
    assert gone == {"node": 2, "at": AT, "by": "ann", "left": False}
    text = refusal("h2", None, "bb", gone)
    assert text is not None
    assert text.startswith(f"h2{REMOVED}") and "by ann" in text
    assert refusal("h3", None, "bb", None) == "h3 is no member of the cluster"
    book.do(AddMember("h2", WHERE, "bb", at=AT))
    assert book.ledger.removed == {}


def test_a_host_that_left_in_order_left_nothing() -> None:
    book = cluster()
    book.do(DrainHost("h1", True, "ann", at=AT))
    book.do(RemoveMember("h1", "ann", at=AT))
    assert book.ledger.removed["h1"]["left"] is True
    assert list(book.ledger.hosts) == ["h2"]


def member(node: int, votes: bool = True) -> dict[str, object]:
    return {"node": node, "votes": votes, "rack": None}


def near(*nodes: int) -> dict[int, PeerStatus]:
    status = PeerStatus.__dataclass_fields__
    made = {name: 0 for name in status}
    return {node: PeerStatus(**{**made, "match": 100, "active": True, "damaged": False}) for node in nodes}


def test_a_leader_that_leaves_hands_over_to_a_voter_that_has_the_log() -> None:
    members = {"a": member(1, votes=False), "b": member(2), "c": member(3)}
    config = ConfState(voters=(1, 2, 3))
    assert heir(members, config, near(1, 2, 3), 100, 1, frozenset()) == 2
    assert heir(members, config, near(1, 2, 3), 100, 1, frozenset({2})) == 3
    assert heir(members, config, near(1), 100, 1, frozenset()) is None
    assert heir({**members, "a": member(1)}, config, near(1, 2, 3), 100, 1, frozenset()) is None


def test_the_only_voter_that_leaves_gives_its_place_to_a_learner_in_one_step() -> None:
    members = {"a": member(1, votes=False), "b": member(2)}
    config = ConfState(voters=(1,), learners=(2,))
    step = next_step(members, config, near(1, 2), 100, 1, frozenset())
    assert step == (ConfChange("add_voter", 2), ConfChange("add_learner", 1))
    assert next_step(members, config, near(1), 100, 1, frozenset()) == ()  # nobody else has the log yet
