"""What every net between hosts promises: over sockets with mutual TLS, and through memory on a simulated clock."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from actorgrid.errors import (
    ActorGridError,
    CallTimeout,
    FrameTooLarge,
    HostUnreachable,
    MailboxFull,
    NotSupported,
    PeerGone,
    TaskCancelled,
    UnknownKey,
)
from actorgrid.supervisors.server import Server, handles
from actorgrid.transports.peer.frames import PAYLOAD_BYTES_MAX
from actorgrid.transports.peer.hosts import PeerHosts
from actorgrid.transports.peer.limits import PeerLimits
from actorgrid.transports.peer.streams import PIECE_BYTES
from tests.transports.peer_conformance import QUICK, MemoryWorld, SocketWorld, World, Writer


@pytest.fixture(params=["sockets", "memory"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def make(kind: str, folder: Path, limits: PeerLimits = QUICK) -> World:
    world: World = SocketWorld(folder, limits) if kind == "sockets" else MemoryWorld(limits)
    world.add("a")
    world.add("b")
    return world


@pytest.fixture
def world(kind: str, tmp_path: Path) -> Iterator[World]:
    made = make(kind, tmp_path)
    yield made
    made.close()


def test_a_call_is_answered(world: World) -> None:
    assert world.ask("a", "b", "echo", b"hello") == b"hello"
    assert world.ask("b", "a", "echo", b"") == b""
    assert [call.host_id for call in world.hosts["b"].asked] == ["a"]


def test_a_payload_of_the_greatest_size_passes_and_one_byte_more_is_refused(world: World) -> None:
    largest = random.Random(1).randbytes(PAYLOAD_BYTES_MAX)
    assert world.ask("a", "b", "echo", largest) == largest
    with pytest.raises(FrameTooLarge, match="as a stream"):
        world.ask("a", "b", "echo", largest + b"x")


def test_an_answer_may_be_an_error_with_its_values(world: World) -> None:
    with pytest.raises(UnknownKey, match="no such key") as caught:
        world.ask("a", "b", "refuse", b"k")
    assert caught.value.asked == "k"
    assert caught.value.details == {"size": 3}


def test_answers_find_their_calls_in_any_order(world: World) -> None:
    net, other = world.hosts["a"].net, world.hosts["b"]
    answers = [net.call("b", "later", b"%d" % number, 10.0) for number in range(50)]
    world.until(lambda: len(other.asked) == 50)
    for call in reversed(other.asked):
        call.reply(b"to " + call.body)
    world.until(lambda: all(answer.done for answer in answers))
    assert [answer.result() for answer in answers] == [b"to %d" % number for number in range(50)]


def test_a_call_without_an_answer_times_out_and_the_other_side_is_told(world: World) -> None:
    cancelled: list[bool] = []
    answer = world.hosts["a"].net.call("b", "never", b"", 0.3)
    world.until(lambda: world.hosts["b"].asked)
    call = world.hosts["b"].asked[0]
    call.on_cancel(lambda: cancelled.append(True))
    world.until(lambda: answer.done)
    with pytest.raises(CallTimeout, match="whether it acted is unknown"):
        answer.result()
    world.until(lambda: cancelled)
    call.reply(b"too late")
    assert world.ask("a", "b", "echo", b"on") == b"on"


def test_a_caller_may_cancel(world: World) -> None:
    answer = world.hosts["a"].net.call("b", "never", b"", 10.0)
    world.until(lambda: world.hosts["b"].asked)
    answer.cancel()
    world.until(lambda: world.hosts["b"].asked[0].cancelled)
    with pytest.raises(TaskCancelled):
        answer.result()


def test_a_call_goes_through_though_this_process_is_stopped_while_the_link_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make("sockets", tmp_path)
    answer = world.hosts["a"].net.call("b", "echo", b"on", 10.0)
    monkeypatch.setattr(world.loop, "monotonic", lambda: monotonic() + 5 * QUICK.handshake_s)
    world.until(lambda: answer.done)
    assert answer.result() == b"on"
    world.close()


def test_a_call_cancelled_before_there_is_a_link_is_never_made(world: World) -> None:
    first = world.hosts["a"].net.call("b", "echo", b"not me", 10.0)
    first.cancel()
    assert world.ask("a", "b", "echo", b"me") == b"me"
    assert [call.body for call in world.hosts["b"].asked] == [b"me"]


def test_casts_come_in_order(world: World) -> None:
    for number in range(100):
        world.hosts["a"].net.cast("b", "note", b"%d" % number)
    world.until(lambda: len(world.hosts["b"].told) == 100)
    assert world.hosts["b"].told == [("a", "note", b"%d" % number) for number in range(100)]


def test_nobody_links_to_itself(world: World) -> None:
    with pytest.raises(NotSupported):
        world.hosts["a"].net.cast("a", "note", b"")
    with pytest.raises(NotSupported):
        world.ask("a", "a", "echo", b"")


def test_a_host_that_is_not_there_is_unreachable(world: World) -> None:
    with pytest.raises(HostUnreachable):
        world.ask("a", "nobody", "echo", b"")
    ends: list[ActorGridError | None] = []
    world.hosts["a"].net.open_stream("nobody", "bulk", b"").attach(lambda _data: None, ends.append)
    world.until(lambda: ends)
    assert isinstance(ends[0], HostUnreachable)


def test_a_call_whose_time_is_over_before_the_next_dial_fails_at_once(kind: str, tmp_path: Path) -> None:
    world = make(kind, tmp_path, replace(QUICK, backoff_first_s=30.0, backoff_max_s=30.0))
    with pytest.raises(HostUnreachable):
        world.ask("a", "nobody", "echo", b"")
    answer = world.hosts["a"].net.call("nobody", "echo", b"", 5.0)
    assert answer.done
    with pytest.raises(HostUnreachable, match="dialled again in"):
        answer.result()
    world.close()


def test_two_hosts_that_call_each_other_at_once_end_up_with_one_link(world: World) -> None:
    nets = [world.hosts[name].net for name in "ab"]
    answers = [nets[0].call("b", "echo", b"1", 10.0), nets[1].call("a", "echo", b"2", 10.0)]
    world.until(lambda: all(answer.done for answer in answers))
    assert [answer.result() for answer in answers] == [b"1", b"2"]
    world.until(lambda: [net.stats()["connections"] for net in nets] == [1, 1])
    for _ in range(3):
        assert world.ask("a", "b", "echo", b"3") == b"3"
        assert world.ask("b", "a", "echo", b"4") == b"4"
    assert [net.stats()["connections"] for net in nets] == [1, 1]
    assert [world.hosts[name].seen for name in "ab"] == [[("b", True)], [("a", True)]]


def test_a_host_that_is_kept_is_linked_without_a_call_and_again_when_it_is_back(world: World) -> None:
    host = world.hosts["a"]
    host.net.keep({"a", "b"})
    world.until(lambda: host.seen == [("b", True)])
    world.kill("b")
    world.until(lambda: host.seen == [("b", True), ("b", False)])
    assert not host.net.reachable("b")
    world.add("b")
    world.until(lambda: host.seen[-1] == ("b", True))
    assert host.net.reachable("b")
    assert world.ask("a", "b", "echo", b"back") == b"back"


def test_what_is_under_way_fails_when_the_host_is_lost(world: World) -> None:
    answer = world.hosts["a"].net.call("b", "never", b"", 10.0)
    stream = Writer(world.hosts["a"].net.open_stream("b", "bulk", b""), bytes(100))
    world.until(lambda: world.hosts["b"].asked and world.hosts["b"].read)
    world.kill("b")
    world.until(lambda: answer.done and stream.ends)
    with pytest.raises(PeerGone):
        answer.result()
    assert isinstance(stream.ends[0], PeerGone)


def test_requests_of_a_host_that_is_lost_are_cancelled(world: World) -> None:
    world.hosts["a"].net.call("b", "never", b"", 10.0)
    world.until(lambda: world.hosts["b"].asked)
    world.kill("a")
    world.until(lambda: world.hosts["b"].asked[0].cancelled)


def test_a_host_that_is_refused_gets_nowhere(world: World) -> None:
    world.hosts["b"].refuses.add("a")
    with pytest.raises(HostUnreachable):
        world.ask("a", "b", "echo", b"")
    assert not world.hosts["b"].asked
    assert world.hosts["b"].net.refusals == {"unknown_host": 1}


# -- streams


@pytest.mark.parametrize("compress", [False, True])
def test_a_stream_carries_both_ways_and_ends_both_ways(world: World, compress: bool) -> None:
    there = random.Random(2).randbytes(300_000) + bytes(2_000_000)
    writer = Writer(world.hosts["a"].net.open_stream("b", "bulk", b"head", compress), there)
    other = world.hosts["b"]
    world.until(lambda: other.read_end)
    assert b"".join(other.read) == there
    assert (other.streams[0].host_id, other.streams[0].target, other.streams[0].head) == ("a", "bulk", b"head")
    assert not writer.ends
    back = Writer(other.streams[0], there[::-1])
    world.until(lambda: writer.ends)
    assert writer.ends == [None]
    assert bytes(writer.read) == there[::-1]
    world.until(lambda: not other.net.stats()["hosts"]["a"]["streams"])
    world.until(lambda: not world.hosts["a"].net.stats()["hosts"]["b"]["streams"])
    assert not back.left


def test_a_reader_that_reads_nothing_stops_the_writer_at_the_window(world: World) -> None:
    world.hosts["b"].consumes = False
    stream = world.hosts["a"].net.open_stream("b", "bulk", b"")
    writer = Writer(stream, bytes(4 * QUICK.stream_window_bytes))
    world.until(lambda: sum(map(len, world.hosts["b"].read)) == QUICK.stream_window_bytes)
    assert world.ask("a", "b", "echo", b"calls go on") == b"calls go on"
    assert sum(map(len, world.hosts["b"].read)) == QUICK.stream_window_bytes
    written = 4 * QUICK.stream_window_bytes - len(writer.left)
    assert written <= QUICK.stream_window_bytes + QUICK.stream_unsent_bytes
    world.hosts["b"].consumes = True
    world.hosts["b"].streams[0].consumed(QUICK.stream_window_bytes)
    world.until(lambda: world.hosts["b"].read_end)
    assert sum(map(len, world.hosts["b"].read)) == 4 * QUICK.stream_window_bytes


def test_streams_share_a_link(world: World) -> None:
    writers = [Writer(world.hosts["a"].net.open_stream("b", "bulk", b""), bytes(700_000)) for _ in range(8)]
    world.until(lambda: len(world.hosts["b"].read_end) == 8)
    assert sum(map(len, world.hosts["b"].read)) == 8 * 700_000
    assert not any(writer.left for writer in writers)


def test_what_one_read_has_of_a_stream_comes_in_one_piece(tmp_path: Path) -> None:
    limits = replace(QUICK, stream_window_bytes=2**20, stream_unsent_bytes=2**20)
    world = SocketWorld(tmp_path, limits)
    try:
        for name in "ab":
            world.add(name)
        there = random.Random(3).randbytes(4 * 2**20)
        writers = [Writer(world.hosts["a"].net.open_stream("b", "bulk", b""), there)]
        world.until(lambda: world.hosts["b"].read_end)
        read = world.hosts["b"].read
        assert b"".join(read) == there and not writers[0].left
        assert max(map(len, read)) > PIECE_BYTES, "each costs whoever writes it on a system call"
    finally:
        world.close()


def test_a_reset_tells_the_other_side_why(world: World) -> None:
    writer = Writer(world.hosts["a"].net.open_stream("b", "bulk", b""), b"12345")
    world.until(lambda: world.hosts["b"].read)
    world.hosts["b"].streams[0].reset(UnknownKey("not that one"))
    world.until(lambda: writer.ends)
    assert isinstance(writer.ends[0], UnknownKey)
    with pytest.raises(PeerGone):
        writer.stream.write(b"more")


def test_a_stream_that_is_not_wanted_is_reset_with_the_error_raised(world: World) -> None:
    writer = Writer(world.hosts["a"].net.open_stream("b", "refuse", b""), b"12345")
    world.until(lambda: writer.ends)
    assert isinstance(writer.ends[0], UnknownKey)


# -- bounds


def test_more_calls_than_may_be_under_way_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    world = make(kind, tmp_path, replace(QUICK, calls_max=10))
    net = world.hosts["a"].net
    answers = [net.call("b", "later", b"", 10.0) for _ in range(10)]
    world.until(lambda: len(world.hosts["b"].asked) == 10)
    with pytest.raises(MailboxFull, match="not answered"):
        world.ask("a", "b", "echo", b"")
    for call in world.hosts["b"].asked:
        call.reply(b"")
    world.until(lambda: all(answer.done for answer in answers))
    assert world.ask("a", "b", "echo", b"again") == b"again"
    world.close()


@pytest.mark.parametrize("limits", [replace(QUICK, served_max=10), replace(QUICK, served_bytes_max=1000)])
def test_a_server_that_is_behind_says_so(kind: str, tmp_path: Path, limits: PeerLimits) -> None:
    world = make(kind, tmp_path, limits)
    net = world.hosts["a"].net
    answers = [net.call("b", "later", bytes(100), 10.0) for _ in range(15)]
    world.until(lambda: sum(answer.done for answer in answers) == 5)
    for answer in answers:
        if answer.done:
            with pytest.raises(MailboxFull, match="under way here"):
                answer.result()
    assert len(world.hosts["b"].asked) == 10
    world.close()


def test_what_waits_for_a_link_is_bounded(kind: str, tmp_path: Path) -> None:
    world = make(kind, tmp_path, replace(QUICK, waiting_max=5))
    for _ in range(5):
        world.hosts["a"].net.cast("b", "note", b"")
    with pytest.raises(MailboxFull, match="wait for a link"):
        world.hosts["a"].net.cast("b", "note", b"")
    world.until(lambda: len(world.hosts["b"].told) == 5)
    world.close()


def test_more_streams_than_may_be_open_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    world = make(kind, tmp_path, replace(QUICK, streams_max=2))
    open_ones = [Writer(world.hosts["a"].net.open_stream("b", "bulk", b""), b"1") for _ in range(2)]
    world.until(lambda: len(world.hosts["b"].streams) == 2)
    ends: list[ActorGridError | None] = []
    world.hosts["a"].net.open_stream("b", "bulk", b"").attach(lambda _data: None, ends.append)
    world.until(lambda: ends)
    assert isinstance(ends[0], MailboxFull)
    assert not any(writer.ends for writer in open_ones)
    world.close()


def test_hosts_that_nothing_is_said_to_are_forgotten(world: World) -> None:
    for number in range(20):
        world.hosts["a"].net.call(f"nobody{number}", "echo", b"", 5.0)
    assert len(world.hosts["a"].net.stats()["hosts"]) == 20
    world.until(lambda: not world.hosts["a"].net.stats()["hosts"])


def test_a_closed_net_fails_what_is_under_way_and_takes_nothing_more(world: World) -> None:
    net = world.hosts["a"].net
    waiting, asked = net.call("nobody", "echo", b"", 10.0), net.call("b", "never", b"", 10.0)
    world.until(lambda: world.hosts["b"].asked)
    net.close()
    net.close()
    for answer in (waiting, asked):
        with pytest.raises((PeerGone, HostUnreachable)):
            answer.result()
    with pytest.raises(NotSupported):
        world.ask("a", "b", "echo", b"")


def test_stats_say_what_was_carried(world: World) -> None:
    world.ask("a", "b", "echo", random.Random(3).randbytes(50_000))
    world.until(lambda: world.hosts["a"].net.stats()["hosts"]["b"].get("rtt_s") is not None)
    found = world.hosts["a"].net.stats()
    assert found["refusals"] == {}
    assert found["hosts"]["b"]["bytes_out"] > 50_000
    assert found["hosts"]["b"]["bytes_in"] > 50_000
    assert found["hosts"]["b"]["links"] == 1


class Asker(Server):
    """Awaits another host's answer in a handler, as servers do."""

    name = "asker"

    @handles(bytes)
    async def ask(self, body: bytes) -> bytes:
        """Ask host b."""
        net: PeerHosts = self.host
        return await net.call("b", "echo", body, 5.0)


