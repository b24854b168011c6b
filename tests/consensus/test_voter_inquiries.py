"""A host that joined while others voted: it hears anew who votes, from whoever is there, and believes nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.actors.consensus.actor import CATCH_UP_S, Consensus
from actorgrid.actors.consensus.raft_links import INQUIRY_TARGET, VoterPlan
from actorgrid.actors.consensus.voter_inquiries import ASK_S, Inquiry, read_inquiry
from actorgrid.actors.host.enrolment import Enrolment, StatementKeeper, _keep, kept_enrolment
from actorgrid.actors.ledger.commands import AddMember, ChangeMember
from actorgrid.actors.ledger.messages import Query
from actorgrid.actors.raft.messages import ConfState, Entry, Message, SnapshotChunk
from actorgrid.actors.security.authority import Authority
from actorgrid.actors.security.host_material import store_material
from actorgrid.actors.security.messages import StateVoters
from actorgrid.actors.security.voters_statement import StatedVoters, VoterAddress, sign_voters
from actorgrid.errors import MalformedMessage
from actorgrid.supervisors.server import Server, handles
from tests.consensus.rig import AT, make_context
from tests.consensus.test_cluster import Town
from tests.security.rig import Cluster

BOUND_S = 15.0
"""For a newcomer to have the ledger: a question, an answer, and the pauses of links that were refused before."""


class Signer(Server):
    """In place of the join servers of all hosts: signs what the Consensus of one of them says."""

    name = "join_server"
    authority: Authority
    fingerprint: str
    town: Town
    asked = 0

    @handles(StateVoters)
    async def _state(self, request: StateVoters) -> dict[str, Any]:
        type(self).asked += 1
        town = type(self).town
        leader = town.leader or next(iter(town.live))
        electors = await self.call(leader, Query("electorate"))
        members = town.live[leader]._replica.ledger.members
        voters = tuple(
            VoterAddress(host_id, record["node"], record["addresses"]["raft"], "", "", record["fingerprints"][-1])
            for host_id, record in members.items()
            if record["node"] in electors["nodes"]
        )
        stated = StatedVoters(
            self.authority.cluster_id,
            request.host_id,
            members[request.host_id]["node"],
            members[request.host_id]["fingerprints"][-1],
            request.challenge,
            electors["epoch"],
            electors["index"],
            electors["term"],
            AT,
            voters,
        )
        return {"statement": sign_voters(self.authority, stated)}


class SigningTown(Town):
    """A town with an authority, whose hosts have certificates on their disks."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ledger_snapshot_every=50, ledger_segment_bytes=4096)
        self.trust = Cluster()
        self.materials: dict[str, Any] = {}

    def fingerprint(self, host_id: str) -> str:
        if host_id not in self.materials:
            self.materials[host_id] = self.trust.host(host_id)
        found: str = self.materials[host_id].identity.fingerprint
        return found

    def let_in(self, host_id: str, told: tuple[str, ...], via: str = "a") -> None:
        """Make *host_id* a member that was told that *told* vote; it is not started."""
        answer = self.propose(AddMember(host_id, self.member(host_id), self.fingerprint(host_id), at=AT), via)
        self.contexts[host_id] = context = make_context(self.folder / host_id)
        context.host_id = host_id
        ledger = self.live[via]._replica.ledger
        seeds = {id: ledger.members[id] for id in told}
        paths = context.paths
        store_material(paths.security_dir, self.materials[host_id])
        _keep(paths, Enrolment("c1", answer["node"], False, "", 0, seeds, [ledger.epoch, ledger.index]))
        self.plan(host_id)

    def plan(self, host_id: str) -> None:
        """As a start makes it, of what is on the disk."""
        place = kept_enrolment(self.contexts[host_id].paths)
        assert place is not None
        keeper = StatementKeeper(self.contexts[host_id].paths, host_id)
        self.contexts[host_id].voter = VoterPlan(
            place.node, self._net(host_id), seeds=place.seeds, stated=place.position, retell=keeper
        )

    def other_voters(self, *gone: str) -> None:
        """Have none of *gone* vote any more."""
        for host_id in gone:
            self.propose(ChangeMember(host_id, at=AT, votes=False), self.leader or "a")
        nodes = {int(record["node"]) for id, record in self.live["a"]._replica.ledger.members.items() if id in gone}
        self.until(lambda: bool(self.voters()) and not self.voters() & nodes, "others vote")


