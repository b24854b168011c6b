"""A path to another host, measured for who asks: round trips, and bytes in a second. One at a time, and bounded.

What is measured is what objects go over: streams of the agents' link, streams over RDMA, connections for pieces. The
other host sends zeroes, so that neither disk nor store are in the figures; nothing is compressed on these paths.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from contextlib import suppress
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, TypedDict

from actorgrid.errors import ActorGridError, BadRequest, CallTimeout, NotFound, NotSupported, Overloaded, TaskCancelled
from actorgrid.supervisors.background import Background
from actorgrid.supervisors.runtime import Waiter
from actorgrid.supervisors.server import Server
from actorgrid.transports.bulk.connection import PiecesConnection
from actorgrid.transports.bulk.transfer import BulkFetch
from actorgrid.transports.paths import PathKind
from actorgrid.transports.peer.calls import NetLoop, Stream

from .bulk import BENCH_BYTES_MAX, Dial, bench_source
from .large_paths import LargePaths
from .object_relays import OpenStream
from .pieces import Fields, is_count, pack, unpack_fields
from .transfer_cost import QUESTION, ProcessorUse, TransferCost, answered, process_use, transfer_cost

if TYPE_CHECKING:
    from actorgrid.transports.rdma.streams import RdmaStreams

BENCH = "bench"
"""The target of a stream of which the other side is measured."""
TRIPS_MAX = 10_000
MESSAGE_BYTES = 64
CHUNK_BYTES = 256 * 2**10
TRIPS_S, BYTES_S, PAIR_S, COST_S = 5.0, 10.0, 3.0, 2.0
"""For the round trips, for the bytes, for a pair of RDMA to be made, and for the other end to say what it used: what
came until then is what is told."""
PAIR_LOOK_S = 0.02
SERVED_MAX, SERVED_S = 8, 30.0
"""Streams of other hosts that measure here at a time, and how long each may."""
PATHS = (PathKind.TLS, PathKind.TLS_STREAMS, PathKind.RDMA)


class HostPathFigures(TypedDict):
    """What was measured of a path from one host to another."""

    path: str
    round_trip_us: float
    """The median, of a message of 64 bytes and its echo (over several connections: of a piece of 64 bytes)."""
    round_trip_p99_us: float
    trips: int
    mb_per_s: float
    bytes: int
    unavailable: str
    """Why there is no such path; the figures are 0 then."""
    cost: TransferCost | None
    """Of the bytes; ``None`` where the other host does not say what it used."""


class BenchStreams:
    """The side that is measured: gives streams of other hosts their echo, or as many zeroes as they want."""

    def __init__(self, loop: NetLoop) -> None:
        self._loop = loop
        self._served: set[_Served] = set()

    def take(self, stream: Stream) -> None:
        """Serve a stream. Raises BadRequest, Overloaded."""
        fields = unpack_fields(stream.head)
        size = fields.get("bytes")
        if not is_count(size) or size > BENCH_BYTES_MAX:
            raise BadRequest("bytes is a number of bytes", asked=str(size)[:80], found=f"at most {BENCH_BYTES_MAX}")
        if len(self._served) >= SERVED_MAX:
            raise Overloaded("this host is measured by as many as may", asked="one more", found=str(SERVED_MAX))
        served = _Served(self._loop, stream, size, self._served.discard, fields.get("cost") is True)
        self._served.add(served)
        served.begin()


class _Served:
    """One stream that is served."""

    def __init__(
        self, loop: NetLoop, stream: Stream, size: int, on_over: Callable[[_Served], None], tells_cost: bool
    ) -> None:
        self._stream = stream
        self._tells_cost = tells_cost
        self._left = size
        self._echoes = not size
        self._on_over = on_over
        self._chunk = memoryview(bytes(CHUNK_BYTES))
        self._late = loop.after(SERVED_S, self._too_late)

    def begin(self) -> None:
        self._stream.attach(self._came, self._ended, self._send)
        self._send()

    def _send(self) -> None:
        while self._left:
            taken = self._stream.write(self._chunk[: self._left])
            if not taken:
                return  # we are told when there is room
            self._left -= taken
            if not self._left:
                self._stream.end()

    def _came(self, data: bytes) -> None:
        answer = process_use().packed() if self._tells_cost else data
        if not self._echoes or self._stream.write(answer) < len(answer):
            self._over()
            raise Overloaded("more came than is sent back", asked=f"{len(data)} bytes")
        self._stream.consumed(len(data))

    def _ended(self, error: ActorGridError | None) -> None:
        if error is None and self._echoes:
            self._stream.end()
        if error is not None or self._echoes or not self._left:
            self._over()

    def _too_late(self) -> None:
        self._stream.reset(CallTimeout("a stream that measures is open for too long", asked=f"{SERVED_S:g} s"))
        self._over()

    def _over(self) -> None:
        self._late.cancel()
        self._on_over(self)


class _Wire:
    """Our end of a stream, awaited; what waits after *within_s* is told so by ``False``."""

    def __init__(self, loop: NetLoop, stream: Stream, within_s: float) -> None:
        self._stream = stream
        self._came = 0
        self.kept: bytearray | None = None
        """What came, for who sets it."""
        self._news: Waiter | None = None
        self._error: ActorGridError | None = None
        self.late = False
        self._timer = loop.after(within_s, self._is_late)
        stream.attach(self._on_data, self._on_end, self._wake)

    async def send(self, data: bytes) -> bool:
        """Have all of *data* taken. Raises what ended the stream."""
        while data:
            taken = self._stream.write(data)
            data = data[taken:]
            if data and not await self._wait():
                return False
        return True

    async def receive(self, count: int) -> int:
        """How many bytes came: *count*, or fewer when it is late. Raises what ended the stream."""
        while self._came < count:
            if not await self._wait():
                break
        came = min(self._came, count)
        self._came -= came
        return came

    async def _wait(self) -> bool:
        if self._error is not None:
            raise self._error
        if not self.late:
            self._news = Waiter()
            await self._news
        return not self.late

    def close(self) -> None:
        """End it."""
        self._timer.cancel()
        self._stream.reset(TaskCancelled("it was measured"))

    def _wake(self) -> None:
        if self._news is not None:
            self._news.set(None)

    def _on_data(self, data: bytes) -> None:
        self._came += len(data)
        if self.kept is not None:
            self.kept += data
        self._stream.consumed(len(data))
        self._wake()

    def _on_end(self, error: ActorGridError | None) -> None:
        if error is not None:
            self._error = error
        self._wake()

    def _is_late(self) -> None:
        self.late = True
        self._wake()


class PathBench:
    """The side that measures. *open_tls*: a stream of the link. *dial*: a connection for pieces, made by a thread."""

    def __init__(
        self,
        server: Server,
        open_tls: OpenStream,
        rdma: Callable[[], RdmaStreams | None],
        dial: Dial,
        paths: LargePaths,
    ) -> None:
        self._server = server
        self._open_tls = open_tls
        self._rdma = rdma
        self._dial = dial
        self._paths = paths
        self._background = Background(server.runtime, "path bench")
        self._under_way = ""

    async def measure(self, fields: Fields) -> HostPathFigures:
        """Measure what *fields* want. Raises BadRequest, NotFound, Overloaded where one is under way, and why it
        failed."""
        host_id, kind, size, trips = _wanted(fields)
        if host_id == self._server.host.host_id:
            raise BadRequest(
                "a host has no path to itself", asked=host_id, hint="the paths of one machine: actorgrid bench net"
            )
        if not self._paths.is_member(host_id):
            raise NotFound(
                "no host of the cluster has that id", asked=host_id, hint="actorgrid hosts --json has the ids"
            )
        if self._under_way:
            raise Overloaded(
                "this host measures a path already",
                asked=f"{kind} to {host_id}",
                found=self._under_way,
                hint="it takes half a minute at most",
            )
        self._under_way = f"{kind} to {host_id}"
        try:
            return await self._measure(host_id, kind, size, trips)
        finally:
            self._under_way = ""

    async def _measure(self, host_id: str, kind: PathKind, size: int, trips: int) -> HostPathFigures:
        pieces = _Pieces(lambda: self._dial(host_id), size, trips)
        try:
            if kind == PathKind.TLS_STREAMS:
                times = await self._background.run(pieces.trips)
            else:
                times = await self._trips(host_id, kind, trips)
            there, here = await self._use_of(host_id), process_use()
            if kind == PathKind.TLS_STREAMS:
                came, took_s = await self._background.run(pieces.bring)
            else:
                came, took_s = await self._bytes(host_id, kind, size)
        except NotSupported as error:
            return _figures(kind, [], 0, 0.0, error.message, None)
        here_after, there_after = process_use(), await self._use_of(host_id)
        cost = None
        if there is not None and there_after is not None:
            cost = transfer_cost((here, here_after), (there, there_after), came)
        self._paths.measured(host_id, kind, came, took_s)
        return _figures(kind, times, came, took_s, "", cost)

    async def _use_of(self, host_id: str) -> ProcessorUse | None:
        """What the other end used until now; ``None`` where it does not say."""
        stream = self._open_tls(host_id, BENCH, pack({"bytes": 0, "cost": True}))
        wire = _Wire(self._server.runtime, stream, COST_S)
        wire.kept = bytearray()
        try:
            if await wire.send(QUESTION):
                await wire.receive(len(QUESTION))
            return answered(bytes(wire.kept))
        finally:
            wire.close()

    async def _trips(self, host_id: str, kind: PathKind, trips: int) -> list[float]:
        wire = _Wire(self._server.runtime, await self._open(host_id, kind, 0), TRIPS_S)
        times: list[float] = []
        message = bytes(MESSAGE_BYTES)
        try:
            for _ in range(trips + 1):  # the first opens the link and the stream
                began = perf_counter()
                if not await wire.send(message) or await wire.receive(MESSAGE_BYTES) < MESSAGE_BYTES:
                    break
                times.append(perf_counter() - began)
        finally:
            wire.close()
        if len(times) < 2:
            raise CallTimeout(f"{host_id} did not send a message back within {TRIPS_S:g} s over {kind}")
        return times[1:]

    async def _bytes(self, host_id: str, kind: PathKind, size: int) -> tuple[int, float]:
        began = perf_counter()
        wire = _Wire(self._server.runtime, await self._open(host_id, kind, size), BYTES_S)
        try:
            came = await wire.receive(size)
            return came, perf_counter() - began
        finally:
            wire.close()

    async def _open(self, host_id: str, kind: PathKind, size: int) -> Stream:
        head = pack({"bytes": size})
        if kind == PathKind.TLS:
            return self._open_tls(host_id, BENCH, head)
        rdma = self._rdma()
        if rdma is None:
            raise NotSupported("off on the host that measures: transports.rdma is false")
        until = self._server.runtime.monotonic() + PAIR_S
        while (stream := rdma.open_stream(host_id, BENCH, head)) is None:
            if self._server.runtime.monotonic() > until:
                unavailable, paths = rdma.status()
                why = next((path.reason for path in paths if path.host_id == host_id), "")
                raise NotSupported(unavailable or why or f"no pair with {host_id} within {PAIR_S:g} s")
            await self._server.sleep(PAIR_LOOK_S)
        return stream


class _Pieces:
    """Several connections, measured by a thread that may wait."""

    def __init__(self, dial: Callable[[], PiecesConnection], size: int, trips: int) -> None:
        self._dial, self._size, self._count = dial, size, trips

    def bring(self) -> tuple[int, float]:
        """The bytes and their time. Raises as ``dial``, and what the other side says."""
        with mmap.mmap(-1, self._size) as memory, memoryview(memory) as into:
            fetch = BulkFetch(self._dial, bench_source(self._size), into)
            began = perf_counter()
            with suppress(TaskCancelled):  # it is late: what came until now is told
                fetch.run(BYTES_S)
            return self._size - sum(part.size for part in fetch.plan.missing), perf_counter() - began

    def trips(self) -> list[float]:
        """The round trips. Raises as ``bring``."""
        connection = self._dial()
        times: list[float] = []
        try:
            until, into = perf_counter() + TRIPS_S, memoryview(bytearray(MESSAGE_BYTES))
            source = bench_source(MESSAGE_BYTES)
            for _ in range(self._count + 1):
                began = perf_counter()
                if began > until:
                    break
                connection.send_frame(["get", source, 0, MESSAGE_BYTES])
                if connection.receive_frame()[0] != "piece":
                    raise NotSupported("the other host is of a version that does not let itself be measured")
                connection.receive_into(into)
                times.append(perf_counter() - began)
        finally:
            connection.close()
        return times[1:] or times


def _figures(
    kind: PathKind, times: list[float], came: int, took_s: float, unavailable: str, cost: TransferCost | None
) -> HostPathFigures:
    times = sorted(times)
    return {
        "path": str(kind),
        "round_trip_us": round(median(times) * 1e6, 1) if times else 0.0,
        "round_trip_p99_us": round(times[int(0.99 * len(times))] * 1e6, 1) if times else 0.0,
        "trips": len(times),
        "mb_per_s": round(came / took_s / 1e6, 1) if took_s else 0.0,
        "bytes": came,
        "unavailable": unavailable[:500],
        "cost": cost,
    }


def _wanted(fields: Fields) -> tuple[str, PathKind, int, int]:
    """What is to be measured. Raises BadRequest."""
    match fields:
        case {"host_id": str(host_id), "path": str(path), "bytes": int(size), "trips": int(trips)} if (
            path in PATHS and 0 < size <= BENCH_BYTES_MAX and 0 < trips <= TRIPS_MAX and len(host_id) <= 128
        ):
            return host_id, PathKind(path), size, trips
    raise BadRequest(
        "not a path that can be measured",
        asked=str(fields)[:200],
        found=f"path: {', '.join(PATHS)}; bytes: 1 to {BENCH_BYTES_MAX}; trips: 1 to {TRIPS_MAX}",
    )
