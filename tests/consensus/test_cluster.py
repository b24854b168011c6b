"""Consensus of several hosts: real actors, real files, links through memory that fail."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.consensus.actor import Consensus
from actorgrid.actors.consensus.raft_links import VoterPlan
from actorgrid.actors.host.context import HostContext
from actorgrid.actors.ledger.commands import AddMember, FoundCluster, RegisterHost, RemoveMember, SetSetting
from actorgrid.actors.ledger.messages import HandOver, Propose, Query, Subscribe
from actorgrid.actors.raft.messages import ProposalAccepted
from actorgrid.errors import ActorGridError, CallTimeout, HostRemoved, LogFailed, NotLeader, WrongState
from actorgrid.supervisors.inline import InlineNode
from actorgrid.transports.peer.faulty_net import Faults, FaultyNet, FaultyNetwork
from tests.consensus.rig import AT, host_record, make_context


class Town:
    """Hosts of one cluster on one clock. Each has its Consensus under its own name."""

    def __init__(self, folder: Path, **performance: Any) -> None:
        self.folder = folder
        self.performance = performance
        self.node = InlineNode()
        self.network = FaultyNetwork(self.node, seed=1)
        self.contexts: dict[str, HostContext] = {}
        self.live: dict[str, Consensus] = {}
        self._seq = itertools.count(1)

    def _net(self, host_id: str) -> Callable[..., FaultyNet]:
        def make(loop: Any, resolve: Any, admit: Any, on_cast: Any, on_stream: Any) -> FaultyNet:
            def refuse(*_: Any) -> None:
                raise AssertionError("nobody calls here")

            return FaultyNet(self.network, host_id, on_call=refuse, on_cast=on_cast, on_stream=on_stream, admit=admit)

        return make

    def member(self, host_id: str) -> dict[str, Any]:
        return {"raft": f"{host_id}:7402"}

    def fingerprint(self, host_id: str) -> str:
        """Of its certificate; in memory there is none."""
        return ""

    def start(self, host_id: str) -> Consensus:
        server = self.node.add(Consensus, self.contexts[host_id], name=host_id)
        assert isinstance(server, Consensus)
        self.live[host_id] = server
        return server

    def found(self, host_id: str = "a") -> None:
        self.contexts[host_id] = context = make_context(self.folder / host_id, **self.performance)
        context.host_id, context.voter = host_id, VoterPlan(1, self._net(host_id), founding=True)
        self.start(host_id)
        self.propose(FoundCluster("c1", host_id, self.member(host_id), self.fingerprint(host_id), at=AT), host_id)

    def join(self, host_id: str, via: str = "a") -> None:
        answer = self.propose(AddMember(host_id, self.member(host_id), self.fingerprint(host_id), at=AT), via)
        self.contexts[host_id] = context = make_context(self.folder / host_id, **self.performance)
        context.host_id = host_id
        # As a welcome has them: others only, and not all.
        seeds = {via: self.live[via]._replica.ledger.members[via]}
        context.voter = VoterPlan(answer["node"], self._net(host_id), seeds=seeds)
        self.start(host_id)

    def propose(self, command: dict[str, Any], to: str, timeout_s: float = 10.0) -> Any:
        number = next(self._seq)
        return self.node.request(to, Propose(command, f"test-{number}", 1), timeout_s).result

    def kill(self, host_id: str) -> None:
        server = self.live.pop(host_id)
        self.node.remove(host_id)
        voter = server._replica
        server._failed = voter.failure = LogFailed("killed")
        server.runtime.unwatch(voter.fileno())
        self.cut_power(host_id, server)
        voter._writer.failed = LogFailed("killed")
        voter._writer.close()
        voter.log.close()
        voter._store.close()

    def cut_power(self, host_id: str, _server: Consensus) -> None:
        """Have a host's links be gone, without a word."""
        self.network.crash(host_id)

    def until(self, condition: Callable[[], bool], what: str, within_s: float = 60.0) -> None:
        for _ in range(int(within_s / 0.05)):
            if condition():
                return
            self.node.advance(0.05)
        raise AssertionError(f"{what}: not within {within_s} s; {self.states()}")

    def states(self) -> dict[str, Any]:
        return {id: server._replica.status() for id, server in self.live.items()}

    @property
    def leader(self) -> str | None:
        leading = [id for id, server in self.live.items() if server._leading]
        terms = {id: self.live[id]._replica.term for id in leading}
        return max(leading, key=lambda id: terms[id]) if leading else None

    def voters(self) -> set[int]:
        leader = self.leader
        return set() if leader is None else set(self.live[leader]._replica.status().config.voters)

    def settled(self) -> bool:
        """Everybody has applied what the leader has."""
        indexes = {server._replica.ledger.index for server in self.live.values()}
        return self.leader is not None and len(indexes) == 1

    def digests(self) -> list[dict[str, str]]:
        return [server._replica.ledger.digest() for server in self.live.values()]

    def close(self) -> None:
        for host_id in list(self.live):
            self.kill(host_id)
        self.node._selector.close()


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(tmp_path, ledger_snapshot_every=50, ledger_segment_bytes=4096)
    yield made
    made.close()


