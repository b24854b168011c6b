"""A channel to a running job, from this side: a terminal, a command beside it, a connection to one of its ports.

Whoever uses one waits for it with ``select``: it is never waited for in here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from actorgrid.errors import (
    HostUnreachable,
    JobNotRunning,
    MalformedBody,
    PeerGone,
    PeerRefused,
    UnknownAllocation,
    error_from_dict,
)
from actorgrid.transports.channel_frames import (
    JOB_ENDED,
    TOO_SLOW,
    ChannelEnding,
    ChannelPurpose,
    encode_end,
    encode_input,
    encode_resize,
    encode_signal,
    parse_ending,
)
from actorgrid.transports.frames import FrameDecoder

from .http import segment

if TYPE_CHECKING:
    from actorgrid.transports.channel_frames import TerminalSize

    from .http import AdminHttp
    from .relay import Relay

READ_BYTES = 64 * 1024
UNSENT_BYTES_MAX = 64 * 1024
"""With more that waits to be sent, whoever has further input holds it back."""


class ChannelAddress(NamedTuple):
    """Where a running job is come to."""

    job_id: str
    attempt_id: str
    attempt: int
    secret: str
    has_terminal: bool


def channel_address(http: AdminHttp, job_id: str, rank: int = 0) -> ChannelAddress:
    """Where the running attempt of a job is come to.

    Raises UnknownJob, JobNotRunning, HostUnreachable, NotSupported.
    """
    path = f"/api/jobs/{segment(job_id)}/channel"
    found = http.request("POST", path, query={"rank": rank or None}, repeat=True)
    return ChannelAddress(
        found["job_id"], found["attempt_id"], int(found["attempt"]), found["secret"], bool(found["terminal"])
    )


class ChannelBegun(NamedTuple):
    """What was asked for has begun; with what the job's host says of it."""

    fields: dict[str, Any]


class ChannelOutput(NamedTuple):
    """Output came: of ``out`` or ``err``."""

    stream: str
    data: bytes


class OutputMissed(NamedTuple):
    """So many bytes of a terminal's output are not kept any more, and were not read in time."""

    size: int


class OutputEnd(NamedTuple):
    """Of a connection to a port: the job writes no more."""


ChannelEvent = ChannelBegun | ChannelOutput | OutputMissed | OutputEnd | ChannelEnding


class JobChannel:
    """One channel, to be closed. ``ending`` is how it has ended, once it has."""

    def __init__(self, relay: Relay, address: ChannelAddress, purpose: ChannelPurpose) -> None:
        self._address = address
        self._carried = relay.open_job(address.attempt_id, address.secret)
        self._socket = self._carried.sock
        self._socket.setblocking(False)
        self._decoder = FrameDecoder()
        self._unsent = bytearray(purpose.frame())
        self.ending: ChannelEnding | None = None
        self.flush()

    def fileno(self) -> int:
        """What to wait for: readable when ``events`` has some; writable when ``flush`` has to be called, too."""
        return self._socket.fileno()

    @property
    def unsent(self) -> int:
        """How many bytes wait for ``flush``."""
        return len(self._unsent)

    @property
    def is_away(self) -> bool:
        """Whether there is no connection just now: it is being made, or made anew."""
        return self._carried.is_away

    # -- to the job

    def write(self, data: bytes) -> None:
        """Send input."""
        self._send(encode_input(data))

    def end_input(self) -> None:
        """Send that no more input comes."""
        self._send(encode_end())

    def resize(self, size: TerminalSize) -> None:
        """Send the size of our terminal."""
        self._send(encode_resize(size))

    def signal(self, number: int) -> None:
        """Send a signal for the command's process group."""
        self._send(encode_signal(number))

    def _send(self, data: bytes) -> None:
        if self.ending is None:
            self._unsent += data
            self.flush()

    def flush(self) -> None:
        """Send what waits, as far as it is taken."""
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()  # it is over, which reading tells

    # -- from the job

    def events(self) -> Iterator[ChannelEvent]:
        """What has come, by one read. The last one is a ChannelEnding.

        Raises what the job's host has refused it with, JobNotRunning when the attempt is over (its end says how),
        PeerGone when the job's host has let go of us as we did not read, HostUnreachable when no host of the cluster
        could be reached for a minute.
        """
        if self.ending is not None:
            return
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
        for frame in self._decoder.feed(data):
            event = _event(frame)
            if isinstance(event, ChannelEnding):
                if event.why == JOB_ENDED:
                    raise self._job_ended()
                if event.why == TOO_SLOW:
                    raise PeerGone(
                        "the job's host has let go of us: what it sent was not taken for too long",
                        asked=self._address.job_id,
                        hint="the job goes on; what it writes is kept: actorgrid logs JOB",
                    )
                self.ending = event
            yield event

    def _lost(self) -> None:
        failure = self._carried.failure
        if isinstance(failure, (UnknownAllocation, PeerRefused)):
            raise self._job_ended() from failure
        if failure is not None:
            raise failure
        raise HostUnreachable("the channel to the job broke off", asked=self._address.job_id)

    def _job_ended(self) -> JobNotRunning:
        return JobNotRunning(
            "the job, or this attempt of it, has ended, and what was open to it with it",
            asked=self._address.job_id,
            found=f"attempt {self._address.attempt}",
            hint=f"actorgrid why {self._address.job_id}",
        )

    def close(self) -> None:
        """Leave: a command is hung up on, a terminal is detached from."""
        self._socket.close()


def _event(frame: list[Any]) -> ChannelEvent:
    match frame:
        case ["out" | "err" as stream, bytes(data)]:
            return ChannelOutput(stream, data)
        case ["begun", dict(fields)]:
            return ChannelBegun(fields)
        case ["missed", int(count)]:
            return OutputMissed(count)
        case ["end"]:
            return OutputEnd()
        case ["over", dict(fields)]:
            return parse_ending(fields)
        case ["failed", dict(record)]:
            raise error_from_dict(record)
    raise MalformedBody("the job's host says what is no frame of a channel", found=str(frame[0])[:40])
