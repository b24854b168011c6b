"""The two ends of a benchmark of the model gateway: canned answers, and clients that ask without pause.

python -m tests.bench.gateway_load serve PORT
python -m tests.bench.gateway_load ask PORT SECONDS CONNECTIONS json|stream
python -m tests.bench.gateway_load pace PORT SECONDS RATE
python -m tests.bench.gateway_load hold PORT COUNT

``ask`` and ``pace`` print how many were answered, and the milliseconds of the median and of the 99th percentile;
``hold`` opens so many streams, says so, and keeps them until it is ended.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import cast

import httptools
import uvloop

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
    """Answers at once; a stream that asks for ``hold`` has one event and goes on for ever."""

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


async def hold(port: int, count: int) -> None:
    sent = request("hold")
    kept: list[asyncio.StreamWriter] = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        await reader.readuntil(b"\n\n\r\n")
        kept.append(writer)
    print("open", flush=True)
    await asyncio.Event().wait()


def main() -> None:
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    match sys.argv[1:]:
        case ["serve", port]:
            uvloop.run(serve(int(port)))
        case ["ask", port, seconds, connections, kind]:
            uvloop.run(ask(int(port), float(seconds), int(connections), kind))
        case ["pace", port, seconds, rate]:
            uvloop.run(pace(int(port), float(seconds), float(rate)))
        case ["hold", port, count]:
            uvloop.run(hold(int(port), int(count)))
        case other:
            raise SystemExit(f"what is {other}?")


if __name__ == "__main__":
    main()
