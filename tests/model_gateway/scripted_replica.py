"""A replica that answers as it is told, with faults on demand: a real server on a socket, in a thread of its own.

A request's ``x-test`` header says how it is answered; without one, as a model would.
"""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import threading
from dataclasses import dataclass, field
from typing import Any

USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11, "prompt_tokens_details": {"cached_tokens": 4}}
BASE = {"id": "c", "created": 1, "model": "m"}
ANSWER = {
    **BASE, "object": "chat.completion", "usage": USAGE,
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "ab"}}],
}  # fmt: skip
TEXT_ANSWER = {
    **BASE, "object": "text_completion", "usage": USAGE,
    "choices": [{"index": 0, "finish_reason": "stop", "text": "ab"}],
}  # fmt: skip
VECTOR = [1.0, 2.0, 3.0]


def event(plain: Any) -> bytes:
    return b"data: " + json.dumps(plain).encode() + b"\n\n"


def delta(text: str | None, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}
    return event({**BASE, "object": "chat.completion.chunk", "choices": [choice]})


USAGE_EVENT = event({**BASE, "object": "chat.completion.chunk", "choices": [], "usage": USAGE})
DONE = b"data: [DONE]\n\n"
CHAT = [delta("a"), delta("b"), delta(None, "stop")]
STREAMS: dict[str, list[bytes]] = {
    "crlf": [part.replace(b"\n", b"\r\n") for part in [*CHAT, DONE]],
    "no-space": [part.replace(b"data: ", b"data:") for part in [*CHAT, DONE]],
    "comment": [CHAT[0], b": comment\n\n", *CHAT[1:], DONE],
    "two-lines": [
        b'data: {"id":"c","created":1,"model":"m","object":"chat.completion.chunk",\n'
        b'data: "choices":[{"index":0,"delta":{"content":"ab"},"finish_reason":null}]}\n\n',
        DONE,
    ],
    "no-done": CHAT,
    "error": [CHAT[0], event({"error": {"message": "engine died", "type": "server_error", "code": 500}})],
    # What clients take for a chunk, or for nothing, unless it is put into another form.
    "error-named": [CHAT[0], b'event: error\ndata: {"message":"engine died","code":500}\n\n'],
    "error-named-text": [CHAT[0], b"event:error\r\ndata:engine died\r\n\r\n"],
    "error-string": [CHAT[0], event({"error": "engine died"}), DONE],
    "error-field": [CHAT[0], b'error: {"message":"engine died","type":"server_error","code":500}\n\n'],
    "error-unended": [CHAT[0], b'event: error\ndata: {"detail":"engine died"}'],
}
ERRORS = [name for name in STREAMS if name.startswith("error")]
ITEM = {"id": "i", "type": "message", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": "hi", "annotations": []}]}  # fmt: skip
RESPONSE = {"id": "r", "object": "response", "created_at": 1, "model": "m", "output": [], "parallel_tool_calls": True,
            "tool_choice": "auto", "tools": []}  # fmt: skip
RESPONSE_USAGE = {
    "input_tokens": 5, "input_tokens_details": {"cached_tokens": 3},
    "output_tokens": 1, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 6,
}  # fmt: skip
PART = {"item_id": "i", "output_index": 0, "content_index": 0}
RESPONSE_EVENTS: list[tuple[str, dict[str, Any]]] = [
    ("response.created", {"response": RESPONSE}),
    ("response.in_progress", {"response": RESPONSE}),
    ("response.output_item.added", {"output_index": 0, "item": {**ITEM, "content": [], "status": "in_progress"}}),
    ("response.content_part.added", {**PART, "part": {"type": "output_text", "text": "", "annotations": []}}),
    ("response.output_text.delta", {**PART, "delta": "hi", "logprobs": []}),
    ("response.output_text.done", {**PART, "text": "hi", "logprobs": []}),
    ("response.content_part.done", {**PART, "part": ITEM["content"][0]}),  # type: ignore[index]
    ("response.output_item.done", {"output_index": 0, "item": ITEM}),
    ("response.completed",
     {"response": {**RESPONSE, "status": "completed", "output": [ITEM], "usage": RESPONSE_USAGE}}),
]  # fmt: skip


RESPONSE_ERROR = {"code": "server_error", "message": "engine died"}
RESPONSE_FAILURES: dict[str, tuple[str, dict[str, Any]]] = {
    "response-error": ("error", {**RESPONSE_ERROR, "param": None}),
    "response-failed": ("response.failed", {"response": {**RESPONSE, "status": "failed", "error": RESPONSE_ERROR}}),
}


def response_stream(name: str = "") -> list[bytes]:
    events = [*RESPONSE_EVENTS[:5], RESPONSE_FAILURES[name]] if name in RESPONSE_FAILURES else RESPONSE_EVENTS
    return [
        b"event: %s\ndata: %s\n\n" % (name.encode(), json.dumps({"type": name, "sequence_number": at, **more}).encode())
        for at, (name, more) in enumerate(events)
    ]


@dataclass
class SeenRequest:
    """A request as the replica got it, and when its connection broke off, if it did."""

    head: bytes
    body: bytes
    closed: threading.Event = field(default_factory=threading.Event)
    reached: threading.Event = field(default_factory=threading.Event)

    def header(self, name: str) -> str | None:
        for line in self.head.decode("latin-1").split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.lower() == name:
                return value.strip()
        return None

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class ScriptedReplica:
    """The server. *plan*: how requests without a header of their own are answered."""

    def __init__(self, plan: str = "") -> None:
        self.plan = plan
        self.more_headers = b""
        """Lines of the heads of whole answers, beside the usual ones."""
        self.seen: list[SeenRequest] = []
        self.arrived = threading.Condition()
        self.go_on = threading.Event()
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._run, name="scripted-replica", daemon=True)
        self._thread.start()
        assert self._started.wait(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**26))
        self.port = self._server.sockets[0].getsockname()[1]
        self._started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def stop(self) -> None:
        """Be killed: all connections are reset, and none is taken any more."""

        def end() -> None:
            self._server.close()
            for writer in self._writers:
                writer.transport.abort()
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.call_later(0.05, self._loop.stop)

        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(end)
            self._thread.join(10)

    def wait_for(self, count: int) -> SeenRequest:
        """Wait until so many requests came; the last of them."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.seen) >= count, 20), f"{len(self.seen)} of {count} requests"
            return self.seen[count - 1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        seen: SeenRequest | None = None
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                seen = SeenRequest(head, b"")
                seen.body = await reader.readexactly(int(seen.header("content-length") or 0))
                with self.arrived:
                    self.seen.append(seen)
                    self.arrived.notify_all()
                watch = asyncio.ensure_future(self._watch(reader, seen))
                try:
                    if not await self._answer(writer, seen, seen.header("x-test") or self.plan):
                        return
                finally:
                    watch.cancel()
                    seen.reached.set()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            if seen is not None:
                seen.closed.set()
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _watch(self, reader: asyncio.StreamReader, seen: SeenRequest) -> None:
        while not reader.at_eof() and reader.exception() is None:
            await asyncio.sleep(0.005)
        seen.closed.set()

    async def _gate(self, seen: SeenRequest) -> None:
        """Wait until the test lets it go on, or the connection is gone."""
        seen.reached.set()
        while not self.go_on.is_set() and not seen.closed.is_set():
            await asyncio.sleep(0.005)

    async def _answer(self, writer: asyncio.StreamWriter, seen: SeenRequest, plan: str) -> bool:
        """Answer; whether the connection goes on."""
        path = seen.head.split(b" ", 2)[1].decode()
        name, _, rest = plan.partition(":")
        if name == "status":
            status, _, text = rest.partition(":")
            return self._whole(writer, int(status), text.encode())
        if name == "wedge":
            await self._gate(seen)
            return False
        if name == "slow":
            await self._gate(seen)
        if name == "reset":
            return False
        if name == "garbage":
            writer.write(b"SMTP 220 hello\r\n\r\n")
            return False
        if name == "long-head":
            writer.write(b"HTTP/1.1 200 OK\r\nx: " + b"x" * 200_000 + b"\r\n\r\n")
            return False
        if name == "short":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{")
            return False
        if name == "extra":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx")
            return True
        if name == "until-close":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + json.dumps(ANSWER).encode())
            await writer.drain()
            return False
        body = json.loads(seen.body) if seen.body.startswith(b"{") else {}
        if isinstance(body, dict) and body.get("stream"):
            return await self._stream(writer, seen, path, body, name, rest)
        if path == "/v1/embeddings":
            base64_text = base64.b64encode(struct.pack("<3f", *VECTOR)).decode()
            value: Any = base64_text if name == "base64" else VECTOR
            rows = [{"object": "embedding", "index": 0, "embedding": value}]
            answer: Any = {
                "object": "list",
                "model": "m",
                "data": rows,
                "usage": {"prompt_tokens": 3, "total_tokens": 3},
            }
        elif path == "/v1/completions":
            answer = TEXT_ANSWER
        elif path == "/v1/responses":
            answer = {**RESPONSE, "status": "completed", "output": [ITEM], "usage": RESPONSE_USAGE}
        elif path.startswith("/v1/audio/speech"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: audio/mpeg\r\ncontent-length: 4\r\n\r\n\xff\xfb\x00\x01")
            return True
        elif path.startswith("/v1/audio"):
            answer = {"text": "spoken"}
        elif path.startswith("/v1/images"):
            answer = {"created": 1, "data": [{"b64_json": "aGk="}]}
        else:
            answer = ANSWER
        return self._whole(writer, 200, json.dumps(answer).encode())

    def _whole(self, writer: asyncio.StreamWriter, status: int, body: bytes) -> bool:
        kind = b"application/json" if body[:1] in (b"{", b"[") else b"text/html" if body[:1] == b"<" else b"text/plain"
        head = b"HTTP/1.1 %d X\r\ncontent-type: %s\r\ncontent-length: %d\r\nserver: x\r\n%s\r\n" % (
            status,
            kind,
            len(body),
            self.more_headers,
        )
        writer.write(head + body)
        return True

    async def _stream(
        self, writer: asyncio.StreamWriter, seen: SeenRequest, path: str, body: dict[str, Any], name: str, rest: str
    ) -> bool:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        parts = STREAMS.get(name)
        if parts is None and path == "/v1/responses":
            parts = response_stream(name)
        if parts is None:
            asked = (body.get("stream_options") or {}).get("include_usage")
            parts = [*CHAT, *([USAGE_EVENT] if asked else []), DONE]
        if name == "cut":
            parts = parts[:1]
        if name == "cut-in-event":
            parts = [parts[0], parts[1][:20]]
        if name == "many":
            parts = [delta("x" * 1000)] * int(rest) + [USAGE_EVENT, DONE]
        if name == "bytes":  # one byte in each chunk
            parts = [bytes([byte]) for part in parts for byte in part]
        for at, part in enumerate(parts):
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))
            await writer.drain()
            if name == "pause" and at == 0:
                await self._gate(seen)
                if seen.closed.is_set():
                    return False
        if name.startswith("cut"):
            await asyncio.sleep(0)
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True
