"""What is told to one who waits at a door while nobody leads the ledger; and that an election is waited out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.ledger.client import LEADERLESS_S
from actorgrid.actors.ledger.commands import SetSetting
from actorgrid.actors.ledger.messages import LedgerSnapshot, Propose, Proposed, Subscribe
from actorgrid.errors import ActorGridError, CallTimeout, NoQuorum, NotLeader
from actorgrid.supervisors.inline import InlineNode
from actorgrid.supervisors.server import Server, handles
from tests.consensus.rig import AT, Follower, make_context


class Leaderless(Server):
    """A Consensus whose voters hear of nobody."""

    name = "consensus"
    refusal: ActorGridError | None = NotLeader("nobody leads", taken=False)

    def start(self) -> None:
        self.asked = 0

    @handles(Subscribe)
    def subscribe(self, _request: Subscribe) -> LedgerSnapshot:
        return LedgerSnapshot(index=1, term=1, epoch=1, jobs={}, allocations={}, hosts={}, settings={})

    @handles(Propose)
    def propose(self, _request: Propose) -> Proposed:
        self.asked += 1
        if self.refusal is not None:
            raise self.refusal
        return Proposed(2, {"done": True})


class Rig:
    def __init__(self, folder: Path) -> None:
        self.node = InlineNode()
        context = make_context(folder)
        self.consensus = self.node.add(Leaderless, context)
        self.follower = self.node.add(Follower, context)
        self.ended: list[Any] = []

    def propose(self, **options: Any) -> None:
        async def carry_out() -> None:
            assert isinstance(self.follower, Follower)
            try:
                self.ended.append(await self.follower.ledger.propose(SetSetting("k", 1, "me", at=AT), **options))
            except ActorGridError as error:
                self.ended.append(error)

        self.follower.spawn(carry_out())
        self.node.settle()

    @property
    def error(self) -> ActorGridError:
        (error,) = self.ended
        assert isinstance(error, ActorGridError)
        return error


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_nobody_leads_for_a_while_and_whoever_waits_at_a_door_is_told_what_to_do(rig: Rig) -> None:
    rig.propose(leaderless_s=LEADERLESS_S)
    rig.node.advance(LEADERLESS_S - 0.5)
    assert rig.ended == []
    rig.node.advance(1.5)
    assert isinstance(rig.error, NoQuorum)
    assert rig.error.asked == "set_setting" and "the side of the majority" in rig.error.hint
    assert rig.error.details == {"perhaps": False} and "look before" not in rig.error.hint


def test_what_may_have_been_taken_before_the_leader_was_lost_is_not_said_to_be_refused(rig: Rig) -> None:
    rig.consensus.refusal = NotLeader("its leadership ended", taken=True)  # type: ignore[attr-defined]
    rig.propose(leaderless_s=LEADERLESS_S)
    rig.node.advance(2 * LEADERLESS_S)
    assert isinstance(rig.error, NoQuorum)
    assert rig.error.details == {"perhaps": True} and "look before you repeat it" in rig.error.hint


def test_an_election_is_waited_out(rig: Rig) -> None:
    rig.propose(leaderless_s=LEADERLESS_S)
    rig.node.advance(LEADERLESS_S / 2)
    rig.consensus.refusal = None  # type: ignore[attr-defined]
    rig.node.advance(1.0)
    assert rig.ended == [{"done": True}]


def test_servers_that_must_not_give_up_go_on_for_their_whole_time(rig: Rig) -> None:
    rig.propose(timeout_s=30.0)
    rig.node.advance(29.0)
    assert rig.ended == []
    rig.node.advance(2.0)
    assert isinstance(rig.error, CallTimeout)