@pytest.fixture
def town(tmp_path: Path) -> Iterator[SigningTown]:
    made = SigningTown(tmp_path)
    Signer.town, Signer.authority, Signer.asked = made, made.trust.authority, 0
    made.node.add(Signer, make_context(tmp_path / "signer"))
    made.found("a")
    made.join("b")
    made.join("c")
    made.until(lambda: made.voters() == {1, 2, 3}, "three voters")
    yield made
    made.close()


def replica(town: Town, host_id: str) -> Any:
    return town.live[host_id]._replica


def has_the_ledger(town: Town, host_id: str) -> None:
    town.until(lambda: replica(town, host_id).leader != 0, f"{host_id} is led", BOUND_S)
    town.until(town.settled, "everybody is up to date")


def test_one_that_was_told_who_votes_asks_nobody_and_gets_the_ledger(town: SigningTown) -> None:
    town.let_in("n", ("a", "b", "c"))
    assert town.contexts["n"].voter.told.nodes == {1, 2, 3}
    town.start("n")
    has_the_ledger(town, "n")
    assert Signer.asked == 0


def test_when_others_vote_by_then_those_of_before_pass_its_question_on(town: SigningTown) -> None:
    for host_id in "def":
        town.join(host_id)
    town.until(town.settled, "six hosts")
    town.let_in("n", ("a", "b", "c"))
    town.other_voters("a", "b", "c")
    before = town.contexts["n"].voter.stated
    town.start("n")
    has_the_ledger(town, "n")
    assert Signer.asked >= 1
    kept = kept_enrolment(town.contexts["n"].paths)
    assert kept is not None and {record["node"] for record in kept.seeds.values()} <= {4, 5, 6}
    assert kept.position is not None and kept.position > before


@pytest.mark.system
def test_a_start_that_was_cut_off_after_the_answer_goes_on_with_it(town: SigningTown) -> None:
    for host_id in "def":
        town.join(host_id)
    town.until(town.settled, "six hosts")
    town.let_in("n", ("a", "b", "c"))
    town.other_voters("a", "b", "c")
    town.network.cut(["d", "e", "f"], ["n"])
    town.start("n")
    before = town.contexts["n"].voter.stated
    town.until(lambda: (kept_enrolment(town.contexts["n"].paths).position or ()) > before, "an answer", BOUND_S)  # type: ignore[union-attr]
    assert replica(town, "n").status().last_index == 0
    town.kill("n")
    for host_id in "abc":
        town.kill(host_id)  # nobody is left of those that it was told of first
    town.network.mend()
    town.plan("n")
    assert town.contexts["n"].voter.told.nodes <= {4, 5, 6}
    town.start("n")
    has_the_ledger(town, "n")


@pytest.mark.system
def test_nobody_that_it_was_told_of_is_there_and_it_goes_on_asking(
    town: SigningTown, caplog: pytest.LogCaptureFixture
) -> None:
    town.let_in("n", ("a", "b", "c"))
    town.network.cut(["a", "b", "c"], ["n"])
    town.start("n")
    town.node.advance(CATCH_UP_S + 3.0)
    assert "--join MEMBER --token" in caplog.text
    town.network.mend()
    has_the_ledger(town, "n")


def hostile(town: SigningTown, sender: str, *bodies: bytes, to: str = "n") -> None:
    links = town.live[sender]._links
    assert links is not None
    for body in bodies:
        links._net.cast(to, INQUIRY_TARGET, body)
    town.node.advance(1.0)


