"""The two ends of a benchmark of the model gateway: canned answers, and clients that ask without pause.

python -m tests.bench.gateway_load serve PORT
python -m tests.bench.gateway_load ask PORT SECONDS CONNECTIONS json|stream
python -m tests.bench.gateway_load pace PORT SECONDS RATE
python -m tests.bench.gateway_load pairs PORT DIRECT_PORT SECONDS RATE
python -m tests.bench.gateway_load hold PORT COUNT

``ask`` and ``pace`` print how many were answered, and the milliseconds of the median and of the 99th percentile;
``pairs`` prints what ``PairedLatencies`` has, as JSON; ``hold`` opens so many streams, says so, and keeps them until it
is told a line: then it has the model end them, reads each to its end, and says how many were whole.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import ClassVar, NamedTuple, cast

import httptools
import uvloop

from actorgrid.actors.model_gateway.process_spec import allow_descriptors

DESCRIPTORS = 16_384
WORDS = "word " * 100
ANSWER = json.dumps(
    {
        "id": "c", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello " * 40}}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 40, "total_tokens": 49},
    }
).encode()  # fmt: skip
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(ANSWER), ANSWER)
EVENT = b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"hello "}}]}\n\n'
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)
END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
EVENTS = 20


class CannedModel(asyncio.Protocol):
    """Answers at once; a stream that asks for ``hold`` has one event, and the others when somebody asks for
    ``release``."""

    held: ClassVar[list[asyncio.Transport]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        body, self._body = self._body, b""
        if b'"hold"' in body:
            self._transport.write(STREAM_HEAD + CHUNK)
            self.held.append(self._transport)
        elif b'"release"' in body:
            for transport in self.held:
                transport.write(CHUNK * (EVENTS - 1) + END)
            self.held.clear()
            self._transport.write(STREAM_HEAD + END)
        elif b'"stream": true' in body:
            self._transport.write(STREAM_HEAD)
            for _ in range(EVENTS):  # one by one, as a model gives them
                self._transport.write(CHUNK)
            self._transport.write(END)
        else:
            self._transport.write(WHOLE)


def request(kind: str) -> bytes:
    plain = {"model": "m", "messages": [{"role": "user", "content": WORDS}]}
    if kind != "json":
        plain |= {"stream": True, "user": kind}
    body = json.dumps(plain).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(CannedModel, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


async def ask(port: int, seconds: float, connections: int, kind: str) -> None:
    sent, took = request(kind), list[float]()
    until = time.perf_counter() + seconds

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (began := time.perf_counter()) < until:
            writer.write(sent)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 "), head
            if kind == "json":
                length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
                await reader.readexactly(length)
            else:
                await reader.readuntil(b"0\r\n\r\n")
            took.append(time.perf_counter() - began)
        writer.close()

    await asyncio.gather(*(one() for _ in range(connections)))
    took.sort()
    print(len(took), took[len(took) // 2] * 1e3, took[int(len(took) * 0.99)] * 1e3, flush=True)


async def pace(port: int, seconds: float, rate: float) -> None:
    """Ask so often a second, however long answers take: 64 connections, and what comes late is waited for longer."""
    sent, took = request("json"), list[float]()
    began = time.perf_counter()
    numbers = iter(range(int(seconds * rate)))

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in numbers:
            due = began + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            writer.write(sent)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 "), head
            await reader.readexactly(int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]))
            took.append(time.perf_counter() - due)
        writer.close()

    await asyncio.gather(*(one() for _ in range(64)))
    took.sort()
    print(len(took), took[len(took) // 2] * 1e3, took[int(len(took) * 0.99)] * 1e3, flush=True)


class PairedLatencies(NamedTuple):
    """Of the same request, in milliseconds: asked of the gateway, and twice of the replica itself, in turn.

    What the gateway adds to a request is its time less that of the replica's first answer beside it; ``noise`` is the
    same between the replica's two, which the machine adds to both alike.
    """

    count: int
    gateway_p50_ms: float
    gateway_p99_ms: float
    direct_p50_ms: float
    direct_p99_ms: float
    added_p50_ms: float
    noise_p50_ms: float
    noise_p99_ms: float
    """Between the replica's two 99th percentiles."""


