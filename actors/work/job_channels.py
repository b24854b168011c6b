"""The channels of an attempt: where people come to a running job, and what carries what they and it say.

A client, which the gateway of some host has let in, comes over one connection for each channel and proves the
channels' secret; the stream outlives the connection (transports/kept_stream.py). It lives in the loop of the shim,
whose duties do not wait for it: nothing here blocks, and a turn moves one read of each descriptor. A client that does
not read is not waited for by the job: of the job's own terminal it misses some (job_terminal.py), the pipes of a
command beside it fill up, and after ``STUCK_S`` it is let go.

Bounds: ``CHANNELS_MAX`` of a job, a window each way of each, ``STRANGERS_MAX`` connections that have not said whose
they are. A client that is away for ``AWAY_S`` has left.
"""

from __future__ import annotations

import hashlib
import hmac
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

from actorgrid.errors import ActorGridError, MalformedBody, Overloaded, PeerGone, PeerRefused, StorageError
from actorgrid.transports.channel_frames import (
    FRAME_BYTES_MAX,
    JOB_ENDED,
    PIECE_BYTES,
    TOO_SLOW,
    WINDOW_BYTES,
    ChannelEnding,
    ChannelPurpose,
    ClientFrame,
    parse_client_frame,
    parse_purpose,
)
from actorgrid.transports.frames import HEADER_BYTES, FrameDecoder, encode_frame
from actorgrid.transports.kept_stream import (
    FIRST_FRAME_BYTES,
    Keep,
    KeptStream,
    encode_keep_refused,
    encode_kept,
    parse_keep,
    take_first_frame,
)

CHANNELS_MAX = 64
STRANGERS_MAX = 16
AWAY_S = 60.0
"""As long as a client goes on trying to come back (``relay.AWAY_MAX_S``)."""
STUCK_S = 60.0
"""A client that has not taken anything for so long, while something waits for it, is let go."""
LAST_WORDS_S = 0.25
"""Given to clients to take the last words of a job: the rest of its output is in its files."""
RESERVE_BYTES = 8 * 1024
"""Of the window, kept free for the last words."""
READ_BYTES = 64 * 1024
ERROR_TEXT_MAX = 500


def channel_path(control_path: str) -> str:
    """Where the channels of a shim are come to, by the path of its control socket: beside it, and as short."""
    folder, slash, name = control_path.rpartition("/")
    return f"{folder}{slash}c{name[1:]}"


def channel_secret(token: str) -> str:
    """What clients of an attempt's channels prove, by the token of its shim, which they must not know."""
    return hmac.new(token.encode(), b"channels", hashlib.sha256).hexdigest()[:32]


class ChannelEnd(Protocol):
    """What a channel leads to, in the shim."""

    def take(self, frame: ClientFrame) -> bool:
        """Take a frame of the client; ``False``: not now, as the one before is not dealt with."""
        ...

    def fill(self, channel: Channel) -> None:
        """Send what there is, as far as the channel has room."""
        ...

    def wanted(self, channel: Channel) -> dict[int, int]:
        """The descriptors to wait for, and what for (``POLLIN``, ``POLLOUT``)."""
        ...

    def ready(self, fd: int, channel: Channel) -> None:
        """Deal with one that is ready."""
        ...

    def leave(self) -> None:
        """Let go of everything: the client has left, or the job has ended."""
        ...