@pytest.mark.system
def test_what_a_learner_says_of_who_votes_is_not_taken_and_it_leads_no_newcomer(town: SigningTown) -> None:
    town.join("d")
    town.until(town.settled, "four hosts")
    town.let_in("n", ("a", "d"))
    town.until(town.settled, "everybody knows it")
    town.network.cut(["a", "b", "c"], ["d", "n"])
    server = town.start("n")
    links: Any = server._links
    # Its link is taken, as that of a host which voted once; who votes is another.
    server._replica.told_voters(replace(town.contexts["n"].voter.told, members={"a": links._seeds["a"]}))
    town.node.advance(ASK_S + 1.0)
    challenge = links._inquiries._challenges[-1]
    forged = object.__new__(Authority)
    for name, value in (("key", town.materials["d"].key), ("certificate", town.trust.authority.certificate)):
        object.__setattr__(forged, name, value)
    itself = VoterAddress("d", 4, "d:7402", "", "", town.fingerprint("d"))
    node, true = replica(town, "n").node, town.trust.authority
    cluster_id, key = town.trust.cluster_id, town.fingerprint("n")
    false = StatedVoters(cluster_id, "n", node, key, challenge, 1, 10**6, 99, AT, (itself,))
    hostile(
        town,
        "d",
        Inquiry("stated", "n", sign_voters(forged, false)).encode(),
        Inquiry("stated", "n", sign_voters(true, replace(false, challenge=bytes(32)))).encode(),  # of another day
        Inquiry("stated", "n", sign_voters(true, replace(false, host_id="b"))).encode(),
        Inquiry("stated", "n", sign_voters(true, replace(false, index=1))).encode(),  # older than what it was told
        Inquiry("stated", "n", sign_voters(true, replace(false, node=1))).encode(),
        Inquiry("stated", "b", b"x").encode(),
        b"junk",
    )
    assert links._inquiries.refused_total == 6
    liar: Any = town.live["d"]._links
    chunk = SnapshotChunk(10**6, 1_000, ConfState(voters=(4,)), 0, 3, 0, b"odd")
    liar.send(
        (
            Message("heartbeat", node, 4, 1_000, sequence=1),
            Message("append", node, 4, 1_000, entries=(Entry(1, 1_000, "command", b"theirs"),), commit=1),
            Message("snapshot", node, 4, 1_000, chunk=chunk),
            Message("vote", node, 4, 1_000, index=99, log_term=99, force=True),
        )
    )
    town.node.advance(1.0)
    status = server._replica.status()
    assert (status.term, status.leader, status.last_index, status.vote) == (0, 0, 0, 0)
    assert server._replica.messages_refused["of a node that is not known to vote"] >= 4
    town.network.mend()
    has_the_ledger(town, "n")
    assert server._replica.status().term < 1_000


@pytest.mark.system
def test_a_member_that_asks_much_is_answered_ten_times_a_second_and_keeps_no_other_from_an_answer(
    town: SigningTown,
) -> None:
    town.join("d")
    town.until(town.settled, "four hosts")
    question = Inquiry("ask", "d", bytes(32)).encode()
    links = town.live["d"]._links
    assert links is not None
    for _ in range(200):
        links._net.cast("a", INQUIRY_TARGET, question)
        town.node.advance(0.01)
    assert 10 < Signer.asked < 30
    before = Signer.asked
    town.live["c"]._links._net.cast("a", INQUIRY_TARGET, question)  # type: ignore[union-attr]
    town.node.advance(0.05)
    assert Signer.asked == before + 1
    hostile(town, "d", Inquiry("ask", "nobody", bytes(32)).encode(), Inquiry("ask", "a", bytes(32)).encode(), to="a")
    assert Signer.asked == before + 1


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=6) | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=2),
    max_leaves=6,
)


three = st.lists(anything, min_size=3, max_size=3)


@settings(max_examples=50)
@given(st.binary(max_size=100) | anything.map(msgpack.packb) | three.map(msgpack.packb))
def test_what_is_no_question_and_no_answer_is_refused_by_name(body: bytes) -> None:
    try:
        read = read_inquiry(body)
    except MalformedMessage:
        return
    assert read.kind in ("ask", "stated")
    assert read_inquiry(read.encode()) == read


def test_a_question_comes_back_as_it_was_sent() -> None:
    for made in (Inquiry("ask", "n", bytes(32)), Inquiry("stated", "n", b"signed")):
        assert read_inquiry(made.encode()) == made
    with pytest.raises(MalformedMessage, match="too large"):
        read_inquiry(Inquiry("stated", "n", bytes(20_000)).encode())
    with pytest.raises(MalformedMessage, match="has a challenge"):
        read_inquiry(Inquiry("ask", "n", b"short").encode())


def test_consensus_says_who_votes(town: SigningTown) -> None:
    found = town.node.request("a", Query("electorate"), 5.0)
    assert found["nodes"] == [1, 2, 3] and found["index"] == replica(town, "a").ledger.index
    assert isinstance(town.live["a"], Consensus)
