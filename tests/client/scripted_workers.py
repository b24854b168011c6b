"""A dispatcher whose leased workers say what a test tells them to."""

from __future__ import annotations

import pickle
import socket
from typing import Any, cast

from actorgrid.client.dispatcher import Dispatcher
from actorgrid.client.lanes import Lane, TaskCall
from actorgrid.client.lease_source import LeaseSource
from actorgrid.transports.frames import FrameDecoder
from actorgrid.transports.task_frames import TaskFrame, TaughtFunction, encode_success, parse_client_frame


class Leases:
    """Gives no lease by itself; remembers what came back."""

    def __init__(self) -> None:
        self.returned: list[str] = []
        self.workers: list[Worker] = []
        self.dispatcher = Dispatcher(cast(LeaseSource, self), None)

    def __enter__(self) -> Leases:
        return self

    def __exit__(self, *_: object) -> None:
        self.dispatcher.close()
        for made in self.workers:
            made.socket.close()

    def want(self, lane: Lane, first: bool) -> None:
        self.lane = lane

    def give_back(self, lease_id: str) -> None:
        self.returned.append(lease_id)

    def renews(self, call: TaskCall, body: bytes) -> bool:
        return False


class Worker:
    """The other end of a leased worker's socket."""

    def __init__(self, leases: Leases, name: str, index: int, takes_values: bool = True) -> None:
        ours, self.socket = socket.socketpair()
        leases.workers.append(self)
        self.socket.settimeout(60)
        self._decoder = FrameDecoder()
        self._frames: list[Any] = []
        can = True, False, True, takes_values
        leases.dispatcher.add(leases.lane, name, name, ours, FrameDecoder(), 0.0, (1, index), *can)

    def read(self) -> Any:
        while not self._frames:
            self._frames += [parse_client_frame(frame) for frame in self._decoder.feed(self.socket.recv(65536))]
        return self._frames.pop(0)

    def task(self) -> TaskFrame:
        while not isinstance(frame := self.read(), TaskFrame):
            assert isinstance(frame, TaughtFunction)
        return frame

    def succeed(self, *task_ids: int) -> None:
        self.socket.sendall(b"".join(encode_success(id, pickle.dumps(f"value of {id}")) for id in task_ids))