@pytest.fixture
def three(town: Town) -> Town:
    town.found("a")
    town.join("b")
    town.join("c")
    town.until(lambda: town.voters() == {1, 2, 3}, "three voters")
    return town


def test_hosts_that_join_are_learners_and_then_voters(town: Town) -> None:
    town.found("a")
    town.join("b")
    town.node.advance(5.0)
    assert town.voters() == {1}  # with two hosts, one votes: the loss of the other stops nobody
    assert set(town.live["a"]._replica.status().config.learners) == {2}
    town.join("c")
    town.until(lambda: town.voters() == {1, 2, 3}, "three voters")
    town.until(town.settled, "everybody up to date")
    assert len({str(digest) for digest in town.digests()}) == 1


def test_what_is_proposed_on_any_host_is_committed_once_and_seen_on_all(three: Town) -> None:
    for number, host_id in enumerate("abc" * 5):
        answer = three.propose(SetSetting("k", number, host_id, at=AT), host_id)
        assert answer["previous"] == (number - 1 if number else None)
        assert three.live[host_id]._replica.ledger.settings["k"] == number
    three.until(three.settled, "everybody up to date")
    assert len({str(digest) for digest in three.digests()}) == 1


def test_a_lost_leader_is_replaced_and_nothing_committed_is_lost(three: Town) -> None:
    three.propose(SetSetting("k", "before", "me", at=AT), "b")
    three.kill("a")
    three.until(lambda: three.leader in ("b", "c"), "a new leader", within_s=5.0)
    leader = three.leader
    assert leader is not None
    assert three.propose(SetSetting("k", "after", "me", at=AT), leader)["previous"] == "before"
    three.start("a")
    three.until(three.settled, "everybody up to date")
    assert three.live["a"]._replica.ledger.settings["k"] == "after"
    assert three.live["a"]._replica.ledger.term == three.live[leader]._replica.ledger.term


def test_a_leader_that_is_about_to_stop_hands_over_to_the_one_that_has_the_most(three: Town) -> None:
    three.network.cut(["b"], ["a", "c"])
    for number in range(5):
        three.propose(SetSetting("k", number, "me", at=AT), "a")
    answer = three.node.request("a", HandOver(), 5.0)
    assert (answer, three.leader) == ({"leader": "c"}, "c")
    assert three.node.request("a", HandOver(), 5.0) == {"leader": "c"}  # who does not lead has nothing to hand over
    assert three.propose(SetSetting("k", "after", "me", at=AT), "a")["previous"] == 4


def test_who_has_nobody_to_hand_over_to_goes_on_leading(town: Town) -> None:
    town.found("a")
    assert town.node.request("a", HandOver(), 5.0) == {"leader": "a"}
    assert town.propose(SetSetting("k", 1, "me", at=AT), "a")["previous"] is None


def test_a_minority_commits_nothing_and_says_why(three: Town) -> None:
    three.network.cut(["a"], ["b", "c"])
    three.until(lambda: three.leader in ("b", "c"), "a new leader")
    three.until(lambda: not three.live["a"]._leading, "the old leader to step down")
    with pytest.raises((NotLeader, CallTimeout)):
        three.propose(SetSetting("k", "lost", "me", at=AT), "a")
    leader = three.leader
    assert leader is not None
    three.propose(SetSetting("k", "kept", "me", at=AT), leader)
    with pytest.raises((NotLeader, CallTimeout)):
        three.node.request("a", Query("settings", linearizable=True), 3.0)
    assert three.node.request("a", Query("settings"), 3.0) == {"settings": {}}
    three.network.mend()
    three.until(three.settled, "everybody up to date")
    assert three.live["a"]._replica.ledger.settings == {"k": "kept"}