class Channel:
    """One client's channel: its stream, the present connection, and what it leads to once that was said."""

    def __init__(self, keep: Keep, now: float) -> None:
        self.keep = keep
        self.stream = KeptStream(WINDOW_BYTES)
        self.connection: socket.socket | None = None
        self.end: ChannelEnd | None = None
        self.is_over = False
        """Whether its last word is said: it stays until the client has it."""
        self.moved_at = now
        """When the client last came, took something, or began to be waited for."""
        self.away_since: float | None = None
        self._came = bytearray()  # of a frame that is not complete
        self._frames: deque[tuple[list[object], int]] = deque()

    @property
    def room(self) -> int:
        """How many bytes of output may be sent now, in one frame."""
        room = self.stream.room - RESERVE_BYTES
        return 0 if self.is_over else min(PIECE_BYTES, max(0, room))

    def say(self, frame: list[object]) -> None:
        """Send a frame, for which there has to be room."""
        self.put(encode_frame(frame))

    def put(self, data: bytes) -> None:
        """Send an encoded frame. Raises Overloaded where there is no room, for which one has to look before."""
        if self.is_over:
            return
        if self.stream.room < len(data):
            raise Overloaded("the client of a channel has not read for too long")
        had_room = self.room > 0
        self.stream.write(data)
        if had_room and not self.room:
            self.moved_at = time.monotonic()  # before, there was nothing that it could have taken

    def finish(self, last: bytes) -> None:
        """Send the last frame, and let go of what it led to."""
        if self.is_over:
            return
        if self.stream.room >= len(last):
            self.stream.write(last)
        self.is_over = True
        end, self.end = self.end, None
        if end is not None:
            end.leave()

    def fail(self, error: ActorGridError) -> None:
        """Finish with an error."""
        record = error.to_dict()
        texts = {name: str(record[name])[:ERROR_TEXT_MAX] for name in ("message", "asked", "found", "hint")}
        self.finish(encode_frame(["failed", {**record, **texts, "details": {}}]))

    # -- its connection

    def connect(self, connection: socket.socket, keep: Keep, came: bytes, now: float) -> None:
        """Go on over that connection, of which *came* was read. Raises MalformedBody."""
        connection.setblocking(False)
        self.stream.connect(keep.received)
        self._came.clear()  # what was not taken comes again
        self._frames.clear()
        self.disconnect()
        self.connection, self.away_since = connection, None
        self.stream.out[:0] = encode_kept(self.stream.received)
        self.moved_at = now
        if came:
            self._feed(came)

    def disconnect(self) -> None:
        """Let go of the present connection."""
        if self.connection is not None:
            self.connection.close()
            self.connection, self.away_since = None, time.monotonic()

    def read(self) -> None:
        """Read the connection once. Raises MalformedBody and what else says that the client broke protocol."""
        if self.connection is None:
            return
        try:
            data = self.connection.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._feed(data)
        else:
            self.disconnect()

    def _feed(self, data: bytes) -> None:
        before = self.stream.room
        carried = self.stream.feed(data)
        if self.stream.room > before:
            self.moved_at = time.monotonic()
        if self.is_over:
            self.stream.taken(len(carried))
            return
        self._came += carried
        while len(self._came) >= HEADER_BYTES:
            size = HEADER_BYTES + int.from_bytes(self._came[:HEADER_BYTES], "big")
            if size > FRAME_BYTES_MAX:
                raise MalformedBody("a channel's frame is too long", found=f"{size} bytes", asked=f"{FRAME_BYTES_MAX}")
            if len(self._came) < size:
                return
            (frame,) = FrameDecoder(FRAME_BYTES_MAX).feed(bytes(self._came[:size]))
            del self._came[:size]
            self._frames.append((frame, size))

    @property
    def first(self) -> list[object] | None:
        """The first of the frames that came and are not taken; it counts as taken whole, when it is dealt with."""
        return self._frames[0][0] if self._frames else None

    def is_stuck(self, now: float) -> bool:
        """Whether its client has not taken anything for too long, or has been away for it."""
        if self.away_since is not None:
            return now - self.away_since > AWAY_S
        return not self.is_over and self.room == 0 and now - self.moved_at > STUCK_S

    def taken(self) -> None:
        """Say that the first frame is dealt with, or is where no broken connection reaches it."""
        self.stream.taken(self._frames.popleft()[1])

    def flush(self) -> None:
        """Give the connection what it takes of it."""
        if self.connection is None or not self.stream.out:
            return
        try:
            del self.stream.out[: self.connection.send(self.stream.out)]
        except OSError:
            return  # it takes no more now, or has gone: its last words are still to be read