def test_a_server_awaits_an_answer_in_its_handler(world: World) -> None:
    world.loop.add(Asker, world.hosts["a"].net)
    assert world.loop.request("asker", b"awaited") == b"awaited"


def test_what_a_handler_refuses_ends_no_more_than_what_it_was_for(world: World) -> None:
    fresh = world.hosts["b"]
    fresh.told = Refusing()  # type: ignore[assignment]
    fresh.read = Refusing()  # type: ignore[assignment]
    world.hosts["a"].net.cast("b", "note", b"")
    writer = Writer(world.hosts["a"].net.open_stream("b", "bulk", b""), b"data")
    world.until(lambda: writer.ends)
    assert isinstance(writer.ends[0], UnknownKey)
    assert world.ask("a", "b", "echo", b"on") == b"on"


class Refusing(list[Any]):
    def append(self, _item: Any) -> None:
        raise UnknownKey("not here")


def test_casts_that_wait_in_vain_are_counted(world: World) -> None:
    for _ in range(3):
        world.hosts["a"].net.cast("nobody", "note", b"")
        assert world.hosts["a"].net.stats()["hosts"]["nobody"]["calls"] == 0
    world.until(lambda: world.hosts["a"].net.stats()["hosts"]["nobody"]["casts_dropped"] >= 1)