def test_linearizable_reads_on_any_host_see_what_was_committed_anywhere(three: Town) -> None:
    for number, (writer, reader) in enumerate(itertools.permutations("abc", 2)):
        three.propose(SetSetting("k", number, "me", at=AT), writer)
        found = three.node.request(reader, Query("settings", linearizable=True), 5.0)
        assert found == {"settings": {"k": number}}


def test_a_proposal_lost_on_its_way_to_the_leader_is_committed_when_it_is_repeated(three: Town) -> None:
    command = SetSetting("k", 1, "me", at=AT)
    three.network.set_faults(Faults(loss=1.0), "b", "a")
    with pytest.raises(ActorGridError, match="reply to Propose"):
        three.node.request("b", Propose(command, "lost", 1), 0.3)
    three.network.set_faults(Faults(), "b", "a")
    assert three.node.request("b", Propose(command, "lost", 1), 10.0).result["key"] == "k"
    three.until(three.settled, "everybody up to date")
    three.node.advance(70.0)
    assert all(len(server._waiting) == 0 and not server._waiting.since() for server in three.live.values())


def test_who_proposed_through_another_host_hears_at_once_that_its_leader_refused(three: Town) -> None:
    three.network.cut(["c"], ["a", "b"])
    leader = three.live["a"]
    assert isinstance(leader._replica.hand_over(3), ProposalAccepted)
    with pytest.raises(NotLeader, match="transferring") as refused:
        three.propose(SetSetting("k", 1, "me", at=AT), "b", timeout_s=0.3)
    assert refused.value.details["taken"], "an earlier try of it may be in the log"
    assert not three.live["b"]._waiting.since() and len(three.live["b"]._waiting) == 0
    three.node.advance(1.0)
    assert three.propose(SetSetting("k", 1, "me", at=AT), "b")["previous"] is None


def test_a_read_that_was_lost_on_its_way_is_asked_anew_while_its_caller_waits(three: Town) -> None:
    three.propose(SetSetting("k", 1, "me", at=AT), "a")
    three.network.set_faults(Faults(loss=1.0), "b", "a")
    three.node.after(0.2, lambda: three.network.set_faults(Faults(), "b", "a"))
    assert three.node.request("b", Query("settings", linearizable=True), 3.0) == {"settings": {"k": 1}}
    assert three.live["b"]._reads.waiting == 0


def test_a_read_whose_answers_all_come_late_is_answered(three: Town) -> None:
    three.propose(SetSetting("k", 1, "me", at=AT), "a")
    three.network.set_faults(Faults(delay_s=(1.6, 1.7)), "b", "a")
    assert three.node.request("b", Query("settings", linearizable=True), 5.0) == {"settings": {"k": 1}}
    assert three.live["b"]._reads.waiting == 0
    three.node.advance(70.0)
    assert three.live["b"]._reads._asked == {}


def test_a_removed_host_is_refused_and_the_others_go_on(three: Town) -> None:
    three.join("d")
    three.until(lambda: set(three.live["a"]._replica.status().config.learners) == {4}, "a learner")
    three.propose(RemoveMember("c", "me", at=AT), "a")
    three.until(lambda: three.voters() == {1, 2, 4}, "the next in its place")
    gone = three.live["c"]._replica.ledger.index
    three.propose(SetSetting("k", 1, "me", at=AT), "d")
    three.node.advance(5.0)
    assert three.live["c"]._replica.ledger.index <= gone + 3
    assert three.live["a"]._links is not None
    assert "k" not in three.live["c"]._replica.ledger.settings


def test_a_host_far_behind_is_sent_a_snapshot(three: Town) -> None:
    three.kill("c")
    for number in range(400):
        three.propose(SetSetting(f"k{number % 20}", number, "me", at=AT), "a")
    three.until(lambda: three.live["a"]._replica.snapshot_index > 300, "a snapshot")
    three.start("c")
    three.until(three.settled, "everybody up to date")
    assert len({str(digest) for digest in three.digests()}) == 1


def test_the_leader_says_whom_it_does_not_hear_of(three: Town) -> None:
    three.kill("c")
    three.until(lambda: set(three.live["a"]._absent) == {"c"}, "c is missed", within_s=10.0)
    snapshot = three.node.request("a", Subscribe(), 5.0)
    assert (snapshot.leader, snapshot.leads, set(snapshot.absent)) == ("a", True, {"c"})
    assert three.node.request("b", Subscribe(), 5.0).absent == {}
    three.start("c")
    three.until(lambda: not three.live["a"]._absent, "c is back", within_s=10.0)


