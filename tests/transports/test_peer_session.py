"""A proven host that sends whatever frames it likes: the session stands it, and its bounds hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.errors import ActorGridError, MalformedMessage, PeerGone, UnknownKey
from actorgrid.transports.peer.frames import (
    Bye,
    Call,
    Cancel,
    Cast,
    Failure,
    Frame,
    Hello,
    PeerDecoder,
    Ping,
    Pong,
    Reply,
    Retire,
    StreamCredit,
    StreamData,
    StreamEnd,
    StreamOpen,
    StreamReset,
    encode_error,
)
from actorgrid.transports.peer.limits import PeerLimits, Refusal
from actorgrid.transports.peer.session import Called, PeerSession
from actorgrid.transports.peer.streams import StreamOpened, StreamReceived

LIMITS = replace(
    PeerLimits(), streams_max=3, served_max=4, served_bytes_max=2000, stream_window_bytes=3000, unsent_bytes_max=5000
)
IDS = st.integers(0, 8)
BODIES = st.binary(max_size=20) | st.integers(0, 1500).map(bytes)
ERRORS = st.binary(max_size=20) | st.just(encode_error(UnknownKey("no")))
FRAMES = st.one_of(
    st.just(Hello("actorgrid", 1, 1, "x", "control")),
    st.builds(Bye, st.sampled_from(["retired", "closing", "nonsense"]), st.just("")),
    st.just(Retire()),
    st.builds(Ping, IDS),
    st.builds(Pong, IDS),
    st.builds(Call, IDS, st.just("t"), BODIES),
    st.builds(Reply, IDS, BODIES),
    st.builds(Failure, IDS, ERRORS),
    st.builds(Cancel, IDS),
    st.builds(Cast, st.just("t"), BODIES),
    st.builds(StreamOpen, IDS, st.just("t"), BODIES, st.integers(0, 2**32), st.booleans()),
    st.builds(StreamData, IDS, BODIES),
    st.builds(StreamCredit, IDS, st.integers(0, 2**32)),
    st.builds(StreamEnd, IDS),
    st.builds(StreamReset, IDS, ERRORS),
)
DEEDS = st.sampled_from(
    ["call", "cast", "answer", "refuse", "open", "write", "consume", "end", "reset", "send", "tick"]
)


class Owner:
    """Does things with a session, as a host with work of its own would."""

    def __init__(self, dialled: bool) -> None:
        self.session = PeerSession(dialled, LIMITS)
        self.session.start("b", 0.0)
        self.asked: list[int] = []
        self.streams: list[int] = []
        self.unread: dict[int, int] = {}
        self.now_s = 0.0
        self.decoder = PeerDecoder()
        self.decoder.open_up()

    def drain(self) -> None:
        while self.session.events:
            event = self.session.events.popleft()
            match event:
                case Called(id=call_id):
                    self.asked.append(call_id)
                case StreamOpened(id=stream_id):
                    self.streams.append(stream_id)
                case StreamReceived(id=stream_id, data=data):
                    self.unread[stream_id] = self.unread.get(stream_id, 0) + len(data)

    def do(self, deed: str) -> None:
        session = self.session
        stream = self.streams[-1] if self.streams else 7
        match deed:
            case "call":
                session.call("t", b"body")
            case "cast":
                session.cast("t", bytes(100))
            case "answer" if self.asked:
                session.reply(self.asked.pop(), bytes(500))
            case "refuse" if self.asked:
                session.fail(self.asked.pop(), UnknownKey("no"))
            case "open":
                self.streams.append(session.open_stream("t", b""))
            case "write":
                session.write(stream, bytes(2000))
            case "consume":
                session.consumed(stream, self.unread.pop(stream, 0))
            case "end":
                session.end_stream(stream)
            case "reset":
                session.reset_stream(stream, UnknownKey("no"))
            case "send":
                while (data := session.next_bytes()) is not None:
                    self.decoder.feed(data)
                while self.decoder.next() is not None:
                    pass
            case "tick":
                self.now_s += 1.0
                session.tick(self.now_s)


@settings(max_examples=400)
@given(st.booleans(), st.lists(FRAMES | DEEDS, max_size=60))
def test_any_frames_end_in_a_named_error_or_go_on_within_the_bounds(dialled: bool, story: list[Frame | str]) -> None:
    owner = Owner(dialled)
    session = owner.session
    for part in story:
        if isinstance(part, str):
            try:
                owner.do(part)
            except ActorGridError:
                continue
        else:
            session.received(owner.now_s)
            try:
                session.take(part)
            except MalformedMessage as error:
                session.end(Refusal.MALFORMED, error)
        owner.drain()
        assert session.served_bytes <= LIMITS.served_bytes_max
        assert len(owner.asked) <= len(story)
        for unread in owner.unread.values():
            assert unread <= LIMITS.stream_window_bytes
        assert session.unsent_bytes <= 2 * LIMITS.unsent_bytes_max + 2**20 + 6 * LIMITS.stream_unsent_bytes
        if session.over is not None:
            break
    if session.over is not None:
        assert session.next_bytes() is None
        assert session.unsent_bytes == session.served_bytes == 0
        with pytest.raises(PeerGone):
            session.cast("t", b"")
