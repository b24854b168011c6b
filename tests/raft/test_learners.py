"""Learners, of which a cluster has many: what they cost their leader, counted in messages, and what they still get."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.raft.cluster import Cluster

ELECTION_TICKS = 10
A_TICK = 8


class Crowd:
    """Three voters and *learners*, all up to date and at rest. ``sent`` counts what the leader sends."""

    def __init__(self, learners: int) -> None:
        self.nodes = list(range(4, 4 + learners))
        self.cluster = Cluster([1, 2, 3], self.nodes, election_ticks=ELECTION_TICKS, learners_a_tick=A_TICK)
        self.cluster.elect(1)
        self.ticks(1 + learners // A_TICK)
        self.ticks(2 * ELECTION_TICKS)
        assert self.holding(1) == learners
        self.cluster.drop = self._count
        self.sent: Counter[str] = Counter()
        self.cut_off = 0

    def _count(self, message: object) -> bool:
        sender, to, kind = (getattr(message, name) for name in ("sender", "to", "kind"))
        if sender == 1:
            self.sent[f"{kind} to a {'voter' if to <= 3 else 'learner'}"] += 1
        return self.cut_off in (sender, to)

    def ticks(self, count: int) -> None:
        """The leader's clock goes on, and the voters'; the learners' says nothing."""
        for _ in range(count):
            for node in (1, 2, 3):
                self.cluster.tick(node)
            self.cluster.stabilize()

    def holding(self, index: int) -> int:
        """How many learners have applied *index*."""
        return sum(self.cluster[node].status().applied >= index for node in self.nodes)

    def late(self) -> int:
        """A learner whose turn has not come since the last entry."""
        return next(node for node in self.nodes if self.cluster[node].status().applied == 1)


@pytest.mark.parametrize("learners", [6, 60])
def test_a_read_asks_the_voters_only(learners: int) -> None:
    crowd = Crowd(learners)
    crowd.cluster.read(1, b"r")
    crowd.cluster.stabilize()
    assert [state.context for state in crowd.cluster.nodes[1].read_states] == [b"r"]
    assert crowd.sent == {"heartbeat to a voter": 2}


def test_reads_that_come_while_voters_are_asked_share_the_next_round() -> None:
    crowd = Crowd(6)
    for number in range(50):
        crowd.cluster.read(1, b"%d" % number)
        crowd.cluster.process(1)
    crowd.cluster.stabilize()
    assert len(crowd.cluster.nodes[1].read_states) == 50
    assert crowd.sent == {"heartbeat to a voter": 4}


@pytest.mark.parametrize("learners", [6, 60])
def test_each_learner_at_rest_hears_of_its_leader_once_in_an_election_timeout(learners: int) -> None:
    crowd = Crowd(learners)
    crowd.ticks(ELECTION_TICKS)
    assert crowd.sent == {"heartbeat to a voter": 2 * ELECTION_TICKS, "heartbeat to a learner": learners}
    quiet = crowd.cluster[1].status().progress
    assert max(quiet[node].quiet_ticks for node in crowd.nodes) < ELECTION_TICKS


def test_an_entry_reaches_few_learners_at_once_in_one_message_each() -> None:
    crowd = Crowd(6)
    crowd.cluster.propose(1, "x")
    crowd.cluster.stabilize()
    assert crowd.holding(2) == 6
    assert crowd.sent["append to a learner"] == 6


def test_of_many_learners_so_many_a_tick_hear_of_an_entry_and_all_in_turn() -> None:
    crowd = Crowd(60)
    crowd.cluster.propose(1, "x")
    crowd.cluster.stabilize()
    assert crowd.holding(2) == A_TICK
    heartbeats = 60 // ELECTION_TICKS
    for tick in range(1, 5):
        crowd.ticks(1)
        assert crowd.holding(2) <= (tick + 1) * A_TICK + tick * heartbeats
    crowd.ticks(60 // A_TICK - 4)
    assert crowd.holding(2) == 60
    assert crowd.sent["append to a learner"] == 60


def test_what_a_stream_of_entries_costs_is_bounded_by_time_and_not_by_their_number() -> None:
    crowd = Crowd(60)
    ticks, in_one = 20, 5
    for number in range(ticks * in_one):
        crowd.cluster.propose(1, f"{number}")
        crowd.cluster.stabilize()
        if number % in_one == 0:
            crowd.ticks(1)
    assert crowd.sent["append to a learner"] <= (ticks + 1) * (A_TICK + 60 // ELECTION_TICKS)
    crowd.ticks(60 // A_TICK + 1)
    assert crowd.holding(ticks * in_one + 1) == 60


def test_a_learner_that_waits_for_its_own_proposal_is_told_out_of_turn() -> None:
    crowd = Crowd(60)
    crowd.cluster.propose(1, "x")
    crowd.cluster.stabilize()
    late = crowd.late()
    crowd.cluster.propose(late, "mine")
    crowd.cluster.stabilize()
    assert crowd.cluster[late].status().applied == 3


def test_a_learner_that_reads_gets_what_it_lacks_with_the_answer() -> None:
    crowd = Crowd(60)
    crowd.cluster.propose(1, "x")
    crowd.cluster.stabilize()
    late = crowd.late()
    crowd.cluster.read(late, b"r")
    crowd.cluster.stabilize()
    assert [state.index for state in crowd.cluster.nodes[late].read_states] == [2]
    assert crowd.cluster[late].status().applied == 2


def test_a_learner_that_is_to_act_is_told_out_of_turn() -> None:
    crowd = Crowd(60)
    crowd.cluster.propose(1, "x")
    crowd.cluster.stabilize()
    late = crowd.late()
    crowd.cluster[1].hurry(late, 2)
    crowd.cluster.stabilize()
    assert crowd.cluster[late].status().applied == 2


def test_a_learner_that_is_cut_off_costs_a_message_in_an_election_timeout_and_catches_up() -> None:
    crowd = Crowd(6)
    last = crowd.nodes[-1]
    crowd.cut_off = last
    crowd.cluster.propose(1, "x")
    crowd.ticks(4 * ELECTION_TICKS)
    crowd.sent.clear()
    crowd.ticks(10 * ELECTION_TICKS)
    assert crowd.sent["heartbeat to a learner"] + crowd.sent["append to a learner"] == 10 * 6
    assert crowd.cluster[1].status().progress[last].quiet_ticks >= 14 * ELECTION_TICKS
    crowd.cut_off = 0
    crowd.ticks(2 * ELECTION_TICKS)
    assert crowd.cluster[last].status().applied == 2


def test_a_learner_is_sent_only_what_is_committed() -> None:
    cluster = Cluster([1, 2, 3], learners=[4])
    cluster.elect(1)
    for number in (2, 3):
        cluster.isolate(number)
    cluster.propose(1, "x")
    cluster.tick(1, 3)
    cluster.stabilize()
    assert cluster[4].status().last_index == 1
    cluster.heal()
    cluster.tick(1, 3)
    cluster.stabilize()
    assert cluster.data(4) == ["x"]