def heard(town: Town, host_id: str) -> dict[str, Any]:
    answer: dict[str, Any] = town.node.request(host_id, Query("hosts_heard"), 5.0)
    return answer


def test_only_a_leader_that_still_leads_says_who_was_heard_when(three: Town) -> None:
    three.kill("c")
    gone_at = three.node.now_s
    three.node.advance(5.0)
    known = heard(three, "a")
    assert known["heard"]["c"] <= gone_at + 0.2
    assert min(known["heard"]["a"], known["heard"]["b"]) > known["as_of"] - 0.3
    with pytest.raises(NotLeader):
        heard(three, "b")
    three.network.cut({"a"}, {"b"})
    with pytest.raises((NotLeader, CallTimeout)):
        heard(three, "a")


def test_to_a_new_leader_everybody_was_heard_at_its_election(three: Town) -> None:
    three.kill("c")
    three.node.advance(20.0)
    three.kill("a")
    three.start("c")
    three.until(lambda: three.leader in ("b", "c"), "another leader")
    elected_by = three.node.now_s
    three.node.advance(1.0)
    leader = three.leader
    assert leader is not None
    assert heard(three, leader)["heard"]["a"] > elected_by - 1.0


def test_a_host_that_left_is_waited_for_by_nobody(three: Town) -> None:
    three.propose(RegisterHost(host_record("c"), at=AT), "a")
    three.propose(RemoveMember("c", "me", at=AT), "a")
    three.node.advance(5.0)
    assert "c" not in heard(three, "a")["heard"]
    assert three.live["a"]._absent == {}
    with pytest.raises(WrongState, match="no member"):
        three.propose(RegisterHost(host_record("c"), at=AT), "a")  # what it had said before it left comes too late


def test_a_new_leader_counts_on_nobody_who_has_not_answered_it(three: Town) -> None:
    three.kill("a")
    told: list[dict[str, float]] = []
    for host_id in "bc":
        server = three.live[host_id]

        def tell(server: Consensus = server) -> None:
            told.append(server._absent)

        server._tell_leadership = tell  # type: ignore[method-assign]
    three.until(lambda: three.leader in ("b", "c"), "a new leader", within_s=5.0)
    assert any("a" in absent for absent in told)
    leader = three.leader
    assert leader is not None
    three.until(lambda: set(three.live[leader]._absent) == {"a"}, "the other is there", within_s=5.0)


def test_all_hosts_lose_power_and_come_back_with_everything(three: Town) -> None:
    for number in range(20):
        three.propose(SetSetting(f"k{number}", number, "me", at=AT), "abc"[number % 3])
    for host_id in "abc":
        three.kill(host_id)
    three.node.advance(1.0)
    names = iter("abc")
    # A host alone waits for the others, but not for ever.
    three.start(next(names))
    three.start(next(names))
    three.start(next(names))
    three.until(three.settled, "everybody up to date")
    assert len(three.live["c"]._replica.ledger.settings) == 20


def test_a_host_that_was_removed_hears_it_when_it_comes_back_and_stops(three: Town) -> None:
    three.kill("c")
    three.propose(RemoveMember("c", "ann", at=AT, force=True), "a")
    three.node.advance(2.0)
    with pytest.raises(HostRemoved, match="was removed from the cluster") as refused:
        three.start("c")
    assert "by ann" in refused.value.found
    assert three.contexts["c"].paths.left_file.exists()


def test_a_dead_voter_that_is_removed_gives_its_vote_to_a_learner(three: Town) -> None:
    three.join("d")
    three.until(lambda: set(three.live["a"]._replica.status().config.learners) == {4}, "a learner")
    three.kill("c")
    three.propose(RemoveMember("c", "ann", at=AT, force=True), "a")
    three.until(lambda: three.voters() == {1, 2, 4}, "the learner votes in its place")


def test_a_voter_that_is_silent_for_long_gives_its_vote_to_a_learner_and_comes_back_as_one(three: Town) -> None:
    three.join("d")
    three.until(lambda: set(three.live["a"]._replica.status().config.learners) == {4}, "a learner")
    three.kill("c")
    three.until(lambda: three.voters() == {1, 2, 4}, "the learner votes in its place", within_s=90.0)
    three.start("c")
    three.until(lambda: set(three.live["a"]._replica.status().config.learners) == {3}, "it is a learner now")
    three.until(three.settled, "everybody up to date")