class _Stranger:
    """A connection that has not said whose it is."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.came = bytearray()


class Served(NamedTuple):
    """The attempt whose channels these are, just now."""

    attempt_id: str
    secret: str


class JobChannels:
    """All channels of one shim. *served*: whose they are; ``None``: nobody's. *lead*: what one leads to, by its
    purpose; raises what its client is told."""

    def __init__(
        self,
        listener: socket.socket,
        poll: select.poll,
        served: Callable[[], Served | None],
        lead: Callable[[ChannelPurpose, Channel], ChannelEnd | None],
    ) -> None:
        self._listener = listener
        self._poll = poll
        self._served = served
        self._lead = lead
        self._channels: dict[str, Channel] = {}
        self._strangers: dict[int, _Stranger] = {}
        self._masks: dict[int, int] = {}  # what is registered of channels
        self._owners: dict[int, Channel] = {}

    def __len__(self) -> int:
        return len(self._channels)

    def listen(self) -> None:
        """Have the poll tell of clients from here on."""
        self._listener.setblocking(False)
        self._poll.register(self._listener, select.POLLIN)

    def ready(self, fd: int) -> bool:
        """Deal with a ready descriptor; ``False`` when it is none of these."""
        if fd == self._listener.fileno():
            self._accept()
        elif fd in self._strangers:
            self._hear(fd)
        elif fd in self._owners:
            self._turn(self._owners[fd], fd)
        else:
            return False
        return True

    def go_on(self, channel: Channel) -> None:
        """Have a channel do what it can, as something changed for it."""
        self._turn(channel, -1)

    def wait_s(self) -> float:
        """How long the loop may sleep for these."""
        return 5.0 if self._channels else 60.0

    def look_at_clock(self, now: float) -> None:
        """Let go of clients that are away, or do not read."""
        for channel in list(self._channels.values()):
            if channel.is_stuck(now):
                if channel.away_since is None:
                    channel.finish(ChannelEnding(why=TOO_SLOW).frame())
                    channel.flush()
                self._forget(channel)

    def close_all(self) -> None:
        """End all of them, as the job has ended; their clients get a moment to take the last words."""
        for channel in list(self._channels.values()):
            channel.finish(ChannelEnding(why=JOB_ENDED).frame())
            channel.flush()
        until = time.monotonic() + LAST_WORDS_S
        while (left := until - time.monotonic()) > 0:
            waiting = [each for each in self._channels.values() if each.connection is not None and each.stream.out]
            if not waiting:
                break
            poll = select.poll()
            for channel in waiting:
                poll.register(channel.connection or 0, select.POLLOUT)
            poll.poll(max(1, int(left * 1000)))
            for channel in waiting:
                channel.flush()
        for channel in list(self._channels.values()):
            self._forget(channel)

    # -- who comes

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        while len(self._strangers) >= STRANGERS_MAX:
            self._dismiss(next(iter(self._strangers)))  # who said nothing yet gives way
        self._strangers[connection.fileno()] = _Stranger(connection)
        self._poll.register(connection, select.POLLIN)

    def _dismiss(self, fd: int) -> socket.socket:
        stranger = self._strangers.pop(fd)
        self._poll.unregister(fd)
        stranger.connection.close()
        return stranger.connection

    def _hear(self, fd: int) -> None:
        stranger = self._strangers[fd]
        try:
            data = stranger.connection.recv(FIRST_FRAME_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._dismiss(fd)
            return
        stranger.came += data
        try:
            frame = take_first_frame(stranger.came)
            if frame is None:
                return
            self._take_in(fd, stranger, frame)
        except ActorGridError as error:
            with suppress(OSError):  # it left: there is nobody to tell
                stranger.connection.send(encode_keep_refused(error))
            if fd in self._strangers:
                self._dismiss(fd)
            else:
                stranger.connection.close()

    def _take_in(self, fd: int, stranger: _Stranger, frame: list[object]) -> None:
        """Make a stranger a client. Raises PeerRefused, PeerGone, MalformedBody, Overloaded."""
        keep, served = parse_keep(frame), self._served()
        known = (
            served is not None
            and keep is not None
            and hmac.compare_digest(keep.secret.encode("utf-8", "replace"), served.secret.encode())
        )
        if keep is None or not known:
            raise PeerRefused("the job that this channel was to is not running here", found="it has ended")
        channel = self._channels.get(keep.stream_id)
        if channel is None:
            if keep.received:
                raise PeerGone(
                    "the channel has ended: its client was away, or did not read, for too long",
                    hint="come again; the job goes on, and what it writes is kept: actorgrid logs JOB",
                )
            self._make_room()
            channel = Channel(keep, time.monotonic())
        try:
            channel.connect(stranger.connection, keep, bytes(stranger.came), time.monotonic())
        except ActorGridError:
            if channel.connection is stranger.connection:
                channel.connection = None  # which is a stranger's still: told why, and closed as such
                self._forget(channel)
            raise
        del self._strangers[fd]
        self._poll.unregister(fd)
        self._channels[keep.stream_id] = channel
        self._turn(channel, -1)

    def _make_room(self) -> None:
        """Let one that is over give way to a new one. Raises Overloaded."""
        if len(self._channels) < CHANNELS_MAX:
            return
        done = next((each for each in self._channels.values() if each.is_over), None)
        if done is None:
            raise Overloaded(
                "a job has its maximum of channels",
                found=f"{CHANNELS_MAX}",
                hint="end some: attached terminals, commands of exec, connections to its ports",
            )
        self._forget(done)

    # -- one channel

    def _turn(self, channel: Channel, fd: int) -> None:
        try:
            if channel.connection is not None and fd == channel.connection.fileno():
                channel.read()
                fd = -1
        except ActorGridError:
            self._forget(channel)  # it broke protocol: nobody can say what it has
            return
        try:
            if channel.end is not None and fd >= 0:
                channel.end.ready(fd, channel)
            self._take_frames(channel)
            if channel.end is not None:
                channel.end.fill(channel)
        except ActorGridError as error:
            channel.fail(error)
        except OSError as error:
            channel.fail(StorageError(f"the host cannot go on with it: {error.strerror}"))
        channel.flush()
        if channel.stream.ended:
            self._forget(channel)
        else:
            self._watch(channel)

    def _take_frames(self, channel: Channel) -> None:
        while not channel.is_over and (frame := channel.first) is not None:
            if channel.end is None:
                channel.taken()
                channel.end = self._lead(parse_purpose(frame), channel)
            elif channel.end.take(parse_client_frame(frame)):
                channel.taken()
            else:
                break

    def _watch(self, channel: Channel) -> None:
        wanted: dict[int, int] = {}
        if channel.connection is not None:
            wanted[channel.connection.fileno()] = select.POLLIN | (select.POLLOUT if channel.stream.out else 0)
        if channel.end is not None:
            wanted |= {fd: mask for fd, mask in channel.end.wanted(channel).items() if mask}
        for fd in [fd for fd, owner in self._owners.items() if owner is channel and fd not in wanted]:
            self._unwatch(fd)
        for fd, mask in wanted.items():
            if self._masks.get(fd) != mask:
                # A number is given to another file when it is free: registering anew replaces what there was.
                self._poll.register(fd, mask)
            self._masks[fd], self._owners[fd] = mask, channel

    def _unwatch(self, fd: int) -> None:
        del self._owners[fd], self._masks[fd]
        with suppress(KeyError):
            self._poll.unregister(fd)

    def _forget(self, channel: Channel) -> None:
        end, channel.end = channel.end, None
        channel.is_over = True
        if end is not None:
            end.leave()
        channel.disconnect()
        for fd in [fd for fd, owner in self._owners.items() if owner is channel]:
            self._unwatch(fd)
        self._channels.pop(channel.keep.stream_id, None)