class AskedConnection(asyncio.Protocol):
    """One connection that is asked one thing at a time; how long it took is given to who waits."""

    def __init__(self, idle: deque[AskedConnection]) -> None:
        self._idle = idle
        self._began = 0.0
        self._got = 0
        self._whole = 0
        self._told: Callable[[float], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._idle.append(self)

    def ask(self, sent: bytes, told: Callable[[float], None]) -> None:
        self._told, self._got, self._whole = told, 0, 0
        self._began = time.perf_counter()
        self._transport.write(sent)

    def data_received(self, data: bytes) -> None:
        if not self._whole:  # a head comes in one piece on loopback
            assert data.startswith(b"HTTP/1.1 200 "), data
            head, end, _ = data.partition(b"\r\n\r\n")
            assert end, data
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            self._whole = len(head) + 4 + length
        self._got += len(data)
        if self._got == self._whole and self._told is not None:
            told, self._told = self._told, None
            self._idle.append(self)
            told((time.perf_counter() - self._began) * 1e3)


async def pairs(port: int, direct: int, seconds: float, rate: float) -> PairedLatencies:
    """Ask the gateway so often a second, and the replica twice as often, each for itself: none is sent together with
    another, and who comes first changes, so that whatever else the machine does falls on all alike."""
    sent = request("json")
    loop = asyncio.get_running_loop()
    idle = [deque[AskedConnection]() for _ in range(3)]
    for queue, at in zip(idle, (port, direct, direct), strict=True):
        for _ in range(64):
            await loop.create_connection(partial(AskedConnection, queue), "127.0.0.1", at)
    count = int(seconds * rate)
    took = [[0.0] * count for _ in idle]
    left, done = count * 3, asyncio.Event()

    def told(which: int, number: int, milliseconds: float) -> None:
        nonlocal left
        took[which][number] = milliseconds
        left -= 1
        if not left:
            done.set()

    began = time.perf_counter()
    for tick in range(count * 3):
        number, turn = divmod(tick, 3)
        which = (turn + number) % 3
        await asyncio.sleep(max(0.0, began + tick / (3 * rate) - time.perf_counter()))
        while not idle[which]:
            await asyncio.sleep(0.001)
        idle[which].popleft().ask(sent, partial(told, which, number))
    await done.wait()
    gateway, first, second = took
    return PairedLatencies(
        count,
        at_share(gateway, 0.5),
        at_share(gateway, 0.99),
        at_share(first, 0.5),
        at_share(first, 0.99),
        at_share([a - b for a, b in zip(gateway, first, strict=True)], 0.5),
        at_share([a - b for a, b in zip(second, first, strict=True)], 0.5),
        at_share(second, 0.99) - at_share(first, 0.99),
    )


def at_share(values: list[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * share))]


async def hold(port: int, count: int) -> None:
    sent = request("hold")
    kept: list[tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]] = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        kept.append((reader, writer, await reader.readuntil(b"\n\n\r\n")))
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    _, asking = await asyncio.open_connection("127.0.0.1", port)
    asking.write(request("release"))
    whole = 0
    for reader, writer, first in kept:
        text = first + await reader.readuntil(b"\r\n0\r\n\r\n")
        whole += text.count(b"data: {") == EVENTS and text.count(b"data: [DONE]\n\n") == 1
        writer.close()
    print(whole, flush=True)


def main() -> None:
    allow_descriptors(DESCRIPTORS)
    match sys.argv[1:]:
        case ["serve", port]:
            uvloop.run(serve(int(port)))
        case ["ask", port, seconds, connections, kind]:
            uvloop.run(ask(int(port), float(seconds), int(connections), kind))
        case ["pace", port, seconds, rate]:
            uvloop.run(pace(int(port), float(seconds), float(rate)))
        case ["pairs", port, direct, seconds, rate]:
            found = uvloop.run(pairs(int(port), int(direct), float(seconds), float(rate)))
            print(json.dumps(found._asdict()), flush=True)
        case ["hold", port, count]:
            uvloop.run(hold(int(port), int(count)))
        case other:
            raise SystemExit(f"what is {other}?")


if __name__ == "__main__":
    main()
