"""What the paths between two processes of this host do here: round trips, and bytes in a second."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from statistics import median
from time import perf_counter
from typing import NamedTuple

from actorgrid.errors import ActorGridError

from .paths import Buffer, MessagePath, PathKind
from .shared_memory.path import SharedMemoryPath
from .shared_memory.segment import offer, take, unavailable
from .unix.socket_path import SocketPath

LocalPath = SocketPath | SharedMemoryPath
MESSAGE_BYTES, LARGE_BYTES = 64, 2**20
TRIPS = 2000
LARGE_MESSAGES = 512
LARGE_RING_BYTES = 16 * 2**20
"""So many messages of 1 MiB are on their way before one side waits for the other to have its turn."""


class PathFigures(NamedTuple):
    """What was measured of one path."""

    path: str
    round_trip_us: float
    """The median, of a message of 64 bytes and its echo."""
    round_trip_p99_us: float
    mb_per_s: float
    """Of messages of 1 MiB, one after the other."""
    unavailable: str = ""
    """Why there is no such path; the figures are 0 then."""


def measure_local_paths(trips: int = TRIPS, large_messages: int = LARGE_MESSAGES) -> list[PathFigures]:
    """Measure each path between this process and a child of it, one after the other. Call it with one thread."""
    found = [_measured(PathKind.UNIX, SocketPath, SocketPath, trips, large_messages)]
    why = unavailable()
    if why:
        return [*found, PathFigures(str(PathKind.SHARED_MEMORY), 0.0, 0.0, 0.0, why)]
    return [*found, _measured(PathKind.SHARED_MEMORY, _offering, _taking, trips, large_messages)]


def _offering(end: socket.socket) -> LocalPath:
    return SharedMemoryPath(offer(end, LARGE_RING_BYTES), end)


def _taking(end: socket.socket) -> LocalPath:
    return SharedMemoryPath(take(end), end)


def _measured(
    kind: PathKind,
    ours: Callable[[socket.socket], LocalPath],
    theirs: Callable[[socket.socket], LocalPath],
    trips: int,
    large_messages: int,
) -> PathFigures:
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        here.close()
        _echo_and_leave(theirs, there)
    there.close()
    try:
        path = ours(here)
        message, times = bytes(MESSAGE_BYTES), []
        for _ in range(trips):
            began = perf_counter()
            path.send(message)
            path.receive()
            times.append(perf_counter() - began)
        large = os.urandom(LARGE_BYTES)  # pages of its own: those of bytes(n) are all the one page of zeros
        began = perf_counter()
        for each in (*[large] * large_messages, b"echo"):
            while not _takes(path, each):
                path.receive(0.001)
        path.receive()
        took_s = perf_counter() - began
        path.close()
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    times.sort()
    rate = large_messages * LARGE_BYTES / took_s / 1e6
    return PathFigures(str(kind), median(times) * 1e6, times[int(0.99 * len(times))] * 1e6, rate)


def _takes(path: MessagePath, message: Buffer) -> bool:
    return path.send(message)


def _echo_and_leave(make: Callable[[socket.socket], LocalPath], end: socket.socket) -> None:
    """In the child: answer small messages, and swallow large ones, until the other side is gone."""
    try:
        path = make(end)
        while True:
            message = path.receive()
            if message is not None and len(message) <= MESSAGE_BYTES:
                path.send(message)
    except ActorGridError:
        os._exit(0)
    finally:
        os._exit(1)
