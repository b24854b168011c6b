"""A port of this machine (loopback) that leads to a port of a running job, on whichever host that is.

One thread, that of ``run``. Each connection is a channel of its own. Bounds: ``CONNECTIONS_MAX`` at once, others wait
to be taken; of each, one read of either side waits here, and what a channel's window holds.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

from actorgrid.errors import ActorGridError, HostUnreachable, JobNotRunning, PortInUse, PortNotOpen
from actorgrid.job_outcome import FINAL_STATES
from actorgrid.transports.channel_frames import PIECE_BYTES, AskPorts, ChannelEnding, ConnectToPort

from .http import segment
from .job_channel import (
    UNSENT_BYTES_MAX,
    ChannelAddress,
    ChannelBegun,
    ChannelOutput,
    JobChannel,
    OutputEnd,
    channel_address,
)
from .relay import Relay

if TYPE_CHECKING:
    from .http import AdminHttp

LOOPBACK = "127.0.0.1"
CONNECTIONS_MAX = 48
"""Fewer than a job has channels, so that it can be come to in other ways as well."""
BACKLOG = 64
LOOK_S = 5.0
"""How often it is asked whether the job still runs, while nothing goes through."""
WAIT_LOOK_S = 0.5


class _Connection:
    """One connection from this machine, and its channel."""

    def __init__(self, local: socket.socket, channel: JobChannel) -> None:
        self.local = local
        self.channel = channel
        self.to_local = b""
        self.local_ended = False  # it writes no more
        self.job_ended = False  # the job writes no more
        self.is_over = False  # what is left goes to it, and that is all

    def wanted(self) -> dict[socket.socket | JobChannel, int]:
        """What to wait for."""
        local = channel = 0
        if not self.local_ended and self.channel.unsent < UNSENT_BYTES_MAX and not self.is_over:
            local |= selectors.EVENT_READ
        if self.to_local:
            local |= selectors.EVENT_WRITE
        elif not self.is_over:
            channel |= selectors.EVENT_READ
        if self.channel.unsent:
            channel |= selectors.EVENT_WRITE
        return {self.local: local, self.channel: channel}

    def from_local(self) -> None:
        """Pass on what our side has written."""
        try:
            data = self.local.recv(PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.channel.write(data)
        else:
            self.local_ended = True
            self.channel.end_input()

    def from_job(self) -> None:
        """Pass on what the job has written. Raises as ``JobChannel.events``."""
        for event in self.channel.events():
            match event:
                case ChannelOutput(_, data):
                    self.to_local += data
                case OutputEnd():
                    self.job_ended = True
                case ChannelEnding():
                    self.is_over = True
        self.flush()

    def flush(self) -> None:
        """Give our side what it takes."""
        try:
            while self.to_local:
                self.to_local = self.to_local[self.local.send(self.to_local) :]
        except BlockingIOError:
            return
        except OSError:
            self.to_local, self.is_over = b"", True  # it has gone
        if self.job_ended:
            with suppress(OSError):
                self.local.shutdown(socket.SHUT_WR)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return self.is_over and not self.to_local

    def close(self) -> None:
        """Close both sides."""
        self.local.close()
        self.channel.close()


class PortForward:
    """Leads *local_port* of this machine (0: any that is free; ``None``: of the same number) to *port* of a job.

    Listens when it is made. Raises PortInUse, and as ``channel_address``. *notice* is told what a person should know.
    """

    def __init__(
        self,
        http: AdminHttp,
        job_id: str,
        port: int,
        local_port: int | None = None,
        rank: int = 0,
        notice: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._http = http
        self._rank = rank
        self._notice = notice
        self._address: ChannelAddress | None = channel_address(http, job_id, rank)
        self.job_id = job_id
        self.port = port
        self._connections: set[_Connection] = set()
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._closed = False
        self._said = ""
        wanted = port if local_port is None else local_port
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind((LOOPBACK, wanted))
            self._listener.listen(BACKLOG)
        except OSError as error:
            self._listener.close()
            self._wake.close()
            self._woken.close()
            raise PortInUse(
                f"that port of this machine cannot be listened on: {error.strerror}",
                asked=f"{LOOPBACK}:{wanted}",
                hint=f"name another, or 0 for any: {port}:0",
            ) from error
        self._listener.setblocking(False)
        self._woken.setblocking(False)
        self.local_port: int = self._listener.getsockname()[1]
        self._relay = Relay(http)

    def check_open(self, wait_s: float = 0.0) -> None:
        """Look whether the job listens there, for *wait_s* again. Raises PortNotOpen, and as ``channel_address``."""
        until = monotonic() + wait_s
        while True:
            ports = self._ports()
            if self.port in ports:
                return
            left_s = until - monotonic()
            if left_s <= 0:
                raise PortNotOpen(
                    f"the job does not listen on port {self.port}",
                    asked=str(self.port),
                    found=f"it listens on {', '.join(map(str, ports))}" if ports else "it listens on none",
                    hint="say --wait 60s to wait until it does",
                )
            with suppress(TimeoutError):
                self._woken.settimeout(min(WAIT_LOOK_S, left_s))
                if self._woken.recv(1):
                    return  # closed meanwhile

    def _ports(self) -> list[int]:
        channel = JobChannel(self._relay, self._to_job(), AskPorts())
        try:
            with selectors.DefaultSelector() as waiting:
                waiting.register(channel, selectors.EVENT_READ)
                while channel.ending is None:
                    waiting.select()
                    for event in channel.events():
                        if isinstance(event, ChannelBegun):
                            return [int(port) for port in event.fields.get("ports", ())]
        finally:
            channel.close()
        return []

    def run(self) -> None:
        """Go on until ``close`` is called in another thread, or a signal handler, or the job ends.

        While the job waits for another attempt, or no host is reached, connections are closed as they come. Raises
        JobNotRunning when it has ended.
        """
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        look_at = monotonic() + LOOK_S
        while not self._closed:
            self._watch()
            for key, mask in self._selector.select(max(0.0, look_at - monotonic())):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.data, _Connection):
                    self._turn(key.data, key.fileobj, mask)
            if monotonic() >= look_at:
                look_at = monotonic() + LOOK_S
                self._look()

    def close(self) -> None:
        """Have ``run`` end; for any thread."""
        self._closed = True
        with suppress(OSError):
            self._wake.send(b"\0")

    def __enter__(self) -> PortForward:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in list(self._connections):
            self._drop(connection)
        self._selector.close()
        for each in (self._listener, self._wake, self._woken):
            each.close()
        self._relay.close()

    # -- inside

    def _to_job(self) -> ChannelAddress:
        if self._address is None:
            self._address = channel_address(self._http, self.job_id, self._rank)
        return self._address

    def _look(self) -> None:
        """See whether the job still runs: where to, is asked anew when another attempt of it does."""
        if self._connections:
            return
        self._address = None
        try:
            self._to_job()
        except JobNotRunning as error:
            self._wait_for_another(error)
        except HostUnreachable as error:
            self._say(str(error))

    def _wait_for_another(self, error: JobNotRunning) -> None:
        """Raise *error* again, unless another attempt of the job may come."""
        self._address = None
        try:
            state = self._http.get(f"/api/jobs/{segment(self.job_id)}")["state"]
        except HostUnreachable:
            state = ""
        if state in FINAL_STATES:
            raise error
        self._say(error.message)

    def _watch(self) -> None:
        wanted: dict[socket.socket | JobChannel, tuple[int, object]] = {}
        if len(self._connections) < CONNECTIONS_MAX:
            wanted[self._listener] = selectors.EVENT_READ, None
        for connection in self._connections:
            wanted |= {each: (mask, connection) for each, mask in connection.wanted().items() if mask}
        registered = {key.fileobj: key for key in self._selector.get_map().values()}
        for each in registered.keys() - wanted.keys() - {self._woken}:
            self._selector.unregister(each)
        for each, (mask, data) in wanted.items():
            key = registered.get(each)
            if key is None:
                self._selector.register(each, mask, data)
            elif key.events != mask:
                self._selector.modify(each, mask, data)

    def _accept(self) -> None:
        try:
            local, _ = self._listener.accept()
        except OSError:
            return
        try:
            local.setblocking(False)
            local.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            channel = JobChannel(self._relay, self._to_job(), ConnectToPort(self.port))
        except JobNotRunning as error:
            local.close()
            self._wait_for_another(error)
            return
        except (ActorGridError, OSError) as error:
            local.close()
            self._say(str(error))
            return
        self._connections.add(_Connection(local, channel))

    def _turn(self, connection: _Connection, which: object, mask: int) -> None:
        try:
            if which is connection.local:
                if mask & selectors.EVENT_READ:
                    connection.from_local()
                if mask & selectors.EVENT_WRITE:
                    connection.flush()
            else:
                if mask & selectors.EVENT_WRITE:
                    connection.channel.flush()
                if mask & selectors.EVENT_READ:
                    connection.from_job()
        except JobNotRunning:
            self._address = None  # another attempt may run by now
            self._drop(connection)
            return
        except ActorGridError as error:
            self._say(str(error))
            self._drop(connection)
            return
        if connection.is_done:
            self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        for each in (connection.local, connection.channel):
            with suppress(KeyError, ValueError):
                self._selector.unregister(each)
        connection.close()
        self._connections.discard(connection)

    def _say(self, text: str) -> None:
        """Tell the person, once for the same thing in turn."""
        if text != self._said:
            self._said = text
            self._notice(text)
