"""Entries larger than a frame between hosts: brought to every voter, while one of three is away too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.consensus.large_messages import ARRIVING_BYTES_MAX, LargeMessages
from actorgrid.actors.consensus.stalls import Stalls
from actorgrid.actors.ledger.commands import SetSetting
from actorgrid.actors.ledger.entry_codec import MAX_COMMAND_BYTES
from actorgrid.actors.ledger.messages import Query
from actorgrid.actors.raft.messages import ConfState
from actorgrid.actors.raft.progress import PeerStatus
from actorgrid.actors.raft.status import Status
from actorgrid.errors import FrameTooLarge, MailboxFull, MalformedMessage
from actorgrid.sizes import ARGUMENT_BYTES_MAX, ENTRY_BYTES_MAX, EXEC_BYTES_MAX, RAFT_MESSAGE_BYTES_MAX
from actorgrid.supervisors.inline import InlineNode
from actorgrid.transports.peer.faulty_net import FaultyNet, FaultyNetwork
from actorgrid.transports.peer.frames import PAYLOAD_BYTES_MAX
from tests.consensus.test_cluster import AT, Town


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Town]:
    town = Town(tmp_path)
    town.found("a")
    town.join("b")
    town.join("c")
    town.until(lambda: town.voters() == {1, 2, 3}, "three voters")
    yield town
    town.close()


def large(size: int) -> list[str]:
    return ["x" * 60_000] * (size // 60_000)


def test_the_sizes_on_the_way_follow_from_one_another() -> None:
    from actorgrid.actors.consensus.replica import UNCOMMITTED_BYTES_MAX
    from actorgrid.actors.raft.storage.log_record import MAX_PAYLOAD
    from actorgrid.transports.unix.incoming import FRAME_BYTES_MAX

    assert ARGUMENT_BYTES_MAX < EXEC_BYTES_MAX < ENTRY_BYTES_MAX == MAX_COMMAND_BYTES
    assert ENTRY_BYTES_MAX < RAFT_MESSAGE_BYTES_MAX < min(MAX_PAYLOAD, UNCOMMITTED_BYTES_MAX, FRAME_BYTES_MAX)


@pytest.mark.parametrize("proposer", ["a", "b"])
@pytest.mark.parametrize("size", [PAYLOAD_BYTES_MAX, 3 * 2**20, 15 * 2**20])
def test_a_large_entry_is_committed_with_one_voter_away(three: Town, size: int, proposer: str) -> None:
    assert three.leader == "a"
    three.kill("c")
    three.propose(SetSetting("k", large(size), "me", at=AT), proposer, timeout_s=30.0)
    three.propose(SetSetting("after", 1, "me", at=AT), proposer)
    three.start("c")
    three.until(three.settled, "everybody up to date")
    assert len({str(digest) for digest in three.digests()}) == 1
    for server in three.live.values():
        assert server._replica.ledger.settings == {"k": large(size), "after": 1}


def test_large_entries_pass_a_net_that_loses_and_cuts(three: Town) -> None:
    for number in range(4):
        three.network.cut(["a"], ["b"])
        three.node.advance(0.3)
        three.network.mend()
        three.propose(SetSetting(f"k{number}", large(2 * 2**20), "me", at=AT), three.leader or "c", timeout_s=60.0)
    three.until(three.settled, "everybody up to date")
    assert len({str(digest) for digest in three.digests()}) == 1


def test_commits_that_stand_still_are_measured(three: Town) -> None:
    assert three.leader == "a"
    assert three.node.request("a", Query("status"))["commits_stalled_s"] is None
    three.network.cut(["a"], ["b", "c"], one_way=True)  # what it says does not arrive; what they say does
    three.live["a"]._put(SetSetting("k", 1, "me", at=AT))
    three.node.advance(0.4)
    assert three.node.request("a", Query("status"))["commits_stalled_s"] >= 0.4
    assert three.node.request("b", Query("status"))["commits_stalled_s"] is None  # it knows of nothing that waits
    three.network.mend()
    three.until(three.settled, "everybody up to date")
    three.node.advance(2.0)
    assert three.node.request("a", Query("status"))["commits_stalled_s"] is None


def test_a_member_that_answers_and_takes_nothing_is_told_by_name() -> None:
    def status(commit: int, match: int, active: bool = True) -> Status:
        peer = PeerStatus(match, match + 1, "probe", active, False, 0, 0)
        return Status(1, "leader", 1, 1, 1, commit, commit, 1, commit, ConfState(voters=(1, 2)), {2: peer}, 0, False)

    stalls, members = Stalls(), {"a": {"node": 1}, "b": {"node": 2}}
    stalls.look(1.0, status(5, 3))
    stalls.look(2.0, status(6, 4))
    assert stalls.report(3.5, status(9, 4), (), members) == {"commits_stalled_s": None, "behind_s": {"b": 1.5}}
    assert stalls.report(9.0, status(9, 4, active=False), (), members)["behind_s"] == {}
    assert stalls.report(10.0, status(9, 9), (), members)["behind_s"] == {}


# -- the streams themselves


class Pair:
    """Two hosts of which one sends."""

    def __init__(self) -> None:
        self.node = InlineNode()
        self.network = FaultyNetwork(self.node, seed=1)
        self.came: list[tuple[str, bytes]] = []
        self.lost: list[str] = []
        self.one, self.other = self._host("one"), self._host("other")
        self.sending = LargeMessages(self.one.open_stream, self._got, self.lost.append)
        self.receiving = LargeMessages(self.other.open_stream, self._got, self.lost.append)

    def _got(self, host_id: str, body: bytes) -> None:
        self.came.append((host_id, body))

    def _host(self, name: str) -> FaultyNet:
        nothing: Any = lambda *_: None  # noqa: E731
        take: Any = lambda stream: self.receiving.take(stream)  # noqa: E731
        return FaultyNet(self.network, name, on_call=nothing, on_cast=nothing, on_stream=take)

    def raw(self, head: bytes, body: bytes) -> list[Any]:
        """What comes of a stream that says *head* and then *body*."""
        ends: list[Any] = []
        stream = self.one.open_stream("other", "raft", head)
        left = bytearray(body)

        def write() -> None:
            del left[: stream.write(bytes(left))]
            if not left:
                stream.end()

        stream.attach(lambda _data: None, ends.append, write)
        self.node.advance(1.0)
        return ends


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_messages_come_whole_and_in_order(pair: Pair) -> None:
    bodies = [bytes([number]) * 3 * 2**20 for number in range(3)]
    for body in bodies:
        pair.sending.send("other", "propose", body)
    pair.node.advance(5.0)
    assert pair.came == [("one", body) for body in bodies]
    assert (pair.sending.sent_total, pair.receiving.received_total, pair.lost) == (3, 3, [])


def test_an_append_that_is_repeated_is_sent_once(pair: Pair) -> None:
    for _ in range(5):
        pair.sending.send("other", "append", b"x" * 2**21)
    pair.node.advance(5.0)
    assert len(pair.came) == 1
    pair.sending.send("other", "append", b"y" * 2**21)
    pair.node.advance(5.0)
    assert len(pair.came) == 2


def test_what_waits_and_what_comes_is_bounded(pair: Pair) -> None:
    with pytest.raises(FrameTooLarge):
        pair.sending.send("other", "propose", bytes(RAFT_MESSAGE_BYTES_MAX + 1))
    pair.sending.send("other", "propose", bytes(RAFT_MESSAGE_BYTES_MAX))
    pair.sending.send("other", "propose", bytes(RAFT_MESSAGE_BYTES_MAX))
    with pytest.raises(MailboxFull):
        pair.sending.send("other", "propose", bytes(1))
    assert ARRIVING_BYTES_MAX >= RAFT_MESSAGE_BYTES_MAX


def test_a_message_whose_host_goes_is_told_as_lost(pair: Pair) -> None:
    pair.sending.send("other", "append", bytes(2**23))
    pair.node.advance(0.002)
    pair.network.crash("other")
    pair.node.advance(60.0)
    assert pair.lost == ["other"]
    assert pair.came == []


@pytest.mark.parametrize(
    ("head", "body", "error"),
    [
        ((10).to_bytes(8, "big"), b"x" * 11, MalformedMessage),
        ((10).to_bytes(8, "big"), b"x" * 9, MalformedMessage),
        ((RAFT_MESSAGE_BYTES_MAX + 1).to_bytes(8, "big"), b"", FrameTooLarge),
        (b"", b"x", MalformedMessage),
        ((2**64 - 1).to_bytes(8, "big"), b"x", FrameTooLarge),
    ],
)
def test_what_is_no_message_is_refused_and_nothing_is_kept(
    pair: Pair, head: bytes, body: bytes, error: type[Exception]
) -> None:
    assert [type(end) for end in pair.raw(head, body) if end is not None] == [error]
    assert pair.came == []
    assert pair.receiving._arriving == {}
